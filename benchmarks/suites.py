"""
The paper's task sets, as data: five benchmarks, and the tasks of each ablation, parameter and scaling study.

Where the paper prints a table for a study, the tasks are that table's rows and the methods its columns (``published/``); the
others are lists from the paper's appendices "Experimental Details", "More Ablation Study" and "More Scaling Results". What a
task is stands in ``sb3_cir.tasks``, what a method is in ``sb3_cir.methods``.
"""

import csv
from dataclasses import dataclass, replace
from pathlib import Path

from sb3_cir.methods import METHODS, label, of_heading, study
from sb3_cir.tasks import TASKS, Task

PUBLISHED = Path(__file__).parent / "published"
AGGREGATES = ("IQM", "Median", "Mean", "OG")
# What one of the tables calls the mean, which is all that it has of them.
AVERAGE = "Average Return"


@dataclass(frozen=True)
class Suite:
    """
    :param name: What ``--suite`` takes
    :param title: For headings
    :param tasks: Its tasks
    :param methods: Those that the paper compares on it and this project can train, with the suite's names for them
    :param published: Name of the paper's table in ``published/``, if it prints one
    :param comparable: Whether scores of its tasks have one scale, so that they can be aggregated
    :param seeds: Runs of each method on each task: the paper's 10, or the 5 that it names for a study
    :param printed: Those of its tasks that the paper's figures are shown for; None for all
    """

    name: str
    title: str
    tasks: tuple[Task, ...]
    methods: dict[str, str]
    published: str | None = None
    comparable: bool = True
    seeds: int = 10
    printed: tuple[Task, ...] | None = None

    @property
    def plain(self) -> bool:
        """Whether scores are plain returns."""
        return all(task.unit == 1 and task.zero == 0 for task in self.tasks)


def published(table: str) -> list[dict[str, str]]:
    """
    :param table: Name of a table in ``published/``
    :return: Its entries: ``row`` (task or aggregate), ``column`` (heading), ``mean``, ``std`` (empty where not printed)
    """
    with open(PUBLISHED / f"{table}.csv", newline="") as file:
        return list(csv.DictReader(file))


def task(name: str) -> Task:
    """
    :param name: A task's name in logs
    :return: The task
    :raises ValueError: If the paper has no such task.
    """
    if name not in TASKS:
        raise ValueError(f"There is no task {name!r} in the paper's suites.")
    return TASKS[name]


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
    return tuple(row for row in rows if row not in (*AGGREGATES, AVERAGE))


_SIX_MEDIUM = ("acrobot-swingup", "cheetah-run", "fish-swim", "hopper-hop", "hopper-stand", "walker-run")
_HUMANOID = ("humanoid-run", "humanoid-stand", "humanoid-walk")


def _tasks(*names: str) -> tuple[Task, ...]:
    return tuple(map(task, names))


def _methods_of(table: str) -> dict[str, str]:
    """Those of a table's columns that can be trained here, CIR first."""
    names = ["cir", *(of_heading(entry["column"]) for entry in published(table))]
    return {name: label(name) for name in names if METHODS[name].algo}


def _of_table(name: str, title: str, table: str, seeds: int = 10) -> Suite:
    return Suite(name, title, _tasks(*_rows(table)), _methods_of(table), table, seeds=seeds)


def _with_their_own_sac(suite: Suite) -> Suite:
    """The paper's SAC there is of SimBa's logs: its networks are smaller, and it makes two updates a step."""
    return replace(suite, methods=suite.methods | {"sac_smr": label("sac_smr")})


def _with_plain_returns(suite: Suite) -> Suite:
    """The paper prints no scores for these, so that they cannot be aggregated."""
    tasks = tuple(replace(task, one=task.scale) for task in suite.tasks)
    return replace(suite, tasks=tasks, comparable=False)


_OF_TABLES = (
    _of_table("dmc_easy_medium", "DMC easy and medium", "dmc_easy_medium"),
    _of_table("dmc_hard", "DMC hard", "dmc_hard"),
    _of_table("humanoid_bench", "HumanoidBench", "humanoid_bench_normalized"),
    _with_plain_returns(_of_table("humanoid_bench_wider", "Wider HumanoidBench", "humanoid_bench_wider")),
    _of_table("odrl", "ODRL", "odrl"),
    _of_table("ablation", "Ablation: components", "variants_main"),
    _of_table("ablation_squash", "Ablation: tanh and skip connections", "variants_dmc_easy_medium"),
    _of_table("ablation_actor", "Ablation: actor, residual blocks, entropy", "variants_actor_res_noent", seeds=5),
    _of_table("ablation_input", "Ablation: input, initialisation, weight decay", "variants_input_norms", seeds=5),
    _with_their_own_sac(_of_table("sac_tanh", "SAC with tanh", "sac_tanh_dmc_easy_medium")),
    _of_table("simba_smr", "SimBa with SMR", "simba_smr_dmc_easy_medium", seeds=5),
)
_OF_LISTS = (
    Suite(
        "parameter_c",
        "Parameter study: c of AvgRNorm",
        _tasks(*_SIX_MEDIUM, "dog-run", "dog-stand", "dog-walk", *_HUMANOID),
        study("parameter_c"),
        seeds=5,
    ),
    Suite("scaling_width", "Scaling: width", _tasks(*_SIX_MEDIUM, *_HUMANOID), study("scaling_width")),
    Suite("scaling_smr", "Scaling: SMR ratio", _tasks(*_SIX_MEDIUM, *_HUMANOID), study("scaling_smr"), seeds=5),
    Suite(
        "scaling_depth",
        "Scaling: depth",
        _tasks(*_SIX_MEDIUM, "dog-run", "dog-trot", "dog-stand", "dog-walk", *_HUMANOID),
        study("scaling_depth"),
        seeds=5,
    ),
    Suite(
        "scaling_smr_humanoid",
        "Scaling: SMR ratio on HumanoidBench",
        _tasks("h1-reach-v0", "h1-run-v0", "h1-walk-v0", "h1-slide-v0"),
        {name: text for name, text in study("scaling_smr").items() if text in ("M=2", "M=4", "M=10")},
        seeds=5,
    ),
)
SUITES = {each.name: each for each in (*_OF_TABLES, *_OF_LISTS)}
