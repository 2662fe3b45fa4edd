"""CIR with one wide categorical critic, by value. Saving and resuming are tested beside SimbaV2's."""

from typing import Any

import numpy as np
import pytest
import torch as th
from small import small
from stable_baselines3.common.logger import configure

from sb3_cir import CIR
from sb3_cir.categorical_cir import CategoricalCIR


def build(n_critics: int = 1, **kwargs: Any) -> CategoricalCIR:
    return small("Pendulum-v1", model_class=CategoricalCIR, policy_kwargs=dict(n_critics=n_critics), **kwargs)


@pytest.mark.parametrize("entropy_in_target", [True, False])
@pytest.mark.parametrize("convex_coef", [0.3, 1.0])
def test_target_has_the_convex_value(convex_coef: float, entropy_in_target: bool) -> None:
    model = build(2, convex_coef=convex_coef, entropy_in_target=entropy_in_target).learn(30)
    model.critic_target.q_network[1].bias.data.normal_()  # so that the two critics differ
    batch, noise, ent_coef = model.replay_buffer.sample(16), th.randn(16, 1), model._ent_coef()
    batch.dones[3] = 1
    target = model._target_distribution(batch, ent_coef, noise)
    th.testing.assert_close(target.sum(dim=1), th.ones(16))

    next_actions, next_log_prob = model._act(batch.next_observations, noise)
    smallest, largest = model._q_values(model.critic_target, batch.next_observations, next_actions).aminmax(
        dim=1, keepdim=True
    )
    assert (largest - smallest).min() > 1e-3
    entropy = ent_coef * next_log_prob.reshape(-1, 1) if entropy_in_target else 0
    next_value = convex_coef * smallest + (1 - convex_coef) * largest - entropy
    scaled = batch.rewards / model.return_scale.divisor().float()
    expected = scaled + (1 - batch.dones) * model.gamma * next_value
    # The grid's ends cut off what is beyond them, which moves a mean by little.
    th.testing.assert_close(model._target(batch, ent_coef, noise), expected.detach(), atol=0.15, rtol=0)
    th.testing.assert_close(model._target(batch, ent_coef, noise)[3], scaled[3])


def test_critic_learns_the_target() -> None:
    """Each step lowers the cross-entropy to a target that stays, down to the target's own entropy."""
    model = build(2, learning_starts=1000).learn(40)
    model.set_logger(configure(None, []))
    batch, noise, ent_coef = model.replay_buffer.sample(16), th.zeros(16, 1), model._ent_coef()
    target = model._target_distribution(batch, ent_coef, noise)
    floor = -2 * th.special.xlogy(target, target).sum(dim=1).mean()
    optimizer = th.optim.Adam(model.critic.parameters(), 1e-2)
    losses = [model._losses.minimise(optimizer, model._critic_loss, batch, ent_coef, noise)[0] for _ in range(200)]
    assert losses[0] > floor + 0.1
    assert floor < losses[-1] < floor + 0.02


def test_sizes_and_defaults() -> None:
    """One critic with as many parameters as CIR's two, SimBa's temperature, and the arguments of CIR's update."""
    ours, cir = (each("MlpPolicy", "Pendulum-v1", buffer_size=10, device="cpu") for each in (CategoricalCIR, CIR))
    n_ours, n_cir = (sum(p.numel() for p in model.critic.q_network.parameters()) for model in (ours, cir))
    assert ours.critic.n_critics == 1
    assert n_ours == pytest.approx(n_cir, rel=0.05)
    assert (ours._ent_coef().item(), ours.target_entropy) == (pytest.approx(0.01), -0.5)
    for name in ("learning_rate", "sample_reuse", "convex_coef", "gamma", "tau", "batch_size", "learning_starts"):
        assert getattr(ours, name) == getattr(cir, name), name
    assert isinstance(ours.critic.optimizer, type(cir.critic.optimizer))
    assert all(group["weight_decay"] == 0 for group in ours.critic.optimizer.param_groups)


def test_observations_are_normalised() -> None:
    """By the statistics of every observation that was acted on, which actor, critic and target critic share."""
    model = build().learn(60)
    norm = model.actor.features_extractor
    assert norm is model.critic.features_extractor is model.critic_target.features_extractor
    assert norm.count == 60
    np.testing.assert_allclose(norm.mean, model.replay_buffer.observations[:60, 0].mean(axis=0), rtol=1e-5)


def test_saturation_is_logged() -> None:
    model = build().learn(30)
    batch = model.replay_buffer.sample(16)
    with th.no_grad():
        model.critic.q_network[0].avg_r_norm.coef = 100.0
    assert 0.5 < model._diagnose(batch)["input_saturation"] <= 1
    model.critic.q_network[0].avg_r_norm.coef = 0.01
    assert model._diagnose(batch)["input_saturation"] == 0


def test_bfloat16() -> None:
    """The critic's products lose digits, its distributions stay float32."""
    model = build(precision="bfloat16", learning_starts=1000).learn(30)
    obs, actions = th.randn(256, 3), th.rand(256, 1)
    with th.no_grad():
        rounded = model._log_probabilities(model.critic, obs, actions)
        exact = model.critic.log_probabilities(obs, actions)
    assert rounded.dtype == th.float32
    assert 1e-5 < (rounded - exact).abs().max() < 0.05
    th.testing.assert_close(rounded.exp().sum(dim=2), th.ones(1, 256))
    model.learning_starts = 0
    assert model.learn(10)._n_updates == 20


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (dict(net_arch=[8, 16]), r"net_arch\['qf'\]=\[8, 16\] has unequal widths"),
        (dict(net_arch=[]), r"net_arch\['qf'\] is empty"),
        (dict(n_critics=0), "n_critics=0: at least 1 critic"),
        (dict(avg_r_norm_coef=0.0), r"avg_r_norm_coef=0\.0: it must be positive"),
        (dict(n_bins=1), "n_bins=1: it must be a whole number of at least 2"),
    ],
)
def test_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        small("Pendulum-v1", model_class=CategoricalCIR, policy_kwargs=arguments)
