"""What RL Zoo does with our algorithms besides training them, and what it says when something is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_save_load import TRAIN
from test_zoo import TINY, installed, run

from sb3_cir.runs.files import checkpoints
from sb3_cir.zoo import name_newest_checkpoint

PATHS = dict(PYTHONPATH=os.pathsep.join(sys.path))


def fails(*command: str, cwd: Path) -> str:
    """Run Python with these arguments and return what it printed; it must end with an error."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **PATHS}
    done = subprocess.run([sys.executable, *command], cwd=cwd, env=environment, text=True, capture_output=True)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


# In place of the one that uploads: it says what it would, and stops.
HUB = """
from pathlib import Path
import huggingface_hub

class Hub:
    def create_repo(self, **kwargs):
        return "an address"
    def snapshot_download(self, repo_id, local_dir):
        Path(local_dir).mkdir(parents=True)
    def upload_folder(self, repo_id, folder_path, commit_message):
        print("stopped before the upload of", folder_path)
        print("pushed:", *sorted(path.name for path in Path(folder_path).glob("*.zip")))
huggingface_hub.HfApi = Hub
"""

PLAY = f"""
import runpy, sys
import sb3_cir.zoo; sb3_cir.zoo.register()
import rl_zoo3.enjoy, rl_zoo3.utils
from stable_baselines3.common.buffers import ReplayBuffer

make = ReplayBuffer.__init__
def note(self, buffer_size, *args, **kwargs):
    print("memory for", buffer_size)
    make(self, buffer_size, *args, **kwargs)
ReplayBuffer.__init__ = note

common = ["--algo", "odrl_sac", "--env", "odrl/walker2d-gravity-0.5-v0", "-f", "logs", "--device", "cpu", "--no-render"]
for options in (["-n", "5", "--load-checkpoint", "50"], ["-n", "5", "--load-last-checkpoint"], ["-n", "1000"]):
    sys.argv = ["enjoy", *common, *options]
    rl_zoo3.enjoy.enjoy()
    print("---")
assert rl_zoo3.utils.ALGOS["odrl_sac"] is sb3_cir.zoo.ALGOS["odrl_sac"]

{HUB}
sys.argv = ["push_to_hub", *common, "-n", "5", "-orga", "somebody"]
runpy.run_module("rl_zoo3.push_to_hub", run_name="__main__", alter_sys=True)
"""


def test_a_model_is_trained_played_and_published(tmp_path: Path) -> None:
    """Where the locale is ASCII; with an id that ends in what looks like a suffix; from a file of ``--save-freq`` too."""
    pytest.importorskip("mujoco", reason="needs MuJoCo (the odrl extra)")
    ascii_locale = dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    options = ["--save-freq", "50", "--eval-freq", "-1", *TINY[:2], "buffer_size:5000"]
    command = ["--algo", "odrl_sac", "--env", "odrl/walker2d-gravity-0.5-v0", "-n", "110", "--device", "cpu", *options]
    run("-c", TRAIN, *command, cwd=tmp_path, **PATHS, **ascii_locale)
    folder = tmp_path / "logs" / "odrl_sac" / "odrl-walker2d-gravity-0.5-v0_1"
    assert {path.name for path in folder.glob("rl_model_*")} == {"rl_model_50_steps.zip", "rl_model_100_steps.zip"}
    assert next(step for step, _ in checkpoints(folder / "checkpoints")) == 110

    output = run("-c", PLAY, cwd=tmp_path, **PATHS)
    by_number, newest, long, published = output.split("---")
    assert "rl_model_50_steps.zip" in by_number
    assert "rl_model_100_steps.zip" in newest
    assert "No episode ended within 5 steps, so there is no return to print. -n sets the number of steps." in by_number
    assert "Mean reward" in long
    assert "No episode ended" not in long
    assert "pushed: odrl_sac-odrl-walker2d-gravity-0.5-v0.zip train_eval_metrics.zip" in published
    assert output.count("memory for 1\n") == output.count("memory for") == 2 * 4  # of two domains


def test_a_broken_run_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from stable_baselines3.common.callbacks import BaseCallback\n"
        "class Broken(BaseCallback):\n"
        "    def _on_step(self):\n"
        "        if self.num_timesteps == 30:\n"
        "            raise ConnectionResetError('the logging server is gone')\n"
        "        return True\n"
    )
    command = ["--algo", "cir", "--env", "Pendulum-v1", "-n", "40", "--eval-freq", "-1", *TINY, "callback:'broken.Broken'"]
    output = fails("-c", TRAIN, *command, cwd=tmp_path)
    assert "ConnectionResetError: the logging server is gone" in output
    assert "Saving to" not in output
    assert not (tmp_path / "logs" / "cir" / "Pendulum-v1_1" / "Pendulum-v1.zip").exists()


WRONG = """
import sys
import sb3_cir.zoo; sb3_cir.zoo.register()
from rl_zoo3.train import train
pendulum = ["--env", "Pendulum-v1", "--eval-freq", "-1"]
for options in (
    ["--algo", "darc", *pendulum],
    ["--algo", "sac", *pendulum, "-i", sys.argv[1]],
    ["--algo", "cir", *pendulum, "-i", sys.argv[1], "-n", "30", "-params", "policy_kwargs:dict(net_arch=[16])"],
):
    sys.argv[1:], place = options, sys.argv[1]
    try:
        train()
    except ValueError as error:
        print("error:", error)
    sys.argv[1] = place
"""


@installed
def test_a_folder_of_checkpoints_and_wrong_commands(tmp_path: Path) -> None:
    command = ["-m", "rl_zoo3.train", "--algo", "cir", "--env", "Pendulum-v1", "--eval-freq", "-1", "--save-freq", "20"]
    run(*command, "-n", "60", *TINY, cwd=tmp_path)
    folder = tmp_path / "logs" / "cir" / "Pendulum-v1_1"
    output = run(*command, "-n", "70", "-i", str(folder), *TINY, cwd=tmp_path)
    assert f"Continuing at step 60 of 70, from {folder / 'checkpoints'}" in output

    place = folder / "checkpoints" / "step_60.zip"
    output = run("-c", WRONG, str(place), cwd=tmp_path, **PATHS)
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert errors == [
        "error: --algo darc learns from two domains, which its settings know for odrl/ ids alone, not for Pendulum-v1. For "
        "other domains name a yaml of your own by -conf, whose callback has a target: "
        "{sb3_cir.off_dynamics.OffDynamicsCallback: {target: <id>}}",
        f"error: {place} is of a CIR, not of a SAC.",
        f"error: {place} is of step 60, past the 30 of -n: nothing is left to learn.",
    ]
    assert "Saving to" not in output


def test_newest_checkpoint(tmp_path: Path) -> None:
    for step in (900, 1000):
        (tmp_path / f"step_{step}.zip").touch()
    argv = ["train", f"--trained-agent={tmp_path}"]
    name_newest_checkpoint(argv)
    assert argv == ["train", f"--trained-agent={tmp_path / 'step_1000.zip'}"]
    for option in ("-i", "--trained-agent"):
        argv = ["train", option, str(tmp_path), "-n", "5"]
        name_newest_checkpoint(argv)
        assert argv == ["train", option, str(tmp_path / "step_1000.zip"), "-n", "5"]
    for argv in (
        ["train", "-i", "model.zip"],
        ["train", "-i", str(tmp_path / "nowhere")],
        ["train", "-i"],
        ["train", "-i", ""],
    ):
        before = list(argv)
        name_newest_checkpoint(argv)
        assert argv == before
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match=r"error: there is no checkpoint in .*empty\. A run makes them with --save-freq\."):
        name_newest_checkpoint(["train", "-i", str(tmp_path / "empty")])
