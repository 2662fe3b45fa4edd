"""What tests of runs that go on share: an environment whose whole state is in its observation, and what must be equal."""

import random
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from small import PowerError
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_cir import CIR


class Walk(gym.Env):
    """
    A walk whose whole state is in its observation, so that an episode can be entered anywhere. Observations are (position,
    step).

    :param start: The first observation of the first episode
    :param form: "flat", "dict", "scalar" (a Dict with a 0-d entry) or "goal"
    :param length: Steps after which an episode is cut off
    """

    def __init__(self, start=(0.0, 0.0), form: str = "flat", length: int = 23):
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.form, self.start, self.length = form, np.array(start, np.float32), length
        self.observation_space = {
            "flat": box,
            "dict": spaces.Dict(a=box, b=box),
            "scalar": spaces.Dict(a=box, height=spaces.Box(-np.inf, np.inf, (), np.float32)),
            "goal": spaces.Dict(observation=box, achieved_goal=box, desired_goal=box),
        }[form]
        self.action_space = spaces.Box(-2, 2, (1,), np.float32)

    def observe(self):
        state = self.state.copy()
        if self.form == "flat":
            return state
        if self.form == "dict":
            return {"a": state, "b": state + 1}
        if self.form == "scalar":
            return {"a": state, "height": np.array(state[0])}
        return {"observation": state, "achieved_goal": state, "desired_goal": np.ones(2, np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.start = self.start.copy(), np.zeros(2, np.float32)
        return self.observe(), {}

    def step(self, action):
        self.state = np.array([0.9 * self.state[0] + 0.3 * action[0], self.state[1] + 1], np.float32)
        return self.observe(), float(1 - abs(self.state[0])), False, bool(self.state[1] % self.length == 0), {}

    def compute_reward(self, achieved, desired, info):
        return -np.linalg.norm(achieved - desired, axis=-1)


class Discrete(gym.ActionWrapper):
    """Two actions."""

    action_space = spaces.Discrete(2)

    def action(self, action):
        return np.array([2.0 * action - 1], np.float32)


def make_env(starts: list, normalize: bool = False, **kwargs: Any):
    """One walk for each of the observations that it is to start from."""
    env = DummyVecEnv([lambda start=start: Walk(start, **kwargs) for start in starts])
    return VecNormalize(env) if normalize else env


def state_of(env) -> list:
    """What the environments' observations were last."""
    return [tuple(each.unwrapped.state) for each in env.unwrapped.envs]


class Stop(BaseCallback):
    """Notes where the environments are, and stops, at one step."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self.step:
            raise PowerError(state_of(self.training_env))

    def _on_step(self) -> bool:
        return True


def everything(model: CIR) -> dict[str, Any]:
    """All that must be equal, as tensors."""
    buffer = model.replay_buffer
    arrays = {}
    for name, value in vars(buffer).items():
        if isinstance(value, np.ndarray) and value.dtype != object:
            arrays[name] = value
        elif name in ("observations", "next_observations"):
            arrays |= {f"{name} {key}": entry for key, entry in value.items()}
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        statistics = normalizer.obs_rms if isinstance(normalizer.obs_rms, dict) else {"": normalizer.obs_rms}
        for key, each in {**statistics, "r": normalizer.ret_rms}.items():
            arrays |= {f"mean {key}": each.mean, f"var {key}": each.var, f"count {key}": np.array(each.count)}
        arrays["returns"] = normalizer.returns
    return {
        "parameters": model.get_parameters(),
        "log_ent_coef": model.log_ent_coef,
        "buffer": {name: th.as_tensor(array) for name, array in arrays.items()},
        "pos": (buffer.pos, buffer.full),
        "counts": (model.num_timesteps, model._n_updates, model._episode_num, model._current_progress_remaining),
        "random": (random.random(), np.random.random(), th.rand(1).item(), model.action_space.sample().tolist()),
    }


def pair(model: CIR) -> list[ReplayBuffer]:
    """The source's replay buffer and the target's."""
    return [model.replay_buffer.source, model.replay_buffer.target]
