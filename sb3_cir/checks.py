"""What an environment or an actor gives is looked at before anything is made of it, and an error says where it is from."""

import contextlib
import math
import numbers
import signal
import traceback
from collections.abc import Iterable, Iterator
from multiprocessing import connection
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper, VecNormalize
from typing_extensions import Self

from sb3_cir.buffers import cut_off

# Kinds of numbers that an array of each kind takes without loss of sense: a float in an integer's place is cut off.
_NUMBERS = "fiub"
_TAKES = {"f": "fiub", "i": "iub", "u": "iub", "b": "iub"}
_UNTOUCHED = "nothing of it was stored, the model is as it was before this step."


class BadDataError(ValueError):
    """An environment gave something that cannot be learned from."""


class FailedEnvError(RuntimeError):
    """An environment raised, or its process is gone."""


class CheckedRollouts(OffPolicyAlgorithm):
    """
    For an off-policy algorithm, to stand before it: ``class CIR(CheckedRollouts, SAC)``.

    While it learns, NaN or inf in an observation, reward or action, an observation of another shape or kind than its space
    has, a reward that is no number, an environment that raises and a worker process that dies end it with an error that
    names the environment and the step. Nothing of that step is stored; the next ``learn()`` starts with a reset.
    """

    def learn(self, *args: Any, **kwargs: Any) -> Self:
        """
        Learn; all arguments are the algorithm's.

        :raises BadDataError: If an environment gives what cannot be learned from (a ``ValueError``).
        :raises FailedEnvError: If an environment raises, or if its process ends (a ``RuntimeError``).
        :raises ValueError: If the actor's output is not finite.
        """
        with watch(self.env, self, getattr(self.replay_buffer, "source", self.replay_buffer)):
            return super().learn(*args, **kwargs)

    def _sample_action(self, *args: Any, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
        try:
            action, buffer_action = super()._sample_action(*args, **kwargs)
        except ValueError as error:
            # torch's distributions refuse NaN, but cannot say where it is from.
            if self._bad_parameter() is None:
                raise
            raise self._bad_action(0, math.nan) from error
        finite = np.isfinite(buffer_action)
        if np.count_nonzero(finite) < finite.size:
            place = tuple(np.argwhere(~finite)[0])
            raise self._bad_action(place[0], buffer_action[place])
        return action, buffer_action

    def _bad_parameter(self) -> tuple[str, float] | None:
        return first_non_finite((name, value) for name, value in self.policy.named_parameters() if name.startswith("actor."))

    def _bad_action(self, index: int, value: float) -> ValueError:
        bad = self._bad_parameter()
        source = "the actor's parameters are finite" if bad is None else f"there is {bad[1]} in {bad[0]}"
        return ValueError(
            f"{value} in the action for environment {index} at step {self.num_timesteps + self.n_envs}: {source}. "
            "No step was made with it, nothing of it was stored."
        )


def first_non_finite(tensors: Iterable[tuple[str, th.Tensor]]) -> tuple[str, float] | None:
    """
    :param tensors: Tensors by name
    :return: The name of the first in which there is NaN or inf, and this value
    """
    for name, tensor in tensors:
        finite = tensor.detach().isfinite()
        if not finite.all():
            return name, tensor.detach()[~finite][0].item()
    return None


@contextlib.contextmanager
def watch(env: VecEnv | None, model: OffPolicyAlgorithm, buffer: ReplayBuffer | None, domain: str = "") -> Iterator[None]:
    """
    While this lasts, ``env`` and all that it wraps refuse bad data. What comes from the environments themselves is looked
    at before a wrapper such as ``VecNormalize`` takes it into its statistics or clips it. ``VecNormalize`` itself is not
    watched: it makes finite numbers of finite ones, and may be pickled meanwhile, as RL Zoo does at each new best model.

    :param env: The environments
    :param model: Whose steps count
    :param buffer: Where their transitions go
    :param domain: What they are, for the error, unless they are the model's own
    :raises BadDataError: If a number is not finite, or if something is not what its space says.
    :raises FailedEnvError: If an environment raises, or if its process ends.
    """
    watched: list[tuple[VecEnv, tuple[str, ...]]] = []
    while env is not None:
        if isinstance(env, VecNormalize):
            env = env.venv
            continue
        watcher: _Watch = (_Watch if isinstance(env, VecEnvWrapper) else _WatchBase)(env, model, domain)
        names = tuple(name for name in watcher.names if hasattr(type(env), name) and name not in vars(env))
        vars(env).update({name: getattr(watcher, name) for name in names})
        watched.append((env, names))
        env = env.venv if isinstance(env, VecEnvWrapper) else None
    try:
        yield
    except (BadDataError, FailedEnvError):
        # The environments went on without a transition being stored: the next step would not follow from this observation,
        # nor from the last transition.
        model._last_obs = None
        if buffer is not None:
            cut_off(buffer)
        raise
    finally:
        for each, names in watched:
            for name in names:
                del vars(each)[name]


class _Watch:
    """Methods that stand in for those of one ``VecEnv``, here a wrapper: what it makes of finite numbers must be finite."""

    names: tuple[str, ...] = ("step_wait", "reset")

    def __init__(self, env: VecEnv, model: OffPolicyAlgorithm, domain: str):
        self.env = env
        self.model = model
        self.domain = domain
        self.stepping = False
        self.workers = list(zip(getattr(env, "remotes", ()), getattr(env, "processes", ()), strict=False))
        space = env.observation_space
        entries: dict[Any, spaces.Space[Any]] = space.spaces if isinstance(space, spaces.Dict) else {None: space}
        self.entries = {name: entry for name, entry in entries.items() if entry.shape is not None and entry.dtype is not None}

    def step_wait(self) -> Any:
        self.stepping = True
        results = self.call("step_wait")
        obs, rewards, dones, infos = results
        self.check_batch(obs)
        self.check_rewards(rewards)
        for index, info in enumerate(infos):
            if "terminal_observation" in info and dones[index]:
                self.check_one(info["terminal_observation"], index)
        self.stepping = False
        return results

    def reset(self) -> Any:
        self.stepping = False
        obs = self.call("reset")
        self.check_batch(obs)
        return obs

    def call(self, name: str, *args: Any) -> Any:
        """
        :param name: One of the methods
        :param args: Its arguments
        :return: What it returns without this object in its place
        """
        return getattr(type(self.env), name)(self.env, *args)

    def check_batch(self, obs: Any) -> None:
        """:param obs: Of all environments"""
        if isinstance(obs, dict):
            for name, entry in obs.items():
                self.check_finite(entry, f"observation {name!r}")
        else:
            self.check_finite(obs, "observation")

    def check_one(self, obs: Any, index: int) -> None:
        """
        :param obs: Of one environment
        :param index: Which one
        """
        if isinstance(obs, dict):
            for name, entry in obs.items():
                self.check_finite(entry, f"observation {name!r}", index)
        else:
            self.check_finite(obs, "observation", index)

    def check_rewards(self, rewards: Any) -> None:
        """:param rewards: Of all environments"""
        self.check_finite(rewards, "reward")

    def check_finite(self, value: Any, what: str, index: int | None = None) -> None:
        """
        :param value: With one row for each environment, or from the one at ``index``
        :param what: What the value is, for the error
        """
        array = np.asarray(value)
        # Counting takes a third of the time of all(), which is a Python function.
        if array.dtype.kind == "f" and np.count_nonzero(np.isfinite(array)) < array.size:
            place = tuple(np.argwhere(~np.isfinite(array))[0])
            raise self.bad(f"{array[place]}", what, place[0] if index is None else index)

    def bad(self, found: str, what: str, index: int | None, expected: str = "") -> BadDataError:
        """
        :param found: What is bad
        :param what: Where it is
        :param index: Of which environment, if that is known
        :param expected: What should have been there, unless that is plain
        :return: The error
        """
        after = f" after {type(self.env).__name__}" if isinstance(self.env, VecEnvWrapper) else ""
        expected = f", where {expected} was expected" if expected else ""
        return BadDataError(f"{found} in the {what} of {self.place(index)}{after}{expected}: {_UNTOUCHED}")

    def place(self, index: int | None) -> str:
        """
        :param index: Which environment, if that is known
        :return: This and the step, in words
        """
        # The model counts a step of its own environments once it is done.
        steps = self.model.num_timesteps + (self.env.num_envs if self.stepping and not self.domain else 0)
        name = "one of the environments" if index is None else f"environment {index}"
        return f"{name}{f' of the {self.domain}' if self.domain else ''} at step {steps}"


class _WatchBase(_Watch):
    """The same for the innermost ``VecEnv``, which has what the environments gave: this must also be what the space says."""

    names = ("step_async", "step_wait", "reset", "_save_obs")

    def step_async(self, actions: np.ndarray) -> None:
        self.stepping = True
        self.call("step_async", actions)

    def _save_obs(self, env_idx: int, obs: Any) -> None:
        # DummyVecEnv's, before it spreads one number over an array and cuts a float off to an integer.
        self.check_form(obs, env_idx)
        super().call("_save_obs", env_idx, obs)

    def call(self, name: str, *args: Any) -> Any:
        try:
            if name == "step_wait":
                self.await_workers()
            return super().call(name, *args)
        except BadDataError:
            raise
        except Exception as error:
            # Where it is from is looked for once there is one, so that a step without costs nothing.
            try:
                index = self.find_bad_data(error)
            except BadDataError as bad:
                raise bad from error
            ended = self.ended_process(error)
            if ended is None:
                what = f"{type(error).__name__} raised by {self.place(index)} ({error})"
            else:
                what = f"The process of {self.place(ended[0])} is gone ({ended[1]})"
            raise FailedEnvError(f"{what}: {_UNTOUCHED}") from error

    def check_batch(self, obs: Any) -> None:
        if not isinstance(self.env, DummyVecEnv):  # which has put it into arrays of its own
            self.check_form(obs, None)
        super().check_batch(obs)

    def check_one(self, obs: Any, index: int) -> None:
        self.check_form(obs, index)
        super().check_one(obs, index)

    def check_rewards(self, rewards: Any) -> None:
        array = np.asarray(rewards)
        if array.dtype.kind not in _NUMBERS or array.size != self.env.num_envs:
            for index, reward in enumerate(rewards):
                self.check_reward(reward, index if array.dtype.kind in "O" + _NUMBERS else self.only_one())
        super().check_rewards(rewards)

    def check_reward(self, reward: Any, index: int | None) -> None:
        """
        :param reward: Of one environment
        :param index: Which one
        """
        array = np.asarray(reward)
        if array.dtype.kind not in _NUMBERS or array.size != 1:
            raise self.bad(repr(reward), "reward", index, "a number")

    def check_form(self, obs: Any, index: int | None) -> None:
        """
        :param obs: Of all environments, or of the one at ``index``
        :param index: Which one
        """
        rows = (self.env.num_envs,) if index is None else ()
        for name, space in self.entries.items():
            what = "observation" if name is None else f"observation {name!r}"
            if name is not None and (not isinstance(obs, dict) or name not in obs):
                raise self.bad(f"no {name!r}", "observation", index, f"a dict with {', '.join(map(repr, self.entries))}")
            value = obs if name is None else obs[name]
            expected = (*rows, *space.shape)  # type: ignore[misc]
            if type(value) is np.ndarray and value.shape == expected and value.dtype == space.dtype:
                continue
            array = _as_array(value)
            # Of a single number the shape does not matter. Stacked observations have one shape, so all of them are wrong.
            if array.shape != expected and not array.size == math.prod(expected) == 1:
                raise self.bad(f"shape {array.shape[len(rows) :]}", what, index or 0, f"{space.shape}")
            if array.dtype.kind not in _TAKES.get(space.dtype.kind, array.dtype.kind):  # type: ignore[union-attr]
                which = self.only_one() if index is None else index
                raise self.bad(f"{array.dtype} {_oddest(array)!r}", what, which, f"{space.dtype}")

    def only_one(self) -> int | None:
        """:return: The index where there is one environment; an array does not show which of several made it what it is."""
        return 0 if self.env.num_envs == 1 else None

    def await_workers(self) -> None:
        """
        Wait until there is something from each of SB3's ``SubprocVecEnv``. Forked workers keep each other's pipes open, so
        that from one which has died no end of file comes: SB3 would wait for ever.
        """
        for remote, process in self.workers:
            while not remote.poll(1.0):
                if process.exitcode is not None:
                    remote.close()  # so that the environment's close() does not wait either
                    raise EOFError

    def find_bad_data(self, error: Exception) -> int | None:
        """
        :param error: What came out of SB3's ``DummyVecEnv`` or ``SubprocVecEnv``
        :return: Which environment it is from, if that can be seen
        :raises BadDataError: If it came from what this environment gave.
        """
        index: int | None = None
        for frame, _ in traceback.walk_tb(error.__traceback__):
            values = frame.f_locals
            if values.get("self") is self.env and "env_idx" in values:
                index = values["env_idx"]
            elif values.get("self") is self.env:
                # SubprocVecEnv, about to stack what its workers sent
                for each, reward in enumerate(values.get("rews", ())):
                    self.check_reward(reward, each)
                for each, obs in enumerate(values.get("obs", ())):
                    self.check_form(obs, each)
            elif frame.f_code is Monitor.step.__code__ and index is not None and "reward" in values:
                self.check_reward(values["reward"], index)
        return index

    def ended_process(self, error: Exception) -> tuple[int, str] | None:
        """
        :param error: What came out of the ``VecEnv``
        :return: The first environment whose worker process has ended, and how it did
        """
        if not self.workers or not isinstance(error, (EOFError, OSError)):
            return None
        # The pipe may be closed a moment before the process has ended.
        connection.wait([process.sentinel for _, process in self.workers], timeout=5)
        for index, (_, process) in enumerate(self.workers):
            code = process.exitcode
            if code is not None:
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}, see what it has printed"
                return index, how
        return None


def _as_array(value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:  # rows of unequal lengths
        return np.asarray(repr(value))


def _oddest(array: np.ndarray) -> Any:
    """The first entry that is no number, or the very first."""
    entries = array.ravel().tolist()
    return next((entry for entry in entries if not isinstance(entry, numbers.Number)), entries[0] if entries else None)
