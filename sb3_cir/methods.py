"""
Every method and every variant of CIR once, as data: its names, how RL Zoo trains it, and the arguments that make it.

A new method or variant is one entry here. RL Zoo, the suites, the tables, the figures and ``python -m sb3_cir.variants`` read
this file. It imports nothing heavy: a class is named, and loaded when it is asked for. All arguments are plain values, so that
a command line or a yaml can hold them.
"""

import copy
import importlib
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Method:
    """
    A method, or a variant of one.

    :param label: What tables and figures call it; the paper's name where the paper has it
    :param algo: RL Zoo's ``--algo``; empty for a method that is known from logs and from the paper's tables alone
    :param algorithm: Its class, as ``module:name``
    :param arguments: What the class gets beside its defaults
    :param study: The study of the paper that a variant belongs to
    :param headings: Other names for it in the paper's tables
    :param aliases: Other names for it in published logs
    :param published: A name for it in published logs that is another method's here
    :param hyperparams: Whose yaml RL Zoo takes, where it has none of its own
    :param search_space: Where ``-optimize`` looks: a name in ``zoo_search.SPACES``, or RL Zoo's own "sac"
    :param two_domains: Whether it learns from a source and a target domain
    :param action_repeat: Simulator steps for one of the agent, where it is not the paper's protocol that says so
    """

    label: str
    algo: str = ""
    algorithm: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    study: str = ""
    headings: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    published: str = ""
    hyperparams: str = ""
    search_space: str = "sac"
    two_domains: bool = False
    action_repeat: int | None = None


CIR = "sb3_cir.cir:CIR"


def _variant(study: str, label: str, *headings: str, **arguments: Any) -> Method:
    return Method(label, "cir", CIR, arguments, study, headings)


def _critic(study: str, label: str, *headings: str) -> Method:
    return _variant(study, label, *headings, policy_kwargs=dict(critic_network=label))


def _actor(study: str, label: str) -> Method:
    return _variant(study, label, policy_kwargs=dict(actor_network=label))


def _net_arch(study: str, label: str, pi: list[int], qf: list[int]) -> Method:
    return _variant(study, label, policy_kwargs=dict(net_arch=dict(pi=pi, qf=qf)))


METHODS: dict[str, Method] = {
    "cir": Method("CIR", "cir", CIR, headings=("CIR (ours)", "CIR (Tanh)", "CIR (SMR)"), search_space="cir"),
    # CIR for hard tasks: ours, no method of the paper
    "cir_simba": Method("CIR+SimBa", "cir_simba", "sb3_cir.cir_simba:CIRSimBa", hyperparams="cir", search_space="cir_simba"),
    # What the paper compares with. "simba_utd2" and "bro_utd2" are SimbaV2's names, "sac_simba" and "td_mpcv2" SimBa's.
    "sac": Method("SAC", "sac", "stable_baselines3:SAC"),
    "sac_smr": Method("SAC of CIR's authors", "sac_smr", "sb3_cir.smr:SMR"),
    "sac_tanh": Method("SAC+Tanh", "sac_tanh", "sb3_cir.baselines:SACTanh", hyperparams="sac_smr"),
    "sac_tanh_norm": Method("SAC+Tanh+Norm", "sac_tanh_norm", "sb3_cir.baselines:SACTanhNorm", hyperparams="sac_smr"),
    "simba": Method(
        "SimBa",
        "simba",
        "sb3_cir.baselines:SimBa",
        headings=("SimBa (UTD)",),
        aliases=("sac_simba", "simba_utd2"),
        search_space="simba",
    ),
    "simba_smr": Method("SimBa (SMR)", "simba_smr", "sb3_cir.baselines:SimBaSMR", hyperparams="simba", search_space="simba"),
    "bro": Method("BRO (UTD 10)", "bro", "sb3_cir.baselines:BRO", aliases=("bro_utd10",), search_space="simba"),
    # The paper's BRO ("we use BRO-Fast and SimBa with the update-to-data (UTD) ratio 2"), and the one of SimBa's logs.
    "bro_fast": Method(
        "BRO (fast)",
        "bro_fast",
        "sb3_cir.baselines:BROFast",
        headings=("BRO",),
        aliases=("bro_utd2",),
        published="bro",
        hyperparams="bro",
        search_space="simba",
    ),
    "td7": Method("TD7", "td7", "sb3_cir.baselines:TD7", search_space="td7"),
    # What a method is compared with today.
    "flash_sac": Method(
        "FlashSAC",
        "flash_sac",
        "sb3_cir.baselines:FlashSAC",
        aliases=("flashsac",),
        search_space="simba",
        action_repeat=1,
    ),
    "simba_v2": Method(
        "SimbaV2",
        "simba_v2",
        "sb3_cir.baselines:SimbaV2",
        aliases=("simbav2", "simbav2_utd2"),
        search_space="simba",
    ),
    "odrl_sac": Method("SAC (two domains)", "odrl_sac", "sb3_cir.baselines.two_domain_sac:TwoDomainSAC", two_domains=True),
    "darc": Method("DARC", "darc", "sb3_cir.baselines.darc:DARC", two_domains=True),
    "par": Method("PAR", "par", "sb3_cir.baselines.par:PAR", two_domains=True),
    # Known from logs and from the paper's tables.
    "tdmpc2": Method("TD-MPC2", aliases=("td_mpcv2", "td_mpc2")),
    "dreamerv3": Method("DreamerV3"),
    "drq": Method("DR.Q"),
    "fog": Method("FoG"),
    "mrq": Method("MR.Q"),
    "xqc": Method("XQC"),
    # Ablation Study (figure "ablation", left)
    "cir:no_tanh": _critic("ablation", "NoTanh"),
    "cir:no_ln": _critic("ablation", "NoLN"),
    "cir:cdq": _variant("ablation", "CDQ", convex_coef=1.0),
    "cir:utd": _variant("ablation", "UTD", gradient_steps=2, sample_reuse=1),
    # Ablation Study (figure "ablation", right)
    "cir:sigmoid": _critic("ablation_squash", "Sigmoid", "CIR (sigmoid)"),
    "cir:softmax": _critic("ablation_squash", "Softmax", "CIR (softmax)"),
    "cir:layer_norm": _critic("ablation_squash", "LayerNorm", "CIR (layernorm)"),
    "cir:no_sc": _critic("ablation_squash", "NoSC", "CIR (no SC)"),
    # More Ablation Study, first part
    "cir:actor_ln": _actor("ablation_actor", "ActorLN"),
    "cir:actor_cir": _actor("ablation_actor", "ActorCIR"),
    "cir:res": _critic("ablation_actor", "Res"),
    "cir:no_ent": _variant("ablation_actor", "NoEnt", entropy_in_target=False),
    # More Ablation Study, second part
    "cir:no_input_ln": _critic("ablation_input", "NoInputLN"),
    "cir:no_avg_r_norm": _critic("ablation_input", "NoAvgRNorm"),
    "cir:no_input_norm": _critic("ablation_input", "NoInputNorm"),
    "cir:max_r_norm": _critic("ablation_input", "MaxRNorm"),
    "cir:all_avg_r_norm": _critic("ablation_input", "AllAvgRNorm"),
    "cir:ortho_init": _critic("ablation_input", "Orthoini"),
    # The paper gives no value: this is SimBa's, and PyTorch's default for AdamW.
    "cir:wd": _variant("ablation_input", "WD", policy_kwargs=dict(critic_weight_decay=0.01)),
    "cir:avg_q": _variant("ablation_input", "AvgQ", convex_coef=0.5),
    # Parameter study on AvgRNorm
    **{f"cir:c_{c}": _variant("parameter_c", f"c={c}", policy_kwargs=dict(avg_r_norm_coef=c)) for c in (0.01, 0.2, 0.5, 1.0)},
    # Scaling results: the critic's depth, the width of critic and actor, the SMR ratio
    **{f"cir:depth_{depth}": _net_arch("scaling_depth", f"L={depth}", [512, 512], [512] * depth) for depth in (1, 3)},
    **{
        f"cir:width_{width}": _net_arch("scaling_width", f"width={width}", [width] * 2, [width] * 2)
        for width in (128, 256, 1024)
    },
    **{f"cir:m_{m}": _variant("scaling_smr", f"M={m}", sample_reuse=m) for m in (4, 6, 8, 10)},
    # What the paper's text says where the authors' code does otherwise; these labels are ours
    "cir:ln_per_place": _critic("text", "LNPerPlace"),
    "cir:paper_up": _critic("text", "PaperUp"),
    "cir:as_printed": _critic("text", "AsPrinted"),
}

# CIR itself is one value of each parameter that is studied: what it is called there, and how many values stand before it.
_CIR_AMONG = {
    "parameter_c": ("c=0.1", 1),
    "scaling_depth": ("L=2", 1),
    "scaling_width": ("width=512", 2),
    "scaling_smr": ("M=2", 0),
}


def study(name: str) -> dict[str, str]:
    """
    :param name: One of the studies that variants name
    :return: Names and labels of what it compares. CIR is among them: first in an ablation, in its place among the values of a
        parameter
    """
    members = [(key, method.label) for key, method in METHODS.items() if method.study == name]
    text, place = _CIR_AMONG.get(name, (METHODS["cir"].label, 0))
    members.insert(place, ("cir", text))
    return dict(members)


_LABELS = {name: method.label for name, method in METHODS.items()}
_OF_HEADING = {heading: name for name, method in METHODS.items() for heading in (method.label, *method.headings)}


def label(name: str) -> str:
    """
    :param name: A method's name in logs
    :return: Its name in tables and figures; an unknown one's own
    """
    return _LABELS.get(name, name)


def of_heading(heading: str) -> str:
    """
    :param heading: A heading of one of the paper's tables
    :return: The method's name in logs
    """
    return _OF_HEADING[heading]


def _plain_name(name: str) -> str:
    return name.lower().replace("-", "_")


# Labels of variants are too short to be known anywhere: another's "UTD" need not be CIR's.
_OF_ALIAS = {
    _plain_name(alias): name
    for name, method in METHODS.items()
    for alias in (name, *method.aliases, *([] if ":" in name else [method.label]))
}


_OF_PUBLISHED = {method.published: name for name, method in METHODS.items() if method.published}


def of_log(name: str, published: bool = False) -> str:
    """
    :param name: A method's name in a log
    :param published: Whether the log is other people's
    :return: Ours, whatever its case, hyphens and underscores; an unknown method keeps its own
    """
    plain = _plain_name(name)
    return (published and _OF_PUBLISHED.get(plain)) or _OF_ALIAS.get(plain, name)


def method(name: str) -> Method:
    """
    :param name: A name of :data:`METHODS`
    :return: The method
    :raises ValueError: If there is none of this name; the message has the nearest one.
    """
    if name not in METHODS:
        from sb3_cir.words import did_you_mean  # The package loads torch, and this file is read without it too.

        kind, known = ("variant", [key for key in METHODS if ":" in key]) if ":" in name else ("method", list(METHODS))
        raise ValueError(f"There is no {kind} {name!r}: {did_you_mean(name, known)}")
    return METHODS[name]


def arguments(name: str) -> dict[str, Any]:
    """
    :param name: A name of :data:`METHODS`
    :return: Arguments for its class, to keep and change
    :raises ValueError: If there is no method of this name.
    """
    return copy.deepcopy(method(name).arguments)


def algorithm(name: str) -> type:
    """
    :param name: A name of :data:`METHODS`
    :return: Its class, imported now
    :raises ValueError: If there is no method of this name, or if this package cannot train it.
    """
    module, _, attribute = method(name).algorithm.partition(":")
    if not module:
        raise ValueError(f"{label(name)} is known from logs alone: this package cannot train it.")
    found: type = getattr(importlib.import_module(module), attribute)
    return found


def ours() -> list[str]:
    """:return: Names of the algorithms that this package adds to RL Zoo"""
    return [name for name, each in METHODS.items() if name == each.algo and each.algorithm.startswith("sb3_cir.")]


def as_zoo_params(arguments: dict[str, Any]) -> list[str]:
    """
    Constructor arguments as RL Zoo takes them on the command line. Beware that RL Zoo heeds only the last ``-params``, and
    that ``policy_kwargs`` given so replace those of the yaml.

    :param arguments: Plain values, by name
    :return: What follows ``-params``, one string for each argument, not quoted for a shell: ``["convex_coef:1.0"]``
    """
    return [f"{name}:{_source(value)}" for name, value in arguments.items()]


def _source(value: Any) -> str:
    """Python source of a plain value with double quotes alone, which reads well between a shell's single quotes."""
    if isinstance(value, dict):
        return f"dict({','.join(f'{key}={_source(entry)}' for key, entry in value.items())})"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def zoo_command(name: str, env_id: str) -> list[str]:
    """
    :param name: A name of :data:`METHODS`
    :param env_id: A Gymnasium id
    :return: The words of the command that trains it
    :raises ValueError: If there is no method of this name.
    """
    found = method(name)
    command = ["python", "-m", "rl_zoo3.train", "--algo", found.algo, "--env", env_id]
    return [*command, "-params", *as_zoo_params(found.arguments)] if found.arguments else command
