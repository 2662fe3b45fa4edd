"""Critic, constrained input, actor and policy, as networks."""

import math

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution
from stable_baselines3.common.utils import ConstantSchedule
from torch import nn

from sb3_cir import MlpPolicy
from sb3_cir.networks import AvgRNorm, UShapeCritic
from sb3_cir.policies import ExactSquashedGaussian, log_tanh_derivative

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (24,))
ACTIONS = spaces.Box(-1, 1, (6,))


def make_policy(**kwargs) -> MlpPolicy:
    return MlpPolicy(OBSERVATIONS, ACTIONS, ConstantSchedule(3e-4), **kwargs)


def linear_widths(module: nn.Module) -> list[int]:
    return [layer.out_features for layer in module.modules() if isinstance(layer, nn.Linear)]


def test_paper_size() -> None:
    """Both critics have 3,185,666 parameters at 24 observations and 6 actions, as the authors' have."""
    policy = make_policy()
    assert sum(parameter.numel() for parameter in policy.critic.parameters()) == 3_185_666
    assert linear_widths(policy.actor) == [512, 512, 6, 6]


def test_one_list_is_both() -> None:
    policy = make_policy(net_arch=[64, 64])
    assert linear_widths(policy.actor) == [64, 64, 6, 6]
    assert [layer.weight.shape for layer in policy.critic.q_network.down] == [(2, 64, 64)] * 2


def test_two_lists() -> None:
    policy = make_policy(net_arch=dict(pi=[32, 8], qf=[16, 16, 16]))
    assert linear_widths(policy.actor) == [32, 8, 6, 6]
    network = policy.critic.q_network
    for layers in (network.down, network.up_hidden, network.up_out):
        assert [layer.weight.shape for layer in layers] == [(2, 16, 16)] * 3


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("n_critics", [1, 2, 3])
def test_any_depth_and_number(n_critics: int, depth: int) -> None:
    """Each critic answers alone: its Q-values depend on its own weights and on nobody else's."""
    critic = make_policy(net_arch=[8] * depth, n_critics=n_critics).critic
    observations, actions = th.randn(5, 24), th.rand(5, 6)
    before = critic(observations, actions)
    assert [q_values.shape for q_values in before] == [(5, 1)] * n_critics
    assert len({q_values[0].item() for q_values in before}) == n_critics
    assert th.equal(critic.q1_forward(observations, actions), before[0])
    with th.no_grad():
        # One unit alone: what moves all units alike, the LayerNorm that follows takes away but for rounding.
        critic.q_network.up_out[-1].weight[-1, :, 0] += 1
    after = critic(observations, actions)
    assert [th.equal(old, new) for old, new in zip(before, after, strict=True)] == [True] * (n_critics - 1) + [False]


def test_every_layer_counts() -> None:
    critic = make_policy(net_arch=[8, 8, 8]).critic
    th.cat(critic(th.randn(5, 24), th.rand(5, 6))).sum().backward()
    for name, parameter in critic.named_parameters():
        assert parameter.grad.abs().sum() > 0, name


def test_avg_r_norm() -> None:
    x = th.tensor([[1.0, -3.0], [0.0, 0.0]])
    assert th.allclose(AvgRNorm(0.1)(x), th.tensor([[0.05, -0.15], [0.0, 0.0]]))


def test_input_is_constrained() -> None:
    network = UShapeCritic(2, 3, [16, 16])
    x = 1e6 * th.randn(32, 3)
    constrained = network.constrain(x)
    assert constrained.shape == (2, 32, 16)
    # A unit of mean size is 0.1 before tanh; sixteen units can make none larger than 1.6.
    assert constrained.abs().max() < math.tanh(1.6)
    assert constrained.abs().mean() < 0.1


def test_avg_r_norm_coef_reaches_the_critic() -> None:
    policy = make_policy(net_arch=[8], avg_r_norm_coef=0.7)
    assert policy.critic.q_network.avg_r_norm.coef == policy.critic_target.q_network.avg_r_norm.coef == 0.7


def test_saturation() -> None:
    """The share of units beyond 0.97, one unit in four after AvgRNorm is given that one alone."""
    critic = make_policy(net_arch=[4]).critic
    observations, actions = th.randn(5, 24), th.rand(5, 6)
    assert critic.saturation(observations, actions) == 0
    with th.no_grad():
        critic.q_network.norm.weight.zero_()
        critic.q_network.norm.bias.copy_(th.tensor([100.0, 1.0, 1.0, -1.0]))
    critic.q_network.avg_r_norm.coef = 1.0
    assert critic.saturation(observations, actions) == 0.25


def exact_log_prob(u: th.Tensor, mean: th.Tensor, log_std: th.Tensor) -> th.Tensor:
    """The change of variables in float64, ``1 - tanh(u)^2`` as ``cosh(u)^-2``."""
    u, mean, log_std = u.double(), mean.double(), log_std.double()
    return (th.distributions.Normal(mean, log_std.exp()).log_prob(u) + 2 * u.cosh().log()).sum(dim=1)


def test_exact_log_prob() -> None:
    """Ours is exact where actions saturate, up to |u| = 30; SB3's is wrong there."""
    u = th.tensor([[0.0, 0.5], [-2.0, 4.0], [-8.0, 12.0], [30.0, -30.0]])
    mean, log_std = th.zeros_like(u), th.full_like(u, 2.0)
    expected = exact_log_prob(u, mean, log_std).numpy()
    ours = ExactSquashedGaussian(2).proba_distribution(mean, log_std).log_prob(th.tanh(u), u)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    theirs = SquashedDiagGaussianDistribution(2).proba_distribution(mean, log_std).log_prob(th.tanh(u), u)
    assert abs(theirs - expected)[-1] > 50


def test_exact_log_prob_without_gaussian_actions() -> None:
    u = th.tensor([[0.3, -1.5], [2.0, 0.0]])
    mean, log_std = th.ones_like(u), th.full_like(u, -0.5)
    ours = ExactSquashedGaussian(2).proba_distribution(mean, log_std).log_prob(th.tanh(u))
    np.testing.assert_allclose(ours, exact_log_prob(u, mean, log_std), rtol=1e-4)
    saturated = ExactSquashedGaussian(2).proba_distribution(mean, log_std).log_prob(th.ones_like(u))
    # Taken for the largest number below 1, whose atanh in float32 is 9.0.
    largest = th.full_like(u, 0.5 * math.log(2 * 2**24 - 1))
    np.testing.assert_allclose(saturated, exact_log_prob(largest, mean, log_std), rtol=1e-2)


@pytest.mark.parametrize("mean", [0.0, 3.0, 30.0])
def test_exact_log_prob_of_samples(mean: float) -> None:
    means, log_std = th.full((64, 3), mean) * th.tensor([1.0, -1.0, 1.0]), th.full((64, 3), -0.3)
    th.manual_seed(0)
    actions, log_prob = ExactSquashedGaussian(3).log_prob_from_params(means, log_std)
    th.manual_seed(0)
    u = means + log_std.exp() * th.randn_like(means)
    assert th.equal(actions, th.tanh(u))
    np.testing.assert_allclose(log_prob, exact_log_prob(u, means, log_std), rtol=1e-5, atol=1e-5)


def test_log_tanh_derivative_has_a_gradient_everywhere() -> None:
    x = th.tensor([-30.0, -1.0, 0.0, 1.0, 30.0], requires_grad=True)
    log_tanh_derivative(x).sum().backward()
    np.testing.assert_allclose(x.grad, -2 * th.tanh(x.detach()), atol=1e-6)


def test_actor_uses_it() -> None:
    policy = make_policy(net_arch=[8])
    with th.no_grad():
        policy.actor.mu.bias.fill_(30.0)
    _, log_prob = policy.actor.action_log_prob(th.zeros(4, 24))
    # Six saturated actions: each has a density of about exp(2 * 30) under the squashed Gaussian.
    assert (log_prob > 250).all()


@pytest.mark.parametrize("share", [False, True])
def test_save_and_load_policy(tmp_path, share: bool) -> None:
    policy = make_policy(net_arch=[8, 8], n_critics=3, avg_r_norm_coef=0.4, share_features_extractor=share)
    policy.save(tmp_path / "policy.pth")
    loaded = MlpPolicy.load(tmp_path / "policy.pth")
    observation, actions = np.linspace(-1, 1, 24, dtype=np.float32), th.rand(1, 6)
    np.testing.assert_array_equal(*(each.predict(observation, deterministic=True)[0] for each in (policy, loaded)))
    observations = th.as_tensor(observation)[None]
    for ours, theirs in zip(policy.critic(observations, actions), loaded.critic(observations, actions), strict=True):
        assert th.equal(ours, theirs)
    assert (loaded.critic.features_extractor is loaded.actor.features_extractor) == share
