"""The report's tables, each with the paper's printed figures beside the measured ones."""

import re

import numpy as np
import pandas as pd

from benchmarks import log
from benchmarks.scores import MEASURED, PAPER, Scores, aggregate, ends, paper_numbers, with_interval
from benchmarks.suites import AGGREGATES, Suite
from sb3_cir.methods import label
from sb3_cir.tasks import Task

PAPER_SUFFIX = " (paper)"
_STEPS = "% of the paper's simulator steps"


def aggregates(scores: list[Scores], suite: Suite, reps: int, of_tasks: int | None = None) -> list[dict]:
    """
    :param scores: Of each method
    :param suite: Their suite
    :param reps: Bootstrap replications
    :param of_tasks: How many tasks the whole suite has (default: those of ``suite``)
    :return: For each method: names, runs, tasks, steps, and each of :data:`AGGREGATES` with its ``low`` and ``high``, which a
        single run has not; and the paper's rows, which have no interval, if these are all of its tasks. A method's measured,
        logged and printed rows stand together.
    """
    scale = suite.tasks[0].scale
    factors = np.array([scale, scale, scale, 1.0])
    found = []
    for each in scores:
        values, *bounds = (bound * factors for bound in with_interval(aggregate, each.final / scale, reps=reps))
        bounds = bounds if each.runs > 1 else []
        numbers = zip(AGGREGATES, *(column.tolist() for column in (values, *bounds)), strict=True)
        found.append(
            {
                "name": each.entry.name,
                "method": each.entry.method,
                "source": each.entry.source,
                "runs": each.runs,
                "tasks": len(each.tasks),
                "of_tasks": of_tasks or len(suite.tasks),
                "budget": list(each.reach),
                **{key: dict(zip(("value", "low", "high"), number, strict=False)) for key, *number in numbers},
            }
        )
    if all(len(each.tasks) == len(suite.tasks) for each in scores):
        found += _paper_aggregates(suite)
    methods = list(dict.fromkeys(entry["method"] for entry in found))
    return sorted(found, key=lambda entry: methods.index(entry["method"]))


def _paper_aggregates(suite: Suite) -> list[dict]:
    table = paper_numbers(suite)
    table = table[table.row.isin(AGGREGATES)]
    return [
        {
            "name": suite.methods.get(method, label(method)) + PAPER_SUFFIX,
            "method": method,
            "source": PAPER,
            **{key: {"value": value} for key, value in zip(group.row, group["mean"], strict=True)},
        }
        for method, group in table.groupby("method", sort=False)
    ]


def aggregates_table(found: list[dict]) -> pd.DataFrame:
    """
    :param found: From :func:`aggregates`
    :return: The same for people
    """
    rows = []
    for entry in found:
        cells = {key: _with_bounds(entry[key], 4 if key == "OG" else 2) for key in AGGREGATES if key in entry}
        size = {}
        if entry["source"] != PAPER:
            size["runs"] = str(entry["runs"])
            size["tasks"] = f"{entry['tasks']} of {entry['of_tasks']}"
            size[_STEPS] = _percent(*entry["budget"])
        rows.append({"method": entry["name"], **cells, **size})
    return pd.DataFrame(rows).fillna("")


def _percent(low: float, high: float) -> str:
    return f"{100 * low:.3g}" if low == high else f"{100 * low:.3g} to {100 * high:.3g}"


def _with_bounds(number: dict[str, float], digits: int) -> str:
    bounds = f" [{number['low']:.{digits}f}, {number['high']:.{digits}f}]" if "low" in number else ""
    return f"{number['value']:.{digits}f}{bounds}"


def per_task(scores: list[Scores], suite: Suite, plain: bool = False) -> pd.DataFrame:
    """
    :param scores: Of each method
    :param suite: Their suite
    :param plain: Show returns in place of normalised ones
    :return: Mean ± standard deviation over runs (of the runs, not an estimate from them: the square root has n under it, as
        in the paper) of the last evaluation, one row for each task; where something was measured, at which steps that was
    """
    columns: dict[str, dict[str, str]] = {}
    for each in scores:
        for task, curve in zip(each.tasks, each.curves, strict=True):
            last = curve.iloc[-1]
            std = last.std(ddof=0) if len(last) > 1 else np.nan
            columns.setdefault(each.entry.name, {})[task.name] = _cell(task, last.mean(), std, plain)
    table = paper_numbers(suite)
    tasks = {task.name: task for task in suite.tasks}
    for row, method, mean, std in table[["row", "method", "mean", "std"]].itertuples(index=False):
        if row in tasks:
            name = suite.methods.get(method, label(method)) + PAPER_SUFFIX
            columns.setdefault(name, {})[row] = _cell(tasks[row], mean, std, plain)
    wide = pd.DataFrame(columns, index=pd.Index([*tasks], name="task"))
    wide = wide[_together(list(wide), suite)]
    measured = ends([each for each in scores if each.entry.source == MEASURED])
    if measured:
        wide[_STEPS] = pd.Series({task.name: _percent(min(steps), max(steps)) for task, steps in measured.items()})
    return wide.fillna("").reset_index()


def _together(names: list[str], suite: Suite) -> list[str]:
    """Order columns so that a method's measured, logged and printed ones stand side by side."""
    first = [name.removesuffix(" (log)").removesuffix(PAPER_SUFFIX) for name in names]
    order = list(dict.fromkeys([*suite.methods.values(), *first]))
    return sorted(names, key=lambda name: order.index(name.removesuffix(" (log)").removesuffix(PAPER_SUFFIX)))


def _cell(task: Task, mean: float, std: float, plain: bool) -> str:
    mean, std = (task.value(mean), std / task.unit) if plain else (mean, std)
    return f"{mean:.2f}" if np.isnan(std) else f"{mean:.1f} ± {std:.1f}"


def costs(rows: pd.DataFrame, suite: Suite) -> pd.DataFrame:
    """
    :param rows: A log
    :param suite: Whose tasks count
    :return: For each method of which the log has seconds: what its runs cost so far
    """
    rows = rows[rows.env_name.isin([task.name for task in suite.tasks])]
    last = rows.sort_values("env_step").groupby([*log.RUN, "metric"]).value.last().unstack("metric")
    if log.SECONDS not in last:
        return pd.DataFrame()
    last = last.reindex(columns=[log.SECONDS, log.UPDATES]).assign(steps=rows.groupby(log.RUN).env_step.max())
    last = last[last[log.SECONDS].notna()]
    table = last.groupby("exp_name").agg(
        runs=("steps", "size"),
        steps=("steps", "mean"),
        hours=(log.SECONDS, lambda x: x.mean() / 3600),
        updates=(log.UPDATES, "mean"),
    )
    table["steps a second"] = table.steps / table.hours / 3600
    table.index = pd.Index([suite.methods.get(method, label(method)) for method in table.index], name="method")
    shown = {"steps": "{:,.0f}", "hours": "{:.3f}", "updates": "{:,.0f}", "steps a second": "{:.1f}"}
    for column, pattern in shown.items():
        table[column] = table[column].map(pattern.format, na_action="ignore").fillna("")
    names = {
        "steps": "simulator steps a run",
        "hours": "hours a run",
        "updates": "updates a run",
        "steps a second": "simulator steps a second",
    }
    return table.rename(columns=names).reset_index()


def percent_of_cir(scores: list[Scores], suite: Suite, reps: int) -> pd.DataFrame:
    """
    The paper's "% CIR performance": 100 times a variant's mean return over CIR's on the same tasks. A variant that lacks one
    of a group's tasks is not in that group: beside the others it would stand for other tasks.

    :param scores: Of each method
    :param suite: Their suite
    :param reps: Bootstrap replications
    :return: Columns ``group`` (medium, hard or all tasks), ``method``, ``name``, ``source``, ``value``, ``low`` and ``high``
        (missing for a single run)
    """
    groups = {
        "medium": [task for task in suite.tasks if not task.hard],
        "hard": [task for task in suite.tasks if task.hard],
        "all": list(suite.tasks),
    }
    if not groups["hard"] or not groups["medium"]:
        groups = {"all": groups["all"]}
    rows = []
    for group, tasks in groups.items():
        rows += _percent_measured(scores, group, tasks, reps) + _percent_paper(suite, group, tasks)
    return pd.DataFrame(rows, columns=["group", "method", "name", "source", "value", "low", "high"])


def _percent_measured(scores: list[Scores], group: str, tasks: list[Task], reps: int) -> list[dict]:
    cir = next((each for each in scores if each.entry.method == "cir"), None)
    variants = [each for each in scores if each.entry.source == MEASURED and each.entry.method != "cir"]
    if cir is None:
        return []
    rows = []
    common = [task for task in tasks if task in cir.tasks]
    for each in variants:
        if common and set(common) <= set(each.tasks):
            own, base = (one.on(common).final for one in (each, cir))
            numbers = with_interval(lambda x, y: 100 * x.mean() / y.mean(), own, base, reps=reps)
            value, low, high = (float(number[0]) for number in numbers)
            if len(own) == 1 or len(base) == 1:
                low = high = np.nan
            entry = dict(group=group, method=each.entry.method, name=each.entry.name, source=MEASURED)
            rows.append({**entry, "value": value, "low": low, "high": high})
    return rows


def _percent_paper(suite: Suite, group: str, tasks: list[Task]) -> list[dict]:
    if suite.printed is not None and not set(tasks) <= set(suite.printed):
        return []
    table = paper_numbers(suite)
    means = table[table.row.isin([task.name for task in tasks])].groupby("method", sort=False)["mean"].mean()
    return [
        dict(
            group=group,
            method=method,
            name=suite.methods.get(method, label(method)),
            source=PAPER,
            value=100 * mean / means["cir"],
        )
        for method, mean in means.items()
        if method != "cir"
    ]


def scaling(scores: list[Scores], points: int = 5) -> pd.DataFrame:
    """
    The paper's CIR@k: the mean score over tasks at k steps of the suite's shortest tasks and the same fraction of
    the others (hard tasks: 2k).

    :param scores: Of each method
    :param points: Values of k, evenly spaced up to what all have reached
    :return: Columns ``entry``, ``k`` (fraction of the paper's steps), ``value`` and ``std`` (over runs, averaged over tasks)
    """
    rows = []
    known = [(each.entry, *each.over_steps()) for each in scores]
    known = [each for each in known if len(each[1])]
    end = min((steps[-1] for _, steps, _ in known), default=0.0)
    for entry, steps, curves in known:
        for k in np.linspace(0, end, points + 1)[1:]:
            if k + 1e-9 < steps[0]:  # some task was not evaluated so early
                continue
            at = curves[..., np.searchsorted(steps, k + 1e-9) - 1]
            rows.append(dict(entry=entry, k=round(float(k), 6), value=at.mean(), std=at.std(axis=0).mean()))
    return pd.DataFrame(rows)


def parameter_study(scores: list[Scores], suite: Suite) -> pd.DataFrame:
    """
    The paper's figure of a parameter: the mean return over tasks and runs at the last evaluation, easy and medium tasks apart
    from hard ones.

    :param scores: Of each method
    :param suite: Their suite; its methods are the parameter's values, in order
    :return: Columns ``group``, ``entry``, ``value`` and ``std`` (over runs, averaged over tasks, as in the paper)
    """
    groups = {"easy and medium tasks": False, "hard tasks": True}
    rows = []
    for group, hard in groups.items():
        for each in scores:
            tasks = [task for task in each.tasks if task.hard == hard]
            if each.entry.method in suite.methods and tasks:
                final = each.on(tasks).final
                rows.append(dict(group=group, entry=each.entry, value=final.mean(), std=final.std(axis=0).mean()))
    return pd.DataFrame(rows, columns=["group", "entry", "value", "std"])


# Metrics of ``benchmarks.screen.Probe``, and what the report calls them
CRITICS = {
    "q_bias": "Q minus return earned",
    "q_gain": "gain in Q by fresh actions",
    "q_data": "Q on the data",
    "entropy": "policy's entropy, nats",
}


def critics(scores: list[Scores], rows: pd.DataFrame) -> pd.DataFrame:
    """
    :param scores: Of each method
    :param rows: The log that they come from, up to the same fraction of the paper's steps
    :return: What ``benchmarks screen`` found out about critics and policy, mean over runs: one row for each method and task,
        at the last step at which all of its runs have been evaluated; empty, where there is none
    """
    names = {each.entry.method: each.entry.name for each in scores if each.entry.source == MEASURED}
    rows = rows[rows.exp_name.isin(list(names)) & rows.metric.isin([log.RETURN, *CRITICS])]
    found = []
    for (method, task), of_both in rows.groupby(["exp_name", "env_name"], sort=False):
        steps = of_both[of_both.metric == "q_bias"].groupby("env_step").seed.nunique()
        steps = steps.index[steps == of_both.seed.nunique()]
        if len(steps):
            means = of_both[of_both.env_step == steps.max()].groupby("metric").value.mean()
            cells = {text: f"{means[metric]:.2f}" for metric, text in CRITICS.items() if metric in means}
            size = {"runs": str(of_both.seed.nunique()), "simulator steps": f"{steps.max():,}"}
            found.append({"method": names[method], "task": task, **size, "return": f"{means[log.RETURN]:.1f}", **cells})
    return pd.DataFrame(found).fillna("")


def origins(runs: list[dict]) -> pd.DataFrame:
    """
    :param runs: How runs were made (:class:`benchmarks.log.Log`)
    :return: The same for people: one row for each method, commit and processor
    """
    if not runs:
        return pd.DataFrame()
    table = pd.DataFrame(runs).reindex(columns=["exp_name", "commit", "processor", "env_name", "seed"]).fillna("not known")
    table["commit"] = [", ".join(dict.fromkeys(map(_short, _commits(run)))) or "not known" for run in runs]
    keys = ["exp_name", "commit", "processor"]
    found = table.groupby(keys, sort=False).agg(runs=("seed", "size"), tasks=("env_name", "nunique")).reset_index()
    found["exp_name"] = found.exp_name.map(label)
    return found.astype(str).rename(columns={"exp_name": "method"})


def _commits(run: dict) -> list[str]:
    """Of a run that went on under another one, all of them in order."""
    return [str(part["commit"]) for part in (*run.get("earlier", []), run) if "commit" in part]


def _short(commit: str) -> str:
    return re.sub(r"\b([0-9a-f]{10})[0-9a-f]{30}\b", r"\1", commit)
