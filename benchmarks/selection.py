"""
What a report puts beside what, so that like stands beside like, and what it leaves out.

Where something was measured, other people's logs are cut to the measured tasks, and on each of them to the steps that the
longest measured run there has reached. Aggregates are over the tasks that every measured method has. The paper's printed
figures are at its full steps: they stand on tasks where a run has reached those, and its aggregates beside aggregates of all
tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pandas as pd

from benchmarks import log
from benchmarks.scores import LOG, MEASURED, Scores, collect, ends
from benchmarks.suites import Suite
from sb3_cir.methods import label

# Of the measured steps: what was evaluated before is not taken for the same.
EARLY = 0.9


@dataclass
class Selection:
    """
    What a report shows.

    :param suite: With the tasks that are shown alone, and those ``printed`` on which the paper's figures are at these steps
    :param of_tasks: Tasks of the whole suite
    :param scores: Of each method, the measured ones first
    :param aggregated: The same on the tasks that are aggregated over, for the methods that have all of them
    :param notes: What was left out and why, a sentence each
    """

    suite: Suite
    of_tasks: int
    scores: list[Scores] = field(default_factory=list)
    aggregated: list[Scores] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def select(measured: pd.DataFrame, reference: pd.DataFrame, suite: Suite, budget: float) -> Selection:
    """
    :param measured: Rows that were given as results
    :param reference: Rows of other people's logs
    :param suite: The suite
    :param budget: Evaluations after this fraction of the paper's steps are left out
    :return: What a report of them shows; no scores, if there is nothing of the suite in them
    """
    notes: list[str] = []
    own = collect(measured, suite, MEASURED, budget)
    whole = f"{100 * budget:.3g} % of the paper's steps"
    notes += _left_out(measured, suite, own, whole)
    last = ends(own)
    limits = {task.name: max(last[task]) if own else budget for task in suite.tasks if task in last or not own}
    tasks = tuple(task for task in suite.tasks if task.name in limits)
    printed = tuple(task for task in tasks if limits[task.name] >= 1)
    chosen = replace(suite, tasks=tasks, printed=printed)
    others = collect(reference, chosen, LOG, limits)
    notes += _left_out(reference, chosen, others, "the steps that were measured" if own else whole)
    if own:
        notes += _early(others, limits)
    if len(tasks) < len(suite.tasks):
        notes.append(f"Nothing was measured on {len(suite.tasks) - len(tasks)} of the suite's {len(suite.tasks)} tasks.")
    if suite.published and len(printed) < len(tasks):
        short = [task.name for task in tasks if task not in printed]
        notes.append(f"The paper's printed figures, at its full steps, are left out where no run is so long: {_some(short)}.")
    uneven = [task.name for task, steps in last.items() if min(steps) < max(steps)]
    if uneven:
        shortest = min(min(steps) for steps in last.values())
        notes.append(
            f"Measured runs ended at different steps on {_some(uneven)}: --budget {shortest:.3g} cuts all to at most that."
        )
    found = Selection(chosen, len(suite.tasks), _told_apart([*own, *others]), notes=notes)
    found.aggregated = _aggregated(found, own)
    return found


def _told_apart(scores: list[Scores]) -> list[Scores]:
    """Two methods may have one label, ours and somebody's own. Then their names in the logs stand beside it."""
    names = [each.entry.name for each in scores]
    for each in scores:
        if names.count(each.entry.name) > 1:
            each.entry = replace(each.entry, name=f"{each.entry.name} [{each.entry.method}]")
    return scores


def _early(scores: list[Scores], limits: Mapping[str, float]) -> list[str]:
    """A sentence for each log whose last evaluation lies well before the steps that its numbers stand beside."""
    notes = []
    for each in scores:
        early = [
            (task, float(of_task.max()))
            for task, of_task in zip(each.tasks, each.ends, strict=True)
            if of_task.max() < EARLY * limits[task.name]
        ]
        if early:
            task, end = early[0]
            notes.append(
                f"{each.entry.name}: on {_some([task.name for task, _ in early])} its last evaluation lies before the steps "
                f"that were measured: on {task.name} at {end * task.env_steps:,.0f} of "
                f"{limits[task.name] * task.env_steps:,.0f}."
            )
    return notes


def _aggregated(found: Selection, own: list[Scores]) -> list[Scores]:
    tasks = found.suite.tasks
    shared = [task for task in tasks if all(task in each.tasks for each in own)]
    if not shared:
        found.notes.append("There are no aggregates: no task was measured for every method.")
        return []
    found.notes += [
        f"Aggregates are over {len(shared)} of the {len(tasks)} measured tasks: {each.entry.name} lacks "
        f"{_some([task.name for task in tasks if task not in each.tasks])}."
        for each in own
        if len(each.tasks) < len(tasks)
    ]
    whole = [each for each in found.scores if set(shared) <= set(each.tasks)]
    found.notes += [
        f"{each.entry.name} is not in the aggregates: of their {len(shared)} tasks it lacks "
        f"{_some([task.name for task in shared if task not in each.tasks])}."
        for each in found.scores
        if each not in whole
    ]
    kept = [each.on(shared) for each in whole]
    for each in kept:
        most = max(curve.shape[1] for curve in each.curves)
        if most > each.runs:
            runs = "one run" if each.runs == 1 else f"{each.runs} runs"
            found.notes.append(
                f"{each.entry.name}: aggregates have the {runs} that every task has; some tasks have up to {most}."
            )
    return kept


def _left_out(rows: pd.DataFrame, suite: Suite, found: list[Scores], upto: str) -> list[str]:
    """A sentence for each method that is in the rows and not in the report, and one for tasks of other suites."""
    names = {task.name for task in suite.tasks}
    shown = {each.entry.method for each in found}
    notes = []
    for method, of_method in rows.groupby("exp_name", sort=False):
        if method in shown:
            continue
        ours = of_method[of_method.env_name.isin(names)]
        if ours.empty:
            why = f"it has none of the tasks shown, but {_some(list(of_method.env_name.unique()))}"
        elif log.RETURN not in set(ours.metric):
            why = f"of these tasks it has no {log.RETURN}, but {_some(list(ours.metric.unique()))}"
        else:
            why = f"it has no evaluation up to {upto} on these tasks"
        notes.append(f"{label(method)} is left out: {why}.")
    others = [name for name in rows[rows.exp_name.isin(shown)].env_name.unique() if name not in names]
    if others:
        notes.append(f"Tasks of the methods shown that are not in this report: {_some(others)}.")
    return notes


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
