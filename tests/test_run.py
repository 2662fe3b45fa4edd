"""Learning with each of SB3's features, on real environments."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from small import changed, small, weights
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sb3_cir import envs


def test_float_budget() -> None:
    model = small("Pendulum-v1", learning_starts=990).learn(1e3)
    assert model.num_timesteps == 1000
    # A whole number to callbacks, the progress bar and the schedules.
    assert isinstance(model._total_timesteps, int)


@pytest.mark.parametrize("n_critics", [1, 2, 3])
@pytest.mark.parametrize("net_arch", [[16], [16, 16], dict(pi=[8, 4, 8], qf=[16, 16, 16])])
def test_networks(n_critics: int, net_arch: list[int] | dict[str, list[int]]) -> None:
    model = small("Pendulum-v1", policy_kwargs=dict(n_critics=n_critics, net_arch=net_arch))
    before = weights(model)
    model.learn(25)
    assert changed(before, model) == set(before)


def test_same_seed_same_weights() -> None:
    runs = [small("Pendulum-v1", seed=seed).learn(40) for seed in (1, 1, 2)]
    assert not changed(weights(runs[0]), runs[1])
    assert changed(weights(runs[0]), runs[2])


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
def test_several_environments(vec_env_cls: type) -> None:
    """``gradient_steps=-1``: as many batches as transitions collected, each used ``sample_reuse`` times."""
    env = make_vec_env("Pendulum-v1", n_envs=2, seed=0, vec_env_cls=vec_env_cls)
    model = small(env, learning_starts=0, train_freq=3, gradient_steps=-1, sample_reuse=2).learn(12)
    assert model.num_timesteps == 12
    assert model._n_updates == 12 * 2
    assert model.replay_buffer.pos == 6
    assert not np.array_equal(model.replay_buffer.observations[:, 0], model.replay_buffer.observations[:, 1])
    env.close()


def test_train_freq_in_episodes() -> None:
    model = small("Pendulum-v1", train_freq=(1, "episode"), gradient_steps=5, sample_reuse=2).learn(250)
    # An episode has 200 steps, and the second one is played to its end.
    assert model.num_timesteps == 400
    assert model._n_updates == 2 * 5 * 2


def test_n_steps() -> None:
    model = small("Pendulum-v1", n_steps=3, gamma=0.5).learn(40)
    assert isinstance(model.replay_buffer, NStepReplayBuffer)
    first, rewards = model.replay_buffer._get_samples(np.array([0])), model.replay_buffer.rewards[:, 0]
    assert first.rewards.item() == pytest.approx(rewards[0] + 0.5 * rewards[1] + 0.25 * rewards[2])
    assert first.discounts.item() == 0.5**3
    assert model._n_updates == 2 * 20


@pytest.mark.parametrize("noise_class", [NormalActionNoise, OrnsteinUhlenbeckActionNoise])
def test_action_noise(noise_class: type) -> None:
    """Noise of +10 puts every action on its upper bound."""
    env = make_vec_env("Pendulum-v1", n_envs=2)
    noise = NormalActionNoise(np.full(1, 10.0), np.zeros(1))
    model = small(env, action_noise=noise).learn(60)
    assert (model.replay_buffer.actions[:30] == 1).all()
    small("Pendulum-v1", action_noise=noise_class(np.zeros(1), 0.1 * np.ones(1))).learn(25)


@pytest.mark.parametrize("use_sde_at_warmup", [False, True])
def test_sde(use_sde_at_warmup: bool) -> None:
    model = small("Pendulum-v1", use_sde=True, sde_sample_freq=4, use_sde_at_warmup=use_sde_at_warmup)
    assert isinstance(model.actor.action_dist, StateDependentNoiseDistribution)
    before = weights(model)
    model.learn(40)
    assert changed(before, model) == set(before)
    # The noise is drawn at the start of each rollout and kept between, so that one observation has one action.
    observation = model.env.reset()
    first, second = (model.predict(observation)[0] for _ in range(2))
    assert np.array_equal(first, second)
    model.actor.reset_noise()
    assert not np.array_equal(first, model.predict(observation)[0])


def test_optimize_memory_usage() -> None:
    kwargs = dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False))
    model = small("Pendulum-v1", **kwargs).learn(40)
    assert not hasattr(model.replay_buffer, "next_observations")
    assert model._n_updates == 2 * 20


class Bounded(gym.Env):
    """Remembers the actions that reach it."""

    observation_space = spaces.Box(-1, 1, (3,))
    action_space = spaces.Box(np.array([-1, 2], np.float32), np.array([3, 10], np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = []
        return self.observation_space.sample(), {}

    def step(self, action):
        self.taken.append(action)
        return self.observation_space.sample(), 0.0, False, False, {}


def test_asymmetric_action_bounds() -> None:
    """The environment gets actions within its bounds, the networks the same actions in [-1, 1]."""
    env = Bounded()
    model = small(env).learn(60)
    taken = np.array(env.taken)
    low, high = env.action_space.low, env.action_space.high
    assert (taken >= low).all()
    assert (taken <= high).all()
    assert (np.ptp(taken, axis=0) > 0.5 * (high - low)).all()
    np.testing.assert_allclose(model.replay_buffer.actions[:60, 0], 2 * (taken - low) / (high - low) - 1, atol=1e-5)
    action, _ = model.predict(env.observation_space.sample(), deterministic=True)
    assert env.action_space.contains(action)


def test_dm_control_runs_at_real_speed_in_videos() -> None:
    """shimmy's own ids, which come with its import, say a tenth of it."""
    for _ in range(2):
        assert envs.make("dm_control/cartpole-balance-v0").metadata["render_fps"] == 50


# "Detailed state and action space dimensions", one task of each domain. The paper prints 24 actions for humanoid: it has 21.
SIZES = {
    "acrobot-swingup": (6, 1),
    "cartpole-balance": (5, 1),
    "cheetah-run": (17, 6),
    "finger-spin": (9, 2),
    "finger-turn_easy": (12, 2),
    "fish-swim": (24, 5),
    "hopper-hop": (15, 4),
    "pendulum-swingup": (3, 1),
    "quadruped-run": (78, 12),
    "reacher-easy": (6, 2),
    "walker-walk": (24, 6),
    "dog-walk": (223, 38),
    "humanoid-walk": (67, 21),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_the_papers(name: str) -> None:
    env = envs.make(f"dm_control/{name}-v0")
    assert (env.observation_space.shape, env.action_space.shape) == tuple((size,) for size in SIZES[name])
