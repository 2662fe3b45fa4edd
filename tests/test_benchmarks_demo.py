"""The demo of ``make demo``, with few steps and tiny networks."""

from pathlib import Path

import pytest

pytest.importorskip("dm_control", reason="needs the extra dmc")
pytest.importorskip("ray", reason="needs the extra benchmarks")
pytest.importorskip("rich", reason="needs the extra benchmarks")

from benchmarks import demo
from benchmarks.__main__ import main


@pytest.mark.slow
def test_trains_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    params = dict(learning_starts=20, policy_kwargs=dict(net_arch=[8, 8]))
    monkeypatch.setattr(demo, "SIZES", {"small": demo.Size(60, 20, params, "seconds")})
    monkeypatch.setattr(demo, "EVAL_EVERY", 30)
    mine = tmp_path / "demo" / "mine.txt"
    mine.parent.mkdir()
    mine.touch()
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 0
    assert mine.exists()
    assert (tmp_path / "demo" / "learning_curve.png").is_file()
    said = capsys.readouterr().out
    assert "At the end: return" in said
    assert (tmp_path / "demo" / "video.mp4").is_file() or "No video: no GL backend" in said


def test_says_what_it_will_do_and_where_it_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "run_zoo", lambda *_: 1)
    for name, options in (("small", []), ("paper", ["--paper"])):
        size = demo.SIZES[name]
        assert size.learning_starts < size.steps
        assert main(["demo", *options]) == 1
        said = capsys.readouterr()
        assert f"CIR learns to balance a pole on a cart: {size.steps:,} steps. This takes {size.takes}." in said.out
        assert "Training failed" in said.err
