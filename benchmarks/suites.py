"""
The paper's task sets, as data: five benchmarks, and the tasks of each ablation, parameter and scaling study.

Where the paper prints a table for a study, the tasks are that table's rows (``published/``); the others are lists from the
paper's appendices "Experimental Details", "More Ablation Study" and "More Scaling Results".
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).parent / "published"
AGGREGATES = ("IQM", "Median", "Mean", "OG")

# Names in logs, and the paper's for them. A variant's is "cir:" and its name in sb3_cir.variants.
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
MAIN = {"cir:no_tanh": "NoTanh", "cir:no_ln": "NoLN", "cir:cdq": "CDQ", "cir:utd": "UTD"}
SQUASH = {"cir:sigmoid": "Sigmoid", "cir:softmax": "Softmax", "cir:layer_norm": "LayerNorm", "cir:no_sc": "NoSC"}
ACTOR = {"cir:actor_ln": "ActorLN", "cir:actor_cir": "ActorCIR", "cir:res": "Res", "cir:no_ent": "NoEnt"}
INPUT = {
    "cir:no_input_ln": "NoInputLN",
    "cir:no_avg_r_norm": "NoAvgRNorm",
    "cir:no_input_norm": "NoInputNorm",
    "cir:max_r_norm": "MaxRNorm",
    "cir:all_avg_r_norm": "AllAvgRNorm",
    "cir:ortho_init": "Orthoini",
    "cir:wd": "WD",
    "cir:avg_q": "AvgQ",
}
# In the order of the parameter; the default, which is CIR, stands among them.
C = {"cir:c_0.01": "c=0.01", "cir": "c=0.1", "cir:c_0.2": "c=0.2", "cir:c_0.5": "c=0.5", "cir:c_1.0": "c=1.0"}
DEPTH = {"cir:depth_1": "L=1", "cir": "L=2", "cir:depth_3": "L=3"}
WIDTH = {"cir:width_128": "width=128", "cir:width_256": "width=256", "cir": "width=512", "cir:width_1024": "width=1024"}
SMR = {"cir": "M=2", "cir:m_4": "M=4", "cir:m_6": "M=6", "cir:m_8": "M=8", "cir:m_10": "M=10"}

_LABELS = {**C, **DEPTH, **WIDTH, **SMR, **MAIN, **SQUASH, **ACTOR, **INPUT, **METHOD_LABELS}
# The paper's tables have other headings for some.
_METHODS = {heading: name for name, heading in _LABELS.items()} | {
    "CIR (ours)": "cir",
    "CIR (Tanh)": "cir",
    "CIR (SMR)": "cir",
    "CIR (sigmoid)": "cir:sigmoid",
    "CIR (softmax)": "cir:softmax",
    "CIR (layernorm)": "cir:layer_norm",
    "CIR (no SC)": "cir:no_sc",
    "SimBa (UTD)": "simba",
}


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

    @property
    def two_domains(self) -> bool:
        """Whether it is learned from a source and a target domain."""
        return self.env_id.startswith("odrl/")

    @property
    def unit(self) -> float:
        """Score for one more in the return."""
        return self.scale / (self.one - self.zero)

    def score(self, value: Any) -> Any:
        """
        :param value: Return of an episode, or an array of them
        :return: The paper's normalised return
        """
        return (value - self.zero) * self.unit

    def value(self, score: Any) -> Any:
        """
        :param score: A normalised return, or an array of them
        :return: The return
        """
        return score / self.unit + self.zero


@dataclass(frozen=True)
class Suite:
    """
    :param name: What ``--suite`` takes
    :param title: For headings
    :param tasks: Its tasks
    :param methods: Those that the paper compares on it and this project can train, with the suite's names for them
    :param published: Name of the paper's table in ``published/``, if it prints one
    :param comparable: Whether scores of its tasks have one scale, so that they can be aggregated
    """

    name: str
    title: str
    tasks: tuple[Task, ...]
    methods: dict[str, str]
    published: str | None = None
    comparable: bool = True

    @property
    def plain(self) -> bool:
        """Whether scores are plain returns."""
        return all(task.unit == 1 and task.zero == 0 for task in self.tasks)


def label(method: str) -> str:
    """
    :param method: Name in logs
    :return: Name in tables and figures
    """
    return _LABELS.get(method, method)


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
    return _METHODS[heading]


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


def _tasks(*names: str) -> tuple[Task, ...]:
    return tuple(map(task, names))


def _of_table(name: str, title: str, table: str, *methods: str, comparable: bool = True) -> Suite:
    return Suite(name, title, _tasks(*_rows(table)), {method: label(method) for method in methods}, table, comparable)


_OF_TABLES = (
    _of_table("dmc_easy_medium", "DMC easy and medium", "dmc_easy_medium", "cir", "simba", "sac"),
    _of_table("dmc_hard", "DMC hard", "dmc_hard", "cir", "simba", "sac"),
    _of_table("humanoid_bench", "HumanoidBench", "humanoid_bench_normalized", "cir", "simba", "sac"),
    _of_table("humanoid_bench_wider", "Wider HumanoidBench", "humanoid_bench_wider", "cir", "simba", comparable=False),
    _of_table("odrl", "ODRL", "odrl", "cir", "sac", "darc", "par"),
    _of_table("ablation", "Ablation: components", "variants_main", "cir", *MAIN),
    _of_table("ablation_squash", "Ablation: tanh and skip connections", "variants_dmc_easy_medium", "cir", *SQUASH),
    _of_table("ablation_actor", "Ablation: actor, residual blocks, entropy", "variants_actor_res_noent", "cir", *ACTOR),
    _of_table("ablation_input", "Ablation: input, initialisation, weight decay", "variants_input_norms", "cir", *INPUT),
    _of_table("sac_tanh", "SAC with tanh", "sac_tanh_dmc_easy_medium", "cir", "sac", "sac_tanh", "sac_tanh_norm"),
    _of_table("simba_smr", "SimBa with SMR", "simba_smr_dmc_easy_medium", "cir", "simba", "simba_smr"),
)
_OF_LISTS = (
    Suite(
        "parameter_c",
        "Parameter study: c of AvgRNorm",
        _tasks(*_SIX_MEDIUM, "dog-run", "dog-stand", "dog-walk", *_HUMANOID),
        C,
    ),
    Suite("scaling_width", "Scaling: width", _tasks(*_SIX_MEDIUM, *_HUMANOID), WIDTH),
    Suite("scaling_smr", "Scaling: SMR ratio", _tasks(*_SIX_MEDIUM, *_HUMANOID), SMR),
    Suite(
        "scaling_depth",
        "Scaling: depth",
        _tasks(*_SIX_MEDIUM, "dog-run", "dog-trot", "dog-stand", "dog-walk", *_HUMANOID),
        DEPTH,
    ),
    Suite(
        "scaling_smr_humanoid",
        "Scaling: SMR ratio on HumanoidBench",
        _tasks("h1-reach-v0", "h1-run-v0", "h1-walk-v0", "h1-slide-v0"),
        {"cir": "M=2", "cir:m_4": "M=4", "cir:m_10": "M=10"},
    ),
)
SUITES = {each.name: each for each in (*_OF_TABLES, *_OF_LISTS)}
