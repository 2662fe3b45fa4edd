"""Models that go to the Hub and come back, by RL Zoo's own programs. The Hub is a folder."""

from pathlib import Path

import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from test_zoo import TINY, run
from test_zoo_faults import HUB, PATHS

from sb3_cir import CIR, hub, methods
from sb3_cir.runs import normalization

THERE_AND_BACK = """
import os, pickle, runpy, sys
from types import SimpleNamespace
from huggingface_hub.errors import RemoteEntryNotFoundError
import sb3_cir.zoo; sb3_cir.zoo.register()

def program(name, *options):
    sys.argv = [name, "--algo", "cir", "--env", "Pendulum-v1", *options]
    runpy.run_module(f"rl_zoo3.{name}", run_name="__main__", alter_sys=True)

def refuse(*args, **kwargs):
    raise AssertionError("statistics were unpickled")

def download(repo_id, filename, **kwargs):
    path = Path("hub", repo_id.partition("/")[2], filename)
    if not path.exists():
        raise RemoteEntryNotFoundError("404", response=SimpleNamespace(headers={}, request=None))
    return str(path)

huggingface_hub.hf_hub_download = download
os.environ["TRUST_REMOTE_CODE"] = "True"
quiet = ["--device", "cpu", "--no-render"]
params, unpickle = sys.argv[1:], pickle.load
for name, more in (("plain", []), ("normalized", ["normalize:'dict(norm_obs=True,norm_reward=False)'"])):
    pickle.load = unpickle
    program("train", "-n", "110", "--eval-freq", "-1", "--device", "cpu", *params, *more)
    program("push_to_hub", "-f", "logs", *quiet, "-orga", "somebody", "-name", name)
    print("---")
    program("load_from_hub", "-f", "downloaded", "-orga", "somebody", "-name", name)
    pickle.load = refuse
    program("enjoy", "-f", "downloaded", *quiet, "-n", "210")
    print("---")
"""


def test_there_and_back(tmp_path: Path) -> None:
    """As it was trained, to the byte, with its statistics if it has any."""
    output = run("-c", HUB + THERE_AND_BACK, *TINY, "buffer_size:5000", cwd=tmp_path, **PATHS).split("---")
    for index, name in enumerate(("plain", "normalized")):
        pushed, back = output[2 * index : 2 * index + 2]
        assert f"stopped before the upload of hub/{name}" in pushed
        assert "Mean reward" in back
        trained, loaded = (tmp_path / place / "cir" / f"Pendulum-v1_{index + 1}" for place in ("logs", "downloaded"))
        assert (loaded / "Pendulum-v1.zip").read_bytes() == (trained / "Pendulum-v1.zip").read_bytes()
        assert CIR.load(loaded / "Pendulum-v1.zip", device="cpu", trusted=False).buffer_size == 5000
        statistics = [(folder / "Pendulum-v1" / "vecnormalize.pkl") for folder in (trained, loaded)]
        if name == "plain":
            assert not any(path.exists() for path in statistics)
        else:
            ours, theirs = (normalization.load(path, make_vec_env("Pendulum-v1")).obs_rms for path in statistics)
            assert ours.count == theirs.count == pytest.approx(111 + 1e-4)
            np.testing.assert_array_equal(ours.mean, theirs.mean)
            assert "Loading saved VecNormalize stats" in back or "Loading running average" in back

        card = (tmp_path / "hub" / name / "README.md").read_text(encoding="utf-8")
        for part in (
            "library_name: stable-baselines3",
            "value: ",
            "arXiv 2602.11800",
            "pip install -c constraints.txt .\n",
            "of the returns of\n10 episodes with deterministic actions",
            "'convex_coef': 0.3",
            "'learning_starts': 100",
            "'buffer_size': 5000",
            "## Usage (with SB3 RL Zoo)",
        ):
            assert part in card, card


def test_no_answer_is_not_an_absent_file() -> None:
    """RL Zoo would go on without the statistics that the model was trained with."""
    errors = pytest.importorskip("huggingface_hub.errors")

    def load_from_hub(repo_id: str, filename: str) -> str:
        raise errors.LocalEntryNotFoundError("check your connection")

    with pytest.raises(errors.LocalEntryNotFoundError):
        hub._with_the_error_of_requests(load_from_hub)("somebody/model", "vec_normalize.pkl")


@pytest.mark.parametrize("algo", methods.ours())
def test_the_card_names_the_algorithm(algo: str) -> None:
    results = dict(mean_reward=-150.126, std_reward=30, n_eval_episodes=10, is_deterministic=False)
    card = hub.section(algo, "dm_control/walker-walk-v0", results, dict(gamma=0.9))
    assert card.startswith(f"## {methods.label(algo)}\n")
    assert "Constrained Initial Representations" in card
    assert "pip install -c constraints.txt '.[dmc]'" in card
    assert "-150.13 ± 30.00" in card
    assert "10 episodes with sampled actions" in card
    assert "{'gamma': 0.9}" in card
