"""Checkpoints through RL Zoo: ``--save-freq`` makes them, Ctrl-C makes a last one, ``--trained-agent`` goes on from one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rl_zoo3.utils import ALGOS
from sb3_contrib import TQC
from stable_baselines3 import SAC, TD3
from test_save_load import TRAIN, wait_for
from test_zoo import run

from sb3_cir.runs.checkpoint import read
from sb3_cir.runs.files import checkpoints

OPTIONS = ["--save-freq", "100", "--eval-freq", "150", "--eval-episodes", "1", "-params", "policy_kwargs:dict(net_arch=[16])"]
OPTIONS += ["batch_size:16", "learning_starts:50", "normalize:True", "learning_rate:'lin_3e-4'", "noise_type:'normal'"]
OPTIONS += ["noise_std:0.1"]


def test_zoo(tmp_path: Path) -> None:
    command = ["-c", TRAIN, "--algo", "cir", "--env", "Pendulum-v1", *OPTIONS]
    log, first, second = (tmp_path / name for name in ("log.txt", "logs/cir/Pendulum-v1_1", "logs/cir/Pendulum-v1_2"))
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *command, "-n", "1000000"],
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    try:
        wait_for(lambda: "Checkpoint of step 200" in log.read_text(), process, log)
        process.send_signal(signal.SIGINT)
        # The zoo takes Ctrl-C for the end of the run and saves the model.
        assert process.wait(timeout=300) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
    assert (first / "Pendulum-v1.zip").is_file()
    (step, path), (before, _) = checkpoints(first / "checkpoints")
    assert step > 200
    assert before % 100 == 0

    total = step + 130
    continued = run(*command, "-n", str(total), "-i", str(path), cwd=tmp_path, PYTHONPATH=os.pathsep.join(sys.path))
    assert f"Continuing at step {step} of {total}, from " in continued
    manifest = read(second / "checkpoints").manifest
    assert manifest.step == total
    assert manifest.counters["_n_updates"] == 2 * (total - 50)
    assert manifest.buffers["replay"].pos == total
    # What was evaluated before counts on.
    steps = np.load(second / "evaluations.npz")["timesteps"].tolist()
    assert steps == list(range(150, total + 1, 150))


def test_zoo_two_domains(tmp_path: Path) -> None:
    """By the yaml's entry alone; a run that had ended goes on when it is given more steps."""
    options = ["--save-freq", "50", "--eval-freq", "-1", "-params", "policy_kwargs:dict(net_arch=[16])", "batch_size:16"]
    command = ["-c", TRAIN, "--algo", "cir", "--env", "odrl/walker2d-friction-0.5-v0", *options, "learning_starts:50"]
    run(*command, "-n", "80", cwd=tmp_path, PYTHONPATH=os.pathsep.join(sys.path))
    (folder,) = tmp_path.glob("logs/cir/odrl-walker2d-friction-0.5-v0_1/checkpoints")
    place = str(folder / "step_80.zip")
    run(*command, "-n", "130", "-i", place, cwd=tmp_path, PYTHONPATH=os.pathsep.join(sys.path))
    manifest = read(Path(str(folder).replace("v0_1", "v0_2"))).manifest
    assert {name: buffer.pos for name, buffer in manifest.buffers.items()} == {"source": 130, "target": 13}
    assert manifest.callbacks["OffDynamicsCallback"][0]["target_steps"] == 13


@pytest.mark.parametrize(
    "algo", ["sac", pytest.param("td3", marks=pytest.mark.slow), pytest.param("tqc", marks=pytest.mark.slow)]
)
def test_zoo_resumes_sb3s_own(algo: str, tmp_path: Path) -> None:
    """Their runs go on too, and the models that they save stay those that SB3 itself loads."""
    options = ["--save-freq", "100", "--eval-freq", "-1", "--seed", "1", "-params", "policy_kwargs:dict(net_arch=[16])"]
    options += ["batch_size:16", "learning_starts:50"]
    command = ["-c", TRAIN, "--algo", algo, "--env", "Pendulum-v1", *options]
    run(*command, "-n", "200", cwd=tmp_path, PYTHONPATH=os.pathsep.join(sys.path))
    first, second = (tmp_path / f"logs/{algo}/Pendulum-v1_{index}" for index in (1, 2))
    assert (first / "rl_model_100_steps.zip").is_file()
    shown = run(
        *command,
        "-n",
        "300",
        "-i",
        str(first / "checkpoints/step_200.zip"),
        cwd=tmp_path,
        PYTHONPATH=os.pathsep.join(sys.path),
    )
    assert "Continuing at step 200 of 300" in shown
    model = {"sac": SAC, "td3": TD3, "tqc": TQC}[algo].load(second / "Pendulum-v1.zip", device="cpu")
    assert (model.num_timesteps, read(second / "checkpoints").manifest.algorithm) == (300, algo.upper())


def test_zoo_leaves_others_alone(tmp_path: Path) -> None:
    """Without ``--save-freq`` they are SB3's, and what is on-policy always is."""
    assert ALGOS["sac"] is SAC
    options = ["--save-freq", "50", "--eval-freq", "-1", "-params", "n_steps:32", "batch_size:32", "n_envs:1"]
    command = ["-c", TRAIN, "--algo", "ppo", "--env", "Pendulum-v1", *options, "-n", "60"]
    run(*command, cwd=tmp_path, PYTHONPATH=os.pathsep.join(sys.path))
    assert (tmp_path / "logs/ppo/Pendulum-v1_1/rl_model_50_steps.zip").is_file()
    assert not (tmp_path / "logs/ppo/Pendulum-v1_1/checkpoints").exists()
