"""
The log: one row for each evaluation and metric, in CSV files.

Columns are those of SimBa's and CIR's own logs, so that anybody's can be read beside ours:

- ``exp_name``: the method, e.g. ``cir``, ``simba`` or ``cir:cdq``
- ``env_name``: the task, e.g. ``walker-walk``, ``h1-walk-v0`` or ``ant-gravity-0.5``
- ``seed``: the run's seed
- ``metric``: ``avg_return`` (mean of the evaluation's episodes), ``seconds`` (wall clock since the run began, evaluations
  included) or ``updates`` (gradient updates done)
- ``env_step``: simulator steps, which are the agent's steps times the action repeat
- ``value``

Published logs differ in details, and are read as they are published. Names of tasks and methods are matched whatever their
case, hyphens and underscores; a method's other names are in ``sb3_cir.methods``. An unknown method or task keeps its own name.
A first column without a name is passed over, and so are rows in which something is missing. Of several rows for the same run,
metric and step **the first counts**, in the order of the files. Where two files have one run with other values, or take turns
in its steps, they are of two runs, and the first file counts alone.

A file may begin with comments. Those of ``python -m benchmarks keep`` say of each run how it was made: see :class:`Log`.

RL Zoo's folders are read too: each ``evaluations.npz`` in them.
"""

import csv
import json
import os
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import zoo_log
from sb3_cir.methods import of_log
from sb3_cir.runs.files import write_whole
from sb3_cir.tasks import TASKS

COLUMNS = ["exp_name", "env_name", "seed", "metric", "env_step", "value"]
RUN = ["exp_name", "env_name", "seed"]
_ENCODING = "utf-8-sig"  # Excel begins a file with a mark.
_NUMBERS = dict.fromkeys(("seed", "env_step", "value"), float)
RETURN, SECONDS, UPDATES = "avg_return", "seconds", "updates"

_TASK_NAMES = {name.lower().replace("-", "_"): name for name in TASKS}


@dataclass
class Log:
    """
    What was read.

    :param rows: With the columns :data:`COLUMNS`, in the order of the files
    :param runs: How runs were made, where that is known: ``exp_name``, ``env_name``, ``seed``, ``commit``, ``processor``, ...
    :param notes: What was left out or may surprise, a sentence each
    """

    rows: pd.DataFrame
    runs: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def write(path: Path, rows: pd.DataFrame) -> None:
    """
    :param path: The CSV file, replaced as a whole
    :param rows: With the columns :data:`COLUMNS`
    """
    write_whole(path, rows[COLUMNS].to_csv(index=False).encode())


def read(paths: Iterable[str | Path]) -> pd.DataFrame:
    """
    The rows of :func:`load`, with a warning for each of its notes.

    :param paths: Files and folders
    :return: The rows, with the columns :data:`COLUMNS`
    """
    found = load(paths)
    for note in found.notes:
        warnings.warn(note, stacklevel=2)
    return found.rows


def load(paths: Iterable[str | Path], published: bool = False) -> Log:
    """
    Read logs: files as they are, folders with everything in them that is a log.

    A folder is searched in natural order (seed 2 before seed 10); checkpoints in it are left out.

    :param paths: Files and folders
    :param published: Whether they are other people's, who may mean another method by a name
    :return: What is in them
    :raises FileNotFoundError: If there is no such path.
    :raises ValueError: If a named file is no log or is damaged, or if there is no log in a named folder. A damaged one in a
        folder is left out, with a note: RL Zoo writes its own anew at each evaluation, and a run may be killed there.
    """
    files: dict[Path, Path] = {}
    notes: list[str] = []
    named = set()
    for path in map(Path, paths):
        found = [path] if path.is_file() else _logs_in(path, notes)
        files |= {file.resolve(): file for file in found}
        named |= {path} & set(found)
    tables, runs = [pd.DataFrame(columns=[*COLUMNS, "file"]).astype(_NUMBERS)], []
    for file in files.values():
        try:
            table, made = _read_any(file)
        except ValueError as error:
            if file in named or len(files) == 1:
                raise
            notes.append(f"Left out: {error}")
        else:
            tables.append(table.assign(file=str(file)))
            runs += made
    filled = [table for table in tables if len(table)] or tables[:1]
    return Log(_tidy(pd.concat(filled, ignore_index=True), notes, published), runs, notes)


def _read_any(file: Path) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """
    :param file: A log, ours or RL Zoo's
    :return: Its rows, and how its runs were made
    :raises ValueError: If it is no log, or damaged.
    """
    if file.name != zoo_log.FILE and not _is_log(file):
        raise ValueError(f"{str(file)!r} is no log: its first line must name the columns {', '.join(COLUMNS)}.")
    try:
        if file.name == zoo_log.FILE:
            rows, run = zoo_log.read(file)
            return pd.DataFrame(rows, columns=COLUMNS).astype(_NUMBERS), [run]
        return _read_file(file), _runs_of(file)
    except Exception as error:  # A damaged file can fail in any way.
        problem = f"{type(error).__name__}: {error}".splitlines()[0]  # whole: most of these sentences are ours
        raise ValueError(f"{str(file)!r} cannot be read ({problem}).") from error


def task_of_log(name: str) -> str:
    """
    :param name: A task's name in anybody's log
    :return: Ours, whatever its case, hyphens and underscores; an unknown task keeps its own
    """
    return _TASK_NAMES.get(name.lower().replace("-", "_"), name)


def commit_of(start: dict[str, Any]) -> str:
    """
    :param start: ``git_commit`` and ``git_clean``, as ``benchmarks.machine.checkout`` gives them
    :return: In words
    """
    return (start["git_commit"] or "not known") + ("" if start["git_clean"] else " and changes")


def _tidy(rows: pd.DataFrame, notes: list[str], published: bool) -> pd.DataFrame:
    whole = rows.replace([np.inf, -np.inf], np.nan).notna().all(axis=1)
    if not whole.all():
        notes.append(f"{(~whole).sum()} of {len(rows)} rows are left out: a name, a step or a value is missing or infinite.")
    rows = rows[whole]
    rows = rows.assign(
        exp_name=rows.exp_name.map({name: of_log(name, published) for name in rows.exp_name.unique()}),
        env_name=rows.env_name.map({name: task_of_log(name) for name in rows.env_name.unique()}),
        seed=rows.seed.astype(int),
        env_step=rows.env_step.round().astype(int),
    )
    rows = _of_one_run(rows, notes)
    again = rows.duplicated(COLUMNS[:-1])
    if again.any():
        one = rows[again].iloc[0]
        where = f"{one.exp_name} on {one.env_name}, seed {one.seed}, {one.metric} at step {one.env_step}"
        other = (again & ~rows.duplicated(COLUMNS)).sum()
        notes.append(
            f"{again.sum()} rows are left out: the same run, metric and step stands earlier, {other} times with another "
            f"value. The first counts (e.g. {where})."
        )
    return rows[~again][COLUMNS].reset_index(drop=True)


def _of_one_run(rows: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Without the rows of a second run by the name of another one. A second part or copy of a run stays."""
    left_out: dict[tuple[str, str], list[pd.DataFrame]] = {}
    doubtful = rows[rows.groupby(RUN).file.transform("nunique") > 1]
    for _, of_run in doubtful.groupby(RUN, sort=False):
        first, *others = (of_file for _, of_file in of_run.groupby("file", sort=False))
        for other in others:
            if _go_together(first, other):
                first = pd.concat([first, other])
            else:
                left_out.setdefault((other.file.iloc[0], first.file.iloc[0]), []).append(other)
    for (file, before), runs in left_out.items():
        one = runs[0].iloc[0]
        notes.append(
            f"{len(runs)} runs of {file} are left out: {before} has others of the same method, task and seed, and the first "
            f"counts (e.g. {one.exp_name} on {one.env_name}, seed {one.seed})."
        )
    return rows.drop(pd.concat([other for runs in left_out.values() for other in runs]).index) if left_out else rows


def _go_together(first: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether two files can be of one run: for each metric the same where both have a step, else one after the other."""
    for metric in set(first.metric) & set(other.metric):
        known, more = (
            table[table.metric == metric].drop_duplicates("env_step").set_index("env_step").value for table in (first, other)
        )
        both = known.index.intersection(more.index)
        own, new = known.index.difference(both), more.index.difference(both)
        in_turns = len(own) and len(new) and new.min() < own.max() and own.min() < new.max()
        if in_turns or not np.allclose(known[both], more[both], rtol=1e-9, atol=0):
            return False
    return True


def _logs_in(folder: Path, notes: list[str]) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no file or folder {str(folder)!r}.")
    named = [file for file in folder.rglob("*.csv") if not _hidden(file.relative_to(folder))]
    tables = [file for file in named if file.is_file() and os.access(file, os.R_OK)]
    if len(tables) < len(named):
        lost = next(file for file in named if file not in tables)
        notes.append(f"{len(named) - len(tables)} .csv files in {folder} cannot be read, e.g. {lost.relative_to(folder)}.")
    files = [file for file in tables if _is_log(file)]
    # A job of the grid has both; its rows.csv says more.
    homes = {file.parent for file in files if file.name == "rows.csv"}
    files += [file for file in folder.rglob(zoo_log.FILE) if homes.isdisjoint(file.parents)]
    if not files:
        raise ValueError(
            f"There is no log in {str(folder)!r}: no .csv file with the columns {', '.join(COLUMNS)}, and no {zoo_log.FILE}."
        )
    others = [file for file in tables if file not in files and not file.name.endswith(".monitor.csv")]
    if others:
        notes.append(f"{len(others)} .csv files in {folder} are no logs, e.g. {others[0].relative_to(folder)}.")
    return sorted(files, key=lambda file: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(file))])


def _hidden(path: Path) -> bool:
    """What is being written, and what belongs to a checkpoint, begins with a dot."""
    return any(part.startswith(".") for part in path.parts)


def _comments(file: Path) -> list[str]:
    with open(file, errors="replace", encoding=_ENCODING) as opened:
        lines = []
        for line in opened:
            if not line.startswith("#"):
                break
            lines.append(line)
    return lines


def _is_log(file: Path) -> bool:
    with open(file, errors="replace", encoding=_ENCODING) as opened:
        header = next((line for line in opened if not line.startswith("#")), "")
    return set(COLUMNS) <= set(next(csv.reader([header.strip()], skipinitialspace=True), []))


def _read_file(file: Path) -> pd.DataFrame:
    types = {"exp_name": str, "env_name": str, "metric": str}
    lines = dict(skiprows=len(_comments(file)), encoding=_ENCODING, skipinitialspace=True, float_precision="round_trip")
    table = pd.read_csv(file, usecols=COLUMNS, dtype=types, **lines)[COLUMNS].astype(_NUMBERS)
    if (table.seed.dropna() % 1 != 0).any():
        raise ValueError(f"seed {table.seed[table.seed % 1 != 0].iloc[0]} is no whole number")
    return table


def _runs_of(file: Path) -> list[dict[str, Any]]:
    """From the comments of a file that was kept, or from the manifest beside a job's rows."""
    kept = [json.loads(line[1:]) for line in _comments(file) if line.startswith("# {")]
    if nameless := [run for run in kept if not set(RUN) <= set(run)]:
        raise KeyError(f"a comment lacks {', '.join(set(RUN) - set(nameless[0]))}")
    manifest = file.with_name("manifest.json")
    if kept or not manifest.exists():
        return kept
    starts, rows = json.loads(manifest.read_text()).get("starts"), _read_file(file)
    if not starts or rows.empty:  # another program's, or a log that has just begun
        return kept
    machine, first = starts[-1]["machine"], rows.iloc[0]
    return [
        {
            **{key: first[key] for key in ("exp_name", "env_name")},
            "seed": int(first.seed),
            "commit": ", ".join(dict.fromkeys(commit_of(start) for start in starts)),
            "processor": f"{machine['processor']}, {machine['cpus']} cores"
            + (f", {machine['gpu']}" if machine["gpu"] else ""),
            "versions": starts[-1]["versions"],
            "command": _anywhere(starts[0]["command"], file.parents[3] if len(file.parents) > 3 else file.parent),
            "began": starts[0]["time"],
        }
    ]


def _anywhere(command: str, folder: Path) -> str:
    """A command without this machine's paths."""
    return zoo_log.without_folders(command.replace(str(folder), "OUT"))
