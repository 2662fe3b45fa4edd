"""
What recorded transitions are worth: Pendulum with and without 10,000 of another agent.

The recorder is a CIR of its own seed, which stops learning early and then plays with the noise it learns with. Every model has
the small preset. Where there are recorded transitions it learns from its first step on, and takes no random steps. Rows go to
a log (see :mod:`benchmarks.log`) as runs end, with how each was made.
"""

import argparse
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks import keep, log
from benchmarks.arguments import not_negative, positive
from benchmarks.preset import SMALL
from sb3_cir import CIR, datasets
from sb3_cir.buffers import SymmetricReplayBuffer

TASK = "Pendulum-v1"
RECORDER_SEED, EVALUATION_SEED = 100, 1_000
METHODS: dict[str, dict[str, Any]] = {
    "cir": {},
    "cir; recorded first": dict(learning_starts=0),
    "cir; half recorded": dict(learning_starts=0, replay_buffer_class=SymmetricReplayBuffer),
}
# Not the published one, in benchmarks/results, whose runs of the same names would be replaced.
DEFAULT = Path("prefill/prefill.csv")


class Returns(BaseCallback):
    """
    The mean return every so many steps, each time from the same first states.

    :param every: Steps of the agent between two evaluations
    :param episodes: For each
    """

    def __init__(self, every: int, episodes: int):
        super().__init__()
        self.every, self.episodes = every, episodes
        self.env = make_vec_env(TASK)
        self.found: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            self.env.seed(EVALUATION_SEED)
            mean, _ = evaluate_policy(self.model, self.env, self.episodes)
            self.found.append((self.num_timesteps, float(mean)))
            print(f"    step {self.num_timesteps:6d}: {mean:8.1f}", flush=True)
        return True


def make(seed: int, **arguments: Any) -> CIR:
    """
    :param seed: Of networks and environment
    :param arguments: Beside those of the small preset
    :return: A model that has learned nothing
    """
    env = make_vec_env(TASK, seed=seed)
    return CIR("MlpPolicy", env, seed=seed, device="cpu", buffer_size=20_000, **SMALL | arguments)


def record(model: CIR, transitions: int, folder: Path) -> float:
    """
    Let a model play with the noise it learns with, in whole episodes.

    :param model: The model
    :param transitions: How many at least
    :param folder: Gets a file for each episode
    :return: The mean return
    """
    env = make_vec_env(TASK, seed=RECORDER_SEED).envs[0]
    returns: list[float] = []
    count = 0
    while count < transitions:
        # The first time with the seed, which make_vec_env leaves to the vector's own reset
        observations, steps = [env.reset(seed=None if returns else RECORDER_SEED)[0]], []
        while not steps or not (steps[-1][2] or steps[-1][3]):
            action, _ = model.predict(observations[-1])
            observation, *result, _ = env.step(action)
            observations.append(observation)
            steps.append((action, *result))
        columns = dict(zip(datasets.COLUMNS, map(np.array, zip(*steps, strict=True)), strict=True))
        np.savez(folder / f"{len(returns):04d}.npz", observations=np.array(observations), **columns)
        returns.append(float(columns["rewards"].sum()))
        count += len(steps)
    return float(np.mean(returns))


def train(method: str, seed: int, folder: Path, steps: int, every: int, episodes: int) -> list[tuple[int, float]]:
    """
    :param method: A name of :data:`METHODS`
    :param seed: Of networks and environment
    :param folder: The recorded episodes
    :param steps: Of the agent
    :param every: Steps between two evaluations
    :param episodes: For each
    :return: Steps and mean returns
    """
    model, returns = make(seed, **METHODS[method]), Returns(every, episodes)
    if method != "cir":
        datasets.fill(model, folder)
    model.learn(steps, callback=returns)
    return returns.found


def table(rows: pd.DataFrame) -> str:
    """
    :param rows: Of a log
    :return: Mean returns over seeds, and the lowest and the highest, in Markdown
    """
    groups = rows.groupby(["exp_name", "env_step"]).value
    cells = groups.agg(lambda each: f"{each.mean():.0f} ({each.min():.0f} to {each.max():.0f})")
    return cells.unstack().reindex(METHODS).rename_axis(index="steps").to_markdown()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """:param parser: Gets this command's arguments"""
    parser.add_argument("--seeds", nargs="+", type=not_negative, default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--steps", type=positive, default=1_500, help="of each model (default: %(default)s)")
    parser.add_argument(
        "--recorder-steps", type=positive, default=2_000, help="of the one that records (default: %(default)s)"
    )
    parser.add_argument("--transitions", type=positive, default=10_000, help="to record (default: %(default)s)")
    parser.add_argument("--every", type=positive, default=250, help="steps between two evaluations (default: %(default)s)")
    parser.add_argument("--episodes", type=positive, default=10, help="for each evaluation (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=DEFAULT, help="the log that gets the runs (default: %(default)s)")


def main(options: argparse.Namespace) -> int:
    """
    :param options: See :func:`add_arguments`
    :return: 0
    :raises ValueError: If ``--out`` is something else than such a log.
    """
    th.set_num_threads(1)
    keep.check(options.out)
    made = keep.how_made(1, options.out)
    with tempfile.TemporaryDirectory() as place:
        recorder = make(RECORDER_SEED).learn(options.recorder_steps)
        made["recorded_return"] = round(record(recorder, options.transitions, Path(place)), 1)
        print(f"recorded: mean return {made['recorded_return']}", flush=True)
        for seed, method in product(options.seeds, METHODS):
            print(f"{method}, seed {seed}", flush=True)
            found = train(method, seed, Path(place), options.steps, options.every, options.episodes)
            rows = [(method, TASK, seed, log.RETURN, step, value) for step, value in found]
            run = dict(exp_name=method, env_name=TASK, seed=seed, **made)
            keep.add(options.out, pd.DataFrame(rows, columns=log.COLUMNS), [run])
    print(table(log.load([options.out]).rows))
    return 0
