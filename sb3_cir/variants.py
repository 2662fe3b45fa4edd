"""
Every variant of CIR in the paper, as data: name, the paper's label, and the constructor arguments that make it.

``CIR("MlpPolicy", env, **arguments("no_tanh"))`` builds one, ``python -m sb3_cir.variants`` lists all of them with the RL Zoo
command that trains each. Imports nothing heavy; all values are plain, so that a command line or a yaml can hold them.
"""

import argparse
import copy
import json
import shlex
from typing import Any, NamedTuple


class Variant(NamedTuple):
    """
    One of the paper's variants.

    :param label: What the paper calls it
    :param arguments: What to give CIR's constructor, beside its defaults
    """

    label: str
    arguments: dict[str, Any]


def _critic(label: str) -> Variant:
    return Variant(label, dict(policy_kwargs=dict(critic_network=label)))


def _actor(label: str) -> Variant:
    return Variant(label, dict(policy_kwargs=dict(actor_network=label)))


def _net_arch(label: str, pi: list[int], qf: list[int]) -> Variant:
    return Variant(label, dict(policy_kwargs=dict(net_arch=dict(pi=pi, qf=qf))))


VARIANTS: dict[str, Variant] = {
    # Ablation Study (figure "ablation", left)
    "no_tanh": _critic("NoTanh"),
    "no_ln": _critic("NoLN"),
    "cdq": Variant("CDQ", dict(convex_coef=1.0)),
    "utd": Variant("UTD", dict(gradient_steps=2, sample_reuse=1)),
    # Ablation Study (figure "ablation", right)
    "sigmoid": _critic("Sigmoid"),
    "softmax": _critic("Softmax"),
    "layer_norm": _critic("LayerNorm"),
    "no_sc": _critic("NoSC"),
    # More Ablation Study, first part
    "actor_ln": _actor("ActorLN"),
    "actor_cir": _actor("ActorCIR"),
    "res": _critic("Res"),
    "no_ent": Variant("NoEnt", dict(entropy_in_target=False)),
    # More Ablation Study, second part
    "no_input_ln": _critic("NoInputLN"),
    "no_avg_r_norm": _critic("NoAvgRNorm"),
    "no_input_norm": _critic("NoInputNorm"),
    "max_r_norm": _critic("MaxRNorm"),
    "all_avg_r_norm": _critic("AllAvgRNorm"),
    "ortho_init": _critic("Orthoini"),
    # The paper gives no value: this is SimBa's, and PyTorch's default for AdamW.
    "wd": Variant("WD", dict(policy_kwargs=dict(critic_weight_decay=0.01))),
    "avg_q": Variant("AvgQ", dict(convex_coef=0.5)),
    # Parameter study on AvgRNorm
    **{f"c_{c}": Variant(f"c={c}", dict(policy_kwargs=dict(avg_r_norm_coef=c))) for c in (0.01, 0.2, 0.5, 1.0)},
    # Scaling results: the critic's depth, the width of critic and actor, the SMR ratio
    **{f"depth_{depth}": _net_arch(f"L={depth}", [512, 512], [512] * depth) for depth in (1, 3)},
    **{f"width_{width}": _net_arch(f"width={width}", [width] * 2, [width] * 2) for width in (128, 256, 1024)},
    **{f"m_{m}": Variant(f"M={m}", dict(sample_reuse=m)) for m in (4, 6, 8, 10)},
    # What the paper's text says where the authors' code does otherwise; these labels are ours
    "ln_per_place": _critic("LNPerPlace"),
    "paper_up": _critic("PaperUp"),
}

# RL Zoo's name (--algo) of each method that the paper compares on DMC, and the paper's label.
METHODS: dict[str, str] = {
    "cir": "CIR",
    "sac": "SAC",
    "sac_smr": "SAC of CIR's authors",
    "sac_tanh": "SAC+Tanh",
    "sac_tanh_norm": "SAC+Tanh+Norm",
    "simba": "SimBa (UTD)",
    "simba_smr": "SimBa (SMR)",
}


def arguments(name: str) -> dict[str, Any]:
    """
    :param name: A name of :data:`VARIANTS`
    :return: Arguments for CIR's constructor, to keep and change
    :raises ValueError: If there is no variant of this name.
    """
    if name not in VARIANTS:
        raise ValueError(f"There is no variant {name!r}: it must be one of {', '.join(VARIANTS)}.")
    return copy.deepcopy(VARIANTS[name].arguments)


def as_zoo_params(arguments: dict[str, Any]) -> list[str]:
    """
    Constructor arguments as RL Zoo takes them on the command line. Beware that RL Zoo heeds only the last ``-params``, and
    that ``policy_kwargs`` given so replace those of the yaml.

    :param arguments: Plain values, by name
    :return: What follows ``-params``, one string for each argument, not quoted for a shell: ``["convex_coef:1.0"]``
    """
    return [f"{name}:{_source(value)}" for name, value in arguments.items()]


def zoo_params(name: str) -> list[str]:
    """
    :param name: A name of :data:`VARIANTS`
    :return: What makes it, as :func:`as_zoo_params` has it
    :raises ValueError: If there is no variant of this name.
    """
    return as_zoo_params(arguments(name))


def _source(value: Any) -> str:
    """Python source of a plain value with double quotes alone, which reads well between a shell's single quotes."""
    if isinstance(value, dict):
        return f"dict({','.join(f'{key}={_source(entry)}' for key, entry in value.items())})"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def zoo_command(algo: str, env_id: str, variant: str | None = None) -> list[str]:
    """
    :param algo: A name of :data:`METHODS`
    :param env_id: A Gymnasium id
    :param variant: A name of :data:`VARIANTS`, if ``algo`` is "cir"
    :return: The words of the command that trains it
    :raises ValueError: If there is no variant of this name.
    """
    command = ["python", "-m", "rl_zoo3.train", "--algo", algo, "--env", env_id]
    return command if variant is None else [*command, "-params", *zoo_params(variant)]


def main() -> None:
    """List all variants and methods: name, the paper's label, the command that trains it."""
    parser = argparse.ArgumentParser(prog="python -m sb3_cir.variants", description=main.__doc__)
    parser.add_argument("--env", default="dm_control/walker-walk-v0", help="the environment to train on")
    env_id = parser.parse_args().env
    print("NAME (for benchmarks run --methods)  the paper's label\n    RL Zoo's command\n")
    for name, variant in VARIANTS.items():
        print(f"cir:{name}  {variant.label}\n    {shlex.join(zoo_command('cir', env_id, name))}")
    for algo, label in METHODS.items():
        print(f"{algo}  {label}\n    {shlex.join(zoo_command(algo, env_id))}")


if __name__ == "__main__":
    main()
