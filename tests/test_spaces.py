"""Observation and action spaces other than a float32 vector."""

import copy
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from small import changed, small, weights

from sb3_cir import envs

BOX = spaces.Box(-1, 1, (2,))


class Anything(gym.Env):
    """Samples of its observation space, with an end after five steps."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space = BOX):
        self.observation_space = observation_space
        self.action_space = action_space

    def _observe(self):
        observation = self.observation_space.sample()
        # A plain int or list, as many environments give.
        return observation.tolist() if isinstance(observation, (np.integer, np.ndarray)) else observation

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        return self._observe(), 0.0, self.steps == 5, False, {}


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5),
        spaces.MultiDiscrete([4, 3]),
        spaces.MultiBinary(8),
        spaces.MultiBinary((3, 2)),
        spaces.Box(-1, 1, (2, 3)),
        spaces.Box(-1, 1, (2,), dtype=np.float64),
        spaces.Box(0, 9, (2,), dtype=np.int64),
    ],
    ids=str,
)
def test_observations(space: spaces.Space) -> None:
    model = small(Anything(space))
    before = weights(model)
    model.learn(25)
    assert changed(before, model) == set(before)


def test_dict_with_discrete_entries() -> None:
    space = spaces.Dict(number=spaces.Discrete(3), bits=spaces.MultiBinary(2), vector=BOX)
    model = small(Anything(space), "MultiInputPolicy")
    before = weights(model)
    model.learn(25)
    assert changed(before, model) == set(before)


@pytest.mark.parametrize("shape", [(1,), (2, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions(shape: tuple[int, ...], dtype: type) -> None:
    env = Anything(BOX, spaces.Box(-2, 5, shape, dtype=dtype))
    model = small(env)
    before = weights(model)
    model.learn(25)
    assert changed(before, model) == set(before)
    assert env.action_space.contains(model.predict(BOX.sample())[0])
    assert model.target_entropy == -np.prod(shape)


class Counting(gym.Env):
    """Its third step is the last one, and may not be followed by another."""

    observation_space = action_space = spaces.Box(-1, 1, (1,), np.float64)

    def __init__(self, end: str):
        self.end, self.steps = end, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.steps = 0
        return np.zeros(1), {}

    def step(self, action: np.ndarray) -> Any:
        assert self.steps < 3
        self.steps += 1
        last = self.steps == 3
        return np.zeros(1), float(self.steps), last and self.end == "terminated", last and self.end == "truncated", {}


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_an_action_is_repeated_to_the_end_of_the_episode(end: str) -> None:
    """With summed rewards; what ends an episode at the first of two steps is no other's to change."""
    env = envs.ActionRepeat(Counting(end), 2)
    env.reset()
    assert env.step(np.zeros(1))[1:4] == (1 + 2, False, False)
    assert env.step(np.zeros(1))[1:4] == (3, end == "terminated", end == "truncated")


@pytest.mark.parametrize("fps", [None, 30])
def test_pictures_of_a_second(fps: int | None) -> None:
    env = Counting("truncated")
    env.metadata = {"render_modes": [], "render_fps": fps}
    assert envs.ActionRepeat(env, 2).metadata["render_fps"] == (fps and fps / 2)


def test_a_copy_keeps_the_protocol() -> None:
    pytest.importorskip("dm_control", reason="needs the extra dmc")
    env = envs.paper_protocol(copy.deepcopy(gym.make("dm_control/cartpole-balance-v0")))
    assert env.get_wrapper_attr("repeat") == 2


def test_bounds_that_float32_does_not_have() -> None:
    env = Counting("truncated")
    largest = np.finfo(np.float64).max
    env.observation_space = spaces.Box(-largest, largest, (1,), np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flat = envs.FlatFloat32(env)
    assert flat.observation_space == spaces.Box(-np.inf, np.inf, (1,), np.float32)


def test_flat_observations_are_float32() -> None:
    env = envs.FlatFloat32(Counting("truncated"))
    assert env.reset()[0].dtype == env.step(np.zeros(1))[0].dtype == np.float32
