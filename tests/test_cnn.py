"""Images, features extractors of one's own, and extractors that actor and critic share."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from small import changed, small, weights
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from torch import nn

from sb3_cir import CIR
from sb3_cir.baselines import SimBa


def image_model(**policy_kwargs) -> CIR:
    env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=1, discrete=False)
    features_extractor_kwargs = dict(features_dim=8)
    return small(env, "CnnPolicy", policy_kwargs=dict(features_extractor_kwargs=features_extractor_kwargs) | policy_kwargs)


@pytest.mark.parametrize("share", [False, True])
def test_images(tmp_path, share: bool) -> None:
    model = image_model(share_features_extractor=share)
    assert isinstance(model.actor.features_extractor, NatureCNN)
    before = weights(model)
    model.learn(25)
    assert changed(before, model) == set(before)
    model.save(tmp_path / "model")
    loaded = CIR.load(tmp_path / "model", device="cpu")
    image = model.env.observation_space.sample()
    np.testing.assert_array_equal(*(each.predict(image, deterministic=True)[0] for each in (model, loaded)))
    assert not changed(weights(model), loaded)


class Extractor(BaseFeaturesExtractor):
    """With what behaves differently in training: batch normalisation and dropout."""

    def __init__(self, observation_space: spaces.Box, features_dim: int = 8):
        super().__init__(observation_space, features_dim)
        self.linear = nn.Linear(observation_space.shape[0], features_dim)
        self.batch_norm = nn.BatchNorm1d(features_dim)
        self.dropout = nn.Dropout(0.5)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.dropout(self.batch_norm(self.linear(observations)))


@pytest.mark.parametrize(("model_class", "share"), [(CIR, False), (CIR, True), (SimBa, False)])
def test_own_extractor(model_class: type, share: bool) -> None:
    policy_kwargs = dict(features_extractor_class=Extractor, share_features_extractor=share)
    model = small("Pendulum-v1", model_class=model_class, learning_starts=1000, policy_kwargs=policy_kwargs).learn(40)
    assert model_class is SimBa or model.critic.q_network.input.weight.shape[1] == 8 + 1
    actor, critic, target = (part.features_extractor for part in (model.actor, model.critic, model.critic_target))
    assert (actor is critic) == share
    assert target is not critic

    statistics = [extractor.batch_norm.running_mean.clone() for extractor in (actor, critic, target)]
    model.train(gradient_steps=2, batch_size=16)
    for extractor, before in zip((actor, critic, target), statistics, strict=True):
        assert not th.equal(extractor.batch_norm.running_mean, before)
    # The target network's statistics are the critic's of the end of the update, as in SAC.
    assert th.equal(target.batch_norm.running_mean, critic.batch_norm.running_mean)

    observation = model.env.reset()
    first, second = (model.predict(observation, deterministic=True)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_running_statistics_are_copied_when_targets_move() -> None:
    policy_kwargs = dict(features_extractor_class=Extractor)
    model = small("Pendulum-v1", learning_starts=1000, policy_kwargs=policy_kwargs, target_update_interval=3, sample_reuse=1)
    model.learn(40)
    statistics = [part.features_extractor.batch_norm.running_mean for part in (model.critic, model.critic_target)]
    alike = []
    for _ in range(6):
        model.train(gradient_steps=1, batch_size=16)
        alike.append(th.equal(*statistics))
    assert alike == [True, False, False] * 2


def test_shared_extractor_learns_from_the_actor_alone() -> None:
    policy_kwargs = dict(features_extractor_class=Extractor, share_features_extractor=True)
    model = small("Pendulum-v1", policy_kwargs=policy_kwargs)
    optimised = {id(parameter) for group in model.critic.optimizer.param_groups for parameter in group["params"]}
    assert optimised == {id(parameter) for parameter in model.critic.q_network.parameters()}
    q_values = model.critic(th.randn(4, 3), th.zeros(4, 1))
    th.cat(q_values).sum().backward()
    assert model.critic.features_extractor.linear.weight.grad is None


def test_own_extractor_is_its_critics_alone() -> None:
    """The critic's loss reaches the critic's extractor, and the actor's loss does not."""
    model = small("Pendulum-v1", learning_starts=1000, policy_kwargs=dict(features_extractor_class=Extractor)).learn(40)
    model.critic.optimizer.param_groups[0]["lr"] = 0.0
    before = weights(model)
    model._update(model.replay_buffer.sample(16))
    moved = changed(before, model)
    assert "actor.features_extractor.linear.weight" in moved
    assert not any(name.startswith("critic.") for name in moved)

    model.actor.optimizer.param_groups[0]["lr"] = 0.0
    model.critic.optimizer.param_groups[0]["lr"] = 1e-3
    before = weights(model)
    model._update(model.replay_buffer.sample(16))
    moved = changed(before, model)
    assert "critic.features_extractor.linear.weight" in moved
    assert not any(name.startswith("actor.") for name in moved)
