"""
Train CIR on cartpole-balance through RL Zoo, say what it has learned, draw the learning curve, film the best agent.

``make demo`` runs this with small networks, in minutes, ``make demo-paper`` with the paper's. Everything goes to ``demo/``.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from huggingface_sb3 import EnvironmentName
from rl_zoo3 import get_latest_run_id
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks.arguments import folder, not_negative
from benchmarks.preset import SMALL
from sb3_cir import CIR, envs
from sb3_cir.methods import as_zoo_params

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ENV_ID = "dm_control/cartpole-balance-v0"
NO_VIDEO = (
    "No video: no GL backend could be opened. Install libegl1 and libgl1-mesa-dri (Debian's names) for MUJOCO_GL=egl, "
    "or libosmesa6 for MUJOCO_GL=osmesa, and run `make demo` again."
)


class Size(NamedTuple):
    """
    What is trained, and how long that takes.

    :param steps: Of the agent
    :param learning_starts: Random steps among them
    :param params: CIR's arguments, beside its defaults
    :param takes: For people: of the small one measured ("The demo" in benchmarks/README.md), of the paper's from what a train
        call costs there ("Speed")
    """

    steps: int
    learning_starts: int
    params: dict[str, object]
    takes: str


SIZES = {
    "small": Size(5_000, SMALL["learning_starts"], SMALL, "4 to 5 minutes on 2 cores, and less than a minute more to film it"),
    "paper": Size(5_000, 2_500, {}, "10 to 15 minutes on 2 cores, and is the first fiftieth of the paper's training"),
}
EVAL_EVERY = 500


def run_zoo(script: str, out: Path, *arguments: str, env: dict[str, str] | None = None, quiet: bool = False) -> int:
    """Run one of RL Zoo's scripts as a user would, and show the command as it can be pasted."""
    command = ["-m", f"rl_zoo3.{script}", "--algo", "cir", "--env", ENV_ID, "-f", str(out / "logs"), *arguments]
    backend = f"MUJOCO_GL={env['MUJOCO_GL']} " if env else ""
    print(f"$ {backend}{shlex.join([sys.executable, *command])}", flush=True)
    output = subprocess.DEVNULL if quiet else None
    return subprocess.run([sys.executable, *command], env=env, stdout=output, stderr=output).returncode


def draw_learning_curve(evaluations: Path, learning_starts: int, picture: Path) -> None:
    """Mean and standard deviation over evaluation episodes against simulator steps, which are two for one of the agent."""
    data = np.load(evaluations)
    steps, returns = 2 * data["timesteps"], data["results"]
    mean, std = returns.mean(axis=1), returns.std(axis=1)
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(steps, mean, marker="o", markersize=3)
    axes.fill_between(steps, mean - std, mean + std, alpha=0.2, linewidth=0)
    axes.axvline(2 * learning_starts, color="grey", linestyle=":", linewidth=1)
    axes.annotate(
        "learning starts", (2 * learning_starts, 20), xytext=(4, 0), textcoords="offset points", color="grey", fontsize=8
    )
    episodes = returns.shape[1]
    axes.set(
        title=f"CIR on {ENV_ID}",
        xlabel="simulator steps",
        ylabel=f"return of 1000 (mean ± std of {episodes} episodes)",
        xlim=(0, steps[-1]),
        ylim=(0, 1020),
    )
    figure.savefig(picture, dpi=150)


def film(out: Path, video: Path) -> bool:
    """Film the best agent for five seconds, with the first GL backend that opens."""
    chosen = os.environ.get("MUJOCO_GL")
    for backend in [chosen] if chosen else ["egl", "osmesa"]:
        env = {**os.environ, "MUJOCO_GL": backend}
        size = ["--env-kwargs", "render_kwargs:dict(height=480, width=640)"]
        words = ["--load-best", "-n", "250", "-o", str(out), "--no-render", *size]
        if run_zoo("record_video", out, *words, env=env, quiet=True) == 0:
            made = sorted(out.glob("*-step-0-to-step-250.mp4"))
            if made:
                shutil.move(made[0], video)
                return True
    return False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the command's options.

    :param parser: Gets them
    """
    parser.add_argument("--paper", action="store_true", help="the paper's networks")
    parser.add_argument("--seed", type=not_negative, default=0, help="seed of the training (default: %(default)s)")
    parser.add_argument("--out", type=folder, default=Path("demo"), help="folder of runs, curve and video (default: demo)")


def main(options: argparse.Namespace) -> int:
    """
    Train, evaluate, draw, film.

    :param options: See :func:`add_arguments`
    :return: 0, or 1 if training failed
    """
    size, out = SIZES["paper" if options.paper else "small"], options.out
    print(f"CIR learns to balance a pole on a cart: {size.steps:,} steps. This takes {size.takes}.", flush=True)
    began, processor = time.perf_counter(), sum(os.times()[:4])

    evaluation = ["--eval-freq", str(EVAL_EVERY), "--eval-episodes", "3", "--verbose", "0", "-P"]
    if size.params:
        # With so small networks a second thread only waits for the first.
        evaluation += ["--num-threads", "1", "-params", *as_zoo_params(size.params)]
    if run_zoo("train", out, "--seed", str(options.seed), "-n", str(size.steps), *evaluation) != 0:
        print("Training failed; what it printed above says why.", file=sys.stderr)
        return 1
    logs, task = out / "logs" / "cir", EnvironmentName(ENV_ID)
    run = logs / f"{task}_{get_latest_run_id(str(logs), task)}"

    for label, name in (("At the end", task), ("The best agent", "best_model")):
        model = CIR.load(run / f"{name}.zip", buffer_size=1)
        mean, std = evaluate_policy(model, envs.make(ENV_ID, seed=1), n_eval_episodes=5, deterministic=True, warn=False)
        print(f"{label}: return {mean:.1f} ± {std:.1f} of 1000 over 5 episodes", flush=True)

    draw_learning_curve(run / "evaluations.npz", size.learning_starts, out / "learning_curve.png")
    print(f"Learning curve: {out / 'learning_curve.png'}")
    print(f"Video: {out / 'video.mp4'}" if film(out, out / "video.mp4") else NO_VIDEO)
    seconds, processor = time.perf_counter() - began, sum(os.times()[:4]) - processor
    print(f"That took {seconds:.0f} s, and {processor:.0f} s of processor time.")
    return 0
