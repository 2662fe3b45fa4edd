"""SAC+Tanh and SAC+Tanh+Norm: the authors' SAC but for the critic's first layer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import SAC
from torch.nn import functional as F

from sb3_cir.baselines import SMR, SACTanh, SACTanhNorm, SACTanhNormPolicy, SACTanhPolicy


def build(model_class: type[SAC], **policy_kwargs: Any) -> SAC:
    policy_kwargs = dict(net_arch=[16, 16]) | policy_kwargs
    return model_class("MlpPolicy", "Pendulum-v1", policy_kwargs=policy_kwargs, learning_starts=20, seed=0, device="cpu")


def constrained(model: SAC, x: th.Tensor) -> th.Tensor:
    """The first layer's output as its equation has it."""
    if isinstance(model, SACTanhNorm):
        norm = model.critic.qf0[1][0]
        x = F.layer_norm(x, (16,), norm.weight, norm.bias)
        x = 0.1 * x / x.abs().mean(dim=-1, keepdim=True)
    return th.tanh(x)


@pytest.mark.parametrize("model_class", [SACTanh, SACTanhNorm])
def test_equation(model_class: type[SAC]) -> None:
    model = build(model_class).learn(25)
    observations, actions = th.randn(5, 3), th.rand(5, 1)
    first, _, second, _, head = model.critic.qf0
    with th.no_grad():
        expected = head(F.relu(second(constrained(model, first(th.cat([observations, actions], dim=1))))))
        for critic in (model.critic, model.critic_target):
            assert type(critic.qf0[1]) is type(critic.qf1[1]) is type(model.critic.qf0[1])
        np.testing.assert_allclose(model.critic(observations, actions)[0], expected, atol=1e-6)


@pytest.mark.parametrize("model_class", [SACTanh, SACTanhNorm])
def test_all_else_is_the_authors_sac(model_class: type[SAC]) -> None:
    """Down to the same first weights: tanh in place of ReLU draws nothing."""
    theirs, ours = (dict(build(each).policy.named_parameters()) for each in (SMR, model_class))
    added = ours.keys() - theirs.keys()
    assert all(th.equal(theirs[name], ours[name]) for name in theirs)
    layer_norms = {
        f"{critic}.qf{i}.1.0.{part}" for critic in ("critic", "critic_target") for i in (0, 1) for part in ("weight", "bias")
    }
    assert added == (layer_norms if model_class is SACTanhNorm else set())


@pytest.mark.parametrize("model_class", [SACTanh, SACTanhNorm])
def test_save_and_load(model_class: type[SAC], tmp_path: Path) -> None:
    model = build(model_class).learn(30)
    model.save(tmp_path / "model.zip")
    loaded = model_class.load(tmp_path / "model.zip")
    for name, value in model.policy.state_dict().items():
        assert th.equal(value, loaded.policy.state_dict()[name]), name
    model.policy.save(tmp_path / "policy.pth")
    policy = type(model.policy).load(tmp_path / "policy.pth")
    observations, actions = th.randn(5, 3), th.rand(5, 1)
    assert th.equal(policy.critic(observations, actions)[1], loaded.critic(observations, actions)[1])


def test_defaults() -> None:
    for model_class in (SACTanh, SACTanhNorm):
        model = model_class("MlpPolicy", "Pendulum-v1", buffer_size=10, device="cpu")
        assert model.policy.net_arch == dict(pi=[512, 512], qf=[512, 512])
        assert (model.learning_starts, model.gradient_steps, model.sample_reuse) == (2_500, 1, 1)


@pytest.mark.parametrize("policy", [SACTanhPolicy, SACTanhNormPolicy])
def test_in_sb3s_sac(policy: type) -> None:
    """The other reading of the paper: SB3's update, SB3's actor, SB3's sizes, which are those of the SimBa authors' SAC."""
    model = SAC(policy, "Pendulum-v1", learning_starts=20, buffer_size=50, device="cpu").learn(22)
    assert type(model.actor) is type(SAC("MlpPolicy", "Pendulum-v1", buffer_size=1).actor)
    assert model.critic.qf0[0].out_features == 256
    assert sum(isinstance(layer, th.nn.Tanh) for layer in model.critic.modules()) == 2


def test_coef() -> None:
    assert build(SACTanhNorm, avg_r_norm_coef=0.5).critic.qf1[1][1].coef == 0.5


def test_no_hidden_layer() -> None:
    with pytest.raises(ValueError, match=r"net_arch\['qf'\] is empty: there is no first layer to constrain"):
        build(SACTanh, net_arch=dict(pi=[16], qf=[]))
