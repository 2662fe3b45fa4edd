"""Return against minutes, with seconds in place of minutes."""

from pathlib import Path

import pytest

from benchmarks import log
from benchmarks.__main__ import main
from benchmarks.preset import METHODS, PROCESSOR_SECONDS, train
from sb3_cir.tasks import of_group


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("preset") / "preset.csv"
    command = ["preset", "--tasks", "Pendulum-v1", "--seeds", "3", "--minutes", "0.05", "--evaluations", "2"]
    assert main([*command, "--episodes", "1", "--out", str(out)]) == 0
    return out


def test_rows_say_where_they_come_from(results: Path) -> None:
    found = log.load([results])
    assert [(run["exp_name"], run["env_name"], run["seed"]) for run in found.runs] == [(m, "Pendulum-v1", 3) for m in METHODS]
    assert all("1 thread" in run["processor"] for run in found.runs)
    values = {metric: rows.value for metric, rows in found.rows.groupby("metric")}
    assert values[log.RETURN].between(-2000, 0).all()
    assert (values[PROCESSOR_SECONDS] >= 1.5).all()
    assert len(values[log.RETURN]) == len(values[PROCESSOR_SECONDS])


def test_tasks_have_the_reports_names() -> None:
    (task, *_) = of_group("odrl")
    rows = train("sac; learning_starts=500", task.env_id, 0, 0.01, 1, 1)
    assert set(rows.env_name) == {task.name}


def test_a_task_that_there_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before another is trained on."""
    out = tmp_path / "preset.csv"
    assert main(["preset", "--tasks", "Pendulum-v1", "Pendulun-v1", "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert "Pendulum-v1" in said.err
    assert said.out == ""


def test_the_figure_is_drawn_from_the_file(results: Path) -> None:
    picture = results.with_suffix(".png")
    assert main(["preset", "--out", str(results), "--figure", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_no_figure_is_drawn_from_another_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(__file__).parents[1] / "benchmarks" / "results" / "cir.csv"
    assert main(["preset", "--out", str(other), "--figure", str(tmp_path / "x.png")]) == 2
    assert "the log has no processor_seconds of cir; small preset or sac" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("minutes", ["-1", "0", "nan", "inf"])
def test_minutes_that_are_none(tmp_path: Path, minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["preset", f"--minutes={minutes}", "--out", str(tmp_path / "preset.csv")])
    assert f"argument --minutes: {minutes}: it must be positive and finite." in capsys.readouterr().err
