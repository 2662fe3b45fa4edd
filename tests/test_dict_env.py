"""Dict observations: SB3's own with an image in them, and dm_control's with their 0-d entries."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from small import changed, small, weights
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import SimpleMultiObsEnv
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_cir import CIR
from sb3_cir.buffers import ScalarDictReplayBuffer

WALKER = "dm_control/walker-walk-v0"


@pytest.mark.parametrize("share_features_extractor", [False, True])
def test_vector_and_image(share_features_extractor: bool) -> None:
    env = SimpleMultiObsEnv(discrete_actions=False)
    policy_kwargs = dict(share_features_extractor=share_features_extractor)
    model = small(env, "MultiInputPolicy", policy_kwargs=policy_kwargs)
    before = weights(model)
    model.learn(25)
    assert changed(before, model) == set(before)


def test_each_entry_counts() -> None:
    env = gym.make(WALKER)
    model = small(env, "MultiInputPolicy")
    observation, _ = env.reset(seed=0)
    action, _ = model.predict(observation, deterministic=True)
    for key, entry in observation.items():
        other, _ = model.predict({**observation, key: np.asarray(entry + 10)}, deterministic=True)
        assert not np.array_equal(action, other), key


@pytest.mark.parametrize("n_envs", [1, 2])
def test_scalar_entries(tmp_path: Path, n_envs: int) -> None:
    """``gymnasium.make`` of walker-walk without any wrapper: its ``height`` is a number, not a vector."""
    env = gym.make(WALKER) if n_envs == 1 else make_vec_env(WALKER, n_envs=n_envs, seed=0)
    assert env.observation_space["height"].shape == ()
    model = small(env, "MultiInputPolicy")
    before = weights(model)
    model.learn(40)
    assert changed(before, model) == set(before)

    assert isinstance(model.replay_buffer, ScalarDictReplayBuffer)
    batch = model.replay_buffer.sample(8)
    assert {key: tuple(entry.shape) for key, entry in batch.observations.items()} == {
        "height": (8, 1),
        "orientations": (8, 14),
        "velocity": (8, 9),
    }
    heights = model.replay_buffer.observations["height"][: model.replay_buffer.pos, :, 0]
    assert heights.shape[1] == n_envs
    assert (heights.std(axis=0) > 0).all()
    np.testing.assert_array_equal(heights[1:], model.replay_buffer.next_observations["height"][: len(heights) - 1, :, 0])

    model.save(tmp_path / "model")
    loaded = CIR.load(tmp_path / "model", env=env, device="cpu")
    observation = model.env.reset()
    np.testing.assert_array_equal(*(each.predict(observation, deterministic=True)[0] for each in (model, loaded)))
    assert loaded.learn(30, reset_num_timesteps=False).num_timesteps == 70


def test_evaluate_on_scalar_entries() -> None:
    env = gym.wrappers.TimeLimit(gym.make(WALKER), 20)
    model = small(env, "MultiInputPolicy").learn(25)
    mean, _ = evaluate_policy(model, model.env, n_eval_episodes=2)
    assert 0 <= mean <= 20


def test_single_observation_with_a_scalar() -> None:
    """One unbatched observation and a batch of it have the same action."""
    env = gym.make(WALKER)
    model = small(env, "MultiInputPolicy")
    observation, _ = env.reset(seed=0)
    single, _ = model.predict(observation, deterministic=True)
    batch, _ = model.predict({key: np.stack([entry, entry]) for key, entry in observation.items()}, deterministic=True)
    assert (single.shape, batch.shape) == ((6,), (2, 6))
    np.testing.assert_allclose(batch, np.stack([single, single]), atol=1e-6)


def test_terminal_observation_with_a_scalar() -> None:
    """The last observation of an episode is stored, not the first of the next."""

    class Counter(gym.Env):
        observation_space = spaces.Dict(count=spaces.Box(-np.inf, np.inf, ()), vector=spaces.Box(-1, 1, (2,)))
        action_space = spaces.Box(-1, 1, (1,))

        def _observe(self):
            return {"count": np.array(self.count, np.float32), "vector": np.zeros(2, np.float32)}

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.count = 0
            return self._observe(), {}

        def step(self, action):
            self.count += 1
            return self._observe(), 0.0, self.count == 3, False, {}

    model = small(Counter(), "MultiInputPolicy").learn(6)
    buffer = model.replay_buffer
    assert buffer.observations["count"][:6].ravel().tolist() == [0, 1, 2, 0, 1, 2]
    assert buffer.next_observations["count"][:6].ravel().tolist() == [1, 2, 3, 1, 2, 3]
    assert buffer.dones[:6].ravel().tolist() == [0, 0, 1, 0, 0, 1]
    assert th.equal(buffer.to_torch(buffer.next_observations["count"][2]), th.tensor([[3.0]]))
