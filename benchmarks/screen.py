"""
``python -m benchmarks screen``: why CIR learns slowly on hard tasks, by one part of CIR and SimBa at a time.

An *arm* (see :mod:`benchmarks.arms`) is a training run, shorter than the paper's, that is measured by more than its returns:
see :class:`Probe`. It writes the rows of :mod:`benchmarks.log` into a CSV file of its own, at every look. The same command
again goes on where the last one was killed.

Size matters here: after 100,000 steps on dogs SimBa has two to three times CIR's return, and with a critic of half the width
1.2 to 1.4 times (``hard_tasks.md``). So an arm whose learning is to be compared has to be of the paper's size, the default.
"""

import argparse
import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch as th
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.sac.policies import Actor

from benchmarks import keep, log
from benchmarks.arguments import folder, not_negative, positive
from benchmarks.arms import ARMS, LONGEST
from benchmarks.recorder import Timed
from sb3_cir import envs
from sb3_cir.callbacks import Checkpoint
from sb3_cir.diagnostics import QBias, mean_q, q_gain, unchanged_randomness
from sb3_cir.runs.files import checkpoints
from sb3_cir.smr import SMR
from sb3_cir.update import temperature

WIDTH = 512
BATCH = 2000
NEWEST = 2000
# Right before, or right after, a look: a stretch that one policy acted in, or nearly.
STRETCH = 100
DRAWS = 20
EPISODES = 10
ACTION_REPEAT = 2
# Steps of the agent between checkpoints, each of which ends the episode under way: dm_control's have 500, so it cuts none.
CHECKPOINT_EVERY = 2500


class Probe(Timed):
    """
    Looks at the critics every so often, and writes rows. The metrics, beside those of every log:

    - ``q_gain``: Q(s, fresh action) - Q(s, taken action) over the whole buffer; ``q_gain_newest`` over the newest 2,000
      transitions, ``q_gain_last100`` over the newest 100, which were taken by nearly the present policy
    - ``memorised`` and ``moved``: the two parts of the gain, see :meth:`_parts_of_gain`
    - ``q_over_uniform``: Q(s, taken action) - Q(s, uniformly random action)
    - ``q_data``, ``q_std``: mean and spread over the buffer; ``q_apart``: how far the critics differ from each other
    - ``td_error``: root mean square of Q - y
    - ``ent_coef``, ``entropy``: the temperature, and the policy's entropy in nats
    - ``saturated``: share of sampled actions beyond 0.97; ``reward``: mean of the newest 2,000
    - ``q_bias``: Q along evaluation episodes minus the discounted return from there (see ``sb3_cir.diagnostics``);
      ``q_episode`` and ``discounted_return`` are its two terms

    It evaluates at the run's end too. The first look after a run was resumed may lack the two parts of the gain: no checkpoint
    holds the policy of the last look.

    :param name: The method's name in the rows
    :param task: A task of dm_control, such as "dog-trot"
    :param every: Steps of the agent between two looks
    :param eval_every: Steps of the agent between two evaluations, a multiple of ``every``
    :param path: The CSV file
    :param made: How the run is made, for the file's comment
    """

    state = ("found", *Timed.state)

    def __init__(self, name: str, task: str, every: int, eval_every: int, path: Path, made: dict[str, Any]):
        super().__init__()
        self.name, self.task, self.every, self.eval_every, self.path, self.made = name, task, every, eval_every, path, made
        self.found: dict[str, dict[str, float]] = {}  # by simulator step and metric
        self.snapshot: tuple[Actor, int] | None = None
        self.eval_env = make_env(task)
        self.eval_env.seed(1000)

    def _on_rollout_start(self) -> None:
        assert isinstance(self.model, SMR)
        if self.num_timesteps % self.every == 0 and self.num_timesteps > self.model.learning_starts:
            self._look(self.model)

    def _on_training_end(self) -> None:
        assert isinstance(self.model, SMR)
        self._look(self.model, evaluate=True)

    def _look(self, model: SMR, evaluate: bool = False) -> None:
        step, seconds = str(ACTION_REPEAT * self.num_timesteps), self.seconds
        model.policy.set_training_mode(False)
        with unchanged_randomness(model.device), th.no_grad():
            values = self._values(model) | self._parts_of_gain(model)
            if evaluate or self.num_timesteps % self.eval_every == 0:
                values |= self._evaluate(model)
        # A run that goes on from its end has looked there already.
        self.found.setdefault(step, values | {log.UPDATES: model._n_updates, log.SECONDS: seconds})
        self._write_or_warn(self._write, self.path, at_end=evaluate)
        print(self.name, self.num_timesteps, {metric: float(f"{value:.4g}") for metric, value in values.items()}, flush=True)
        self.seconds = seconds

    def _write(self) -> None:
        rows = [
            (self.name, self.task, self.model.seed, metric, int(step), value)
            for step, values in self.found.items()
            for metric, value in values.items()
        ]
        keep.write(self.path, pd.DataFrame(rows, columns=log.COLUMNS), [self.made])

    def _values(self, model: SMR) -> dict[str, float]:
        assert model.replay_buffer is not None
        batch, newest, last = model.replay_buffer.sample(BATCH), _newest(model, NEWEST), _newest(model, STRETCH)
        obs, actions = batch.observations, batch.actions
        q_values = model._q_values(model.critic, obs, actions)
        sampled, log_prob = model.actor.action_log_prob(obs)
        values = dict(
            q_gain=q_gain(model, obs, actions),
            q_gain_newest=q_gain(model, newest.observations, newest.actions),
            q_gain_last100=q_gain(model, last.observations.repeat(DRAWS, 1), last.actions.repeat(DRAWS, 1)),
            q_over_uniform=q_values.mean() - mean_q(model, obs, 2 * th.rand_like(actions) - 1).mean(),
            q_data=q_values.mean(),
            q_std=q_values.mean(dim=1).std(),
            q_apart=(q_values.amax(dim=1) - q_values.amin(dim=1)).mean(),
            td_error=(q_values.mean(dim=1, keepdim=True) - model._target(batch, temperature(model))).square().mean().sqrt(),
            ent_coef=temperature(model),
            entropy=-log_prob.mean(),
            saturated=(sampled.abs() > 0.97).float().mean(),
            reward=_newest_rewards(model, NEWEST).mean(),
        )
        return {metric: float(value) for metric, value in values.items()}

    def _parts_of_gain(self, model: SMR) -> dict[str, float]:
        """
        Of states met right after the last look: a is the action taken then, a' another one by that day's policy, a'' one by
        today's. ``memorised`` is Q(s, a') - Q(s, a): what the critics, which have trained on a since, think of it alone.
        ``moved`` is Q(s, a'') - Q(s, a'): how far the policy has moved up the critics.
        """
        values = {}
        if self.snapshot is not None:
            actor, first = self.snapshot
            then = _rows(model, first, STRETCH)
            obs = then.observations.repeat(DRAWS, 1)
            by_then, by_now = (mean_q(model, obs, policy(obs)).mean() for policy in (actor, model.actor))
            values["memorised"] = float(by_then - mean_q(model, then.observations, then.actions).mean())
            values["moved"] = float(by_now - by_then)
        assert model.replay_buffer is not None
        self.snapshot = (copy.deepcopy(model.actor), model.replay_buffer.pos)
        return values

    def _evaluate(self, model: SMR) -> dict[str, float]:
        bias = QBias(model)
        mean, _ = evaluate_policy(model, self.eval_env, n_eval_episodes=EPISODES, callback=bias)
        assert isinstance(mean, float)
        values = dict(q_bias=bias.mean(), q_episode=bias.mean_q(), discounted_return=bias.mean_return())
        return {log.RETURN: mean} | values


def _newest(model: SMR, n: int) -> ReplayBufferSamples:
    assert model.replay_buffer is not None
    return _rows(model, max(model.replay_buffer.pos - n, 0), n)


def _newest_rewards(model: SMR, n: int) -> np.ndarray:
    """Of single steps, where a batch's are sums over ``n_steps``."""
    buffer = model.replay_buffer
    assert buffer is not None
    return buffer.rewards[max(buffer.pos - n, 0) : buffer.pos]


def _rows(model: SMR, first: int, n: int) -> ReplayBufferSamples:
    """Up to ``n`` rows of the replay buffer from the given one on."""
    buffer = model.replay_buffer
    assert buffer is not None
    return buffer._get_samples(np.arange(first, min(first + n, buffer.pos)))


def make_env(task: str) -> DummyVecEnv:
    """
    :param task: A task of dm_control, such as "dog-trot"
    :return: One of it by the paper's protocol
    """
    return DummyVecEnv([lambda: Monitor(envs.make(f"dm_control/{task}-v0"))])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the command's options.

    :param parser: Gets them
    """
    parser.add_argument("--arm", required=True, choices=list(ARMS), metavar="ARM", help=f"one of {', '.join(ARMS)}")
    parser.add_argument("--task", default="dog-stand", help="a task of dm_control (default: %(default)s)")
    parser.add_argument("--seed", type=not_negative, default=0)
    parser.add_argument(
        "--width", type=positive, default=WIDTH, help="of critic and actor (default: the paper's, %(default)s)"
    )
    parser.add_argument(
        "--steps", type=positive, default=12_500, help="of the agent, two of the simulator (default: %(default)s)"
    )
    parser.add_argument("--every", type=positive, default=1_250, help="steps between two looks (default: %(default)s)")
    parser.add_argument(
        "--eval-every", type=positive, default=6_250, help="steps between two evaluations (default: %(default)s)"
    )
    parser.add_argument(
        "--precision",
        choices=["float32", "bfloat16"],
        default="float32",
        help="of the critics' matrix products (default: %(default)s)",
    )
    parser.add_argument("--out", type=folder, required=True, help="folder of the results")


def main(options: argparse.Namespace) -> int:
    """
    :param options: See :func:`add_arguments`
    :return: 0
    :raises ValueError: If it would evaluate where it does not look, if the replay buffer has no room for the run, or if the
        run was begun with other settings.
    """
    if options.steps > LONGEST:
        raise ValueError(f"--steps {options.steps}: at most {LONGEST}, the paper's.")
    if options.eval_every % options.every:
        raise ValueError(f"--eval-every {options.eval_every}: it must be a multiple of --every, which is {options.every}.")
    th.set_num_threads(1)
    th.set_flush_denormal(True)
    options.out.mkdir(parents=True, exist_ok=True)
    name = options.arm if options.width == WIDTH else f"{options.arm}, width {options.width}"
    path = options.out / f"{options.arm}__{options.task}__{options.seed}__{options.width}.csv"
    if options.precision != "float32":
        name += f", {options.precision}"
        path = path.with_stem(f"{path.stem}__{options.precision}")
    command = f"python -m benchmarks screen --arm {options.arm} --task {options.task} --seed {options.seed} "
    command += f"--width {options.width} --steps {options.steps} --every {options.every} --eval-every {options.eval_every}"
    command += f" --precision {options.precision}"
    made = dict(exp_name=name, env_name=options.task, seed=options.seed)
    made |= keep.how_made(1, options.out) | dict(command=command)
    saved = path.with_name(f".{path.stem}")
    model = ARMS[options.arm].build(make_env(options.task), options.seed, options.width, options.precision)
    if checkpoints(saved):
        model.restore(saved)
        made |= dict(earlier=_earlier(path, model.num_timesteps, command))
    if model.num_timesteps >= options.steps:
        print(f"{path}: {model.num_timesteps} steps are done.")
        return 0
    probe = Probe(name, options.task, options.every, options.eval_every, path, made)
    model.learn(options.steps, callback=[probe, Checkpoint(CHECKPOINT_EVERY, saved, restart_episodes=True)])
    return 0


def _earlier(path: Path, n_steps: int, command: str) -> list[dict[str, Any]]:
    """Which commits made a run before, each up to which step of the simulator. Only the number of steps may differ."""
    if not path.exists():  # killed before its first look
        return []
    (made,) = log.load([path]).runs
    before, now = (re.sub(r" --steps \d+", "", each) for each in (made["command"], command))
    if before != now:
        raise ValueError(f"{path} was begun with other settings: `{before}`. Take these, or another --out.")
    return [*made.get("earlier", []), dict(commit=made["commit"], env_step=ACTION_REPEAT * n_steps)]
