"""SMR, the SAC of CIR's authors: its update written out by hand, its arguments, and what it tells about itself."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from small import changed, small, weights
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from torch.nn import functional as F

from sb3_cir import CIR, smr
from sb3_cir.baselines import SMR, SACTanh, SimBa
from sb3_cir.callbacks import Checkpoint


def filled(model_class: type[SMR] = SMR, **kwargs: Any) -> SMR:
    """A model that has seen thirty transitions and was never trained."""
    model = small("Pendulum-v1", model_class=model_class, **{"learning_starts": 1000, **kwargs}).learn(30)
    model.set_logger(configure(None, []))
    return model


def test_update_by_hand() -> None:
    """Critics, target critics, actor, temperature; the last two with the temperature from before."""
    model = filled(ent_coef="auto_0.3", gamma=0.9)
    hand = copy.deepcopy(model.policy)
    log_alpha = model.log_ent_coef.detach().clone().requires_grad_()
    alpha_optimizer = th.optim.Adam([log_alpha], lr=3e-4)
    critic_optimizer, actor_optimizer = (th.optim.Adam(part.parameters(), lr=3e-4) for part in (hand.critic, hand.actor))
    batch = model.replay_buffer.sample(16)
    th.manual_seed(7)
    scalars = model._update(batch)

    th.manual_seed(7)

    def act(observations: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        latent = hand.actor.latent_pi(observations)
        mean, log_std = hand.actor.mu(latent), hand.actor.log_std(latent).clamp(-20, 2)
        u = mean + log_std.exp() * th.randn_like(mean)
        log_prob = th.distributions.Normal(mean, log_std.exp()).log_prob(u) - th.log(1 - th.tanh(u.double()) ** 2).float()
        return th.tanh(u), log_prob.sum(dim=1, keepdim=True)

    def q_values(critic: Any, observations: th.Tensor, actions: th.Tensor) -> list[th.Tensor]:
        return [network(th.cat([observations, actions], dim=1)) for network in critic.q_networks]

    alpha = log_alpha.detach().exp()
    with th.no_grad():
        next_actions, next_log_prob = act(batch.next_observations)
        next_q = th.minimum(*q_values(hand.critic_target, batch.next_observations, next_actions))
        target = batch.rewards + 0.9 * (1 - batch.dones) * (next_q - alpha * next_log_prob)
    critic_loss = sum(F.mse_loss(q, target) for q in q_values(hand.critic, batch.observations, batch.actions))
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    for ours, theirs in zip(hand.critic_target.parameters(), hand.critic.parameters(), strict=True):
        ours.data.mul_(0.995).add_(0.005 * theirs.data)
    actions, log_prob = act(batch.observations)
    actor_loss = (alpha * log_prob - th.minimum(*q_values(hand.critic, batch.observations, actions))).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    (-log_alpha.exp() * (log_prob.detach() - 1).mean()).backward()
    alpha_optimizer.step()

    assert scalars["critic_loss"].item() == pytest.approx(critic_loss.item(), rel=1e-5)
    assert scalars["actor_loss"].item() == pytest.approx(actor_loss.item(), rel=1e-4)
    assert model.log_ent_coef.item() == pytest.approx(log_alpha.item(), rel=1e-5)
    for name, value in hand.named_parameters():
        np.testing.assert_allclose(weights(model)[name], value.detach(), atol=1e-5, err_msg=name)


def test_defaults() -> None:
    model = SMR("MlpPolicy", "Pendulum-v1", buffer_size=10, device="cpu")
    assert model.policy.net_arch == dict(pi=[512, 512], qf=[512, 512])
    assert (model.learning_starts, model.gradient_steps, model.sample_reuse) == (2_500, 1, 1)
    assert (model.learning_rate, model.tau, model.gamma, model.batch_size) == (3e-4, 0.005, 0.99, 256)
    assert model.log_ent_coef.item() == 0


@pytest.mark.parametrize("model_class", [SMR, CIR])
def test_arguments_stand_where_sacs_do(model_class: type[SMR]) -> None:
    positional = (1e-3, 100, 5, 16, 0.01, 0.9, 2, 3)
    models = [
        kind("MlpPolicy", "Pendulum-v1", *positional, policy_kwargs=dict(net_arch=[8]), device="cpu")
        for kind in (SAC, model_class)
    ]
    for name in (
        "learning_rate",
        "buffer_size",
        "learning_starts",
        "batch_size",
        "tau",
        "gamma",
        "train_freq",
        "gradient_steps",
    ):
        assert getattr(models[0], name) == getattr(models[1], name), name


@pytest.mark.parametrize("env_id", ["images", "dict"])
@pytest.mark.parametrize("model_class", [SMR, SACTanh, SimBa])
def test_policies_for_images_and_dicts(model_class: type[SMR], env_id: str) -> None:
    from gymnasium import spaces
    from test_spaces import BOX, Anything

    images = spaces.Box(0, 255, (3, 36, 36), dtype=np.uint8)
    space, policy = (
        (images, "CnnPolicy") if env_id == "images" else (spaces.Dict(a=BOX, b=spaces.Discrete(3)), "MultiInputPolicy")
    )
    net_arch = dict(pi=[8], qf=[8, 8])
    model = model_class(
        policy, Anything(space), learning_starts=20, batch_size=8, buffer_size=100, policy_kwargs=dict(net_arch=net_arch)
    )
    before = weights(model)
    model.learn(23)
    assert changed(before, model) >= {name for name in before if "features_extractor" not in name}


@pytest.mark.parametrize("model_class", [SMR, CIR, SimBa])
def test_train_without_a_batch(model_class: type[SMR]) -> None:
    """Nothing to learn from is nothing learnt."""
    policy_kwargs = dict(net_arch=dict(pi=[8], qf=[8, 8]))
    model = filled(model_class, policy_kwargs=policy_kwargs)
    before = weights(model)
    model.train(gradient_steps=0, batch_size=16)
    assert not changed(before, model)
    assert model.logger.name_to_value["train/n_updates"] == 0


def test_q_gain() -> None:
    """How much better the critics find the policy's own actions than those of the batch."""
    model = filled(CIR)
    batch = model.replay_buffer.sample(16)
    th.manual_seed(3)
    gain = model._diagnose(batch)["q_gain"].item()
    th.manual_seed(3)
    with th.no_grad():
        fresh, _ = model.actor.action_log_prob(batch.observations)
        taken_q, fresh_q = (th.cat(model.critic(batch.observations, actions), dim=1) for actions in (batch.actions, fresh))
    assert gain == pytest.approx((fresh_q - taken_q).mean().item(), rel=1e-5)


@pytest.mark.parametrize("model_class", [SMR, CIR, SimBa])
def test_diagnosis_changes_nothing(model_class: type[SMR], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run after run the same weights, whether it is made at every update or hardly ever."""
    runs = []
    for every in (1, 1_000):
        monkeypatch.setattr(smr, "DIAGNOSE_EVERY", every)
        model = small("Pendulum-v1", model_class=model_class, policy_kwargs=dict(net_arch=dict(pi=[8], qf=[8, 8])))
        runs.append(model.learn(40).policy.state_dict())
    assert all(th.equal(value, runs[1][name]) for name, value in runs[0].items())


def test_losses_reach_the_log_before_an_episode_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU they are kept back for a while; evaluations write the log too, and an episode may have no end."""
    model = small("Pendulum-v1")
    model.device = th.device("mps")  # any but the CPU: the networks stay there
    monkeypatch.setattr(smr, "DIAGNOSE_EVERY", 10)
    model.learn(45, callback=lambda local, _: local["self"].num_timesteps != 42)
    assert "train/critic_loss" in model.logger.name_to_value


@pytest.mark.parametrize("model_class", [SMR, SACTanh])
def test_goes_on_as_if_never_interrupted(model_class: type[SMR], tmp_path: Path) -> None:
    def learn(model: SMR, steps: int, folder: str) -> SMR:
        return model.learn(steps, callback=Checkpoint(20, tmp_path / folder))

    def env() -> Any:
        return make_vec_env("Pendulum-v1", seed=0, env_kwargs=dict(max_episode_steps=20))

    # Checkpoint 40 is at an episode's end, where environments can go on.
    whole = learn(small(env(), model_class=model_class, sample_reuse=2), 40, "whole")
    learn(small(env(), model_class=model_class, sample_reuse=2), 40, "cut")
    resumed = model_class.resume(tmp_path / "cut", env(), device="cpu")
    assert (resumed.sample_reuse, resumed.policy.net_arch, resumed.num_timesteps) == (2, [16, 16], 40)
    assert all(th.equal(value, weights(resumed)[name]) for name, value in weights(whole).items())
    for model in (whole, resumed):
        th.manual_seed(0)
        np.random.seed(0)
        model.set_logger(configure(None, []))
        model.train(gradient_steps=2, batch_size=16)
    assert all(th.equal(value, weights(resumed)[name]) for name, value in weights(whole).items())
