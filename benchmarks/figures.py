"""The report's figures: each function draws one and returns it, or None where the logs have nothing for it."""

import math
from collections.abc import Sized
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator
from rliable import library

from benchmarks import log, tables
from benchmarks.scores import MEASURED, PAPER, Entry, Scores, iqm_over_steps, with_interval
from benchmarks.suites import AGGREGATES, Suite

# Okabe and Ito's colours, which people with any colour vision can tell apart, and four more, which not all people can.
PALETTE = ["#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000", "#8C564B", "#B2A100"]
MARKERS = ["", "o", "s", "^", "D", "v", "P", "X"]
# Runs, below which a figure shows each
FEW = 5
# These have the same colour in every report.
FIRST = ["cir", "simba", "sac", "bro_fast", "td7", "tdmpc2", "dreamerv3"]
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "figure.dpi": 130,
}


def styled(**more: Any) -> mpl.rc_context:
    """
    Matplotlib settings that all figures share.

    :param more: Settings of one command beside these, by Matplotlib's names
    :return: To be used with ``with``
    """
    return mpl.rc_context(STYLE | more)


class Look:
    """
    How lines look, in all figures of a report. A method has one colour; measured lines are solid, other logs' are dashed.
    Where there are more methods than colours that can be told apart, colours come again with markers on their lines.

    :param entries: All that the report shows, printed figures of the paper's among them
    """

    def __init__(self, entries: list[Entry]):
        methods = list(dict.fromkeys(entry.method for entry in entries))
        own = {method: colour for method, colour in zip(FIRST, PALETTE, strict=False) if method in methods}
        free = [colour for colour in PALETTE if colour not in own.values()] or PALETTE
        others = [method for method in methods if method not in own]
        self.colours = own | {method: free[number % len(free)] for number, method in enumerate(others)}
        self.markers = {method: MARKERS[number // len(free) % len(MARKERS)] for number, method in enumerate(others)}
        self.all_from_logs = all(entry.source != MEASURED for entry in entries)

    def line(self, entry: Entry) -> dict:
        """
        :param entry: A method
        :return: Arguments for ``plot``
        """
        solid = entry.source == MEASURED or self.all_from_logs
        marker = self.markers.get(entry.method, "")
        spots = {"marker": marker, "ms": 4, "markevery": 0.15} if marker else {}
        return {"color": self.colours[entry.method], "ls": "-" if solid else (0, (4, 2)), "lw": 1.6 if solid else 1.1} | spots


def learning_curves(scores: list[Scores], suite: Suite, reps: int, look: Look) -> Figure | None:
    """
    Mean score over runs and its 95 % bootstrap band, one panel for each task. Of a few runs a bootstrap knows the lowest and
    the highest alone, so that each of them is a thin line in the place of the band. The mean ends with the first of the runs.

    :param scores: Of each method
    :param suite: Their suite
    :param reps: Bootstrap replications
    :param look: The report's
    :return: The figure
    """
    tasks = [task for task in suite.tasks if any(task in each.tasks for each in scores)]
    if not tasks:
        return None
    columns = min(5, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure = Figure(figsize=(max(5, 2.5 * columns + 0.5), 2.0 * rows + 0.8), layout="constrained")
    panels = dict(zip(tasks, figure.subplots(rows, columns, squeeze=False).flat, strict=False))
    for unused in figure.axes[len(tasks) :]:
        unused.remove()
    for task, axes in panels.items():
        axes.set_title(task.name, fontsize=9)
    for each in scores:
        for task, curve, ends in zip(each.tasks, each.curves, each.ends, strict=True):
            unit = task.env_steps / 1000
            shown = curve.set_axis(curve.index * unit)
            _learning_curve(panels[task], each.entry, shown, ends * unit, reps, look)
    figure.supxlabel("thousand simulator steps", fontsize=9)
    figure.supylabel("return" if suite.plain else "normalised return", fontsize=9)
    _legend(figure, [each.entry.name for each in scores])
    return figure


def _learning_curve(axes: Axes, entry: Entry, curve: pd.DataFrame, ends: pd.Series, reps: int, look: Look) -> None:
    """One panel's line: the mean up to where all runs are, and how far they are spread."""
    colour = look.colours[entry.method]
    of_all = curve[: ends.min()]
    runs = of_all.to_numpy().T[:, None]
    mean, low, high = with_interval(lambda scores: scores.mean(axis=(0, 1)), runs, reps=reps)
    axes.plot(of_all.index, mean, label=entry.name, **look.line(entry) | _mark(of_all.index))
    if 1 < len(runs) < FEW:
        for seed in curve:
            axes.plot(curve[seed][: ends[seed]], color=colour, lw=0.6, alpha=0.6)
    elif len(of_all) == 1:
        axes.errorbar(of_all.index, mean, (mean - low, high - mean), color=colour, lw=1, capsize=3)
    elif len(runs) > 1:
        axes.fill_between(of_all.index, low, high, color=colour, alpha=0.15, lw=0)


def _mark(x: Sized) -> dict:
    """A line of few points would not be seen, or not as such."""
    return {"marker": "o", "ms": 3} if len(x) < 4 else {}


def _legend(figure: Figure, names: list[str]) -> None:
    """Of all panels together: above them, in as many rows as it takes, with room of its own."""
    found = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    widest = 0.09 * max(map(len, names)) + 0.7  # inches at this size of letters
    columns = max(1, min(len(names), int(figure.get_figwidth() / widest)))
    figure.set_figheight(figure.get_figheight() + 0.2 * math.ceil(len(names) / columns))
    figure.legend([found[name] for name in names], names, loc="outside upper center", ncols=columns, fontsize=9)


def _legend_beside(axes: Axes) -> None:
    """On the right, the figure as high as it takes."""
    figure = axes.get_figure()
    figure.set_figheight(max(figure.get_figheight(), 0.2 * len(axes.get_legend_handles_labels()[1]) + 0.8))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def aggregate_bars(found: list[dict], look: Look) -> Figure | None:
    """
    The four aggregates with their 95 % intervals; the paper's printed ones are hollow.

    :param found: From :func:`benchmarks.tables.aggregates`
    :param look: The report's
    :return: The figure
    """
    if not found:
        return None
    figure = Figure(figsize=(11, 0.24 * len(found) + 1.1), layout="constrained")
    for axes, key in zip(figure.subplots(1, 4, sharey=True), AGGREGATES, strict=True):
        for y, entry in enumerate(found):
            if key not in entry:  # a printed row has what the paper's table has
                continue
            number, colour = entry[key], look.colours[entry["method"]]
            hollow = entry["source"] == PAPER
            axes.plot(number["value"], y, "o", ms=5, color=colour, mfc="white" if hollow else colour)
            if "low" in number:
                axes.plot([number["low"], number["high"]], [y, y], color=colour, lw=2, solid_capstyle="butt")
        axes.set_title({"OG": "OG (less is better)"}.get(key, key), fontsize=9)
        axes.grid(axis="y", visible=False)
        axes.set_yticks(range(len(found)), [entry["name"] for entry in found])
        axes.set_ylim(len(found) - 0.5, -0.5)
    return figure


def sample_efficiency(scores: list[Scores], suite: Suite, reps: int, look: Look) -> Figure | None:
    """
    IQM over all tasks and runs with its 95 % stratified bootstrap band, over steps.

    :param scores: Of each method
    :param suite: Their suite
    :param reps: Bootstrap replications
    :param look: The report's
    :return: The figure; None where no method has a step at which all of its runs were evaluated
    """
    if not scores:
        return None
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    budgets = {task.env_steps for task in suite.tasks}
    unit = budgets.pop() / 1000 if len(budgets) == 1 else 100
    for each in scores:
        steps, curves = each.over_steps()
        if not len(steps):
            continue
        value, low, high = with_interval(iqm_over_steps, curves, reps=reps)
        axes.plot(steps * unit, value, label=each.entry.name, **look.line(each.entry) | _mark(steps))
        if each.runs > 1:
            axes.fill_between(steps * unit, low, high, color=look.colours[each.entry.method], alpha=0.15, lw=0)
    if not axes.lines:
        return None
    axes.set_xlabel("% of the paper's simulator steps" if budgets else "thousand simulator steps")
    axes.set_ylabel("IQM of the score")
    _legend_beside(axes)
    return figure


def performance_profiles(scores: list[Scores], suite: Suite, reps: int, look: Look) -> Figure | None:
    """
    Share of runs whose last score is above a threshold, over the threshold.

    :param scores: Of each method
    :param suite: Their suite
    :param reps: Bootstrap replications
    :param look: The report's
    :return: The figure
    """
    if not scores:
        return None
    scale = suite.tasks[0].scale
    thresholds = np.linspace(0, max(1.0, *(each.final.max() / scale for each in scores)), 101)
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    np.random.seed(0)
    for each in scores:
        profile, band = library.create_performance_profile({"": each.final / scale}, thresholds, reps=reps)
        axes.plot(thresholds * scale, profile[""], label=each.entry.name, **look.line(each.entry))
        if each.runs > 1:
            axes.fill_between(thresholds * scale, *band[""], color=look.colours[each.entry.method], alpha=0.15, lw=0)
    axes.set_xlabel("score τ")
    axes.set_ylabel("share of runs with score > τ")
    _legend_beside(axes)
    return figure


def return_against_time(scores: list[Scores], rows: pd.DataFrame, look: Look) -> Figure | None:
    """
    Mean score over wall-clock time of a run, with one standard deviation over runs.

    :param scores: Of each method, all on the same tasks
    :param rows: The log that they come from, up to the same fraction of the paper's steps
    :param look: The report's
    :return: The figure; None where no log has seconds
    """
    names = {task.name for each in scores for task in each.tasks}
    seconds = rows[(rows.metric == log.SECONDS) & rows.env_name.isin(names)]
    of_tasks = seconds.groupby(log.RUN).value.max().groupby(["exp_name", "env_name"]).mean()
    hours = of_tasks.groupby("exp_name").mean() / 3600
    timed = [each for each in scores if each.entry.source == MEASURED and each.entry.method in hours]
    if not timed:
        return None
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    for each in timed:
        means = each.final.mean(axis=1)
        colour = look.colours[each.entry.method]
        spread = means.std() if each.runs > 1 else None
        axes.errorbar(
            hours[each.entry.method], means.mean(), spread, fmt="o", ms=7, capsize=3, color=colour, label=each.entry.name
        )
    axes.set_xlim(0, max(hours[each.entry.method] for each in timed) * 1.2)
    axes.set_xlabel("hours a run (wall clock, mean over tasks)")
    axes.set_ylabel("mean score")
    _legend_beside(axes)
    return figure


def critics(scores: list[Scores], rows: pd.DataFrame, look: Look) -> Figure | None:
    """
    What ``benchmarks screen`` found out about critics and policy: mean over runs, up to where all are, and each run.

    :param scores: Of each method
    :param rows: The log that they come from, up to the same fraction of the paper's steps
    :param look: The report's
    :return: The figure, a row for each metric and a column for each task; None where no log has these metrics
    """
    entries = {each.entry.method: each.entry for each in scores if each.entry.source == MEASURED}
    rows = rows[rows.exp_name.isin(list(entries)) & rows.metric.isin(list(tables.CRITICS))]
    tasks = list(rows.env_name.unique())
    if not tasks:
        return None
    height = 1.7 * len(tables.CRITICS) + 0.8
    figure = Figure(figsize=(max(6, 2.9 * len(tasks) + 0.6), height), layout="constrained")
    panels = figure.subplots(len(tables.CRITICS), len(tasks), squeeze=False, sharex="col")
    for (metric, text), line_of_panels in zip(tables.CRITICS.items(), panels, strict=True):
        line_of_panels[0].set_ylabel(text, fontsize=8)
        for task, axes in zip(tasks, line_of_panels, strict=True):
            part = rows[(rows.metric == metric) & (rows.env_name == task)]
            if metric in ("q_bias", "q_data") and part.value.abs().max() > 100:
                # CIR's are some hundreds at first, where others' are some ten.
                axes.set_yscale("symlog", linthresh=10)
                axes.yaxis.set_major_locator(FixedLocator([-300, -100, -30, -10, 0, 10, 30, 100, 300, 1000, 3000]))
                axes.yaxis.set_major_formatter("{x:g}")
            for method, of_method in part.groupby("exp_name", sort=False):
                runs = of_method.pivot(index="env_step", columns="seed", values="value")
                runs.index /= 1000
                of_all = runs.dropna()
                axes.plot(of_all.mean(axis=1), label=entries[method].name, **look.line(entries[method]) | _mark(of_all))
                if runs.shape[1] > 1:
                    axes.plot(runs, color=look.colours[method], lw=0.6, alpha=0.6)
    for task, axes in zip(tasks, panels[0], strict=True):
        axes.set_title(task, fontsize=9)
    figure.supxlabel("thousand simulator steps", fontsize=9)
    _legend(figure, [entry.name for method, entry in entries.items() if method in set(rows.exp_name)])
    return figure


def variants(scores: list[Scores], suite: Suite, reps: int, look: Look) -> Figure | None:
    """
    "% CIR performance" of variants: measured with 95 % interval, the paper's hatched.

    :param scores: Of each method
    :param suite: Their suite
    :param reps: Bootstrap replications
    :param look: The report's
    :return: The figure
    """
    table = tables.percent_of_cir(scores, suite, reps)
    if table.empty:
        return None
    groups, names = list(table.group.unique()), list(table.name.unique())
    sources = [source for source in (MEASURED, PAPER) if source in set(table.source)]
    figure = Figure(figsize=(max(5, 0.5 * len(names) * len(groups) + 1), 3.4), layout="constrained")
    width = 0.8 / len(sources)
    for axes, group in zip(figure.subplots(1, len(groups), sharey=True, squeeze=False)[0], groups, strict=True):
        for number, source in enumerate(sources):
            part = table[(table.group == group) & (table.source == source)]
            x = np.array([names.index(name) for name in part.name]) + (number - (len(sources) - 1) / 2) * width
            colours = [look.colours[method] for method in part.method]
            fill = {"color": colours} if source == MEASURED else {"color": "white", "edgecolor": colours, "hatch": "///"}
            axes.bar(x, part.value, width * 0.92, **fill)
            if source == MEASURED:
                error = np.abs(part[["low", "high"]].to_numpy().T - part.value.to_numpy())
                axes.errorbar(x, part.value, error, fmt="none", ecolor="black", elinewidth=1, capsize=2)
        axes.axhline(100, color="black", lw=1)
        axes.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")
        axes.grid(axis="x", visible=False)
        axes.set_title(f"{group} tasks", fontsize=9)
    figure.axes[0].set_ylabel("% CIR performance")
    kinds = {
        MEASURED: Patch(color="#555555", label=MEASURED),
        PAPER: Patch(fc="white", ec="#555555", hatch="///", label=PAPER),
    }
    figure.legend(handles=[kinds[source] for source in sources], loc="outside upper center", ncols=2, fontsize=9)
    return figure


def parameter_study(scores: list[Scores], suite: Suite, look: Look) -> Figure | None:
    """
    Mean return at the last evaluation for each value of a parameter, with the standard deviation over runs (averaged over
    tasks): easy and medium tasks on the left, hard ones on the right.

    :param scores: Of each method
    :param suite: Their suite
    :param look: The report's
    :return: The figure
    """
    table = tables.parameter_study(scores, suite)
    if table.empty:
        return None
    names = list(suite.methods)
    groups = list(table.group.unique())
    figure = Figure(figsize=(3.8 * len(groups) + 0.5, 3.2), layout="constrained")
    for axes, group in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups, strict=True):
        for entry, value, std in table.loc[table.group == group, ["entry", "value", "std"]].itertuples(index=False):
            own = entry.source == MEASURED
            x = names.index(entry.method) + (0 if own else 0.12)
            axes.errorbar(x, value, std, fmt="o" if own else "s", capsize=4, color=look.colours[entry.method])
        axes.set_xticks(range(len(names)), suite.methods.values())
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_title(group, fontsize=9)
    figure.axes[0].set_ylabel("mean return")
    return figure


def scaling_curves(scores: list[Scores], suite: Suite, look: Look) -> Figure | None:
    """
    CIR@k for each value of a study's parameter: over k, and over the parameter.

    :param scores: Of each method
    :param suite: Their suite
    :param look: The report's
    :return: The figure
    """
    known = [each for each in scores if each.entry.method in suite.methods]
    if not known:
        return None
    table = tables.scaling(known)
    if table.empty:
        return None
    base = min(task.env_steps for task in suite.tasks) / 1000
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for entry in table.entry.unique():
        part = table[table.entry == entry]
        left.plot(part.k * base, part.value, label=entry.name, **{"marker": "o", "ms": 3} | look.line(entry))
        left.fill_between(
            part.k * base,
            part.value - part["std"],
            part.value + part["std"],
            color=look.colours[entry.method],
            alpha=0.12,
            lw=0,
        )
    mixed = len({task.hard for task in suite.tasks}) > 1
    left.set_xlabel("k, thousand steps (medium tasks; hard tasks at 2k)" if mixed else "k, thousand steps")
    left.set_ylabel("mean score at k (CIR@k)")
    left.legend()
    names = list(suite.methods)
    shades = mpl.colormaps["viridis"]
    of_measured = table[table.entry.map(lambda entry: entry.source == MEASURED)] if not look.all_from_logs else table
    fractions = sorted(of_measured.k.unique())
    for number, k in enumerate(fractions):
        part = of_measured[of_measured.k == k]
        part = part.assign(x=part.entry.map(lambda entry: names.index(entry.method))).sort_values("x")
        colour = shades(0.9 * number / max(1, len(fractions) - 1))
        right.plot(part.x, part.value, marker="o", ms=3, color=colour, label=f"CIR@{k * base:g}K")
    right.set_xticks(range(len(names)), suite.methods.values())
    right.set_xlim(-0.3, len(names) - 0.7)
    right.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
