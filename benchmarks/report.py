"""``python -m benchmarks report``: tables (Markdown and CSV), figures (PNG) and one self-contained page from logs."""

import argparse
import base64
import html
import io
import json
import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from benchmarks import figures, log, tables
from benchmarks.scores import LOG, MEASURED, collect
from benchmarks.suites import SUITES, Suite, suite

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222 }
div { overflow-x: auto } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left } img { max-width: 100%; height: auto } h2 { margin-top: 2rem }
p.note { color: #666 }
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the command's options.

    :param parser: Gets them
    """
    parser.add_argument("results", nargs="*", type=Path, help="folders and files of measured results")
    parser.add_argument("--reference", nargs="+", type=Path, default=[], help="other people's logs to show beside them")
    parser.add_argument("--suite", required=True, choices=list(SUITES), metavar="SUITE", help=f"one of {', '.join(SUITES)}")
    parser.add_argument("--out", type=Path, help="folder of the report (default: only print the aggregates)")
    parser.add_argument("--methods", nargs="+", help="only these, e.g. cir sac cir:cdq")
    parser.add_argument(
        "--budget", type=float, default=1.0, help="leave out what lies beyond this fraction of the paper's steps"
    )
    parser.add_argument("--format", choices=["markdown", "json"], default="markdown", help="how to print the aggregates")
    parser.add_argument("--reps", type=int, default=2000, help="bootstrap replications (default: %(default)s)")


def main(options: argparse.Namespace) -> int:
    """
    :param options: See :func:`add_arguments`
    :return: 0
    :raises ValueError: If no log has anything of the suite.
    """
    chosen = suite(options.suite)
    measured, reference = (_read(paths, options.methods) for paths in (options.results, options.reference))
    scores = [
        *collect(measured, chosen, MEASURED, options.budget),
        *collect(reference, chosen, LOG, options.budget),
    ]
    if not options.results and not options.reference:
        raise ValueError("there is nothing to report on: name folders of results, or --reference.")
    if not scores:
        raise ValueError(f"the logs have no returns of the tasks of {chosen.name}.")
    found = tables.aggregates(scores, chosen, options.reps) if chosen.comparable else []
    if options.format == "json":
        print(json.dumps({"suite": chosen.name, "aggregates": found}, indent=1))
    else:
        shown = tables.aggregates_table(found) if found else tables.per_task(scores, chosen)
        print(shown.to_markdown(index=False, disable_numparse=True))
    if options.out:
        page = Page(options.out, f"{chosen.title}: CIR's benchmarks")
        with figures.styled():
            _fill(page, scores, measured, chosen, found, options.reps)
        page.write()
    return 0


def _read(paths: list[Path], methods: list[str] | None) -> pd.DataFrame:
    rows = log.read(paths)
    return rows[rows.exp_name.isin(methods)] if methods else rows


def _fill(page: "Page", scores: list, measured: pd.DataFrame, chosen: Suite, found: list[dict], reps: int) -> None:
    if found:
        page.table("aggregates", "Aggregates", tables.aggregates_table(found), _AGGREGATES_NOTE)
        page.figure("aggregates", "", figures.aggregate_bars(found, chosen))
    if "cir" in chosen.methods and any(":" in method for method in chosen.methods):
        page.figure("percent_of_cir", "Variants", figures.variants(scores, chosen, reps))
        page.figure("scaling", "CIR@k", figures.scaling_curves(scores, chosen))
    if chosen.comparable:
        page.figure("sample_efficiency", "Sample efficiency", figures.sample_efficiency(scores, chosen, reps))
        page.figure("profiles", "Performance profiles", figures.performance_profiles(scores, chosen, reps))
        page.figure(
            "return_against_time", "Return against compute time", figures.return_against_time(scores, measured, chosen)
        )
    page.table("costs", "Cost of the measured runs", tables.costs(measured, chosen))
    page.table(
        "per_task", "Each task" + ("" if chosen.plain else ", normalised"), tables.per_task(scores, chosen), _TASKS_NOTE
    )
    if not chosen.plain:
        page.table("per_task_returns", "Each task, plain returns", tables.per_task(scores, chosen, plain=True), _TASKS_NOTE)
    page.figure("learning_curves", "Learning curves", figures.learning_curves(scores, chosen, reps), _CURVES_NOTE)


_AGGREGATES_NOTE = (
    "At each run's last evaluation. Square brackets: 95 % intervals by stratified bootstrap (rliable). Median is the paper's: "
    "the median over runs of the mean over tasks. “(log)”: computed here from the logs given as reference; “(paper)”: as "
    "printed there."
)
_TASKS_NOTE = "Mean ± standard deviation over runs at the last evaluation."
_CURVES_NOTE = "Mean over runs; the bands are 95 % bootstrap intervals of the mean."


class Page:
    """
    A folder of tables and figures, and one HTML page with all of them in it.

    :param folder: Where to write
    :param title: The page's heading
    """

    def __init__(self, folder: Path, title: str):
        self.folder = folder
        self.title = title
        self.parts: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def text(self, heading: str, note: str = "") -> None:
        """
        :param heading: Of what follows; nothing for none
        :param note: A sentence about it
        """
        self.parts += [f"<h2>{html.escape(heading)}</h2>"] if heading else []
        self.parts += [f'<p class="note">{html.escape(note)}</p>'] if note else []

    def table(self, name: str, heading: str, table: pd.DataFrame, note: str = "") -> None:
        """
        :param name: The files' name
        :param heading: Above it
        :param table: The table; an empty one is left out
        :param note: A sentence about it
        """
        if table.empty:
            return
        log.write_whole(self.folder / f"{name}.csv", table.to_csv(index=False))
        log.write_whole(self.folder / f"{name}.md", table.to_markdown(index=False, disable_numparse=True) + "\n")
        self.text(heading, note)
        self.parts.append(f"<div>{table.to_html(index=False, border=0)}</div>")

    def figure(self, name: str, heading: str, figure: Figure | None, note: str = "") -> None:
        """
        :param name: The file's name
        :param heading: Above it
        :param figure: The figure; None is left out
        :param note: A sentence about it
        """
        if figure is None:
            return
        image = io.BytesIO()
        figure.savefig(image, format="png")
        (self.folder / f"{name}.png").write_bytes(image.getvalue())
        self.text(heading, note)
        data = base64.b64encode(image.getvalue()).decode()
        self.parts.append(f'<img alt="{html.escape(heading or name)}" src="data:image/png;base64,{data}">')

    def write(self) -> None:
        """Write ``index.html``."""
        body = "\n".join(self.parts)
        title = html.escape(self.title)
        log.write_whole(
            self.folder / "index.html",
            f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>\n'
            f"<style>{_STYLE}</style></head>\n"
            f"<body><h1>{title}</h1>\n{body}\n</body></html>\n",
        )
        print(f"Written: {self.folder / 'index.html'}", file=sys.stderr)
