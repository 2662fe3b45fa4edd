"""Observations and rewards that VecNormalize scales while CIR learns."""

from pathlib import Path

import numpy as np
import pytest
from small import changed, small, weights
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecNormalize

from sb3_cir import CIR


def test_learn(tmp_path: Path) -> None:
    """The buffer keeps what the environment gave; what is sampled from it is normalised by today's statistics."""
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2, seed=0))
    model = small(env)
    before = weights(model)
    model.learn(440)
    assert changed(before, model) == set(before)
    buffer = model.replay_buffer
    # Cosine and sine as they were, the ends of episodes (after 200 steps) included.
    for observations in (buffer.observations, buffer.next_observations):
        np.testing.assert_allclose(np.square(observations[:220, :, :2]).sum(axis=-1), 1, atol=1e-4)
    everything = buffer._get_samples(np.arange(220), env=env)
    np.testing.assert_allclose(everything.observations.std(dim=0), 1, atol=0.3)

    model.save(tmp_path / "model")
    env.save(tmp_path / "vecnormalize.pkl")
    env = VecNormalize.load(tmp_path / "vecnormalize.pkl", make_vec_env("Pendulum-v1", n_envs=2, seed=0))
    loaded = CIR.load(tmp_path / "model", env=env, device="cpu")
    assert loaded.get_vec_normalize_env() is env
    assert loaded.learn(60, reset_num_timesteps=False).num_timesteps == 500


def test_trains_on_normalised_values(monkeypatch: pytest.MonkeyPatch) -> None:
    env = VecNormalize(make_vec_env("Pendulum-v1", seed=0))
    model = small(env, learning_starts=1000).learn(40)
    model.set_logger(configure(None, []))
    used, update = [], model._update
    monkeypatch.setattr(model, "_update", lambda batch: used.append(batch) or update(batch))
    model.train(gradient_steps=1, batch_size=16)
    rewards, stored = used[0].rewards.numpy(), model.replay_buffer.rewards[:40]
    assert np.isin(rewards.round(4), env.normalize_reward(stored).round(4)).all()
    assert not np.isin(rewards.round(4), stored.round(4)).any()
