"""Hindsight experience replay."""

from pathlib import Path

import pytest
from small import changed, small, weights
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_cir import CIR


def her(env, strategy: str = "future") -> CIR:
    replay_buffer_kwargs = dict(n_sampled_goal=4, goal_selection_strategy=strategy)
    return small(env, "MultiInputPolicy", replay_buffer_class=HerReplayBuffer, replay_buffer_kwargs=replay_buffer_kwargs)


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_her(n_envs: int, strategy: str) -> None:
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=4, continuous=True), n_envs=n_envs)
    model = her(env, strategy)
    before = weights(model)
    model.learn(60)
    assert changed(before, model) == set(before)
    # The environment's own goal is all ones: other goals are hindsight's.
    goals = model.replay_buffer.sample(64).observations["desired_goal"].numpy()
    assert not (goals == 1).all()
    assert (model.replay_buffer.observations["desired_goal"][: model.replay_buffer.pos] == 1).all()


def test_save_and_continue(tmp_path: Path) -> None:
    env = BitFlippingEnv(n_bits=4, continuous=True)
    model = her(env).learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = CIR.load(tmp_path / "model", env=env, device="cpu")
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert loaded.learn(20, reset_num_timesteps=False).replay_buffer.pos == 80
    observation, _ = env.reset()
    assert loaded.predict(observation)[0].shape == (4,)
