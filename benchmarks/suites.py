"""
The paper's task sets, as data: five benchmarks, and the tasks of each ablation, parameter and scaling study.

Where the paper prints a table for a study, the tasks are that table's rows (``published/``); the others are lists from the
paper's appendices "Experimental Details", "More Ablation Study" and "More Scaling Results".
"""

import csv
from dataclasses import dataclass
from pathlib import Path

PUBLISHED = Path(__file__).parent / "published"
AGGREGATES = ("IQM", "Median", "Mean", "OG")

# Names in logs, and the paper's for them. A variant's name is "cir:" and the paper's label in lower case.
METHOD_LABELS = {
    "cir": "CIR",
    "simba": "SimBa",
    "simba_smr": "SimBa (SMR)",
    "bro": "BRO",
    "td7": "TD7",
    "sac": "SAC",
    "sac_tanh": "SAC+Tanh",
    "sac_tanh_norm": "SAC+Tanh+Norm",
    "tdmpc2": "TD-MPC2",
    "dreamerv3": "DreamerV3",
    "darc": "DARC",
    "par": "PAR",
}
# Other headings of the paper's tables for the same things.
_HEADINGS = {
    "CIR (ours)": "cir",
    "CIR (Tanh)": "cir",
    "CIR (SMR)": "cir",
    "CIR (sigmoid)": "cir:sigmoid",
    "CIR (softmax)": "cir:softmax",
    "CIR (layernorm)": "cir:layernorm",
    "CIR (no SC)": "cir:nosc",
    "SimBa (UTD)": "simba",
} | {label: name for name, label in METHOD_LABELS.items()}


@dataclass(frozen=True)
class Task:
    """
    One task by the paper's protocol (appendix "Environment Details").

    :param name: Its name in logs
    :param env_id: Its Gymnasium id
    :param env_steps: The paper's training steps, in steps of the simulator
    :param action_repeat: Steps of the simulator for one of the agent
    :param eval_every: Steps of the simulator between evaluations
    :param zero: Return that scores 0
    :param one: Return that scores ``scale``
    :param scale: Size of the score: returns of DMC and of HumanoidBench are scores out of 1000, ODRL's out of 100
    """

    name: str
    env_id: str
    env_steps: int
    action_repeat: int = 2
    eval_every: int = 5_000
    zero: float = 0.0
    one: float = 1000.0
    scale: float = 1000.0

    @property
    def hard(self) -> bool:
        """Whether it is one of the DMC tasks that the paper calls hard."""
        return self.env_id.startswith("dm_control/") and self.env_steps > 500_000

    def score(self, value: float) -> float:
        """
        :param value: Return of an episode
        :return: The paper's normalised return
        """
        return (value - self.zero) / (self.one - self.zero) * self.scale


@dataclass(frozen=True)
class Suite:
    """
    :param name: What ``--suite`` takes
    :param title: For headings
    :param tasks: Its tasks
    :param methods: Those that the paper compares on it and this project can train
    :param published: Name of the paper's table in ``published/``, if it prints one
    :param comparable: Whether scores of its tasks have one scale, so that they can be aggregated
    """

    name: str
    title: str
    tasks: tuple[Task, ...]
    methods: tuple[str, ...]
    published: str | None = None
    comparable: bool = True


def label(method: str) -> str:
    """
    :param method: Name in logs
    :return: Name in tables and figures
    """
    if method in METHOD_LABELS:
        return METHOD_LABELS[method]
    return _VARIANT_LABELS.get(method, method.removeprefix("cir:"))


def published(table: str) -> list[dict[str, str]]:
    """
    :param table: Name of a table in ``published/``
    :return: Its entries: ``row`` (task or aggregate), ``column`` (heading), ``mean``, ``std`` (empty where not printed)
    """
    with open(PUBLISHED / f"{table}.csv", newline="") as file:
        return list(csv.DictReader(file))


def method_of_heading(heading: str) -> str:
    """
    :param heading: A heading of one of the paper's tables
    :return: The method's name in logs
    """
    return _HEADINGS.get(heading, f"cir:{heading.lower()}")


def task(name: str) -> Task:
    """
    :param name: A task's name in logs
    :return: The task
    :raises ValueError: If the paper has no such task.
    """
    if name not in _TASKS:
        raise ValueError(f"There is no task {name!r} in the paper's suites.")
    return _TASKS[name]


def suite(name: str) -> Suite:
    """
    :param name: A suite's name
    :return: The suite
    :raises ValueError: If there is no such suite; the message lists them.
    """
    if name not in SUITES:
        raise ValueError(f"There is no suite {name!r}. There are: {', '.join(SUITES)}.")
    return SUITES[name]


def _rows(table: str) -> tuple[str, ...]:
    rows = dict.fromkeys(entry["row"] for entry in published(table))
    return tuple(row for row in rows if row not in (*AGGREGATES, "Average Return"))


def _numbers(table: str, column: str) -> dict[str, float]:
    return {entry["row"]: float(entry["mean"]) for entry in published(table) if entry["column"] == column}


def _all_tasks() -> dict[str, Task]:
    tasks = [Task(name, f"dm_control/{name}-v0", 500_000) for name in _rows("dmc_easy_medium")]
    tasks += [Task(name, f"dm_control/{name}-v0", 1_000_000) for name in _rows("dmc_hard")]
    success = _numbers("humanoid_bench_success_scores", "Task success score")
    tasks += [Task(name, name, 2_000_000, one=success[name]) for name in _rows("humanoid_bench_normalized")]
    # The paper prints plain returns for these.
    tasks += [Task(name, name, 2_000_000) for name in _rows("humanoid_bench_wider")]
    random = _numbers("odrl_reference_scores", "Reference random policy score")
    expert = _numbers("odrl_reference_scores", "Reference expert policy score")
    tasks += [
        Task(name, f"odrl/{name}-v0", 1_000_000, 1, 10_000, zero=random[name], one=expert[name], scale=100.0)
        for name in _rows("odrl")
    ]
    return {each.name: each for each in tasks}


_TASKS = _all_tasks()

_SIX_MEDIUM = ("acrobot-swingup", "cheetah-run", "fish-swim", "hopper-hop", "hopper-stand", "walker-run")
_HUMANOID = ("humanoid-run", "humanoid-stand", "humanoid-walk")


def _variants(*labels: str) -> tuple[str, ...]:
    return ("cir", *(f"cir:{each.lower()}" for each in labels))


_MAIN = ("NoTanh", "NoLN", "CDQ", "UTD")
_SQUASH = ("Sigmoid", "Softmax", "LayerNorm", "NoSC")
_ACTOR = ("ActorLN", "ActorCIR", "Res", "NoEnt")
_INPUT = ("NoInputLN", "NoAvgRNorm", "NoInputNorm", "MaxRNorm", "AllAvgRNorm", "Orthoini", "WD", "AvgQ")
_C, _WIDTHS, _DEPTHS, _SMR = (0.01, 0.2, 0.5, 1.0), (128, 256, 1024), (1, 3), (4, 6, 8, 10)

_VARIANT_LABELS = {f"cir:{each.lower()}": each for each in (*_MAIN, *_SQUASH, *_ACTOR, *_INPUT)}
_VARIANT_LABELS |= {f"cir:c={c}": f"c = {c}" for c in _C}
_VARIANT_LABELS |= {f"cir:width={width}": f"width {width}" for width in _WIDTHS}
_VARIANT_LABELS |= {f"cir:depth={depth}": f"L = {depth}" for depth in _DEPTHS}
_VARIANT_LABELS |= {f"cir:smr={smr}": f"M = {smr}" for smr in _SMR}


def _suite(name: str, title: str, tasks: tuple[str, ...], methods: tuple[str, ...], *args: object, **kwargs: object) -> Suite:
    return Suite(name, title, tuple(map(task, tasks)), methods, *args, **kwargs)  # type: ignore[arg-type]


def _from_table(name: str, title: str, table: str, methods: tuple[str, ...], **kwargs: object) -> Suite:
    return _suite(name, title, _rows(table), methods, table, **kwargs)


SUITES = {
    each.name: each
    for each in (
        _from_table("dmc_easy_medium", "DMC easy and medium", "dmc_easy_medium", ("cir", "simba", "sac")),
        _from_table("dmc_hard", "DMC hard", "dmc_hard", ("cir", "simba", "sac")),
        _from_table("humanoid_bench", "HumanoidBench", "humanoid_bench_normalized", ("cir", "simba", "sac")),
        _from_table("humanoid_bench_wider", "Wider HumanoidBench", "humanoid_bench_wider", ("cir", "simba"), comparable=False),
        _from_table("odrl", "ODRL", "odrl", ("cir", "sac", "darc", "par")),
        _from_table("ablation", "Ablation: components", "variants_main", _variants(*_MAIN)),
        _from_table("ablation_squash", "Ablation: tanh and skip connections", "variants_dmc_easy_medium", _variants(*_SQUASH)),
        _from_table("ablation_actor", "Ablation: actor, residual, entropy", "variants_actor_res_noent", _variants(*_ACTOR)),
        _from_table("ablation_input", "Ablation: input normalisation", "variants_input_norms", _variants(*_INPUT)),
        _from_table("sac_tanh", "SAC with tanh", "sac_tanh_dmc_easy_medium", ("cir", "sac", "sac_tanh", "sac_tanh_norm")),
        _from_table("simba_smr", "SimBa with SMR", "simba_smr_dmc_easy_medium", ("cir", "simba", "simba_smr")),
        _suite(
            "parameter_c",
            "Parameter study: c of AvgRNorm",
            (*_SIX_MEDIUM, "dog-run", "dog-stand", "dog-walk", *_HUMANOID),
            ("cir:c=0.01", "cir", *(f"cir:c={c}" for c in _C[1:])),
        ),
        _suite(
            "scaling_width",
            "Scaling: width",
            (*_SIX_MEDIUM, *_HUMANOID),
            ("cir:width=128", "cir:width=256", "cir", "cir:width=1024"),
        ),
        _suite("scaling_smr", "Scaling: SMR ratio", (*_SIX_MEDIUM, *_HUMANOID), ("cir", *(f"cir:smr={m}" for m in _SMR))),
        _suite(
            "scaling_depth",
            "Scaling: depth",
            (*_SIX_MEDIUM, "dog-run", "dog-trot", "dog-stand", "dog-walk", *_HUMANOID),
            ("cir:depth=1", "cir", "cir:depth=3"),
        ),
        _suite(
            "scaling_smr_humanoid",
            "Scaling: SMR ratio on HumanoidBench",
            ("h1-reach-v0", "h1-run-v0", "h1-walk-v0", "h1-slide-v0"),
            ("cir", "cir:smr=4", "cir:smr=10"),
        ),
    )
}
