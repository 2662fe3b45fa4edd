"""What belongs to TD7 beyond its networks, whose numbers are in ``test_peer_parity.py``."""

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from sb3_cir.baselines import TD7
from sb3_cir.baselines.lap import LAPReplayBuffer, lap_huber
from sb3_cir.baselines.simba import RSNorm
from sb3_cir.baselines.td7 import NOT_YET
from sb3_cir.callbacks import Checkpoint
from sb3_cir.diagnostics import QBiasEvalCallback, QGain, mean_q, q_gain


class Walk(gym.Env):
    """A walk of one number; each episode begins at 0 and is cut off after ten steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = np.zeros(2, np.float32)
        return self.state.copy(), {}

    def step(self, action: np.ndarray) -> Any:
        self.state = np.array([0.9 * self.state[0] + 0.3 * action[0], self.state[1] + 1], np.float32)
        return self.state.copy(), float(1 - abs(self.state[0])), False, bool(self.state[1] == 10), {}


def build(env: Any = None, **kwargs: Any) -> TD7:
    defaults = dict(learning_starts=20, batch_size=8, buffer_size=200, seed=0, device="cpu")
    policy_kwargs = dict(net_arch=[8, 8], encoder_width=8) | kwargs.pop("policy_kwargs", {})
    return TD7("MlpPolicy", Walk() if env is None else env, policy_kwargs=policy_kwargs, **defaults | kwargs)


def filled(**kwargs: Any) -> TD7:
    """With transitions that are far apart, and a silent logger."""
    model = build(**kwargs)
    rng = np.random.default_rng(0)
    for _ in range(50):
        obs, next_obs = rng.normal(size=(2, 2))
        model.replay_buffer.add(obs, next_obs, rng.uniform(-1, 1, 1), rng.normal(size=1), np.zeros(1), [{}])
    model.set_logger(configure(None, []))
    model.learning = 1
    return model


def end_of_episode(model: TD7, episode_return: float, steps: int = 3) -> bool:
    """:return: Whether the policy became the checkpoint"""
    actor = {name: value.clone() for name, value in model.actor.state_dict().items()}
    model._episode_return = episode_return
    model.num_timesteps += steps
    model.train(steps, 8)
    return all(th.equal(value, actor[name]) for name, value in model.policy.checkpoint_actor.state_dict().items())


# --- policy checkpoints ---


def test_one_episode_decides_at_first() -> None:
    model = filled()
    with th.no_grad():
        model.actor.mu[0].weight.add_(1)  # not what the checkpoint began as
    assert end_of_episode(model, 5.0, steps=3)
    assert (model._n_updates, model.best_min_return) == (3, 5.0)
    assert not end_of_episode(model, 4.0, steps=2)
    assert (model._n_updates, model.best_min_return) == (5, 5.0)
    assert end_of_episode(model, 6.0)


def test_the_worst_of_several_episodes_decides() -> None:
    """After ``steps_before_checkpointing`` updates, when the best return so far is made smaller once."""
    model = filled(steps_before_checkpointing=4, max_eps_when_checkpointing=3, reset_weight=0.5)
    assert end_of_episode(model, 10.0, steps=4)
    assert end_of_episode(model, 12.0, steps=2)
    assert (model.max_eps_before_update, model.best_min_return) == (3, 6.0)

    for episode_return, updates in ((9.0, 6), (8.0, 6)):  # assessment goes on, no update meanwhile
        assert not end_of_episode(model, episode_return, steps=10)
        assert model._n_updates == updates
    assert end_of_episode(model, 7.0, steps=10)
    assert (model._n_updates, model.best_min_return) == (36, 7.0)

    assert not end_of_episode(model, 6.9, steps=10)  # worse: no second episode is needed
    assert (model._n_updates, model.eps_since_update, model.timesteps_since_update) == (46, 0, 0)


def test_the_checkpoint_predicts_and_the_actor_collects() -> None:
    model = build(exploration_noise=0.0)
    model.learn(20)
    with th.no_grad():
        model.actor.mu[-2].bias.fill_(5.0)
        model.policy.checkpoint_actor.mu[-2].bias.fill_(-5.0)
    model.learning = 1
    for deterministic in (True, False):
        assert model.predict(np.zeros(2, np.float32), deterministic=deterministic)[0][0] < -1.9
    model._last_obs = np.zeros((1, 2), np.float32)
    assert model._sample_action(0, model.action_noise)[0][0, 0] > 1.9
    assert model.predict(np.zeros(2, np.float32))[0][0] < -1.9


def test_actions_are_random_to_the_end_of_an_episode() -> None:
    """The original's: the episode in which ``learning_starts`` is passed, too, and it is not assessed."""
    model = build(learning_starts=20, exploration_noise=0.0)
    with th.no_grad():
        model.actor.mu[-2].bias.fill_(20.0)
    model.learn(40)
    always = np.isclose(model.replay_buffer.actions[:40, 0, 0], 1).reshape(4, 10).all(axis=1)
    assert always.tolist() == [False, False, False, True]
    assert model._n_updates == 10


class StopAt(BaseCallback):
    """Ends a run at a step."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        return self.num_timesteps < self.step


def test_as_many_updates_as_steps_when_stopped_within_an_episode() -> None:
    model = build(learning_starts=5).learn(20)  # one episode of random actions and one of the policy's
    n_updates, n_steps = model._n_updates, model.num_timesteps
    assert (n_updates, n_steps) == (10, 20)
    model.learn(100, callback=StopAt(n_steps + 7), reset_num_timesteps=False)
    assert (model._n_updates, model.num_timesteps) == (n_updates, n_steps + 7)
    model.learn(3, reset_num_timesteps=False)
    assert (model._n_updates, model.num_timesteps) == (n_updates + 10, n_steps + 10)


def test_exploration_noise() -> None:
    model = build(exploration_noise=0.1)
    model.learning = 1
    model._last_obs = np.zeros((1, 2), np.float32)
    with model.policy.current():
        quiet = model.predict(model._last_obs)[0] / 2
    noise = [model._sample_action(0, model.action_noise)[1] - quiet for _ in range(2000)]
    assert np.std(noise) == pytest.approx(0.1, rel=0.1)


# --- features extractors ---


class FirstEntry(BaseFeaturesExtractor):
    """Sees the first entry of an observation alone."""

    def __init__(self, observation_space: spaces.Box):
        super().__init__(observation_space, 4)
        self.linear = nn.Linear(1, 4)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return th.tanh(self.linear(observations[:, :1]))


@pytest.mark.parametrize("shared", [False, True])
def test_features_extractor(shared: bool, tmp_path: Path) -> None:
    """Nothing sees an observation past it; that of each network learns, is copied and is saved with it."""
    extractor = dict(features_extractor_class=FirstEntry, share_features_extractor=shared)
    model = build(policy_kwargs=extractor, target_update_interval=7)
    policy = model.policy
    extractors = [policy.actor.features_extractor, policy.encoder.state.features, policy.critic.features_extractor]
    assert (extractors[0] is extractors[2]) is shared
    before = [each.linear.weight.clone() for each in extractors]
    model.learn(60)
    assert not any(th.equal(each.linear.weight, old) for each, old in zip(extractors, before, strict=True))

    obs, others, actions = th.randn(5, 2), th.randn(5, 2), th.rand(5, 1)
    others[:, 0] = obs[:, 0]
    np.testing.assert_array_equal(*(model.predict(each.numpy())[0] for each in (obs, others)))
    assert th.equal(policy.act(obs), policy.act(others))
    assert th.equal(policy.q_values(obs, actions), policy.q_values(others, actions))

    policy.update_targets()
    for target, source in ((policy.actor_target, policy.actor), (policy.fixed_encoder, policy.encoder)):
        assert all(th.equal(value, source.state_dict()[name]) for name, value in target.state_dict().items())
    model.save(tmp_path / "model")
    loaded = TD7.load(tmp_path / "model", device="cpu")
    assert all(th.equal(value, loaded.policy.state_dict()[name]) for name, value in policy.state_dict().items())


def test_a_shared_features_extractor_learns_by_the_actors_own_pass() -> None:
    model = build(policy_kwargs=dict(features_extractor_class=FirstEntry, share_features_extractor=True))
    model.policy.q_values(th.randn(5, 2), th.rand(5, 1)).sum().backward()
    assert model.critic.q_network[0].weight.grad is not None
    assert model.actor.features_extractor.linear.weight.grad is None


# --- diagnostics ---


def test_values_and_gain_are_those_of_the_actor_that_learns() -> None:
    """By the encoder that actor and critics learn with."""
    model = filled()
    model.make_updates(5, 8)
    obs, actions = th.randn(5, 2), th.rand(5, 1)

    def value(actions: th.Tensor) -> th.Tensor:
        zs, zsa = model._embed(model.policy.fixed_encoder, obs, actions)
        return model.critic(obs, actions, zsa, zs).mean(dim=1)

    with th.no_grad():
        own = model.actor(obs, model.policy.fixed_encoder.state(obs))
        th.testing.assert_close(mean_q(model, obs, actions), value(actions))
        th.testing.assert_close(q_gain(model, obs, actions), (value(own) - value(actions)).mean())


def test_diagnostics_change_nothing(tmp_path: Path) -> None:
    plain = build(target_update_interval=7).learn(60)
    watched = build(target_update_interval=7)
    watched.set_logger(configure(str(tmp_path), ["csv"]))
    bias = QBiasEvalCallback(Monitor(Walk()), n_eval_episodes=2, eval_freq=25, verbose=0)
    watched.learn(60, callback=[QGain(every=10, batch_size=8), bias], log_interval=1)
    assert all(th.equal(value, plain.policy.state_dict()[name]) for name, value in watched.policy.state_dict().items())
    logged = (tmp_path / "progress.csv").read_text().splitlines()
    for name in ("train/q_gain", "eval/q_bias"):
        column = logged[0].split(",").index(name)
        values = [float(row.split(",")[column]) for row in logged[1:] if row.split(",")[column]]
        assert values
        assert np.all(np.isfinite(values))


# --- LAP ---


def buffer() -> LAPReplayBuffer:
    return LAPReplayBuffer(100, Walk.observation_space, Walk.action_space, device="cpu")


def add(to: LAPReplayBuffer, n: int) -> None:
    for _ in range(n):
        to.add(np.zeros(2), np.zeros(2), np.zeros(1), np.zeros(1), np.zeros(1), [{}])


def test_rows_are_drawn_by_priority() -> None:
    lap = buffer()
    add(lap, 4)
    lap.update_priorities(np.array([0, 1, 2, 3]), np.array([1.0, 2.0, 0.0, 5.0]))
    np.random.seed(0)
    shares = np.bincount(lap.draw(100_000), minlength=4) / 100_000
    np.testing.assert_allclose(shares, [1 / 8, 2 / 8, 0, 5 / 8], atol=0.01)


def test_a_new_row_has_the_largest_priority_so_far() -> None:
    lap = buffer()
    add(lap, 2)
    assert lap.priorities[:3, 0].tolist() == [1, 1, 0]
    lap.update_priorities(np.array([0]), np.array([4.0]))
    lap.update_priorities(np.array([0]), np.array([2.0]))
    add(lap, 1)
    assert lap.priorities[:3, 0].tolist() == [2, 1, 4]
    lap.update_priorities(np.array([2]), np.array([1.5]))
    lap.forget_max_priority()
    add(lap, 1)
    assert lap.priorities[:4, 0].tolist() == [2, 1, 1.5, 2]


def test_priorities_are_of_the_larger_error() -> None:
    model = filled(priority_exponent=0.4, min_priority=1.0)
    rows = np.arange(8)
    batch = model.replay_buffer._get_samples(rows)._replace(rewards=th.linspace(0, 9, 8).unsqueeze(1))
    with th.no_grad():
        zs, zsa = model._embed(model.policy.fixed_encoder, batch.observations, batch.actions)
        error = (model.critic(batch.observations, batch.actions, zsa, zs) - batch.rewards).abs()  # clipped to 0 at first
    expected = error.amax(dim=1).clamp(min=1) ** 0.4
    assert (expected == 1).any()
    model._update(batch, rows)
    np.testing.assert_allclose(model.replay_buffer.priorities[:8, 0], expected, rtol=1e-5)
    assert model.replay_buffer.max_priority == pytest.approx(expected.max().item())


def test_huber_loss() -> None:
    assert lap_huber(th.tensor([[0.5, 3.0], [1.0, 0.0]]), 1.0).item() == pytest.approx((0.125 + 3 + 1 + 0) / 2)
    assert lap_huber(th.tensor([[0.5, 3.0]]), 2.0).item() == pytest.approx(0.125 + 6)


# --- value clipping ---


def test_targets_stay_in_the_range_of_values_seen() -> None:
    model = filled(target_update_interval=3, gamma=0.5)
    with th.no_grad():
        for parameter in model.critic_target.q_network[-1].parameters():
            parameter.fill_(100.0)
    rows = np.arange(8)
    batch = model.replay_buffer._get_samples(rows)
    for _ in range(2):
        assert th.equal(model._target(batch), batch.rewards)  # the range is empty
        model._update(batch, rows)
    assert (model.max_target, model.min_target) == (0, 0)
    model._update(batch, rows)
    assert model.max_target == pytest.approx(batch.rewards.max().item())
    assert model.min_target == pytest.approx(batch.rewards.min().item())

    with th.no_grad():
        model.critic_target.q_network[-1].bias.fill_(100.0)
    th.testing.assert_close(model._target(batch), batch.rewards + 0.5 * model.max_target)


def test_targets_are_copied_whole() -> None:
    model = filled(target_update_interval=2)
    rows = np.arange(8)
    policy = model.policy
    first = policy.encoder.state[1].weight.clone()
    batch = model.replay_buffer._get_samples(rows)
    model._update(batch, rows)
    assert th.equal(policy.fixed_encoder.state[1].weight, first)
    model._update(batch, rows)
    assert th.equal(policy.fixed_encoder.state[1].weight, policy.encoder.state[1].weight)
    assert th.equal(policy.fixed_encoder_target.state[1].weight, first)
    assert th.equal(policy.actor_target.mu[0].weight, policy.actor.mu[0].weight)
    assert th.equal(policy.critic_target.q_network[0].weight, policy.critic.q_network[0].weight)


# --- files ---


def state(model: TD7) -> dict[str, Any]:
    """All that goes on."""
    optimizers = (model.actor.optimizer, model.critic.optimizer, model.policy.encoder_optimizer)
    moments = [value for each in optimizers for state in each.state.values() for value in state.values()]
    tensors = [*model.policy.state_dict().values(), *moments]
    columns = ("observations", "actions", "rewards", "dones", "timeouts", "priorities")
    rows = [th.as_tensor(getattr(model.replay_buffer, name)) for name in columns]
    counters = {name: getattr(model, name) for name in model.counters} | {"max_priority": model.replay_buffer.max_priority}
    return {"tensors": tensors + rows, "counters": counters}


def test_resumed_bit_by_bit(tmp_path: Path) -> None:
    """The ring has turned meanwhile, policies are assessed for two episodes, targets and the largest priority change."""
    kwargs = dict(
        buffer_size=70, target_update_interval=7, steps_before_checkpointing=25, max_eps_when_checkpointing=2, reset_weight=0.9
    )
    straight = build(**kwargs).learn(150, Checkpoint(1000, tmp_path / "straight"))
    build(**kwargs).learn(90, Checkpoint(30, tmp_path / "stopped"))
    resumed = TD7.resume(tmp_path / "stopped", Walk(), device="cpu")
    assert (resumed.num_timesteps, resumed.eps_since_update) == (90, 1)
    resumed.learn(150)

    expected, found = state(straight), state(resumed)
    assert found["counters"] == expected["counters"]
    assert all(th.equal(a, b) for a, b in zip(found["tensors"], expected["tensors"], strict=True))
    assert straight.max_eps_before_update == 2
    assert straight.replay_buffer.max_priority > 1


@pytest.mark.parametrize("trusted", [True, False])
def test_save_and_load(trusted: bool, tmp_path: Path) -> None:
    model = build().learn(60)
    model.save(tmp_path / "model")
    loaded = TD7.load(tmp_path / "model", Walk(), device="cpu", trusted=trusted)
    for name, value in model.policy.state_dict().items():
        assert th.equal(value, loaded.policy.state_dict()[name]), name
    for name in model.counters:
        assert getattr(loaded, name) == getattr(model, name), name
    loaded.learn(30, reset_num_timesteps=False)
    assert loaded._n_updates > model._n_updates


def test_another_learn_begins_with_random_actions() -> None:
    """As in all of SB3: the warning that there are only such is true, and nothing of them counts for a policy."""
    model = build(exploration_noise=0.0).learn(40)
    model._episode_return = 1000.0
    with th.no_grad():
        model.actor.mu[-2].bias.fill_(20.0)
    n_updates = model._n_updates
    with pytest.warns(UserWarning, match="this run ends at step 20, and the first 20 steps are random actions"):
        model.learn(20)
    assert not np.isclose(model.replay_buffer.actions[40:60], 1).all()
    assert (model._n_updates, model.best_min_return) == (n_updates, -NOT_YET)

    model.learn(20, reset_num_timesteps=False)  # one episode of random actions, and one of the policy's
    assert np.isclose(model.replay_buffer.actions[60:80, 0, 0], 1).reshape(2, 10).all(axis=1).tolist() == [False, True]
    assert model._n_updates == n_updates + 10
    assert model.best_min_return < 10  # not several episodes' return in one


class Poor(Walk):
    """The same walk, where everything costs more than it earned before."""

    def step(self, action: np.ndarray) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward - 100, *rest


def test_the_checkpoint_of_another_environment_stays_for_one_assessment() -> None:
    model = build().learn(60)
    assert model.best_min_return > 0
    before = copy.deepcopy(model.policy.state_dict())
    model.set_env(Poor())
    model.learn(20)  # random actions alone
    assert all(th.equal(value, before[name]) for name, value in model.policy.state_dict().items() if "checkpoint" in name)
    model.learn(20, reset_num_timesteps=False)  # one more of them, and one of the policy's
    assert -1000 < model.best_min_return < 0
    checkpoint = model.policy.checkpoint_actor.state_dict()
    assert not any(th.equal(value, before[f"checkpoint_actor.{name}"]) for name, value in checkpoint.items())


# --- what it does not take ---


def test_statistics_that_nothing_would_fill() -> None:
    with pytest.raises(ValueError, match="RSNorm: a TD7 counts no observations"):
        build(policy_kwargs=dict(features_extractor_class=RSNorm))


def test_refused() -> None:
    image = gym.Env()
    image.observation_space, image.action_space = spaces.Box(0, 255, (36, 36, 1), np.uint8), Walk.action_space
    several = gym.Env()
    several.observation_space, several.action_space = spaces.Dict(a=Walk.observation_space), Walk.action_space
    for env in (image, several):
        with pytest.raises(ValueError, match=r"observation_space=.*: TD7 takes vectors only"):
            build(env)
    with pytest.raises(ValueError, match=r"n_envs=2: TD7 assesses one policy at a time, in 1 environment"):
        build(make_vec_env(Walk, 2))
    with pytest.raises(ValueError, match="optimize_memory_usage=True: LAPReplayBuffer keeps both observations"):
        build(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False))


@pytest.mark.parametrize(
    "given",
    [
        dict(policy_delay=0),
        dict(policy_delay=1.5),
        dict(priority_exponent=-1.0),
        dict(exploration_noise=-0.1),
        dict(max_eps_when_checkpointing=0),
    ],
)
def test_numbers_that_cannot_be(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ValueError, match=rf"^{name}={given[name]}: it must be a (whole )?number of at least"):
        build(**given)


def test_no_critics() -> None:
    with pytest.raises(ValueError, match="n_critics=0: at least 1 critic"):
        build(policy_kwargs=dict(n_critics=0))


def test_a_huber_loss_that_would_be_0() -> None:
    with pytest.raises(ValueError, match=r"min_priority=0: it must be above 0\."):
        build(min_priority=0)


@pytest.mark.parametrize("given", [dict(train_freq=4), dict(tau=0.01)])
def test_what_the_method_fixes_is_refused(given: dict[str, Any]) -> None:
    ((name, value),) = given.items()
    with pytest.raises(ValueError, match=rf"{name}={value}: TD7 takes no {name}, the method fixes it\."):
        build(**given)


class Dropping(FirstEntry):
    """With layers that act otherwise in training."""

    def __init__(self, observation_space: spaces.Box):
        super().__init__(observation_space)
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.dropout(self.norm(super().forward(observations)))


def test_networks_are_in_the_mode_of_what_they_do() -> None:
    model = build(policy_kwargs=dict(features_extractor_class=Dropping)).learn(60)
    obs = np.ones((1, 2), np.float32)
    actions = [model.predict(obs, deterministic=True)[0] for _ in range(3)]
    np.testing.assert_array_equal(actions[0], actions[1])
    np.testing.assert_array_equal(actions[0], actions[2])
    model.policy.set_training_mode(True)
    assert model.policy.encoder.training
    assert not any(each.training for each in (model.policy.fixed_encoder, model.policy.checkpoint_actor))


class Matrix(Walk):
    """Walk with actions of two axes."""

    action_space = spaces.Box(-2, 2, (2, 2), np.float32)

    def step(self, action: np.ndarray) -> Any:
        return super().step(action.reshape(-1))


def test_actions_of_two_axes() -> None:
    model = build(Matrix()).learn(60, callback=QBiasEvalCallback(Monitor(Matrix()), n_eval_episodes=1, eval_freq=50))
    assert model._n_updates > 0
    assert model.predict(np.zeros(2, np.float32))[0].shape == (2, 2)
