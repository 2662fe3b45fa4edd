"""
Return against minutes: CIR with the small preset beside Stable-Baselines3's SAC, on low-dimensional tasks and a CPU.

Each method trains for as long as it is given, by the processor's clock, so that a machine that others share gives the same
figures. Evaluations do not count. Rows go to a CSV file as they are made, and the figure is drawn from the file.
"""

import argparse
import csv
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from benchmarks.run import processor
from sb3_cir import CIR, envs

# For tasks with few observations on a CPU: an update costs a tenth of one at paper size, and few steps are lost to warming up.
# Target critics follow, so values reach their size in about 1 / (tau * (1 - gamma)) updates. At the paper's tau of 0.005 that
# is 20,000, which is more than such a run makes.
SMALL: dict[str, Any] = dict(learning_starts=500, learning_rate=1e-3, tau=0.02, policy_kwargs=dict(net_arch=[64, 64]))

METHODS: dict[str, tuple[type[OffPolicyAlgorithm], dict[str, Any]]] = {
    "CIR, small preset": (CIR, SMALL),
    "SAC": (SAC, dict(learning_starts=500)),
}
TASKS = ("Pendulum-v1", "dm_control/cartpole-balance-v0", "dm_control/walker-walk-v0", "HalfCheetah-v5")
COLUMNS = ("method", "task", "seed", "agent_steps", "processor_seconds", "return", "std", "commit", "processor", "command")
DEFAULT = Path("benchmarks/results/preset.csv")


class Clock(BaseCallback):
    """
    Evaluates after every so many seconds of training by the processor's clock, and ends training when the time is over.

    :param budget: Seconds of training
    :param every: Seconds between two evaluations
    :param task: What to evaluate on
    :param episodes: How many for each evaluation
    """

    def __init__(self, budget: float, every: float, task: str, episodes: int):
        super().__init__()
        self.budget, self.every, self.episodes = budget, every, episodes
        self.env = envs.make(task, seed=1_000)
        self.rows: list[dict[str, Any]] = []
        self.evaluating = 0.0

    def _on_training_start(self) -> None:
        self.began = time.process_time()
        self.next = self.every

    def _on_step(self) -> bool:
        seconds = time.process_time() - self.began - self.evaluating
        if seconds >= self.next:
            mean, std = evaluate_policy(self.model, self.env, self.episodes, deterministic=True, warn=False)
            self.evaluating = time.process_time() - self.began - seconds
            self.next += self.every
            values = (self.num_timesteps, f"{seconds:.1f}", f"{mean:.1f}", f"{std:.1f}")
            self.rows.append(dict(zip(("agent_steps", "processor_seconds", "return", "std"), values, strict=True)))
            print(f"    {seconds / 60:5.1f} min, step {self.num_timesteps:6d}: {mean:7.1f} ± {std:.1f}", flush=True)
        return seconds < self.budget


def train(method: str, task: str, seed: int, minutes: float, evaluations: int, episodes: int) -> list[dict[str, Any]]:
    """
    :param method: A name of :data:`METHODS`
    :param task: A Gymnasium id
    :param seed: Seed of networks and environment
    :param minutes: Of training, by the processor's clock
    :param evaluations: How many, evenly spread
    :param episodes: For each
    :return: One row for each evaluation
    """
    model_class, arguments = METHODS[method]
    clock = Clock(60 * minutes, 60 * minutes / evaluations, task, episodes)
    model_class("MlpPolicy", envs.make(task, seed=seed), seed=seed, device="cpu", buffer_size=100_000, **arguments).learn(
        10**9 if model_class is SAC else 200_000, callback=clock
    )
    return clock.rows


def origin(command: list[str]) -> dict[str, str]:
    """
    :param command: What was typed
    :return: What every row says of where it comes from: commit, processor, command
    """
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return dict(
        commit=commit or "unknown", processor=f"{processor()}, {th.get_num_threads()} thread(s)", command=shlex.join(command)
    )


def read(path: Path) -> list[dict[str, str]]:
    """
    :param path: What this command wrote
    :return: Its rows
    """
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    """
    :param path: The CSV file, made with its head if it is not there
    :param rows: To add
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def draw(rows: list[dict[str, str]], picture: Path) -> None:
    """
    Return against minutes, one panel for each task, one line for each seed.

    :param rows: As :func:`read` returns them
    :param picture: The PNG to write
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    tasks = [task for task in TASKS if any(row["task"] == task for row in rows)]
    colours = dict(zip(METHODS, ("#c44e52", "#4c72b0"), strict=True))
    figure, panels = plt.subplots(1, len(tasks), figsize=(3.6 * len(tasks), 3.2), layout="constrained", squeeze=False)
    for axes, task in zip(panels[0], tasks, strict=True):
        for method, seed, line in _lines(rows, task):
            minutes = [float(row["processor_seconds"]) / 60 for row in line]
            label = method if seed == line[0]["first_seed"] else None
            axes.plot(minutes, [float(row["return"]) for row in line], color=colours[method], label=label, alpha=0.85)
        axes.set(title=task.removeprefix("dm_control/"), xlabel="minutes of training (processor time)", xlim=0)
    panels[0][0].set_ylabel("return")
    panels[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(picture, dpi=150)


def _lines(rows: list[dict[str, str]], task: str) -> Iterator[tuple[str, str, list[dict[str, str]]]]:
    for method in METHODS:
        chosen = [row for row in rows if row["task"] == task and row["method"] == method]
        for seed in dict.fromkeys(row["seed"] for row in chosen):
            line = [{**row, "first_seed": chosen[0]["seed"]} for row in chosen if row["seed"] == seed]
            yield method, seed, line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """:param parser: Gets this command's arguments"""
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), metavar="ID", help=f"default: {' '.join(TASKS)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--minutes", type=float, default=5, help="of training, by the processor's clock (default: 5)")
    parser.add_argument("--evaluations", type=int, default=10, help="for each run (default: 10)")
    parser.add_argument("--episodes", type=int, default=5, help="for each evaluation (default: 5)")
    parser.add_argument("--out", type=Path, default=DEFAULT, help=f"the CSV file that rows are added to (default: {DEFAULT})")
    parser.add_argument("--figure", type=Path, help="only draw what the CSV file holds, to this PNG")


def main(options: argparse.Namespace) -> int:
    """
    :param options: The command's
    :return: Exit status
    """
    if options.figure:
        draw(read(options.out), options.figure)
        print(options.figure)
        return 0
    th.set_num_threads(1)
    words = ["python", "-m", "benchmarks", *sys.argv[1:]]
    for task, seed, method in product(options.tasks, options.seeds, METHODS):
        print(f"{method} on {task}, seed {seed}: {options.minutes:g} minutes of processor time", flush=True)
        rows = train(method, task, seed, options.minutes, options.evaluations, options.episodes)
        append(options.out, [{"method": method, "task": task, "seed": seed, **row, **origin(words)} for row in rows])
    return 0
