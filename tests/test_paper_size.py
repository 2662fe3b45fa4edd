"""
A train call at paper size against the method as one would write it down first (two critic modules of ``nn.Linear``, torch's
plain Adam, one loss after the other), and against the authors' code where CIR_AUTHORS names a checkout of it.

Both critics in one batched product add up in another order, and Adam divides by the size of a gradient. So where one is nearly
zero a weight may step another way: 7 of 6.65 million parameters differed by more than 1e-5, by up to 1.3e-4, where a step of
Adam is 3e-4. (Which, depends on the processor and the library of matrix products.)
"""

import copy
import importlib
import os
import shutil
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import test_parity
import torch as th
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import nn
from torch.nn import functional as F

from sb3_cir import CIR

OBSERVATION, ACTION, WIDTH, BATCH, LAMBDA = 24, 6, 512, 256, 0.3
# A checkout, to compare with their code itself
AUTHORS = os.environ.get("CIR_AUTHORS")


class Critic(nn.Module):
    """One of the two, without the LayerNorm that both share."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.head = nn.Linear(OBSERVATION + ACTION, WIDTH), nn.Linear(WIDTH, 1)
        self.down, self.up_hidden, self.up_out = (nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)) for _ in range(3))

    def forward(self, x: th.Tensor, norm: nn.LayerNorm) -> th.Tensor:
        x = norm(self.input(x))
        x = F.elu(th.tanh(0.1 * x / x.abs().mean(dim=1, keepdim=True)))
        skips = [F.elu(norm(self.down[0](x)))]
        skips.append(F.elu(norm(self.down[1](skips[0]))))
        x = skips[1]
        for hidden, out, skip in zip(self.up_hidden, self.up_out, reversed(skips), strict=True):
            x = norm(out(F.elu(norm(hidden(x)))) + skip)
        return self.head(x)


class Critics(nn.Module):
    """Both, with the weights of ours."""

    def __init__(self, ours: nn.Module):
        super().__init__()
        self.critics, self.norm = nn.ModuleList([Critic(), Critic()]), copy.deepcopy(ours.q_network.norm)
        with th.no_grad():
            for index, critic in enumerate(self.critics):
                for name, layer in critic.named_modules():
                    if isinstance(layer, nn.Linear):
                        stacked = ours.q_network.get_submodule(name)
                        layer.weight.copy_(stacked.weight[index].T)
                        layer.bias.copy_(stacked.bias[index, 0])

    def forward(self, observations: th.Tensor, actions: th.Tensor) -> list[th.Tensor]:
        return [critic(th.cat([observations, actions], dim=1), self.norm) for critic in self.critics]


def reference_update(actor: nn.Module, critics: Critics, targets: Critics, log_alpha: th.Tensor, batch, noises, optimizers):
    """The paper's update, in the authors' order."""

    def act(observations: th.Tensor, noise: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        latent = actor.latent_pi(observations)
        mean, log_std = actor.mu(latent), actor.log_std(latent).clamp(-20, 2)
        u = mean + log_std.exp() * noise
        log_prob = th.distributions.Normal(mean, log_std.exp()).log_prob(u) - 2 * (np.log(2) - u - F.softplus(-2 * u))
        return th.tanh(u), log_prob.sum(dim=1, keepdim=True)

    def step(loss: th.Tensor, optimizer: th.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    alpha = log_alpha.detach().exp()
    with th.no_grad():
        next_actions, next_log_prob = act(batch.next_observations, noises[0])
        first, second = targets(batch.next_observations, next_actions)
        value = LAMBDA * th.minimum(first, second) + (1 - LAMBDA) * th.maximum(first, second)
        y = batch.rewards + 0.99 * (1 - batch.dones) * (value - alpha * next_log_prob)
    step(sum(F.mse_loss(q, y) for q in critics(batch.observations, batch.actions)), optimizers[0])
    with th.no_grad():
        for ours, theirs in zip(targets.parameters(), critics.parameters(), strict=True):
            ours.copy_(0.005 * theirs + 0.995 * ours)
    actions, log_prob = act(batch.observations, noises[1])
    step((alpha * log_prob - sum(critics(batch.observations, actions)) / 2).mean(), optimizers[1])
    step(-(log_alpha.exp() * (log_prob.detach() - ACTION)).mean(), optimizers[2])


def build(**kwargs) -> CIR:
    """A model with a whole batch in its replay buffer."""
    env: gym.Env = test_parity.Spaces(dict(observation_dim=OBSERVATION, action_dim=ACTION))
    model = CIR("MlpPolicy", env, buffer_size=BATCH, seed=0, device="cpu", **kwargs)
    model.set_logger(configure(None, []))
    draw = np.random.default_rng(0)
    for _ in range(BATCH):
        observations = [draw.normal(size=(1, OBSERVATION)).astype(np.float32) for _ in range(2)]
        actions = draw.uniform(-1, 1, (1, ACTION)).astype(np.float32)
        model.replay_buffer.add(*observations, actions, draw.normal(size=1), np.zeros(1), [{}])
    return model


def train(model: CIR) -> tuple[ReplayBufferSamples, list[list[th.Tensor]]]:
    """One train call; its batch, and the noise of each update for the next actions and for the actor's."""
    th.manual_seed(1)
    np.random.seed(1)
    model.train(gradient_steps=1, batch_size=BATCH)
    np.random.seed(1)
    batch = model.replay_buffer.sample(BATCH)
    th.manual_seed(1)
    return batch, [[th.randn(BATCH, ACTION) for _ in range(2)] for _ in range(2)]


def pairs_with_authors(model: CIR, theirs: Any) -> Iterator[tuple[th.Tensor, th.Tensor]]:
    """Our parameters and theirs, in the layout of theirs."""
    layers = ["input", "down.0", "down.1", "up_hidden.0", "up_out.0", "up_hidden.1", "up_out.1", "head"]
    names = [
        ["down0", "down1", "down2", "up1", "map1", "up2", "map2", "out1"],
        ["down3", "down4", "down5", "up3", "map3", "up4", "map4", "out2"],
    ]
    for critic, other in ((model.critic, theirs.q_funcs), (model.critic_target, theirs.target_q_funcs)):
        for index, of_critic in enumerate(names):
            for name, their_name in zip(layers, of_critic, strict=True):
                layer, their_layer = critic.q_network.get_submodule(name), other.get_submodule(their_name)
                yield from ((layer.weight[index].T, their_layer.weight), (layer.bias[index, 0], their_layer.bias))
        yield from zip(critic.q_network.norm.parameters(), other.layernorm.parameters(), strict=True)
    heads, network = (model.actor.mu, model.actor.log_std), theirs.policy.network.network
    for place in (0, 2):
        yield from zip(model.actor.latent_pi[place].parameters(), network[place].parameters(), strict=True)
    yield th.cat([head.weight for head in heads]), network[4].weight
    yield th.cat([head.bias for head in heads]), network[4].bias
    yield model.log_ent_coef, theirs.log_alpha


def check_equal(pairs: Iterable[tuple[th.Tensor, th.Tensor]]) -> None:
    distances = th.cat([(ours - theirs).detach().abs().flatten() for ours, theirs in pairs])
    print(
        f"{(distances > 1e-5).sum()} of {len(distances)} parameters differ by more than 1e-5, by up to {distances.max():.2g}"
    )
    assert (distances > 1e-5).sum() <= 20
    assert distances.max() < 1e-3


@pytest.mark.parametrize(
    "compiled",
    [
        False,
        pytest.param(
            True,
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler"),
            ],
        ),
    ],
)
def test_train(compiled: bool) -> None:
    model = build(compile=compiled)
    critics, targets, actor = Critics(model.critic), Critics(model.critic_target), copy.deepcopy(model.actor)
    log_alpha = th.zeros(1, requires_grad=True)
    optimizers = [th.optim.Adam(part, lr=3e-4) for part in (critics.parameters(), actor.parameters(), [log_alpha])]
    batch, noises = train(model)
    assert model._losses.compiling == compiled
    for pair in noises:
        reference_update(actor, critics, targets, log_alpha, batch, pair, optimizers)

    check_equal(
        [
            *zip(Critics(model.critic).parameters(), critics.parameters(), strict=True),
            *zip(Critics(model.critic_target).parameters(), targets.parameters(), strict=True),
            *zip(model.actor.parameters(), actor.parameters(), strict=True),
            (model.log_ent_coef, log_alpha),
        ]
    )


@pytest.mark.skipif(AUTHORS is None, reason="CIR_AUTHORS is no checkout of the authors' code")
def test_authors_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same against their ``train()``, with the same weights, batch and noise."""
    monkeypatch.syspath_prepend(f"{AUTHORS}/dmc")
    algorithm = importlib.import_module("algo.cir")
    theirs = algorithm.CIR("cpu", OBSERVATION, ACTION, 1.0, hidden_sizes=[WIDTH, WIDTH], smr=True, ratio=2)
    model = build()
    with th.no_grad():
        for mine, other in pairs_with_authors(model, theirs):
            other.copy_(mine)
    batch, noises = train(model)
    draws = iter([noise for pair in noises for noise in pair])
    monkeypatch.setattr(th.distributions.normal, "_standard_normal", lambda *_, **__: next(draws))
    rows = (batch.observations, batch.actions, batch.next_observations, batch.rewards, 1 - batch.dones)
    theirs.train(SimpleNamespace(sample=lambda _: rows), BATCH)
    check_equal(pairs_with_authors(model, theirs))
