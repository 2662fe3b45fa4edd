"""Hindsight experience replay."""

from pathlib import Path

import pytest
from small import changed, small, weights
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_cir import CIR
from sb3_cir.diagnostics import QGain
from sb3_cir.envs import paper_protocol


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


def test_gain_is_looked_at_once_there_is_something_to_draw() -> None:
    env = BitFlippingEnv(n_bits=4, continuous=True, max_steps=10)
    model = small(env, "MultiInputPolicy", replay_buffer_class=HerReplayBuffer, train_freq=(1, "episode"), learning_starts=0)
    model.learn(20, callback=QGain(every=1, batch_size=4))
    assert model._n_updates > 0


def test_the_papers_protocol_leaves_goals_by_name() -> None:
    env = BitFlippingEnv(n_bits=4, continuous=True)
    assert paper_protocol(env) is env
    assert her(paper_protocol(env)).observation_space == env.observation_space


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
