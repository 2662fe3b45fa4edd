"""
Return against minutes: CIR with the small preset beside Stable-Baselines3's SAC, on low-dimensional tasks and a CPU.

Each method trains for as long as it is given, by the processor's clock, so that a machine that others share gives the same
figures. Evaluations do not count. Runs go to a log (see :mod:`benchmarks.log`) as they end, with how each was made, and the
figure is drawn from it.
"""

import argparse
import time
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from benchmarks import keep, log
from benchmarks.arguments import above_zero, not_negative, positive
from sb3_cir import CIR, envs
from sb3_cir.tasks import action_repeat, name_of

# For tasks with few observations on a CPU: an update costs a tenth of one at paper size, and few steps are lost to warming up.
# Target critics follow, so values reach their size in about 1 / (tau * (1 - gamma)) updates. At the paper's tau of 0.005 that
# is 20,000, which is more than such a run makes.
SMALL: dict[str, Any] = dict(learning_starts=500, learning_rate=1e-3, tau=0.02, policy_kwargs=dict(net_arch=[64, 64]))

METHODS: dict[str, tuple[type[OffPolicyAlgorithm], dict[str, Any]]] = {
    # In so few minutes compiling does not pay.
    "cir; small preset": (CIR, SMALL | dict(compile=False)),
    "sac; learning_starts=500": (SAC, dict(learning_starts=500)),
}
LABELS = dict(zip(METHODS, ("CIR, small preset", "SAC"), strict=True))
COLOURS = ("#c44e52", "#4c72b0")
TASKS = ("Pendulum-v1", "dm_control/cartpole-balance-v0", "dm_control/walker-walk-v0", "HalfCheetah-v5")
# A metric beside those of every log: seconds of training by the processor's clock, without evaluations.
PROCESSOR_SECONDS = "processor_seconds"
# Not the published one, in benchmarks/results, whose runs of the same names would be replaced.
DEFAULT = Path("preset/preset.csv")


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
        self.found: list[tuple[int, float, float]] = []  # steps, seconds, mean return
        self.evaluating = 0.0

    def _on_training_start(self) -> None:
        self.began = time.process_time()
        self.next = self.every

    def _on_step(self) -> bool:
        seconds = time.process_time() - self.began - self.evaluating
        if seconds >= self.next:
            mean, std = evaluate_policy(self.model, self.env, self.episodes, deterministic=True, warn=False)
            assert isinstance(mean, float)
            self.evaluating = time.process_time() - self.began - seconds
            self.next += self.every
            self.found.append((self.num_timesteps, seconds, mean))
            print(f"    {seconds / 60:5.1f} min, step {self.num_timesteps:6d}: {mean:7.1f} ± {std:.1f}", flush=True)
        return seconds < self.budget


def train(method: str, task: str, seed: int, minutes: float, evaluations: int, episodes: int) -> pd.DataFrame:
    """
    :param method: A name of :data:`METHODS`
    :param task: A Gymnasium id
    :param seed: Seed of networks and environment
    :param minutes: Of training, by the processor's clock
    :param evaluations: How many, evenly spread
    :param episodes: For each
    :return: Rows of a log, two for each evaluation
    """
    model_class, arguments = METHODS[method]
    clock = Clock(60 * minutes, 60 * minutes / evaluations, task, episodes)
    model = model_class("MlpPolicy", envs.make(task, seed=seed), seed=seed, device="cpu", buffer_size=100_000, **arguments)
    model.learn(10**9, callback=clock)
    run, repeat = (method, name_of(task), seed), action_repeat(task)
    rows = [
        (*run, metric, repeat * steps, round(value, 1))
        for steps, seconds, mean in clock.found
        for metric, value in ((PROCESSOR_SECONDS, seconds), (log.RETURN, mean))
    ]
    return pd.DataFrame(rows, columns=log.COLUMNS)


def draw(rows: pd.DataFrame, picture: Path) -> None:
    """
    Return against minutes, one panel for each task, one line for each seed.

    :param rows: Of a log that this command wrote
    :param picture: The PNG to write
    :raises ValueError: If they are of another log.
    """
    rows = rows[rows.exp_name.isin(METHODS)]
    if PROCESSOR_SECONDS not in set(rows.metric):
        raise ValueError(f"--figure: the log has no {PROCESSOR_SECONDS} of {' or '.join(METHODS)}, which this command writes.")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    table = rows.pivot_table(values="value", index=[*log.RUN, "env_step"], columns="metric").reset_index()
    tasks = list(table.env_name.unique())
    figure, panels = plt.subplots(1, len(tasks), figsize=(3.6 * len(tasks), 3.2), layout="constrained", squeeze=False)
    for axes, task in zip(panels[0], tasks, strict=True):
        for method, colour in zip(METHODS, COLOURS, strict=True):
            of_method = table[(table.env_name == task) & (table.exp_name == method)]
            for number, (_, line) in enumerate(of_method.groupby("seed")):
                label = LABELS[method] if number == 0 else None
                axes.plot(line[PROCESSOR_SECONDS] / 60, line[log.RETURN], color=colour, label=label, alpha=0.85)
        axes.set(title=task, xlabel="minutes of training (processor time)", xlim=0)
    panels[0][0].set_ylabel("return")
    panels[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(picture, dpi=150)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """:param parser: Gets this command's arguments"""
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), metavar="ID", help=f"default: {' '.join(TASKS)}")
    parser.add_argument("--seeds", nargs="+", type=not_negative, default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--minutes", type=above_zero, default=5, help="of training, by the processor's clock (default: 5)")
    parser.add_argument("--evaluations", type=positive, default=10, help="for each run (default: 10)")
    parser.add_argument("--episodes", type=positive, default=5, help="for each evaluation (default: 5)")
    parser.add_argument("--out", type=Path, default=DEFAULT, help=f"the log that gets the runs (default: {DEFAULT})")
    parser.add_argument("--figure", type=Path, help="only draw what the log holds, to this PNG")


def main(options: argparse.Namespace) -> int:
    """
    :param options: The command's
    :return: Exit status
    :raises ValueError: If ``--out`` is something else than such a log.
    """
    if options.figure:
        draw(log.read([options.out]), options.figure)
        print(options.figure)
        return 0
    th.set_num_threads(1)
    keep.check(options.out)
    for task in options.tasks:  # before hours of training on another
        envs.make(task).close()
    made = keep.how_made(1, options.out)
    for task, seed, method in product(options.tasks, options.seeds, METHODS):
        print(f"{method} on {task}, seed {seed}: {options.minutes:g} minutes of processor time", flush=True)
        rows = train(method, task, seed, options.minutes, options.evaluations, options.episodes)
        if len(rows):
            keep.add(options.out, rows, [dict(exp_name=method, env_name=rows.env_name[0], seed=seed, **made)])
    return 0
