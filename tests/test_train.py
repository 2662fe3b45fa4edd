"""What ``train()`` does, beside the numbers of ``test_parity.py``: target, reuse, target networks, temperature, the log."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
from small import changed, small, weights
from stable_baselines3 import SAC
from stable_baselines3.common.logger import configure
from stable_baselines3.sac.policies import SACPolicy

from sb3_cir import CIR, MlpPolicy

Q_VALUES = (1.0, 4.0, 2.5)


def with_fixed_q_values(**kwargs) -> CIR:
    """Three target critics that answer 1, 4 and 2.5 to anything."""
    model = small("Pendulum-v1", policy_kwargs=dict(n_critics=3), gamma=0.9, **kwargs)
    head = model.critic_target.q_network.head
    with th.no_grad():
        head.weight.zero_()
        head.bias.copy_(th.tensor(Q_VALUES).reshape(3, 1, 1))
    return model


def transitions(discounts: th.Tensor | None = None) -> SimpleNamespace:
    return SimpleNamespace(
        observations=th.randn(2, 3),
        next_observations=th.randn(2, 3),
        actions=th.zeros(2, 1),
        rewards=th.tensor([[0.5], [-1.0]]),
        dones=th.tensor([[0.0], [1.0]]),
        discounts=discounts,
    )


@pytest.mark.parametrize(("convex_coef", "value"), [(0.3, 0.3 * 1 + 0.7 * 4), (0.0, 4.0), (1.0, 1.0)])
def test_target(convex_coef: float, value: float) -> None:
    model = with_fixed_q_values(convex_coef=convex_coef)
    batch = transitions()
    th.manual_seed(3)
    target = model._target(batch, th.tensor(0.2))
    th.manual_seed(3)
    with th.no_grad():
        log_prob = model.actor.action_log_prob(batch.next_observations)[1]
    expected = [[0.5 + 0.9 * (value - 0.2 * log_prob[0].item())], [-1.0]]
    np.testing.assert_allclose(target, expected, rtol=1e-5)


def test_target_with_discounts_of_n_steps() -> None:
    model = with_fixed_q_values(convex_coef=1.0)
    target = model._target(transitions(discounts=th.tensor([[0.5], [0.5]])), th.tensor(0.0))
    np.testing.assert_allclose(target, [[0.5 + 0.5 * 1.0], [-1.0]])


def filled(**kwargs) -> CIR:
    """A model that has seen thirty transitions and was never trained."""
    model = small("Pendulum-v1", **{"learning_starts": 1000, **kwargs}).learn(30)
    model.set_logger(configure(None, []))
    return model


def test_sample_reuse_multiplies_with_gradient_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model = filled(sample_reuse=3)
    drawn, used = [], []
    sample, update = model.replay_buffer.sample, model._update
    monkeypatch.setattr(
        model.replay_buffer, "sample", lambda *args, **kwargs: drawn.append(sample(*args, **kwargs)) or drawn[-1]
    )
    monkeypatch.setattr(model, "_update", lambda batch: used.append(batch) or update(batch))
    model.train(gradient_steps=2, batch_size=16)
    assert model._n_updates == model.logger.name_to_value["train/n_updates"] == 6
    assert [id(batch) for batch in used] == [id(batch) for batch in drawn for _ in range(3)]
    assert len(drawn) == 2


def test_each_reuse_draws_new_noise() -> None:
    """With the learning rate at 0 only the action noise can make two updates with one batch differ."""
    model = filled(learning_rate=0.0)
    batch = model.replay_buffer.sample(16)
    assert model._update(batch)["actor_loss"] != model._update(batch)["actor_loss"]


@pytest.mark.parametrize("interval", [1, 3])
def test_target_update_interval(interval: int) -> None:
    """Counted over all updates, whatever call made them."""
    model = filled(target_update_interval=interval, sample_reuse=2)
    batch = model.replay_buffer.sample(16)
    moved = []
    for _ in range(6):
        before = weights(model)
        model._update(batch)
        model._n_updates += 1
        moved.append(any(name.startswith("critic_target") for name in changed(before, model)))
    assert moved == [update % interval == 0 for update in range(6)]


def test_target_critics_follow_by_tau() -> None:
    model = filled(tau=0.25)
    old = model.critic_target.q_network.head.weight.clone()
    model._update(model.replay_buffer.sample(16))
    expected = 0.75 * old + 0.25 * model.critic.q_network.head.weight
    np.testing.assert_allclose(model.critic_target.q_network.head.weight.detach(), expected.detach(), atol=1e-6)


def test_everything_learns() -> None:
    model = filled()
    before = weights(model)
    model.train(gradient_steps=1, batch_size=16)
    assert changed(before, model) == set(before)


@pytest.mark.parametrize(("ent_coef", "start"), [("auto", 1.0), ("auto_0.1", 0.1), (0.2, 0.2), ("0.2", 0.2)])
def test_entropy_coefficient(ent_coef: str | float, start: float) -> None:
    model = filled(ent_coef=ent_coef, sample_reuse=1)
    model.train(gradient_steps=1, batch_size=16)
    logged = dict(model.logger.name_to_value)
    assert logged["train/ent_coef"] == pytest.approx(start)
    model.train(gradient_steps=1, batch_size=16)
    automatic = str(ent_coef).startswith("auto")
    assert ("train/ent_coef_loss" in logged) == automatic
    assert (model.logger.name_to_value["train/ent_coef"] != logged["train/ent_coef"]) == automatic


def test_logged_keys() -> None:
    model = filled()
    model.train(gradient_steps=1, batch_size=16)
    keys = (
        "critic_loss",
        "actor_loss",
        "ent_coef",
        "ent_coef_loss",
        "q_mean",
        "q_abs_max",
        "q_gain",
        "critic_grad_norm",
        "actor_grad_norm",
        "input_saturation",
        "n_updates",
        "learning_rate",
    )
    assert set(model.logger.name_to_value) == {f"train/{key}" for key in keys}
    assert all(np.isfinite(value) for value in model.logger.name_to_value.values())


def test_diagnosis() -> None:
    """Of the last update with the batch it had, once in a hundred updates."""
    model = filled()
    model.train(gradient_steps=1, batch_size=16)
    logged = dict(model.logger.name_to_value)
    for name in ("actor", "critic"):
        gradients = [parameter.grad.flatten() for parameter in getattr(model, name).parameters()]
        assert logged[f"train/{name}_grad_norm"] == pytest.approx(th.cat(gradients).norm().item(), rel=1e-5)
    with th.no_grad():
        model.critic.q_network.head.weight.zero_()
        model.critic.q_network.head.bias.fill_(-30.0)
    seen = {}
    while model._n_updates < 220:
        model.logger.name_to_value.clear()
        model.train(gradient_steps=1, batch_size=16)
        if "train/q_gain" in model.logger.name_to_value:
            seen[model._n_updates] = model.logger.name_to_value["train/critic_grad_norm"]
    assert list(seen) == [100, 200]
    assert seen[100] > 2 * logged["train/critic_grad_norm"]


def test_q_values_that_are_logged() -> None:
    """The mean and the largest are of the same updates, so that the one is never beyond the other."""
    model = filled()
    with th.no_grad():
        model.critic.q_network.head.weight.zero_()
        model.critic.q_network.head.bias.fill_(-30.0)
    model.train(gradient_steps=1, batch_size=16)
    first = dict(model.logger.name_to_value)
    assert -30.5 < first["train/q_mean"] < -28
    for _ in range(120):
        model.train(gradient_steps=1, batch_size=16)
        logged = model.logger.name_to_value
        assert abs(logged["train/q_mean"]) <= logged["train/q_abs_max"] * (1 + 1e-6)
    assert logged["train/q_abs_max"] < first["train/q_abs_max"]


def test_learning_rate_schedule() -> None:
    """From 2e-3 at the start to 1e-3 at the end, for all three optimisers."""
    model = small("Pendulum-v1", learning_rate=lambda remaining: 1e-3 * (1 + remaining))
    optimizers = (model.actor.optimizer, model.critic.optimizer, model.ent_coef_optimizer)
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [2e-3] * 3
    model.learn(40)
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [1e-3] * 3


@pytest.mark.parametrize(("model_class", "policy"), [(SAC, MlpPolicy), (CIR, SACPolicy)])
def test_policy_and_algorithm_apart(model_class: type, policy: type) -> None:
    """SB3's SAC trains with CIR's networks, and CIR with the plain ones of SAC."""
    model = small("Pendulum-v1", policy, model_class, learning_starts=1000).learn(30)
    model.set_logger(configure(None, []))
    before = weights(model)
    model.train(gradient_steps=2, batch_size=16)
    assert changed(before, model) == set(before)
    assert "train/input_saturation" not in model.logger.name_to_value
    assert np.isfinite(model.logger.name_to_value["train/critic_loss"])


def test_parameters_that_somebody_froze_stay() -> None:
    model = filled()
    bias = model.critic.q_network.input.bias.requires_grad_(False)
    before = bias.clone()
    model.train(gradient_steps=2, batch_size=16)
    assert not bias.requires_grad
    assert th.equal(bias, before)


def test_the_actors_loss_gives_the_critics_no_gradients() -> None:
    model, calls = filled(sample_reuse=1), []
    model.critic.q_network.head.weight.register_hook(calls.append)
    model.train(gradient_steps=3, batch_size=16)
    assert len(calls) == 3
