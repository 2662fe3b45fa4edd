"""Environments and actors that break in the middle of a run: which one, at which step, and what is left of the model."""

import copy
import os
import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from small import changed, small, weights
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper, VecFrameStack, VecNormalize

from sb3_cir import CIR
from sb3_cir.baselines import SACTanh, SimBa
from sb3_cir.baselines.two_domain_sac import TwoDomainSAC
from sb3_cir.off_dynamics import OffDynamicsCallback, TwoDomainReplayBuffer
from sb3_cir.runs.watch import BadDataError, FailedEnvError

BOX = spaces.Box(-1, 1, (2,))
PAIR = spaces.Dict(a=BOX, b=BOX)
IMAGE = spaces.Box(0, 255, (2,), np.uint8)
BOTH = pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])


class Broken(gym.Env):
    """At one step it does, or gives, what it should not. Every third step ends an episode."""

    def __init__(self, fault: str = "", value: Any = None, step: int = 2, space: spaces.Space = BOX):
        self.fault, self.value, self.bad_step, self.steps = fault, value, step, 0
        self.observation_space, self.action_space = space, BOX

    def is_due(self, fault: str) -> bool:
        return (fault, self.steps) == (self.fault, self.bad_step)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.value if self.is_due("reset") else self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        if self.is_due("raise"):
            raise self.value
        if self.is_due("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        observation = self.value if self.is_due("observation") else self.observation_space.sample()
        return observation, self.value if self.is_due("reward") else 1.0, self.steps % 3 == 0, False, {}


def make(
    vec_env_cls: type = DummyVecEnv, n_envs: int = 2, bad: int = 1, monitor: bool = False, fork: bool = True, **broken: Any
) -> Any:
    """Several environments, the one at ``bad`` broken."""

    def make_one(index: int) -> gym.Env:
        env = Broken(**(broken if index == bad else dict(space=broken.get("space", BOX))))
        return Monitor(env) if monitor else env

    makers = [lambda index=index: make_one(index) for index in range(n_envs)]
    # Forked: a worker starts at once, where others import torch first.
    return vec_env_cls(makers, **(dict(start_method="fork") if fork and vec_env_cls is SubprocVecEnv else {}))


def learn_until(error: type[Exception], message: str, env: Any, stored: int, **kwargs: Any) -> tuple[Any, BaseException]:
    """Have a model run into an error, with so many steps stored, of each environment, and the model as it was then."""
    policy = "MultiInputPolicy" if isinstance(env.observation_space, spaces.Dict) else "MlpPolicy"
    model = small(env, policy, learning_starts=1, **kwargs)
    model.learn(0)
    before = weights(model)
    with pytest.raises(error, match=message) as caught:
        model.learn(60)
    assert (model.replay_buffer.pos, model.num_timesteps) == (stored, stored * env.num_envs)
    assert bool(changed(before, model)) == (stored > 0)
    assert all(th.isfinite(parameter).all() for parameter in weights(model).values())
    return model, caught.value


UNTOUCHED = "nothing of it was stored, the model is as it was before this step.$"


@BOTH
@pytest.mark.parametrize("step", [2, 3], ids=["amidst", "terminal"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(3), r"^shape \(3,\) in the observation of environment 1 at step {}, where \(2,\) was expected: "),
        (np.zeros(1), r"^shape \(1,\) in the observation of environment 1 at step {}, where \(2,\) was expected: "),
        (0.5, r"^shape \(\) in the observation of environment 1 at step {}, where \(2,\) was expected: "),
        (None, r"^shape \(\) in the observation of environment 1 at step {}, where \(2,\) was expected: "),
        (
            np.array([0.5, None]),
            r"^object None in the observation of (environment 1|one of.*) at step {}, where float32 was expected: ",
        ),
        (
            np.array(["0.5", "1"]),
            r"^<U\d+ '.*' in the observation of (environment 1|one of.*) at step {}, where float32 was expected: ",
        ),
    ],
    ids=str,
)
def test_observation_of_another_form(vec_env_cls: type, step: int, value: Any, message: str) -> None:
    env = make(vec_env_cls, fault="observation", value=value, step=step)
    learn_until(BadDataError, message.format(2 * step) + UNTOUCHED, env, step - 1)
    env.close()


def test_observation_of_a_kind_that_would_be_cut_off() -> None:
    """A float in an integer's place. The other way round nothing is lost."""
    env = make(fault="observation", value=np.array([0.5, 0.5]), space=IMAGE)
    learn_until(BadDataError, "^float64 0.5 in the observation of environment 1 at step 4, where uint8 was expected: ", env, 1)
    env = make(n_envs=1, bad=0, fault="observation", value=np.array([1, 0]))
    assert small(env, learning_starts=100).learn(9).replay_buffer.pos == 9
    env = make(n_envs=1, bad=0, fault="observation", value=[0.5, 0.5])
    assert small(env, learning_starts=100).learn(9).replay_buffer.pos == 9
    for value in (np.array([7.0, 255.0]), np.array([[3, 4]], np.uint8)):  # whole, and with an axis that NumPy leaves out
        for step in (2, 3):
            env = make(n_envs=1, bad=0, fault="observation", value=value, space=IMAGE, step=step)
            buffer = small(env, learning_starts=100).learn(9).replay_buffer
            np.testing.assert_array_equal(buffer.next_observations[step - 1, 0], value.reshape(2))
    for value, named in ((np.array([300.0, 0.0]), "300.0"), (np.array([-1.0, 0.0]), "-1.0"), (np.array([np.nan, 0.0]), "nan")):
        env = make(fault="observation", value=value, space=IMAGE)
        learn_until(BadDataError, f"^float64 {named} in the observation of environment 1 at step 4, where uint8", env, 1)


@pytest.mark.parametrize("extra", [np.nan, [[1.0], [1.0, 2.0]]], ids=["nan", "ragged"])
def test_entries_that_a_dict_space_does_not_have(extra: Any) -> None:
    """SB3 leaves them out; at an episode's end they are there still."""
    for step in (2, 3):
        value = dict(a=np.zeros(2), b=np.zeros(2), debug=extra)
        env = make(n_envs=1, bad=0, fault="observation", value=value, space=PAIR, step=step)
        assert small(env, "MultiInputPolicy", learning_starts=100).learn(9).replay_buffer.pos == 9


@BOTH
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            dict(a=np.zeros(2)),
            "^no 'b' in the observation of environment 1 at step 4, where a dict with 'a', 'b' was expected: ",
        ),
        (np.zeros(2), "^no 'a' in the observation of environment 1 at step 4, where a dict with 'a', 'b' was expected: "),
        (dict(a=np.zeros(2), b=np.zeros(3)), r"^shape \(3,\) in the observation 'b' of environment 1 at step 4, where \(2,\)"),
    ],
    ids=["no entry", "no dict", "shape"],
)
def test_dict_observation_of_another_form(vec_env_cls: type, value: Any, message: str) -> None:
    env = make(vec_env_cls, fault="observation", value=value, space=PAIR)
    learn_until(BadDataError, message, env, 1)
    env.close()


@BOTH
@pytest.mark.parametrize("value", [None, "high", np.ones(2), 1j], ids=str)
def test_reward_that_is_no_number(vec_env_cls: type, value: Any) -> None:
    env = make(vec_env_cls, fault="reward", value=value)
    if vec_env_cls is SubprocVecEnv:
        message = r"^.* in the reward of (environment 1|one of the environments) at step 4, where a number was expected: "
        learn_until(BadDataError, message, env, 1)
    elif value is None:
        learn_until(BadDataError, "^nan in the reward of environment 1 at step 4: ", env, 1)
    else:
        # It fails to put it in its array, and nobody has kept the value.
        learn_until(FailedEnvError, "^(Type|Value)Error raised by environment 1 at step 4 ", env, 1)
    env.close()


def test_reward_that_is_no_number_in_a_monitor() -> None:
    """Monitor raises; what it says has the value."""
    env = make(fault="reward", value="high", monitor=True)
    message = r"^ValueError raised by environment 1 at step 4 \(could not convert string to float: 'high'\): " + UNTOUCHED
    _, error = learn_until(FailedEnvError, message, env, 1)
    assert isinstance(error.__cause__, ValueError)


@BOTH
@pytest.mark.parametrize("step", [2, 3], ids=["amidst", "terminal"])
@pytest.mark.parametrize("space", [BOX, spaces.Box(-np.inf, np.inf, (2,), np.float64)], ids=["float32", "float64"])
def test_observation_beyond_float32(vec_env_cls: type, step: int, space: spaces.Space) -> None:
    """Finite where it is float64, inf for the networks."""
    env = make(vec_env_cls, fault="observation", value=np.array([0, 1e300]), step=step, space=space)
    # An array of float32 in DummyVecEnv has it as inf.
    message = (
        rf"^(1e\+300|inf) in the observation of environment 1 at step {2 * step}(, where a number that float32 can hold)?"
    )
    learn_until(BadDataError, message, env, step - 1)
    env.close()


@BOTH
@pytest.mark.parametrize("value", [1e39, -1e300])
def test_reward_beyond_float32(vec_env_cls: type, value: float) -> None:
    env = make(vec_env_cls, fault="reward", value=value)
    learn_until(BadDataError, r"^(1e\+39|-1e\+300|-?inf) in the reward of environment 1 at step 4", env, 1)
    env.close()
    env = make(vec_env_cls, fault="reward", value=3e38)
    assert small(env, learning_starts=100).learn(18).replay_buffer.pos == 9
    env.close()


@pytest.mark.parametrize("step", [0, 3], ids=["first", "next episode"])
@pytest.mark.parametrize("wrap", [lambda env: env, VecNormalize, lambda env: VecFrameStack(env, 2)], ids=["", "norm", "stack"])
def test_observation_after_a_reset(step: int, wrap: Any) -> None:
    env = wrap(make(fault="reset", value=np.array([0, np.nan], dtype=np.float32), step=step))
    model = small(env, learning_starts=100)
    with pytest.raises(BadDataError, match=f"^nan in the observation of environment 1 at step {2 * step}: "):
        model.learn(30)
    assert model.replay_buffer.pos == max(step - 1, 0)
    if isinstance(env, VecNormalize):
        assert np.isfinite(env.obs_rms.mean).all()


def test_terminal_inf_that_vec_normalize_would_clip() -> None:
    env = VecNormalize(make(fault="observation", value=np.array([0, np.inf]), step=3))
    learn_until(BadDataError, "^inf in the observation of environment 1 at step 6: " + UNTOUCHED, env, 2)
    assert np.isfinite(env.obs_rms.mean).all()
    assert np.isfinite(env.ret_rms.mean).all()


class Bad(VecEnvWrapper):
    """Makes NaN itself."""

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        observations, rewards, dones, infos = self.venv.step_wait()
        return observations, rewards / np.where(dones, 0, np.nan), dones, infos


def test_nan_that_a_wrapper_makes() -> None:
    learn_until(BadDataError, "^nan in the reward of environment 0 at step 2 after Bad: ", Bad(make()), 0)
    learn_until(BadDataError, "^nan in the reward of environment 0 at step 2 after Bad: ", VecNormalize(Bad(make())), 0)


class Simulator:
    """Many environments at once, and no ``VecEnv``: ``reset`` and ``step`` are Gymnasium's."""

    num_envs, observation_space, action_space, render_mode = 2, BOX, BOX, None

    def __init__(self, bad_step: int):
        self.bad_step, self.steps = bad_step, 0

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros((2, 2), np.float32), {}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        self.steps += 1
        rewards = np.array([1, np.nan if self.steps == self.bad_step else 1])
        return np.zeros((2, 2), np.float32), rewards, np.zeros(2, bool), np.zeros(2, bool), {}


class Adapter(VecEnvWrapper):
    """Makes a ``VecEnv`` of it, as EnvPool's examples do."""

    def reset(self):
        return self.venv.reset()[0]

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        observations, rewards, terminated, truncated, _ = self.venv.step(self.actions)
        return observations, rewards, terminated | truncated, [{} for _ in rewards]

    def seed(self, seed=None):
        return [seed] * self.num_envs

    def get_attr(self, attr_name, indices=None):
        return [getattr(self.venv, attr_name)] * self.num_envs

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


@pytest.mark.parametrize("wrap", [lambda env: env, VecNormalize, lambda env: VecFrameStack(env, 2)], ids=["", "norm", "stack"])
def test_adapter_of_a_simulator(wrap: Any) -> None:
    """What it wraps has methods of the same names that return something else."""
    assert small(wrap(Adapter(Simulator(bad_step=0)))).learn(60).num_timesteps == 60
    learn_until(BadDataError, "^nan in the reward of environment 1 at step 4 after Adapter: ", wrap(Adapter(Simulator(2))), 1)


class ResetsSome(VecEnv):
    """A simulator of many environments that resets those that are done by its own ``reset``, and gives that more arguments."""

    def __init__(self, bad_step: int = 0):
        super().__init__(3, BOX, BOX)
        self.bad_step, self.steps, self.lengths = bad_step, 0, np.array([3, 4, 5])

    def reset(self, ids=None, seed=None):
        rows = 3 if ids is None else len(ids)
        return np.full((rows, 2), np.nan if self.steps == self.bad_step > 0 else 0.5, np.float32)

    def step_async(self, actions):
        self.steps += 1

    def step_wait(self):
        observations, dones = np.zeros((3, 2), np.float32), self.steps % self.lengths == 0
        if dones.any():
            observations[dones] = self.reset(np.flatnonzero(dones))
        infos = [{"terminal_observation": np.ones(2, np.float32)} if done else {} for done in dones]
        return observations, np.ones(3, np.float32), dones, infos

    def close(self):
        pass

    def get_attr(self, attr_name, indices=None):
        return [None] * self.num_envs

    def set_attr(self, attr_name, value, indices=None):
        pass

    def env_method(self, method_name, *args, indices=None, **kwargs):
        return [None] * self.num_envs

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


class Seeds(VecEnvWrapper):
    """Resets what it wraps with arguments."""

    def reset(self):
        return self.venv.reset(seed=3)

    def step_wait(self):
        self.venv.reset([0, 2])
        return self.venv.step_wait()


@pytest.mark.parametrize("wrap", [lambda env: env, Seeds, lambda env: VecNormalize(Seeds(env))], ids=["", "seeds", "norm"])
def test_resets_with_arguments(wrap: Any) -> None:
    assert small(wrap(ResetsSome())).learn(60).num_timesteps == 60
    learn_until(BadDataError, "^nan in the observation of environment 0 at step 18: ", wrap(ResetsSome(bad_step=6)), 5)


class OwnStep(DummyVecEnv):
    """``step_async`` and ``step_wait`` are not called."""

    def step(self, actions):
        results = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        observations, rewards, terminated, _, infos = zip(*results, strict=True)
        return np.stack(observations), np.array(rewards), np.array(terminated), list(infos)


class CallsStep(DummyVecEnv):
    """They are, and it resets by itself. What it returns is not what they did."""

    def step(self, actions):
        observations, rewards, dones, infos = super().step(actions)
        self.reset()
        return observations, np.where(rewards > 1, np.inf, rewards), dones, infos


class WrapperWithStep(VecEnvWrapper):
    """Likewise one that wraps."""

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        raise NotImplementedError

    def step(self, actions):
        observations, rewards, dones, infos = self.venv.step(actions)
        return observations, np.where(rewards > 1, np.inf, rewards), dones, infos


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (make(OwnStep, fault="reward", value=np.nan), "^nan in the reward of environment 1 at step 4: "),
        (make(OwnStep, fault="raise", value=KeyError("fuel")), "^KeyError raised by one of the environments at step 4 "),
        (make(CallsStep, fault="reward", value=2.0), "^inf in the reward of environment 1 at step 4: "),
        (make(CallsStep, fault="raise", value=KeyError("fuel")), "^KeyError raised by environment 1 at step 4 "),
        (WrapperWithStep(make(fault="reward", value=2.0)), "^inf in the reward of environment 1 at step 4 after WrapperWith"),
        (WrapperWithStep(make(fault="reward", value=np.nan)), "^nan in the reward of environment 1 at step 4: "),
    ],
)
def test_step_of_its_own(env: Any, message: str) -> None:
    learn_until((BadDataError, FailedEnvError), message, env, 1)  # type: ignore[arg-type]
    assert "step" not in vars(env)


class OwnError(Exception):
    """An environment's own."""


@pytest.mark.parametrize("wrap", [lambda env: env, VecNormalize, lambda env: VecFrameStack(env, 2)], ids=["", "norm", "stack"])
@pytest.mark.parametrize("step", [2, 0], ids=["step", "reset"])
def test_environment_that_raises(wrap: Any, step: int) -> None:
    cause = OwnError("no fuel")
    env = wrap(make(n_envs=3, fault="raise", value=cause, step=2))
    if not step:
        env.unwrapped.envs[1].reset = lambda **_: (_ for _ in ()).throw(cause)
        with pytest.raises(FailedEnvError, match=r"^OwnError raised by environment 1 at step 0 \(no fuel\): ") as caught:
            small(env).learn(30)
        assert caught.value.__cause__ is cause
    else:
        _, error = learn_until(
            FailedEnvError, rf"^OwnError raised by environment 1 at step 6 \(no fuel\): {UNTOUCHED}", env, 1
        )
        assert error.__cause__ is cause


class DemandingError(Exception):
    """Takes more than a message, and says something else."""

    def __init__(self, code: int, *, unit: str):
        self.code, self.unit = code, unit

    def __str__(self) -> str:
        return f"{self.code} {self.unit}"


@pytest.mark.parametrize(
    "cause",
    [AssertionError("no fuel"), OwnError("no fuel"), KeyError("fuel"), OSError(5, "no fuel"), DemandingError(3, unit="V")],
    ids=lambda error: type(error).__name__,
)
def test_failure_is_caught_as_the_environments_own_error(cause: Exception) -> None:
    """With SAC it is that error. RL Zoo's search goes on to the next trial after an AssertionError alone."""
    with pytest.raises(type(cause), match=rf"^{type(cause).__name__} raised by environment 1 at step 6 ") as caught:
        small(make(n_envs=3, fault="raise", value=cause, step=2)).learn(30)
    assert isinstance(caught.value, FailedEnvError)
    assert caught.value.__cause__ is cause
    assert vars(caught.value).items() >= vars(cause).items()
    assert type(pickle.loads(pickle.dumps(caught.value))) is FailedEnvError


def test_an_end_of_iteration_is_a_failure_and_no_end() -> None:
    with pytest.raises(FailedEnvError, match=r"^StopIteration raised by") as caught:
        small(make(fault="raise", value=StopIteration())).learn(30)
    assert not isinstance(caught.value, StopIteration)


def test_learning_again_after_a_failure() -> None:
    """The environments went on without the model, so that they are reset first; and nothing of the watch is left on them."""
    env = make(fault="raise", value=OwnError("no fuel"))
    model, _ = learn_until(FailedEnvError, "^OwnError raised by", env, 1)
    assert not {"step_wait", "step_async", "reset", "_save_obs"} & vars(env).keys()
    resets = []
    for index, each in enumerate(env.envs):
        each.reset = lambda index=index, reset=each.reset, **kwargs: resets.append(index) or reset(**kwargs)
    model.learn(2, reset_num_timesteps=False)
    assert resets[:2] == [0, 1]
    assert (model.num_timesteps, model.replay_buffer.pos) == (4, 2)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass(raised: type[BaseException]) -> None:
    with pytest.raises(raised):
        small(make(fault="raise", value=raised())).learn(30)


def test_errors_of_others_pass() -> None:
    """A callback's is its own, and so is that of an environment which only a callback steps."""

    class Steps(BaseCallback):
        def _on_step(self) -> bool:
            other = make(fault="raise", value=OwnError("elsewhere"), step=1)
            other.reset()
            other.step(np.zeros((2, 2)))
            return True

    with pytest.raises(OwnError, match="elsewhere"):
        small(make()).learn(30, callback=Steps())


@pytest.mark.parametrize("fork", [False, True])
def test_worker_that_is_killed(fork: bool) -> None:
    env = VecNormalize(make(SubprocVecEnv, fault="die", fork=fork))
    message = r"^The process of environment 1 at step 4 is gone \(killed by SIGKILL\): " + UNTOUCHED
    model, error = learn_until(FailedEnvError, message, env, 1)
    assert isinstance(error.__cause__, (EOFError, OSError))
    with pytest.raises(FailedEnvError, match=r"^The process of environment 1 at step 0 is gone"):
        model.learn(60)
    with pytest.raises((EOFError, OSError)):
        env.close()


def test_worker_that_is_killed_before_the_first_reset() -> None:
    """Forked workers hold each other's pipes open: SB3 waits for ever."""

    def waited(*_: Any) -> None:
        raise AssertionError("waited too long")  # not an OSError, which a broken pipe is

    env = make(SubprocVecEnv)
    model = small(env)
    os.kill(env.processes[1].pid, signal.SIGKILL)
    env.processes[1].join()
    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(300)
    try:
        with pytest.raises(FailedEnvError, match=r"^The process of environment 1 at step 0 is gone \(killed by SIGKILL\)"):
            model.learn(30)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_worker_that_is_killed_between_steps() -> None:
    env = make(SubprocVecEnv, fork=False)

    class Kill(BaseCallback):
        def _on_step(self) -> bool:
            os.kill(env.processes[1].pid, signal.SIGKILL)
            env.processes[1].join()
            return True

    with pytest.raises(FailedEnvError, match=r"^The process of environment 1 at step 4 is gone \(killed by SIGKILL\)"):
        small(env).learn(30, callback=Kill())


def test_ctrl_c_that_reaches_the_workers_long_before() -> None:
    env = make(SubprocVecEnv)
    ours = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))

    class Interrupt(BaseCallback):
        def _on_step(self) -> bool:
            for process in env.processes:
                os.kill(process.pid, signal.SIGINT)
                process.join()
            ours.start()
            return True

    failed = []

    def learn() -> None:
        try:
            small(env).learn(30, callback=Interrupt())
        except FailedEnvError as error:
            failed.append(error)
            time.sleep(1)  # so that Ctrl-C comes here, and not in the midst of another test

    with pytest.raises(KeyboardInterrupt):
        learn()
    assert not failed


def test_worker_that_raises() -> None:
    env = make(SubprocVecEnv, fault="raise", value=ZeroDivisionError("no fuel"), fork=False)
    message = r"^The process of environment 1 at step 4 is gone \(exit code 1, see what it has printed\): "
    learn_until(FailedEnvError, message, env, 1)


@pytest.mark.parametrize("model_class", [CIR, SACTanh, SimBa])
def test_actor_with_nan(model_class: type) -> None:
    model = small(make(), model_class=model_class, learning_starts=10, gradient_steps=0)
    name, parameter = next(each for each in model.policy.named_parameters() if each[0].startswith("actor."))

    class Spoil(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 12:
                with th.no_grad():
                    parameter.view(-1)[3] = th.nan
            return True

    with pytest.raises(ValueError, match=f"^nan in the action for environment 0 at step 14: there is nan in {name}"):
        model.learn(60, callback=Spoil())
    assert model.replay_buffer.pos == 6
    assert np.isfinite(model.replay_buffer.actions[:6]).all()


def test_action_noise_with_nan() -> None:
    noise = NormalActionNoise(np.zeros(2), np.array([0.1, np.nan]))
    with pytest.raises(ValueError, match=r"^nan in the action for environment 0 at step 2: the actor's parameters are finite"):
        small(make(), action_noise=noise).learn(60)


@pytest.mark.parametrize("model_class", [CIR, SAC, TwoDomainSAC])
def test_target_domain(model_class: type) -> None:
    """Also with an algorithm that is not watched itself."""
    model = small(
        Broken(), model_class=model_class, replay_buffer_class=TwoDomainReplayBuffer, learning_starts=100, buffer_size=50
    )
    bad = dict(fault="observation", value=np.array([np.nan, 0]))
    for arguments, message in (
        (dict(step=2, **bad), "^nan in the observation of environment 0 of the target domain at step 10: "),
        (
            dict(step=0, fault="reset", value=np.zeros(3)),
            r"^shape \(3,\) in the observation of .* of the target domain at step 0",
        ),
        (
            dict(fault="raise", value=OwnError("no fuel")),
            "^OwnError raised by environment 0 of the target domain at step 10 .*",
        ),
    ):
        callback = OffDynamicsCallback(lambda arguments=arguments: Broken(**arguments), target_freq=5, eval_freq=0)
        model.replay_buffer.reset()
        with pytest.raises((BadDataError, FailedEnvError), match=message):
            model.learn(60, callback=callback)
        stored = 9 if arguments.get("step", 2) else 0
        assert (model.replay_buffer.source.pos, model.replay_buffer.target.pos) == (stored, min(stored, 1))


@pytest.mark.parametrize("model_class", [SACTanh, SimBa])
def test_baselines(model_class: type) -> None:
    env = make(fault="observation", value=np.array([np.nan, 0]))
    learn_until(BadDataError, "^nan in the observation of environment 1 at step 4: ", env, 1, model_class=model_class)


def test_statistics_are_saved_meanwhile(tmp_path: Path) -> None:
    """As RL Zoo does at each new best model."""
    env = VecNormalize(make())
    small(env).learn(30, callback=lambda *_: env.save(str(tmp_path / "statistics.pkl")) or True)
    again = VecNormalize.load(str(tmp_path / "statistics.pkl"), make())
    assert again.obs_rms.count > 20
    assert "step_wait" not in vars(again)


class Copies(BaseCallback):
    """Copies the environments once, in the midst of learning."""

    def __init__(self, copy: Any):
        super().__init__()
        self.copy, self.copied = copy, None

    def _on_step(self) -> bool:
        if self.n_calls == 5:
            self.copied = self.copy(self.training_env)
        return True


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, CallsStep])
def test_copies_of_the_environments(vec_env_cls: type) -> None:
    """A callback may pickle them: the model is not among it, nor is the copy watched."""
    sizes = []
    for model_class in (SAC, CIR):
        env = make(vec_env_cls)
        pickled, deep = Copies(pickle.dumps), Copies(copy.deepcopy)
        small(env, model_class=model_class).learn(30, callback=[pickled, deep])
        sizes.append(len(pickled.copied))
        for copied in (pickle.loads(pickled.copied), deep.copied):
            assert type(copied) is vec_env_cls
            copied.envs[1].fault, copied.envs[1].value, copied.envs[1].bad_step = "reward", np.nan, 7
            steps = env.envs[1].steps
            for _ in range(5):
                rewards = copied.step(np.zeros((2, 2)))[1]
                assert np.isnan(rewards[1]) == (copied.envs[1].steps == 7)
            assert env.envs[1].steps == steps  # it is its own that the copy steps
            # It can be learned from, and is watched then.
            copied.envs[1].bad_step = copied.envs[1].steps + 3
            with pytest.raises(BadDataError, match=r"^nan in the reward of environment 1 at step 6: "):
                small(copied).learn(30)
    assert sizes[1] < sizes[0] + 500


def test_methods_that_were_replaced_before() -> None:
    """By the user, on one object: they are called, watched, and left in their place."""
    env = make()
    calls = []
    step_wait = env.step_wait
    env.step_wait = replaced = lambda: calls.append(0) or step_wait()
    small(env).learn(20)
    assert len(calls) == 10
    assert env.step_wait is replaced
    env.step_wait = lambda: (step_wait()[0], np.full(2, np.nan), np.zeros(2, bool), [{}, {}])
    with pytest.raises(BadDataError, match=r"^nan in the reward of environment 0 at step 2: "):
        small(env).learn(20)
