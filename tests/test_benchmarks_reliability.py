"""The reliability checks themselves, small."""

import argparse
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rich", reason="needs rich, of the benchmarks extra")
from rich.console import Console

from benchmarks import reliability
from sb3_cir.callbacks import Checkpoint

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")


def run(name: str, **options: int) -> list[str]:
    return reliability.CHECKS[name](argparse.Namespace(seed=0, **options), Console(stderr=True))


def test_kills() -> None:
    assert run("kills", kills=3)[0].startswith("3 kills (SIGKILL)")


def test_full_disk() -> None:
    (line,) = run("full_disk")
    if "not run" in line:
        pytest.skip(line)
    assert "the disk is full" in line


def test_damage() -> None:
    (line,) = run("damage")
    assert "each time the older checkpoint was used" in line


def test_soak() -> None:
    lines = run("soak", soak=800)
    assert any(line.startswith("zombies: first 0, least 0, most 0") for line in lines)


def test_a_torn_buffer_is_seen(tmp_path: Path) -> None:
    """What the checks rest on: one row that is out of place, or of another step, is found."""
    reliability.small_model(reliability.numbered()).learn(100, callback=Checkpoint(100, tmp_path))
    for name, row in (("observations", 5), ("next_observations", 50), ("actions", 70), ("rewards", 99), ("dones", 36)):
        model = reliability.resumed(tmp_path)
        getattr(model.replay_buffer, name)[row] += 1
        with pytest.raises(ValueError, match=f"torn buffer at step 100: .*row {row} of 100"):
            reliability.check_rows(model)
    model = reliability.resumed(tmp_path)
    model.replay_buffer.pos = 0
    model.num_timesteps += 1
    model.replay_buffer.observations[:] = np.roll(model.replay_buffer.observations, 1)
    model.replay_buffer.pos = 100
    with pytest.raises(ValueError, match="missing or out of place"):
        reliability.check_rows(model)
