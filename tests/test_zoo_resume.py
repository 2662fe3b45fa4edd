"""Checkpoints through RL Zoo: ``--save-freq`` makes them, Ctrl-C makes a last one, ``--trained-agent`` goes on from one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
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
    assert manifest["step"] == total
    assert manifest["counters"]["_n_updates"] == 2 * (total - 50)
    assert manifest["buffers"]["replay"]["pos"] == total
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
    assert {name: buffer["pos"] for name, buffer in manifest["buffers"].items()} == {"source": 130, "target": 13}
    assert manifest["callbacks"]["OffDynamicsCallback"][0]["target_steps"] == 13


def test_zoo_leaves_others_alone(tmp_path: Path) -> None:
    options = ["--save-freq", "50", "--eval-freq", "-1", "-params", "learning_starts:500"]
    command = ["-c", TRAIN, "--algo", "sac", "--env", "Pendulum-v1", *options, "-n", "60"]
    run(*command, cwd=tmp_path, PYTHONPATH=os.pathsep.join(sys.path))
    assert (tmp_path / "logs/sac/Pendulum-v1_1/rl_model_50_steps.zip").is_file()
