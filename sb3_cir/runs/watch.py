"""
Looks at what environments and actors give before anything is made of it.

An error names the environment and the step. Nothing here knows a particular algorithm: the functions take any off-policy
algorithm of Stable-Baselines3.
"""

import contextlib
import functools
import math
import numbers
import operator
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import connection
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper, VecNormalize

from sb3_cir.buffers import cut_off

# Kinds of numbers that an array of each kind takes without loss of sense: a float in an integer's place is cut off.
_NUMBERS = "fiub"
TAKES = {"f": "fiub", "i": "iub", "u": "iub", "b": "iub"}
# Networks learn in float32, whatever is stored: a larger float64 becomes inf there.
LARGEST = float(np.finfo(np.float32).max)
_UNTOUCHED = "nothing of it was stored, the model is as it was before this step."


class BadDataError(ValueError):
    """An environment gave something that cannot be learned from."""


class FailedEnvError(RuntimeError):
    """
    An environment raised, or its process is gone. What an environment raised is caught as its own error too: ``except
    AssertionError`` catches a failed assertion of its, as RL Zoo's search for hyperparameters does.
    """

    def __str__(self) -> str:  # in words of ours, whatever the environment's own error makes of them
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[type[Exception], tuple[Any, ...]]:
        return FailedEnvError, self.args  # a class made of two can be sent nowhere


def _raised(error: Exception, message: str) -> FailedEnvError:
    """
    :param error: What an environment raised
    :param message: What is said of it
    :return: An error of both kinds, if there can be one
    """
    if isinstance(error, (StopIteration, StopAsyncIteration, FailedEnvError)):  # which are no errors to Python
        return FailedEnvError(message)
    try:
        failed: FailedEnvError = type("FailedEnvError", (FailedEnvError, type(error)), {"__module__": __name__})(message)
        vars(failed).update(vars(error))
    except Exception:  # classes that do not go together, or one that asks for more than a message
        return FailedEnvError(message)
    return failed


@contextlib.contextmanager
def watch(env: VecEnv | None, model: OffPolicyAlgorithm, *buffers: ReplayBuffer, domain: str = "") -> Iterator[None]:
    """
    While this lasts, ``env`` and all that it wraps refuse bad data.

    Bad are NaN, inf and numbers that are inf in float32, an observation of another shape or kind than its space has, and a
    reward that is no number. What comes from the environments is looked at before a wrapper such as ``VecNormalize`` takes
    it into its statistics or clips it. ``VecNormalize`` itself is not watched: it makes finite numbers of finite ones.

    The environments stay the objects that they are. Each has a few methods replaced in its ``__dict__``. A copy that is
    made meanwhile, pickled or deep, has its own methods again: it is not watched and holds nothing of this.

    After an error the model's next ``learn()`` starts with a reset.

    :param env: The environments. None is left to ``learn()`` to refuse.
    :param model: Whose steps count
    :param buffers: Replay buffers that their transitions go to
    :param domain: What the environments are, for the error, unless they are the model's own
    :raises BadDataError: If an environment gives bad data.
    :raises FailedEnvError: If an environment raises, or if its process ends.
    """
    watchers = _watchers(env, weakref.proxy(model), domain)
    for watcher in watchers:
        watcher.start()
    try:
        yield
    except (BadDataError, FailedEnvError):
        # The environments went on without a transition being stored: the next step would not follow from this observation,
        # nor from the last transition.
        model._last_obs = None
        for buffer in buffers:
            cut_off(buffer)
        raise
    finally:
        for watcher in reversed(watchers):
            watcher.stop()


def checked_action(
    model: OffPolicyAlgorithm, sample: Callable[..., tuple[np.ndarray, np.ndarray]], *args: Any, **kwargs: Any
) -> tuple[np.ndarray, np.ndarray]:
    """
    Sample actions and refuse NaN and inf in them.

    :param model: Whose actor it is
    :param sample: Its base class's ``_sample_action``
    :param args: What ``sample`` takes
    :param kwargs: What ``sample`` takes
    :return: What ``sample`` returns: actions for the environments, and for the replay buffer, (n_envs, action size) both
    :raises ValueError: If one is not finite. It names the parameter of the actor that is to blame, if there is one.
    """
    try:
        action, buffer_action = sample(*args, **kwargs)
    except ValueError as error:
        # torch's distributions refuse NaN, but cannot say where it is from.
        if _bad_parameter(model) is None:
            raise
        raise _bad_action(model, 0, math.nan) from error
    finite = np.isfinite(buffer_action)
    if np.count_nonzero(finite) < finite.size:
        place = tuple(np.argwhere(~finite)[0])
        raise _bad_action(model, place[0], buffer_action[place])
    return action, buffer_action


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


def _bad_parameter(model: OffPolicyAlgorithm) -> tuple[str, float] | None:
    parts = tuple(f"{name}." for name in getattr(model, "acts", ["actor"]))
    return first_non_finite((name, value) for name, value in model.policy.named_parameters() if name.startswith(parts))


def _bad_action(model: OffPolicyAlgorithm, index: int, value: float) -> ValueError:
    bad = _bad_parameter(model)
    source = "the actor's parameters are finite" if bad is None else f"there is {bad[1]} in {bad[0]}"
    return ValueError(
        f"{value} in the action for environment {index} at step {model.num_timesteps + model.n_envs}: {source}. "
        "No step was made with it, nothing of it was stored."
    )


def _watchers(env: Any, model: OffPolicyAlgorithm, domain: str) -> list["_Watcher"]:
    """One for the innermost ``VecEnv``, and one for each wrapper around it."""
    layers: list[VecEnv] = []
    while isinstance(env, VecEnv):
        layers.append(env)
        # Adapters of simulators derive from VecEnvWrapper too. What they wrap may be called alike, and is no VecEnv.
        env = env.venv if isinstance(env, VecEnvWrapper) else None
    if not layers:
        return []
    *wrappers, innermost = layers
    watchers = [_Watcher(each, model, domain) for each in wrappers if not isinstance(each, VecNormalize)]
    return [*watchers, _InnermostWatcher(innermost, model, domain)]


def _is_method_of(kind: type, method: Any) -> bool:
    """Whether a bound method is the one that this class defines, not one that overrides it."""
    return getattr(method, "__func__", None) in vars(kind).values()


class _StandIn(functools.partial):  # type: ignore[type-arg]
    """In the place of a method of a ``VecEnv``. In a copy of the ``VecEnv`` there is the copy's own method instead."""

    original: Callable[..., Any]

    def __reduce__(self) -> tuple[Any, ...]:
        # What is called when the copy is made must not need this package.
        return operator.itemgetter(0), ((self.original,),)


class _Watcher:
    """Methods that stand in for those of one ``VecEnv``, here a wrapper: what it makes of finite numbers must be finite."""

    def __init__(self, env: VecEnv, model: OffPolicyAlgorithm, domain: str):
        self.env = env
        self.model = model
        self.domain = domain
        self.stepping = False
        self.within_step = False  # of this environment's own
        self.originals: dict[str, Callable[..., Any]] = {}
        self.replaced: dict[str, Any] = {}

    def start(self) -> None:
        """Put the methods in place."""
        self.originals = {name: getattr(self.env, name) for name in self.names()}
        stand_ins = {name: _StandIn(getattr(self, name)) for name in self.originals}
        for name, stand_in in stand_ins.items():
            stand_in.original = self.originals[name]
        self.replace(stand_ins)

    def replace(self, attributes: dict[str, Any]) -> None:
        """:param attributes: What to put into the environment's ``__dict__`` until :meth:`stop`"""
        before = vars(self.env)
        self.replaced.update({name: before.get(name, self) for name in attributes})
        before.update(attributes)

    def stop(self) -> None:
        """Put everything back."""
        for name, value in self.replaced.items():
            if value is self:  # there was none
                vars(self.env).pop(name, None)
            else:
                vars(self.env)[name] = value

    def names(self) -> list[str]:
        """:return: The methods to stand in for"""
        return ["step_wait", "reset", *([] if _is_method_of(VecEnv, self.env.step) else ["step"])]

    def step(self, *args: Any, **kwargs: Any) -> Any:
        return self.checked_step("step", *args, **kwargs)

    def step_wait(self, *args: Any, **kwargs: Any) -> Any:
        return self.checked_step("step_wait", *args, **kwargs)

    def checked_step(self, name: str, *args: Any, **kwargs: Any) -> Any:
        before, self.stepping, self.within_step = self.within_step, True, True
        try:
            results = self.call(name, *args, **kwargs)
        finally:
            self.within_step = before
        self.stepping = True  # again: a wrapper may call reset() in a step
        obs, rewards, dones, infos = results
        self.check_batch(obs)
        self.check_rewards(rewards)
        for index, done in enumerate(dones):
            if done and "terminal_observation" in infos[index]:
                self.check_one(infos[index]["terminal_observation"], index)
        return results

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        if self.within_step:  # a simulator that resets those that are done: the step's results are checked
            return self.originals["reset"](*args, **kwargs)
        self.stepping = False
        obs = self.call("reset", *args, **kwargs)
        if not args and kwargs.keys() <= {"seed", "options"}:  # of those that a wrapper names there are fewer rows
            self.check_batch(obs)
        return obs

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """
        :param name: One of the methods
        :param args: Its arguments
        :param kwargs: Its arguments by name
        :return: What the environment's own method returns
        """
        return self.originals[name](*args, **kwargs)

    def check_batch(self, obs: Any) -> None:
        """:param obs: Of all environments"""
        for what, entry in self.entries_of(obs):
            self.check_finite(entry, what)

    def check_one(self, obs: Any, index: int) -> None:
        """
        :param obs: Of one environment
        :param index: Which one
        """
        for what, entry in self.entries_of(obs):
            self.check_finite(entry, what, index)

    def entries_of(self, obs: Any) -> list[tuple[str, Any]]:
        """
        :param obs: An observation, or a batch of them
        :return: What SB3 takes of it, each with its name for an error. It leaves out what a Dict space does not have.
        """
        if not isinstance(obs, dict):
            return [("observation", obs)]
        space = self.env.observation_space
        known = space.spaces if isinstance(space, spaces.Dict) else obs
        return [(f"observation {name!r}", entry) for name, entry in obs.items() if name in known]

    def check_rewards(self, rewards: Any) -> None:
        """:param rewards: Of all environments"""
        self.check_finite(rewards, "reward")

    def check_finite(self, value: Any, what: str, index: int | None = None) -> None:
        """
        :param value: With one row for each environment, or from the one at ``index``
        :param what: What the value is, for the error
        """
        array = np.asarray(value)
        if array.dtype.kind != "f":
            return
        # Counting takes a third of the time of all(), which is a Python function.
        good = np.isfinite(array) if array.itemsize <= 4 else np.abs(array) <= LARGEST
        if np.count_nonzero(good) < array.size:
            place = tuple(np.argwhere(~good)[0])
            expected = "a number that float32 can hold" if np.isfinite(array[place]) else ""
            raise self.bad(f"{array[place]}", what, place[0] if index is None else index, expected)

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


class _InnermostWatcher(_Watcher):
    """
    The same for the innermost ``VecEnv``. It has what the environments gave, and this must also be what the space says. What
    it raises is told from what anything else raises.
    """

    def __init__(self, env: VecEnv, model: OffPolicyAlgorithm, domain: str):
        super().__init__(env, model, domain)
        space = env.observation_space
        entries: dict[Any, spaces.Space[Any]] = space.spaces if isinstance(space, spaces.Dict) else {None: space}
        self.entries = {name: entry for name, entry in entries.items() if entry.shape is not None and entry.dtype is not None}
        self.workers: list[_Worker] = []
        self.turn = 0  # in a DummyVecEnv, which of the environments it has come to

    def names(self) -> list[str]:
        names = super().names()
        if isinstance(self.env, DummyVecEnv):
            names.append("_save_obs")
        if not _is_method_of(DummyVecEnv, self.env.step_async):  # which cannot fail
            names.append("step_async")
        return names

    def start(self) -> None:
        super().start()
        if isinstance(self.env, SubprocVecEnv):
            self.workers = [_Worker(*pair) for pair in zip(self.env.remotes, self.env.processes, strict=True)]
            self.replace(dict(remotes=tuple(self.workers)))

    def step_async(self, *args: Any, **kwargs: Any) -> None:
        self.stepping = True
        self.call("step_async", *args, **kwargs)

    def _save_obs(self, env_idx: int, obs: Any) -> None:
        # DummyVecEnv's, before it spreads one number over an array and cuts a float off to an integer.
        self.check_form(obs, env_idx)
        self.originals["_save_obs"](env_idx, obs)
        self.turn = env_idx + 1

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.turn = 0
        try:
            if self.workers:
                self.await_workers(name)
            return self.originals[name](*args, **kwargs)
        except (BadDataError, FailedEnvError):
            raise
        except Exception as error:
            # Where it is from is looked for once there is one, so that a step without costs nothing.
            try:
                self.check_sent(name)
            except BadDataError as bad:
                raise bad from error
            ended = self.ended_worker(error)
            if ended is not None:
                raise FailedEnvError(f"The process of {self.place(ended[0])} is gone ({ended[1]}): {_UNTOUCHED}") from error
            what = f"{type(error).__name__} raised by {self.place(self.whose_turn(name))} ({error})"
            raise _raised(error, f"{what}: {_UNTOUCHED}") from error

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
        super().check_rewards(array)

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
            if index is not None and array.ndim > len(expected):  # NumPy's assignment leaves out axes of 1 in front
                array = _without_leading_ones(array, len(expected))
            # Of a single number the shape does not matter. Stacked observations have one shape, so all of them are wrong.
            if array.shape != expected and not array.size == math.prod(expected) == 1:
                raise self.bad(f"shape {array.shape[len(rows) :]}", what, index or 0, f"{space.shape}")
            if not _fits(array, space.dtype):  # type: ignore[arg-type]
                which = self.only_one() if index is None else index
                raise self.bad(f"{array.dtype} {_oddest(array)!r}", what, which, f"{space.dtype}")

    def only_one(self) -> int | None:
        """:return: The index where there is one environment; an array does not show which of several made it what it is."""
        return 0 if self.env.num_envs == 1 else None

    def whose_turn(self, name: str) -> int | None:
        """
        :param name: The method that raised
        :return: Which environment it had come to, if this can be known: SB3's own methods save their observations in turn.
        """
        takes_turns = _is_method_of(DummyVecEnv, self.originals[name])
        return self.turn if takes_turns and self.turn < self.env.num_envs else self.only_one()

    def await_workers(self, name: str) -> None:
        """
        Wait until there is something from each worker, before anything of a step is received: ``close()`` receives from
        all of them or from none.

        :param name: The method that is going to receive
        """
        for worker in self.workers:
            worker.sent = None
            if name == "step_wait":
                worker.wait()

    def check_sent(self, name: str) -> None:
        """
        :param name: The method of SB3's ``SubprocVecEnv`` that could not stack what the workers sent
        :raises BadDataError: If it is one worker's fault.
        """
        if not _is_method_of(SubprocVecEnv, self.originals[name]):
            return
        for index, worker in enumerate(self.workers):
            if worker.sent is not None:
                if name == "step_wait":
                    self.check_reward(worker.sent[1], index)
                self.check_form(worker.sent[0], index)

    def ended_worker(self, error: Exception) -> tuple[int, str] | None:
        """
        :param error: What came out of the ``VecEnv``
        :return: The first environment whose worker process has ended, and how it did
        """
        if not self.workers or not isinstance(error, (EOFError, OSError)):
            return None
        # The pipe may be closed a moment before the process has ended.
        connection.wait([worker.process.sentinel for worker in self.workers], timeout=5)
        for index, worker in enumerate(self.workers):
            code = worker.process.exitcode
            if code == 0:
                # SB3's workers end so at Ctrl-C, which may reach them first. If it is on its way here, it ends the run.
                time.sleep(1)
            if code is not None:
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}, see what it has printed"
                return index, how
        return None


class _Worker:
    """In the place of a ``SubprocVecEnv``'s connection to one worker process."""

    def __init__(self, remote: Any, process: Any):
        self.remote = remote
        self.process = process
        self.sent: Any = None  # what was received last

    def __getattr__(self, name: str) -> Any:
        return getattr(self.remote, name)

    def recv(self) -> Any:
        self.wait()
        self.sent = self.remote.recv()
        return self.sent

    def wait(self) -> None:
        """
        Wait until there is something to receive.

        :raises EOFError: If the process has ended. SB3 would wait for ever: forked workers keep each other's pipes open, so
            that no end of file comes.
        """
        while not self.remote.poll(1.0):
            if self.process.exitcode is not None:
                self.remote.close()  # so that the environment's close() does not wait either
                raise EOFError


def _as_array(value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:  # rows of unequal lengths
        return np.asarray(repr(value))


def _without_leading_ones(array: np.ndarray, n_axes: int) -> np.ndarray:
    while array.ndim > n_axes and len(array) == 1:
        array = array[0]
    return array


def _fits(array: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Whether numbers of this type can be what they are: a fraction in an integer's place would be cut off."""
    if array.dtype.kind in TAKES.get(dtype.kind, array.dtype.kind):
        return True
    if array.dtype.kind != "f":
        return False
    with np.errstate(invalid="ignore"):
        return np.array_equal(array.astype(dtype), array)


def _oddest(array: np.ndarray) -> Any:
    """The first entry that is no number, or the very first."""
    entries = array.ravel().tolist()
    return next((entry for entry in entries if not isinstance(entry, numbers.Number)), entries[0] if entries else None)
