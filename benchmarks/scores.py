"""From rows to scores: runs, tasks and steps as arrays, the paper's aggregates, and rliable's bootstrap around them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from rliable import library, metrics
from scipy.stats import trim_mean

from benchmarks import log
from benchmarks.suites import AGGREGATES, AVERAGE, Suite, published
from sb3_cir.methods import label, of_heading
from sb3_cir.tasks import Task

MEASURED, LOG, PAPER = "measured", "log", "paper"


@dataclass(frozen=True)
class Entry:
    """
    One column or line of a report.

    :param method: Its name in logs
    :param source: :data:`MEASURED` (given as results), :data:`LOG` (given as reference) or :data:`PAPER` (its printed tables)
    :param name: What it is called in tables and legends
    """

    method: str
    source: str
    name: str


@dataclass
class Scores:
    """
    One method's scores on the tasks of a suite. What is missing is left out: a task without a run, and runs beyond the
    number that every task has, so that runs can be paired (the first of every task, the second, ...).

    Where every task has the same seeds, the runs of one seed are paired. Where seeds differ between tasks, runs are paired in
    the order in which they stand in the log. The paper's Median, over runs of the mean over tasks, depends on it: this rule
    gives the printed figures both for SimBa, whose runs stand in another order for each task, and for CIR, whose tasks have
    different seeds.

    :param entry: Whose
    :param tasks: Those that it has runs of
    :param curves: For each task the scores, one column for each run, over the fraction of the paper's steps; a run that
        ended before another keeps its last score
    :param ends: For each task the fraction of the paper's steps at which each run's last evaluation was made, by its column
    """

    entry: Entry
    tasks: list[Task]
    curves: list[pd.DataFrame]
    ends: list[pd.Series]

    def on(self, tasks: list[Task]) -> "Scores":
        """
        :param tasks: Some of the tasks
        :return: The scores on these alone
        """
        places = [self.tasks.index(task) for task in tasks]
        return Scores(self.entry, tasks, _paired([self.curves[at] for at in places]), [self.ends[at] for at in places])

    @property
    def reach(self) -> tuple[float, float]:
        """The smallest and the largest fraction of the paper's steps at which a run's last evaluation was made."""
        return min(each.min() for each in self.ends), max(each.max() for each in self.ends)

    @property
    def runs(self) -> int:
        """Runs that every task has."""
        return min(curve.shape[1] for curve in self.curves)

    @property
    def final(self) -> np.ndarray:
        """Scores of the last evaluation, ``(runs, tasks)``."""
        return np.stack([curve.iloc[-1, : self.runs] for curve in self.curves], axis=1)

    def over_steps(self) -> tuple[np.ndarray, np.ndarray]:
        """
        Scores from the first step that every task has an evaluation for to the last one that all its runs have; none, where
        there is no such step.

        :return: Fractions of the paper's steps ``(steps,)``, and scores ``(runs, tasks, steps)``
        """
        first = max(curve.index[0] for curve in self.curves)
        last = min(ends[curve.columns[: self.runs]].min() for curve, ends in zip(self.curves, self.ends, strict=True))
        steps = np.unique(np.concatenate([curve.index for curve in self.curves]))
        steps = steps[(steps >= first) & (steps <= last)]
        grid = [curve.iloc[:, : self.runs].reindex(steps, method="ffill").to_numpy() for curve in self.curves]
        return steps, np.stack([curve.T for curve in grid], axis=1)


def collect(rows: pd.DataFrame, suite: Suite, source: str, budget: float | Mapping[str, float] = 1.0) -> list[Scores]:
    """
    :param rows: A log
    :param suite: Whose tasks are wanted
    :param source: Where the log comes from
    :param budget: Evaluations after this fraction of the paper's steps are left out; one for all tasks, or by task
    :return: One for each method in the log that has a run of one of the tasks. Step 0 is left out: what stands there is of an
        agent that has learned nothing, or of none.
    """
    found = []
    rows = within(rows[(rows.metric == log.RETURN) & (rows.env_step > 0)], suite, budget)
    for method, of_method in rows.groupby("exp_name", sort=False):
        suffix = {MEASURED: "", LOG: " (log)"}[source]
        entry = Entry(method, source, suite.methods.get(method, label(method)) + suffix)
        of_tasks = {task: of_method[of_method.env_name == task.name] for task in suite.tasks}
        curves = {task: _curve(of_task, task) for task, of_task in of_tasks.items() if len(of_task)}
        last = of_method.groupby(["env_name", "seed"]).fraction.max()
        found.append(Scores(entry, list(curves), _paired(list(curves.values())), [last[task.name] for task in curves]))
    return found


def ends(scores: list[Scores]) -> dict[Task, list[float]]:
    """
    :param scores: Of each method
    :return: For each task the fractions of the paper's steps at which its runs ended
    """
    found: dict[Task, list[float]] = {}
    for each in scores:
        for task, of_task in zip(each.tasks, each.ends, strict=True):
            found.setdefault(task, []).extend(of_task)
    return found


def within(rows: pd.DataFrame, suite: Suite, budget: float | Mapping[str, float]) -> pd.DataFrame:
    """
    :param rows: A log
    :param suite: Whose tasks are wanted
    :param budget: Up to which fraction of the paper's steps; one for all tasks, or by task
    :return: Its rows on these tasks up to there, with that ``fraction`` as one more column
    """
    whole = {task.name: task.env_steps for task in suite.tasks}
    limits = budget if isinstance(budget, Mapping) else dict.fromkeys(whole, budget)
    rows = rows[rows.env_name.isin(list(whole))]
    rows = rows.assign(fraction=(rows.env_step / rows.env_name.map(whole)).round(9))
    return rows[rows.fraction <= rows.env_name.map(limits)]


def _paired(curves: list[pd.DataFrame]) -> list[pd.DataFrame]:
    seeds = [sorted(curve.columns) for curve in curves]
    same = all(each == seeds[0] for each in seeds)
    return [curve[seeds[0]] for curve in curves] if same else curves


def _curve(rows: pd.DataFrame, task: Task) -> pd.DataFrame:
    curve = rows.pivot(index="fraction", columns="seed", values="value")[rows.seed.unique()]
    return task.score(curve).ffill().dropna()


def aggregate(scores: np.ndarray) -> np.ndarray:
    """
    The paper's aggregates. Its Median is that of the runs' means over tasks, not rliable's (of the tasks' means over runs).

    :param scores: ``(runs, tasks)``, 1 where the paper has 1000 (ODRL: 100)
    :return: As :data:`benchmarks.suites.AGGREGATES`, ``(4,)``
    """
    return np.array(
        [
            metrics.aggregate_iqm(scores),
            np.median(scores.mean(axis=1)),
            metrics.aggregate_mean(scores),
            metrics.aggregate_optimality_gap(scores),
        ]
    )


def iqm_over_steps(scores: np.ndarray) -> np.ndarray:
    """
    rliable's IQM for every step at once.

    :param scores: ``(runs, tasks, steps)``
    :return: ``(steps,)``
    """
    return trim_mean(scores.reshape(-1, scores.shape[-1]), 0.25, axis=0)


def with_interval(
    function: Callable[..., np.ndarray], *scores: np.ndarray, reps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    A statistic with its 95 % interval from rliable's bootstrap, stratified by task.

    :param function: The statistic, of arrays as below
    :param scores: ``(runs, tasks, ...)``; several are resampled independently
    :param reps: Bootstrap replications
    :return: Estimate, lower and upper bound
    """
    # rliable draws from NumPy's global generator: the same report comes out twice.
    np.random.seed(0)
    data = scores[0] if len(scores) == 1 else list(scores)
    points, intervals = library.get_interval_estimates({"": data}, lambda *x: np.atleast_1d(function(*x)), reps=reps)
    return points[""], *intervals[""]


def paper_numbers(suite: Suite) -> pd.DataFrame:
    """
    :param suite: A suite
    :return: What the paper prints for it, as scores: columns ``row`` (task or aggregate), ``method``, ``mean``, ``std``
    """
    table = pd.DataFrame(published(suite.published) if suite.published else [], columns=["row", "column", "mean", "std"])
    names = {task.name for task in (suite.tasks if suite.printed is None else suite.printed)}
    if names < set(table.row) - {*AGGREGATES, AVERAGE}:
        # The printed aggregates are over all tasks of the table.
        table = table[table.row.isin(names)].reset_index(drop=True)
    table["row"] = table.row.replace(AVERAGE, "Mean")
    table[["mean", "std"]] = table[["mean", "std"]].apply(pd.to_numeric)
    table["method"] = table.pop("column").map(of_heading)
    if suite.name == "odrl":  # the one table with plain returns of tasks that have a normalised one
        tasks = {task.name: task for task in suite.tasks}
        table["mean"] = [tasks[row].score(mean) for row, mean in zip(table.row, table["mean"], strict=True)]
        table["std"] *= [tasks[row].unit for row in table.row]
    return table
