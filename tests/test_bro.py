"""What belongs to BRO beyond its networks, whose numbers are in ``test_peer_parity.py``."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.logger import configure
from test_td7 import FirstEntry, Walk
from torch.distributions import Normal, kl_divergence

from sb3_cir.baselines import BRO, BROFast
from sb3_cir.baselines.bro import Adjustment, quantile_huber_loss
from sb3_cir.baselines.simba import RSNorm
from sb3_cir.callbacks import Checkpoint


def build(env: Any = None, model_class: type[BRO] = BRO, **kwargs: Any) -> BRO:
    defaults = dict(learning_starts=20, batch_size=8, buffer_size=200, gradient_steps=1, seed=0, device="cpu", compile=False)
    policy_kwargs = dict(net_arch=dict(pi=[8], qf=[8, 8]), n_quantiles=5) | kwargs.pop("policy_kwargs", {})
    return model_class("MlpPolicy", Walk() if env is None else env, policy_kwargs=policy_kwargs, **defaults | kwargs)


def filled(**kwargs: Any) -> BRO:
    """With random transitions and a silent logger."""
    model = build(**kwargs)
    rng = np.random.default_rng(0)
    for _ in range(50):
        obs, next_obs = rng.normal(size=(2, 2))
        model.replay_buffer.add(obs, next_obs, rng.uniform(-1, 1, 1), rng.normal(size=1), np.zeros(1), [{}])
    model.set_logger(configure(None, []))
    return model


def shift_by(model: BRO, value: float) -> None:
    """Let the second actor's mean be so much above the first one's, for any observation."""
    with th.no_grad():
        last = model.policy.optimistic_actor.body[-1].branch[-1]
        last.weight.zero_()
        last.bias.fill_(1.0)
        model.policy.optimistic_actor.body[0].weight.zero_()
        model.policy.optimistic_actor.body[1].weight.zero_()
        model.policy.optimistic_actor.shift.weight.fill_(value / 8)


# --- critics of quantiles ---


def test_quantile_huber_loss() -> None:
    """Its definition, number by number."""
    rng = np.random.default_rng(0)
    quantiles, target = 2 * rng.normal(size=(3, 2, 4)), 2 * rng.normal(size=(3, 5))
    expected = 0.0
    for row in range(3):
        for critic in range(2):
            for i in range(4):
                for value in target[row]:
                    error = value - quantiles[row, critic, i]
                    huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
                    expected += abs((i + 0.5) / 4 - (error < 0)) * huber / (3 * 5)
    found = quantile_huber_loss(th.as_tensor(quantiles), th.as_tensor(target))
    assert found.item() == pytest.approx(expected)


def test_quantile_huber_loss_finds_quantiles() -> None:
    samples = th.rand(1, 2000, generator=th.Generator().manual_seed(0))
    quantiles = th.zeros(1, 1, 4, requires_grad=True)
    optimizer = th.optim.Adam([quantiles], lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        quantile_huber_loss(20 * quantiles, 20 * samples).backward()  # wide, so that Huber's is nearly the absolute error
        optimizer.step()
    np.testing.assert_allclose(quantiles.detach()[0, 0], [0.125, 0.375, 0.625, 0.875], atol=0.05)


def test_target_is_the_mean_over_critics() -> None:
    model = filled(gamma=0.5)
    batch = model.replay_buffer.sample(8)._replace(dones=th.tensor([[0.0], [1.0]] * 4))
    noise = th.randn(8, 1)
    with th.no_grad():
        actions, log_prob = model.actor.action_log_prob(batch.next_observations, noise)
        first, second = model.critic_target(batch.next_observations, actions)
        expected = batch.rewards + 0.5 * (1 - batch.dones) * ((first + second) / 2 - 0.3 * log_prob.unsqueeze(1))
    assert first.shape == (8, 5)
    th.testing.assert_close(model._target(batch, th.tensor(0.3), noise), expected)


def test_a_shared_features_extractor_learns_by_the_actors_own_pass() -> None:
    extractor = dict(features_extractor_class=FirstEntry, share_features_extractor=True)
    model = build(policy_kwargs=extractor)
    sum(each.sum() for each in model.critic(th.randn(5, 2), th.rand(5, 1))).backward()
    assert model.critic.q_network[1].weight.grad is not None
    assert model.actor.features_extractor.linear.weight.grad is None


# --- the second actor ---


def test_the_second_actor_collects_and_the_first_is_evaluated() -> None:
    model = filled()
    with th.no_grad():
        model.actor.mu.weight.zero_()
        model.actor.mu.bias.fill_(-2.0)
        model.actor.log_std.weight.zero_()
        model.actor.log_std.bias.fill_(-0.5)  # a standard deviation of 0.01
    shift_by(model, 4.0)
    obs = np.zeros((1, 2), np.float32)
    for deterministic in (True, False):
        assert model.predict(obs, deterministic=deterministic)[0] < -1.9
    model._last_obs, model.num_timesteps = obs, 100
    assert model._sample_action(20)[0] > 1.9
    assert model.predict(obs)[0] < -1.9


def test_exploration_is_by_a_shifted_and_narrower_gaussian() -> None:
    model = filled()
    shift_by(model, 0.7)
    obs = th.randn(6, 2)
    with th.no_grad():
        mean, log_std, _ = model.actor.get_action_dist_params(obs)
        noise = th.randn(6, 1)
        actions, divergence = model.policy.explore(obs, noise)
    std = log_std.exp()
    th.testing.assert_close(actions, th.tanh(mean + 0.7 + 0.75 * std * noise), rtol=1e-4, atol=1e-5)
    th.testing.assert_close(
        divergence, kl_divergence(Normal(mean + 0.7, std), Normal(mean, std)).sum(dim=1), rtol=1e-4, atol=0
    )


def test_optimistic_loss() -> None:
    """Half the difference of the critics counts for the action, the divergence against it."""
    model = filled()
    shift_by(model, 0.5)
    batch, noise = model.replay_buffer.sample(8), th.randn(8, 1)
    with th.no_grad():
        actions, divergence = model.policy.explore(batch.observations, noise)
        first, second = model.critic(batch.observations, actions)
        loss, mean_divergence = model._optimistic_loss(batch, th.tensor(2.0), th.tensor(0.1), noise)
    upper = (first + second) / 2 + 2.0 * (first - second).abs() / 2
    th.testing.assert_close(loss, 0.1 * divergence.mean() - upper.mean())
    th.testing.assert_close(mean_divergence, divergence.mean())


def test_optimism_adapts_to_the_divergence() -> None:
    for shift, sign in ((3.0, -1), (0.0, 1)):  # too far from the first actor; not far enough
        model = filled(adj_lr=1e-2)
        shift_by(model, shift)
        optimism, regularizer = model.policy.optimism().item(), model.policy.regularizer().item()
        assert (optimism, regularizer) == (pytest.approx(1.0), pytest.approx(0.25))
        model._update(model.replay_buffer.sample(8))
        assert np.sign(model.policy.optimism().item() - optimism) == sign
        assert np.sign(model.policy.regularizer().item() - regularizer) == -sign


def test_adjustment_is_bounded() -> None:
    weight = Adjustment(0.25)
    assert weight().item() == pytest.approx(0.25)
    for value, limit in ((100.0, 7.5), (-100.0, -10.0)):
        with th.no_grad():
            weight.log_value.fill_(value)
        assert weight().item() == pytest.approx(np.exp(limit), rel=1e-5)


def test_the_optimistic_step_leaves_all_else() -> None:
    model = filled()
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model._update_optimistic_actor(model.replay_buffer.sample(8))
    changed = {name for name, value in model.policy.state_dict().items() if not th.equal(value, before[name])}
    assert {name.split(".")[0] for name in changed} == {"optimistic_actor", "optimism", "regularizer"}


# --- resets ---


@th.compiler.set_stance("force_eager")  # the wrapper alone matters
def test_reset_of_a_compiled_policy() -> None:
    model = build(reset_steps=(30,))
    model.policy = th.compile(model.policy)  # type: ignore[assignment]
    assert model.learn(35).n_resets == 1


def test_reset() -> None:
    """All that is learned begins anew, once, in place; transitions stay."""
    model = build(reset_steps=(30, 50)).learn(29)
    model.adj_lr = 0.0
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    pointers = [parameter.data_ptr() for parameter in model.policy.parameters()]
    ran: list[int] = []
    reset = model._reset
    model._reset = lambda: (reset(), ran.append(model.num_timesteps), learned(model))  # type: ignore[method-assign]
    rows = model.replay_buffer.observations[:29].copy()
    model.learn(5, reset_num_timesteps=False)

    assert ran == [30]
    assert model.n_resets == 1
    assert [parameter.data_ptr() for parameter in model.policy.parameters()] == pointers
    np.testing.assert_array_equal(model.replay_buffer.observations[:29], rows)
    after = model.policy.state_dict()
    # Further away than five updates can come
    for name in ("critic.q_network.1.weight", "actor.mu.weight", "optimistic_actor.body.0.weight"):
        assert (after[name] - before[name]).abs().max() > 0.05, name
    assert all(int(state["step"]) == 5 for each in model._optimizers() for state in each.state.values())
    model.learn(20, reset_num_timesteps=False)
    assert ran == [30, 50]


def learned(model: BRO) -> None:
    """Right after a reset"""
    assert model.log_ent_coef.item() == 0
    assert model.policy.optimism().item() == pytest.approx(1.0)
    assert not any(each.state for each in (*model._optimizers(), model.adjustment_optimizer))
    for name, value in model.critic.state_dict().items():
        assert th.equal(value, model.critic_target.state_dict()[name])


def test_settings_of_the_original() -> None:
    model, fast = (each("MlpPolicy", Walk(), buffer_size=10, device="cpu") for each in (BRO, BROFast))
    assert (model.gradient_steps, len(model.reset_steps)) == (10, 8)
    assert (fast.gradient_steps, fast.reset_steps) == (2, (15_001,))
    assert model.target_entropy == -0.5
    assert model.critic.q_network(th.zeros(2, 7, 3)).shape == (2, 7, 100)
    (group,) = model.critic.optimizer.param_groups
    assert (group["weight_decay"], group["decoupled_weight_decay"]) == (1e-4, True)
    other = BRO("MlpPolicy", Walk(), buffer_size=10, device="cpu", policy_kwargs=dict(optimizer_class=th.optim.Rprop))
    assert type(other.critic.optimizer) is th.optim.Rprop
    assert model.ent_coef_optimizer.defaults["betas"] == model.adjustment_optimizer.defaults["betas"] == (0.5, 0.999)


# --- files ---


def state(model: BRO) -> list[th.Tensor]:
    optimizers = [*model._optimizers(), model.adjustment_optimizer]
    moments = [value for each in optimizers for entry in each.state.values() for value in entry.values()]
    return [*model.policy.state_dict().values(), model.log_ent_coef.detach(), *moments]


def test_resumed_bit_by_bit(tmp_path: Path) -> None:
    """One reset before, one after."""
    kwargs = dict(reset_steps=(25, 50))
    straight = build(**kwargs).learn(60, Checkpoint(1000, tmp_path / "straight"))
    build(**kwargs).learn(40, Checkpoint(20, tmp_path / "stopped"))
    resumed = BRO.resume(tmp_path / "stopped", Walk(), device="cpu")
    assert (resumed.num_timesteps, resumed.n_resets) == (40, 1)
    resumed.learn(60)
    assert resumed.n_resets == 2
    assert all(th.equal(a, b) for a, b in zip(state(resumed), state(straight), strict=True))


@pytest.mark.parametrize("trusted", [True, False])
def test_save_and_load(trusted: bool, tmp_path: Path) -> None:
    model = build(model_class=BROFast, reset_steps=(25,)).learn(30)
    model.save(tmp_path / "model")
    loaded = BROFast.load(tmp_path / "model", Walk(), device="cpu", trusted=trusted)
    assert all(th.equal(a, b) for a, b in zip(state(loaded), state(model), strict=True))
    assert loaded.n_resets == 1
    loaded.learn(30, reset_num_timesteps=False)
    assert loaded._n_updates > model._n_updates


# --- what it does not take ---


def test_refused() -> None:
    several = gym.Env()
    several.observation_space, several.action_space = spaces.Dict(a=Walk.observation_space), Walk.action_space
    with pytest.raises(ValueError, match=r"observation_space=.*: BRO takes vectors only"):
        build(several)
    with pytest.raises(ValueError, match=r"reset_steps=\(5, 5\): they must rise"):
        build(reset_steps=(5, 5))
    with pytest.raises(ValueError, match=r"net_arch\['qf'\]=\[8, 9\]: BRO needs one width for each residual block"):
        BRO("MlpPolicy", Walk(), policy_kwargs=dict(net_arch=dict(pi=[8], qf=[8, 9])))
    for model_class in (BRO, BROFast):
        with pytest.raises(ValueError, match=rf"use_sde=True: {model_class.__name__} takes no use_sde, the method fixes it\."):
            build(model_class=model_class, use_sde=True)


@pytest.mark.parametrize("trusted", [True, False])
def test_another_rate_of_adjustment(trusted: bool, tmp_path: Path) -> None:
    build(adj_lr=1e-3).learn(40).save(tmp_path / "model")
    model = BRO.load(tmp_path / "model", env=Walk(), device="cpu", trusted=trusted, adj_lr=1e-2).learn(30)
    assert model.adjustment_optimizer.param_groups[0]["lr"] == 1e-2


def test_statistics_that_would_not_be_shared_are_refused() -> None:
    with pytest.raises(ValueError, match=r"features_extractor_class=RSNorm: BRO's actors and critics share none"):
        build(policy_kwargs=dict(features_extractor_class=RSNorm))
