"""Return against minutes, with seconds in place of minutes."""

from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.preset import COLUMNS, read


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("preset") / "preset.csv"
    command = ["preset", "--tasks", "Pendulum-v1", "--seeds", "3", "--minutes", "0.05", "--evaluations", "2"]
    assert main([*command, "--episodes", "1", "--out", str(out)]) == 0
    return out


def test_rows_say_where_they_come_from(results: Path) -> None:
    rows = read(results)
    assert {row["method"] for row in rows} == {"CIR, small preset", "SAC"}
    for row in rows:
        assert set(row) == set(COLUMNS)
        assert row["seed"] == "3"
        assert -2000 < float(row["return"]) < 0
        assert float(row["processor_seconds"]) >= 1.5
        assert "thread" in row["processor"]


def test_the_figure_is_drawn_from_the_file(results: Path) -> None:
    picture = results.with_suffix(".png")
    assert main(["preset", "--out", str(results), "--figure", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
