"""
The log: one row for each evaluation and metric, in CSV files.

Columns are those of SimBa's and CIR's own logs, so that anybody's can be read beside ours:

- ``exp_name``: the method, e.g. ``cir``, ``simba`` or ``cir:cdq``
- ``env_name``: the task, e.g. ``walker-walk``, ``h1-walk-v0`` or ``ant-gravity-0.5``
- ``seed``: the run's seed
- ``metric``: ``avg_return`` (mean of the evaluation's episodes), ``seconds`` (wall clock since the run began, evaluations
  included) or ``updates`` (gradient updates done)
- ``env_step``: steps of the simulator, which are the agent's steps times the action repeat
- ``value``
"""

import os
import re
import warnings
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

COLUMNS = ["exp_name", "env_name", "seed", "metric", "env_step", "value"]
RETURN, SECONDS, UPDATES = "avg_return", "seconds", "updates"


def write_whole(path: Path, text: str) -> None:
    """
    Write a file so that a reader, or a process killed at any moment, finds either the old content or the new.

    :param path: The file
    :param text: Its content
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with open(part, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def write(path: Path, rows: pd.DataFrame) -> None:
    """
    :param path: The CSV file, replaced as a whole
    :param rows: With the columns :data:`COLUMNS`
    """
    write_whole(path, rows[COLUMNS].to_csv(index=False))


def read(paths: Iterable[str | Path]) -> pd.DataFrame:
    """
    Read logs: files as they are, folders with everything in them that is a log.

    A folder is searched in natural order (seed 2 before seed 10); checkpoints in it are left out. Where a row stands more
    than once, the last one counts, with a warning.

    :param paths: Files and folders
    :return: The rows in the order of the files, with the columns :data:`COLUMNS`
    :raises FileNotFoundError: If there is no such path.
    :raises ValueError: If a named file is no log, or if there is no log in a named folder.
    """
    files: dict[Path, Path] = {}
    for path in map(Path, paths):
        found = [path] if path.is_file() else _logs_in(path)
        files |= {file.resolve(): file for file in found}
    tables = [_read_file(file) for file in files.values()] or [pd.DataFrame(columns=COLUMNS)]
    rows = pd.concat(tables, ignore_index=True).astype({"seed": int, "env_step": int, "value": float})
    key = COLUMNS[:-1]
    repeated = rows.duplicated(key, keep="last")
    if repeated.any():
        first = rows[repeated].iloc[0]
        example = f"{first.exp_name} on {first.env_name}, seed {first.seed}, {first.metric} at step {first.env_step}"
        warnings.warn(f"{repeated.sum()} rows stand more than once, e.g. {example}: the last one counts.", stacklevel=2)
    return rows[~repeated].reset_index(drop=True)


def _logs_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no file or folder {str(folder)!r}.")
    files = [file for file in folder.rglob("*.csv") if _is_log(file) and not _hidden(file.relative_to(folder))]
    if not files:
        raise ValueError(f"There is no log in {str(folder)!r}: no .csv file with the columns {', '.join(COLUMNS)}.")
    return sorted(files, key=lambda file: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(file))])


def _hidden(path: Path) -> bool:
    """What is being written, and what belongs to a checkpoint, begins with a dot."""
    return any(part.startswith(".") for part in path.parts)


def _is_log(file: Path) -> bool:
    with open(file, errors="replace") as opened:
        return set(COLUMNS) <= set(opened.readline().strip().split(","))


def _read_file(file: Path) -> pd.DataFrame:
    if not _is_log(file):
        raise ValueError(f"{str(file)!r} is no log: its first line must name the columns {', '.join(COLUMNS)}.")
    return pd.read_csv(file, usecols=COLUMNS, dtype={"exp_name": str, "env_name": str})[COLUMNS]
