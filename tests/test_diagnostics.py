"""What the critics believe beside what is true, on critics and rewards whose values are known."""

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import TQC
from small import small, weights
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_cir import CIR
from sb3_cir.baselines.simba import SimBa
from sb3_cir.baselines.simba_v2 import SimbaV2
from sb3_cir.diagnostics import QBias, QBiasEvalCallback, QGain, counted_steps, discounted_returns, mean_q, q_gain
from sb3_cir.smr import SMR

GAMMA = 0.9
NARROW = dict(net_arch=dict(pi=[8], qf=[8]))


class OneReward(gym.Env):
    """A reward of 1 for each step. The episode ends by itself after ``length`` steps, or at a time limit of as many."""

    observation_space = spaces.Box(-1, 1, (3,))
    action_space = spaces.Box(-2, 2, (2,), np.float64)  # as dm_control's are

    def __init__(self, length: int, truncated: bool):
        self.length, self.truncated = length, truncated

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.step_number = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.step_number += 1
        ends = self.step_number == self.length
        return np.zeros(3, np.float32), 1.0, ends and not self.truncated, ends and self.truncated, {}


def vec_env(*envs: OneReward) -> DummyVecEnv:
    return DummyVecEnv([lambda env=env: Monitor(env) for env in envs])


def linear_model(env: Any, model_class: type = SAC, bias: float = 0.0, of_action: float = 0.0) -> Any:
    """A model whose critics are ``bias + of_action * sum(actions)``, of actions in [-1, 1]."""
    model = model_class("MlpPolicy", env, gamma=GAMMA, policy_kwargs=dict(net_arch=[]), device="cpu", seed=0)
    with th.no_grad():
        for (layer,) in model.critic.q_networks:
            layer.weight.zero_()
            layer.weight[:, 3:] = of_action
            layer.bias.fill_(bias)
    return model


def test_discounted_returns() -> None:
    assert discounted_returns([1, 0, 2], 0.5).tolist() == [1.5, 1, 2]


@pytest.mark.parametrize(
    ("length", "gamma", "truncated", "expected"),
    [
        (500, 0.99, True, 271),  # 0.99 ** 230 is the first power below a tenth
        (500, 0.99, False, 500),
        (230, 0.99, True, 1),
        (100, 0.99, True, 1),
        (100, 1.0, True, 1),
        (100, 0.0, True, 100),
        (30, 0.9, True, 9),
    ],
)
def test_steps_that_show_their_return(length: int, gamma: float, truncated: bool, expected: int) -> None:
    assert counted_steps(length, gamma, truncated) == expected
    if truncated and expected > 1:
        assert 1 - gamma ** (length - expected + 1) >= 0.9 > 1 - gamma ** (length - expected)


@pytest.mark.parametrize("model_class", [SAC, TD3, TQC])
def test_bias_of_a_constant_critic(model_class: type[OffPolicyAlgorithm]) -> None:
    """Over two environments whose episodes differ in length and are mixed."""
    env = vec_env(OneReward(4, truncated=False), OneReward(7, truncated=False))
    bias = QBias(linear_model(env, model_class, bias=5.0))
    evaluate_policy(bias.model, env, n_eval_episodes=2, callback=bias)
    earned = [(1 - GAMMA**left) / (1 - GAMMA) for length in (4, 7) for left in range(1, length + 1)]
    assert bias.mean_q() == pytest.approx(5.0)
    assert bias.mean_return() == pytest.approx(np.mean(earned))
    assert bias.mean() == pytest.approx(5.0 - np.mean(earned))


def test_bias_where_a_time_limit_ends_the_episode() -> None:
    env = vec_env(OneReward(30, truncated=True))
    bias = QBias(linear_model(env, bias=5.0))
    evaluate_policy(bias.model, env, n_eval_episodes=2, callback=bias)
    assert bias.mean_return() == pytest.approx(np.mean([(1 - GAMMA**left) / (1 - GAMMA) for left in range(22, 31)]))


def test_bias_is_of_the_actions_that_are_taken() -> None:
    """Q takes actions in [-1, 1], the environment those in its bounds of 2."""
    env = vec_env(OneReward(1, truncated=False))
    model = linear_model(env, TD3, of_action=3.0)
    with th.no_grad():
        model.actor.mu[0].weight.zero_()
        model.actor.mu[0].bias.copy_(th.tensor([0.5, 1.0]))
    bias = QBias(model)
    evaluate_policy(model, env, n_eval_episodes=1, callback=bias)
    assert bias.mean_q() == pytest.approx(3 * np.tanh([0.5, 1.0]).sum())


def test_bias_with_normalised_rewards_is_in_the_environments_units() -> None:
    env = VecNormalize(vec_env(OneReward(4, truncated=False)))
    env.ret_rms.var = np.array(4.0)
    bias = QBias(linear_model(env, bias=5.0))
    evaluate_policy(bias.model, vec_env(OneReward(4, truncated=False)), n_eval_episodes=1, callback=bias)
    assert bias.mean_q() == pytest.approx(10.0)


def test_bias_of_a_critic_of_scaled_rewards_is_in_the_environments_units() -> None:
    model = SimbaV2("MlpPolicy", vec_env(OneReward(4, truncated=False)), device="cpu", policy_kwargs=NARROW)
    model.return_scale.var.fill_(9.0)
    with th.no_grad():
        model.critic.q_network[1][2].bias[..., -1] = 1e9  # all probability on the largest value of the grid
    bias = QBias(model)
    evaluate_policy(model, vec_env(OneReward(4, truncated=False)), n_eval_episodes=1, callback=bias)
    assert bias.mean_q() == pytest.approx(3 * 5.0)


def test_gain_is_the_difference_of_the_actions() -> None:
    model = linear_model(vec_env(OneReward(4, truncated=False)), TD3, bias=7.0, of_action=3.0)
    with th.no_grad():
        model.actor.mu[0].weight.zero_()
        model.actor.mu[0].bias.copy_(th.tensor([0.5, 1.0]))
    taken = th.tensor([[0.1, 0.2], [-0.3, 0.0]])
    assert q_gain(model, th.zeros(2, 3), taken).item() == pytest.approx(3 * (np.tanh([0.5, 1.0]).sum() - 0.0))
    assert mean_q(model, th.zeros(2, 3), taken).tolist() == pytest.approx([7.9, 6.1])


class Logged:
    """What a model's logger was given, with every value of a name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.values: dict[str, list[float]] = {}
        record = Logger.record

        def keep(logger: Logger, key: str, value: Any, *args: Any, **kwargs: Any) -> None:
            self.values.setdefault(key, []).append(value)
            record(logger, key, value, *args, **kwargs)

        monkeypatch.setattr(Logger, "record", keep)


@pytest.mark.parametrize("model_class", [SAC, TD3, TQC, CIR, SimBa])
def test_are_logged_and_change_nothing(model_class: type[OffPolicyAlgorithm], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = small("Pendulum-v1", model_class=model_class, learning_starts=20).learn(60)
    logged = Logged(monkeypatch)
    watched = small("Pendulum-v1", model_class=model_class, learning_starts=20)
    watched.learn(60, callback=QGain(every=10))
    # SMR and its kin log their own look at the last batch too, after the first update.
    assert len(logged.values["train/q_gain"]) == (5 if issubclass(model_class, SMR) else 4)
    assert np.all(np.isfinite(logged.values["train/q_gain"]))
    assert all(th.equal(weight, weights(plain)[name]) for name, weight in weights(watched).items())


def test_bias_is_logged_at_each_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    env = vec_env(OneReward(4, truncated=False))
    model = linear_model(env, bias=5.0)
    model.learning_starts = 1000
    logged = Logged(monkeypatch)
    model.learn(20, callback=QBiasEvalCallback(env, n_eval_episodes=2, eval_freq=10))
    earned = np.mean([(1 - GAMMA**left) / (1 - GAMMA) for left in range(1, 5)])
    assert logged.values["eval/q_bias"][1::2] == pytest.approx([5.0 - earned] * 2)
    assert len(logged.values["eval/mean_reward"]) == 2


def test_evaluations_by_chance_change_nothing() -> None:
    """Actions that are drawn come from the same generator as those of the run."""
    plain = small("Pendulum-v1").learn(60)
    watched = small("Pendulum-v1")
    env = vec_env(gym.make("Pendulum-v1", max_episode_steps=5))
    watched.learn(60, callback=QBiasEvalCallback(env, n_eval_episodes=1, eval_freq=10, deterministic=False))
    assert all(th.equal(weight, weights(plain)[name]) for name, weight in weights(watched).items())


@pytest.mark.parametrize("kwargs", [dict(every=0), dict(every=math.nan), dict(batch_size=0), dict(batch_size=1.5)])
def test_bad_arguments(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"=(0|nan|1\.5): it must be a whole number of at least 1\."):
        QGain(**kwargs)


def test_models_without_actor_and_critic() -> None:
    for model in (DQN("MlpPolicy", "CartPole-v1", device="cpu"), PPO("MlpPolicy", "CartPole-v1", device="cpu")):
        with pytest.raises(ValueError, match=f"a {type(model).__name__} has no critic of actions and actor"):
            model.learn(10, callback=QGain())
        with pytest.raises(ValueError, match=f"a {type(model).__name__} has no critic of actions and actor"):
            QBias(model)


def test_a_loaded_model_has_nothing_to_look_at_yet(tmp_path: Path) -> None:
    """It has made updates, and its replay buffer is empty."""
    small("Pendulum-v1").learn(30).save(tmp_path / "model")
    model = CIR.load(tmp_path / "model", gym.make("Pendulum-v1"), device="cpu")
    assert model._n_updates
    assert model.learn(10, callback=QGain(every=1), reset_num_timesteps=False).num_timesteps == 40


def test_looks_are_counted_in_steps_of_all_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    env = vec_env(*(OneReward(4, truncated=False) for _ in range(4)))
    logged = Logged(monkeypatch)
    small(env, model_class=SAC, learning_starts=20).learn(80, callback=QGain(every=10))
    # At 32, 40, 52, 60, 72 and 80, the first after 30.
    assert len(logged.values["train/q_gain"]) == 6
