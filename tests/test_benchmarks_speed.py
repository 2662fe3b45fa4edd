"""``benchmarks speed``: what it counts and shows. How fast anything is, no test says."""

import functools
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs the benchmarks extra")

from benchmarks import speed
from benchmarks.__main__ import main
from sb3_cir import CIR, methods

ROOT = Path(__file__).parent.parent


def test_floor_has_the_products_of_two_updates() -> None:
    """Six times the critics' weights and four times the actor's, less what no gradient needs."""
    products = speed.Products("cpu")
    model = CIR("MlpPolicy", speed.Sizes(), buffer_size=10, device="cpu")
    critic = sum(
        weight.numel() for name, weight in model.critic.named_parameters() if weight.dim() == 3 and "bias" not in name
    )
    actor = sum(weight.numel() for weight in model.actor.parameters() if weight.dim() == 2)
    not_needed = 2 * 30 * 512 + 24 * 512  # no gradient to observations from the critics' own loss, nor from the actor's
    assert products.flops == 2 * 2 * 256 * (6 * critic + 4 * actor - not_needed)
    products()


@pytest.mark.parametrize(("power", "start"), [(1.0, 0), (2.0, 0), (1.0, 256)])
def test_exponent(power: float, start: int) -> None:
    costs = {value: 3.0 * value**power if value >= start else 50.0 for value in (64, 128, 256, 512, 1024)}
    assert speed.exponent(costs, start) == pytest.approx(power)


def test_text_and_figure() -> None:
    growth = {name: {value: 2.0 * value for value in values} for name, values in speed.GROWTH.items()}
    milliseconds = {speed.FLOOR: 100.0, "CIR, eager": 130.0, speed.AUTHORS: 260.0}
    found = {
        "machine": {"device": "cpu"},
        "milliseconds": milliseconds,
        "first_call_seconds": {"CIR, eager": 3.4},
        "floor_gflop": 20.6,
        "floor_gflop_per_second": 206.0,
        "acting": {"environment": 0.31234, "predict": 0.2},
        "learn": {"share_in_train": 0.98765},
        "growth": growth,
    }
    text = speed.as_text(found)
    row = next(line for line in text.splitlines() if "CIR, eager" in line)
    assert [cell.strip() for cell in row.split("|")[2:6]] == ["130.0", "1.30", "0.50", "3"]
    assert "environment 0.312, predict 0.200" in text
    assert "share_in_train 0.988" in text
    assert sum(line.startswith("| ms") and line.rstrip(" |").endswith("1.00") for line in text.splitlines()) == 5
    assert [axes.get_xlabel() for axes in speed.draw_growth(growth).axes] == list(speed.GROWTH)


def fails_at_once() -> speed.Train:
    raise ImportError("it needs a package")


def test_apart() -> None:
    """In another process: what it raises is raised here, and it goes on."""
    elsewhere = speed.Apart(1, "cpu", functools.partial, time.sleep, 0.2)
    assert 0.2 <= elsewhere() < 2
    broken = speed.Apart(1, "cpu", fails_at_once)
    with pytest.raises(ImportError, match="it needs a package"):
        broken()
    assert elsewhere() >= 0.2


@pytest.mark.parametrize(("name", "n_updates"), [("td7", 1), ("flash_sac", 1), ("simba_v2", 2)])
def test_updates_of_a_step(name: str, n_updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the method's own sizes. (Those that are compiled for a minute first are in the whole command below.)"""
    filled, models = speed.filled, []
    monkeypatch.setattr(speed, "filled", lambda model: models.append(filled(model, 100)) or models[0])
    speed.own_sizes(name, "cpu")()
    assert models[0]._n_updates == n_updates


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--authors", "nowhere"], "there is no dmc/algo/cir.py in it"),
        (["--device", "cuda:7"], "torch sees no GPU"),
    ],
)
def test_bad_input(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "cuda:7" in arguments and speed.th.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["speed", *arguments]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc")
def test_memory_is_kept_for_the_next_update() -> None:
    """Else each train call at paper size has 3,600 page faults. In a process of its own: what others freed counts too."""
    program = """
import resource
from benchmarks import speed

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    train()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

train = speed.cir("cpu", compile=False)
print(min(faults() for _ in range(5)))  # memory may still grow in one
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(run.stdout) < 500


@pytest.mark.slow
def test_whole_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "speed", "--rounds", "1", "--format", "json", "--out", str(tmp_path)]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    assert found["cir_over_gemm_floor"] > 0.5
    assert {f"{methods.label(name)} at its own sizes" for name in speed.PEERS} < set(found["milliseconds"])
    assert set(found["growth"]) == set(speed.GROWTH)
    assert len(found["acting"]) == 3
    assert 0.5 < found["learn"]["share_in_train"] < 1
    assert (tmp_path / "growth.png").stat().st_size > 10_000
