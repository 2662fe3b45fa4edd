"""``python -m benchmarks report``: tables (Markdown and CSV), figures (PNG) and one self-contained page from logs."""

import argparse
import json
import sys
from pathlib import Path

import pandas as pd

from benchmarks import figures, log, tables
from benchmarks.arguments import above_zero, folder, positive
from benchmarks.page import Page, how_it_was_made
from benchmarks.scores import PAPER, Entry, paper_numbers, within
from benchmarks.selection import Selection, select
from benchmarks.suites import SUITES, suite
from sb3_cir.methods import of_log

_UNITS = (
    "Steps are simulator steps throughout, as in the paper: on dm_control and HumanoidBench two for each step of the agent "
    "(FlashSAC: one), on ODRL one."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the command's options.

    :param parser: Gets them
    """
    parser.add_argument(
        "results", nargs="*", type=Path, help="folders and files of measured results; RL Zoo's log folders are read too"
    )
    parser.add_argument("--reference", nargs="+", type=Path, default=[], help="other people's logs to show beside them")
    parser.add_argument("--suite", required=True, choices=list(SUITES), metavar="SUITE", help=f"one of {', '.join(SUITES)}")
    parser.add_argument("--out", type=folder, help="folder of the report (default: only print the aggregates)")
    parser.add_argument("--methods", nargs="+", help="only these, e.g. cir sac cir:cdq")
    parser.add_argument(
        "--budget", type=above_zero, default=1.0, help="leave out what lies beyond this fraction of the paper's steps"
    )
    parser.add_argument("--format", choices=["markdown", "json"], default="markdown", help="how to print the aggregates")
    parser.add_argument("--reps", type=positive, default=2000, help="bootstrap replications (default: %(default)s)")


def main(options: argparse.Namespace) -> int:
    """
    :param options: See :func:`add_arguments`
    :return: 0
    :raises ValueError: If no log has anything of the suite.
    """
    if not options.results and not options.reference:
        raise ValueError("there is nothing to report on: name folders of results, or --reference.")
    measured, reference = log.load(options.results), log.load(options.reference, published=True)
    own, theirs = _chosen_rows(measured.rows, reference.rows, options.methods)
    found = select(own, theirs, suite(options.suite), options.budget)
    found.notes = [*measured.notes, *reference.notes, *found.notes]
    for note in found.notes:
        print(note, file=sys.stderr)
    if not found.scores:
        raise ValueError(f"the logs have no returns of the tasks of {found.suite.name}.")
    aggregates = []
    if found.suite.comparable and found.aggregated:
        aggregates = tables.aggregates(found.aggregated, found.suite, options.reps, found.of_tasks)
    if options.format == "json":
        print(json.dumps({"suite": found.suite.name, "aggregates": aggregates, "notes": found.notes}, indent=1))
    else:
        shown = tables.aggregates_table(aggregates) if aggregates else tables.per_task(found.scores, found.suite)
        print(shown.to_markdown(index=False, disable_numparse=True))
    if options.out:
        page = Page(options.out, f"{found.suite.title}: CIR's benchmarks", f"{how_it_was_made()} {_UNITS}")
        with figures.styled(**{"text.parse_math": False}):  # names of methods may have a $
            _fill(page, found, own, aggregates, measured.runs, options)
        page.write()
    return 0


def _chosen_rows(own: pd.DataFrame, theirs: pd.DataFrame, names: list[str] | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    if not names:
        return own, theirs
    for name in names:
        if of_log(name) not in set(own.exp_name) and of_log(name, published=True) not in set(theirs.exp_name):
            raise ValueError(f"--methods {name}: the logs have {', '.join(sorted({*own.exp_name, *theirs.exp_name}))}.")
    of_theirs = [of_log(name, published=True) for name in names]
    return own[own.exp_name.isin(list(map(of_log, names)))], theirs[theirs.exp_name.isin(of_theirs)]


def _fill(
    page: Page,
    found: Selection,
    measured: pd.DataFrame,
    aggregates: list[dict],
    runs: list[dict],
    options: argparse.Namespace,
) -> None:
    chosen, scores, shared, reps = found.suite, found.scores, found.aggregated, options.reps
    printed = [Entry(method, PAPER, method) for method in paper_numbers(chosen).method.unique()]
    look = figures.Look([*(each.entry for each in scores), *printed])
    parameter = chosen.name == "parameter_c"
    study = "cir" in chosen.methods and any(":" in method for method in chosen.methods)
    # What is None or empty is not shown, and its file of an earlier report goes.
    page.table("aggregates", "Aggregates", tables.aggregates_table(aggregates), _AGGREGATES_NOTE)
    page.figure("aggregates", "", figures.aggregate_bars(aggregates, look))
    page.figure(
        "parameter_study",
        "The parameter",
        figures.parameter_study(shared, chosen, look) if parameter else None,
        _PARAMETER_NOTE,
    )
    page.figure("percent_of_cir", "Variants", figures.variants(scores, chosen, reps, look) if study else None)
    page.figure("scaling", "CIR@k", figures.scaling_curves(shared, chosen, look) if study else None)
    comparable = shared if chosen.comparable else []
    page.figure("sample_efficiency", "Sample efficiency", figures.sample_efficiency(comparable, chosen, reps, look))
    page.figure("profiles", "Performance profiles", figures.performance_profiles(comparable, chosen, reps, look))
    timed = within(measured, chosen, options.budget)
    page.figure("return_against_time", "Return against compute time", figures.return_against_time(comparable, timed, look))
    page.table("critics", "What the critics think", tables.critics(scores, timed), _CRITICS_NOTE)
    page.figure("critics", "", figures.critics(scores, timed, look))
    page.table("costs", "Cost of the measured runs", tables.costs(measured, chosen))
    page.table(
        "per_task", "Each task" + ("" if chosen.plain else ", normalised"), tables.per_task(scores, chosen), _TASKS_NOTE
    )
    plain = pd.DataFrame() if chosen.plain else tables.per_task(scores, chosen, plain=True)
    page.table("per_task_returns", "Each task, plain returns", plain, _TASKS_NOTE)
    page.figure("learning_curves", "Learning curves", figures.learning_curves(scores, chosen, reps, look), _CURVES_NOTE)
    shown = timed[log.RUN].drop_duplicates().itertuples(index=False, name=None)
    made = {tuple(run[key] for key in log.RUN): run for run in reversed(runs)}  # of two the first counts, as of rows
    page.table("origins", "How the measured runs were made", tables.origins([made[run] for run in shown if run in made]))
    page.list("What was left out, and why", found.notes)


_AGGREGATES_NOTE = (
    "At each run's last evaluation, over the tasks that every measured method has. Square brackets: 95 % intervals by "
    "stratified bootstrap (rliable), of two runs or more. Median is the paper's: the median over runs of the mean over tasks. "
    "“(log)”: computed here from the logs given as reference; “(paper)”: as printed there."
)
_PARAMETER_NOTE = (
    "Mean return over tasks and runs at the last evaluation. Bars: the standard deviation over runs, averaged over tasks, as "
    "in the paper's figure. Squares are from other logs."
)
_CRITICS_NOTE = (
    "Of runs of “benchmarks screen”, mean over runs; the table at the last step at which all of a method's runs have been "
    "evaluated. Q minus return: along evaluation episodes, whose returns are discounted for it. Gain: Q of an action that the "
    "policy takes now, minus Q of the one that was taken, over the whole replay buffer."
)
_TASKS_NOTE = "Mean ± standard deviation over runs at the last evaluation; a single run has none."
_CURVES_NOTE = (
    "Mean over runs. Bands are 95 % bootstrap intervals of the mean; of fewer than five runs each is shown as a thin line "
    "instead."
)
