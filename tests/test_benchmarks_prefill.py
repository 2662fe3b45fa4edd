"""Pendulum with and without recorded transitions, in few steps."""

from itertools import product
from pathlib import Path

import pytest
from small import small

from benchmarks import log, prefill
from benchmarks.__main__ import main

SIZES = ["--steps", "40", "--every", "20", "--episodes", "1", "--transitions", "300", "--recorder-steps", "10"]


def test_rows_and_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "prefill.csv"
    assert main(["prefill", "--seeds", "3", "4", *SIZES, "--out", str(out)]) == 0
    found = log.load([out])
    assert len(found.rows) == 3 * 2 * 2
    assert found.rows.value.between(-2000, 0).all()
    assert [(run["seed"], run["exp_name"]) for run in found.runs] == [*product((3, 4), prefill.METHODS)]
    assert found.runs[0].keys() >= {"commit", "processor", "versions", "command", "recorded_return"}
    header, _, *lines = capsys.readouterr().out.splitlines()[-5:]
    assert header.replace(" ", "") == "|steps|20|40|"
    assert [line.split(" | ")[0].strip("| ") for line in lines] == [*prefill.METHODS]


def test_the_recording_is_the_same_each_time(tmp_path: Path) -> None:
    returns = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        returns.append(prefill.record(small("Pendulum-v1"), 300, tmp_path / name))
    assert returns[0] == returns[1]
