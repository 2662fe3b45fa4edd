"""A part of the damaged and hostile files that ``python -m benchmarks hostile`` loads."""

import argparse
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="needs rich, of the benchmarks extra")

from benchmarks import hostile

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")


def found(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    hostile.add_arguments(parser)
    status = hostile.main(parser.parse_args([*options, "--show", *hostile.OUTCOMES]))
    return status, capsys.readouterr().out


def test_outcomes(capsys: pytest.CaptureFixture[str]) -> None:
    """One of each kind that may be."""
    status, text = found(capsys, "--random", "0", "--only", "checkpoint: rows")
    assert status == 0, text
    assert "passed over: checkpoint, resume: rows a bit altered: " in text
    status, text = found(capsys, "--random", "0", "--only", "model: bytes")
    assert status == 0, text
    assert "equal: model, load(trusted=False): bytes before it" in text
    assert "clear error: model, load(trusted=False): bytes put in: DamagedError: model.zip" in text


def test_what_is_not_found_out_counts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The program sees what a gate that is left open lets through."""
    monkeypatch.setattr(hostile.arguments, "_faults", lambda *args: iter(()))
    status, text = found(capsys, "--random", "0", "--only", "model: tau=7.0")
    assert status == 1
    assert "traceback: model, load(trusted=False): tau=7.0: at learn(): ValueError: nan" in text


@pytest.mark.slow
def test_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = found(capsys, "--random", "80", "--part", "0", "8")
    assert status == 0, text
