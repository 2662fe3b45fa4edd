"""
``python -m benchmarks keep``: learning runs in one small CSV file that a repository can hold.

The file is a log (see :mod:`benchmarks.log`) that begins with comments. Each run has one, a JSON object: ``exp_name``,
``env_name``, ``seed``, ``commit``, ``processor``, ``versions``, ``command`` (without this machine's paths) and ``began``.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import log
from benchmarks.machine import checkout, git_commit, processor, versions
from sb3_cir.runs.files import write_whole

_HEADING = "# Learning runs, kept by `python -m benchmarks keep`. Steps are simulator steps. Each run, and how it was made:"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the command's options.

    :param parser: Gets them
    """
    parser.add_argument("results", nargs="+", type=Path, help="folders of `benchmarks run`, or RL Zoo's log folders")
    parser.add_argument("--out", type=Path, required=True, help="the CSV file; runs that it has already stay in it")
    parser.add_argument(
        "--commit", help="commit of RL Zoo's runs, which do not know theirs (default: this checkout's, if it has no changes)"
    )
    parser.add_argument("--processor", help="what RL Zoo's runs were made on (default: this machine's)")


def main(options: argparse.Namespace) -> int:
    """
    :param options: See :func:`add_arguments`
    :return: 0
    :raises ValueError: If there are no runs, or if it is not known of which commit one is.
    """
    _check_single(options.results)
    found = log.load(options.results)
    for note in found.notes:
        print(note, file=sys.stderr)
    # Of a run that stands twice the first counts, as of rows.
    rows, runs = found.rows, {_key(run): run for run in reversed(found.runs)}
    for key in {tuple(key) for key in rows[log.RUN].drop_duplicates().itertuples(index=False)}:
        run = runs.setdefault(key, dict(zip(log.RUN, key, strict=True)))
        if "commit" not in run:  # RL Zoo's
            run |= {"commit": _commit_of(run, options.commit), "processor": options.processor or processor()}
    if not runs:
        raise ValueError("there are no runs in what was named.")
    n_runs, n_rows = add(options.out, rows, list(runs.values()))
    print(f"{options.out}: {n_runs} runs, {n_rows} rows")
    return 0


def _check_single(results: list[Path]) -> None:
    """Of two folders with one run, rows could come from the one and how they were made from the other."""
    places: dict[tuple[Any, ...], Path] = {}
    for path in dict.fromkeys(path.resolve() for path in results):
        for key in log.load([path]).rows[log.RUN].drop_duplicates().itertuples(index=False, name=None):
            if key in places:
                method, task, seed = key
                raise ValueError(f"{places[key]} and {path} both have {method} on {task}, seed {seed}: name one of them.")
            places[key] = path


def how_made(threads: int, out: Path) -> dict[str, Any]:
    """
    What a command that measures learning says of its runs.

    :param threads: Of torch
    :param out: Where its results go; OUT in the command
    :return: ``commit``, ``processor``, ``versions`` and ``command``
    """
    command = ["python", "-m", "benchmarks", *("OUT" if word == str(out) else word for word in sys.argv[1:])]
    cpu = f"{processor()}, {threads} thread{'s' if threads > 1 else ''}"
    return dict(commit=log.commit_of(checkout()), processor=cpu, versions=versions(), command=shlex.join(command))


def check(path: Path) -> None:
    """
    Before hours of training: whether :func:`add` will be able to put their rows there.

    :param path: The CSV file, which need not exist
    :raises ValueError: If it is something else.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file.")
    if path.exists():
        _load_kept(path)


def _load_kept(path: Path) -> log.Log:
    found = log.load([path])
    if not path.read_text().startswith(_HEADING):
        raise ValueError(f"{path} is a log that `keep` did not write, and would lose what else it has: name another file.")
    return found


def add(path: Path, rows: pd.DataFrame, runs: list[dict[str, Any]]) -> tuple[int, int]:
    """
    Put runs into a file beside those that it has; a run that it has already is replaced. Two processes may do so at once.

    :param path: The CSV file
    :param rows: With the columns of a log
    :param runs: How each run was made
    :return: How many runs and rows the file has now
    """
    found = {_key(run): run for run in runs}
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(path.parent):
        if path.exists():
            before = _load_kept(path)
            old = [tuple(key) not in found for key in before.rows[log.RUN].itertuples(index=False)]
            rows = pd.concat([before.rows[old], rows], ignore_index=True)
            found = {_key(run): run for run in before.runs} | found
        write(path, rows, list(found.values()))
    return len(found), len(rows)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """While another process is in here, wait."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _key(run: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(run[name] for name in log.RUN)


def _commit_of(run: dict[str, Any], given: str | None) -> str:
    commit = given or git_commit()
    if commit is None:
        raise ValueError(
            f"the run {run['exp_name']} on {run['env_name']} does not know its commit, and this checkout has changes or is "
            "none: name it with --commit."
        )
    return commit


def write(path: Path, rows: pd.DataFrame, runs: list[dict[str, Any]]) -> None:
    """
    :param path: The CSV file, replaced as a whole
    :param rows: With the columns of a log
    :param runs: How each run was made
    """
    comments = [_HEADING, *(f"# {json.dumps(run)}" for run in runs)]
    write_whole(path, ("\n".join(comments) + "\n" + rows[log.COLUMNS].to_csv(index=False)).encode())
