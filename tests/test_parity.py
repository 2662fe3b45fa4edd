"""One whole ``train()`` against the authors' code, number by number (see ``tests/data/parity``)."""

import json
import os
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.logger import configure
from torch import nn

from sb3_cir import CIR
from sb3_cir.networks import StackedLinear

HERE = Path(__file__).parent / "data" / "parity"
FILES = [HERE / "dm_control.npz", HERE / "humanoid_bench.npz"]
FILES += [Path(path) for path in os.environ.get("CIR_PARITY_FILES", "").split(os.pathsep) if path]
TOLERANCE = dict(rtol=0, atol=1e-5)


class Reference:
    """One parity file: ``nn.Linear`` layout, a name for each layer in the order data meets them."""

    def __init__(self, path: Path):
        self.data = np.load(path)
        self.meta = json.loads(str(self.data["meta"]))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.data[name]

    def tensor(self, name: str) -> th.Tensor:
        return th.as_tensor(self.data[name])

    @property
    def depth(self) -> int:
        return sum(f"before/online/critic0/down{layer}/weight" in self.data.files for layer in range(1, 20))

    def critic_layers(self) -> list[str]:
        layers = range(1, self.depth + 1)
        up = [f"up{layer}_{part}" for layer in layers for part in ("hidden", "out")]
        return ["input", *[f"down{layer}" for layer in layers], *up, "head"]


def ours(critic: nn.Module, name: str) -> StackedLinear:
    """Our layer for the file's name of it."""
    network = critic.q_network
    if name in ("input", "head"):
        return getattr(network, name)
    if name.startswith("down"):
        return network.down[int(name[4:]) - 1]
    layer, part = name[2:].split("_")
    return getattr(network, f"up_{part}")[int(layer) - 1]


def actor_pairs(model: CIR) -> list[tuple[str, nn.Linear]]:
    hidden = [layer for layer in model.actor.latent_pi if isinstance(layer, nn.Linear)]
    return [(f"hidden{index + 1}", layer) for index, layer in enumerate(hidden)]


@th.no_grad()
def load_weights(model: CIR, reference: Reference) -> None:
    for side, critic in (("online", model.critic), ("target", model.critic_target)):
        for name in reference.critic_layers():
            for index in range(2):
                at = f"before/{side}/critic{index}/{name}"
                ours(critic, name).weight[index].copy_(reference.tensor(f"{at}/weight").T)
                ours(critic, name).bias[index, 0].copy_(reference.tensor(f"{at}/bias"))
        critic.q_network.norm.weight.copy_(reference.tensor(f"before/{side}/shared_layer_norm/weight"))
        critic.q_network.norm.bias.copy_(reference.tensor(f"before/{side}/shared_layer_norm/bias"))
    for name, layer in actor_pairs(model):
        layer.weight.copy_(reference.tensor(f"before/actor/{name}/weight"))
        layer.bias.copy_(reference.tensor(f"before/actor/{name}/bias"))
    weight = reference.tensor("before/actor/mean_and_log_std/weight")
    bias = reference.tensor("before/actor/mean_and_log_std/bias")
    for layer, rows, entries in zip((model.actor.mu, model.actor.log_std), weight.chunk(2), bias.chunk(2), strict=True):
        layer.weight.copy_(rows)
        layer.bias.copy_(entries)
    model.log_ent_coef.copy_(reference.tensor("before/log_ent_coef"))


def read_weights(model: CIR, reference: Reference) -> dict[str, th.Tensor]:
    """All parameters of the model under the file's names."""
    weights = {"log_ent_coef": model.log_ent_coef}
    for side, critic in (("online", model.critic), ("target", model.critic_target)):
        for name in reference.critic_layers():
            for index in range(2):
                weights[f"{side}/critic{index}/{name}/weight"] = ours(critic, name).weight[index].T
                weights[f"{side}/critic{index}/{name}/bias"] = ours(critic, name).bias[index, 0]
        weights[f"{side}/shared_layer_norm/weight"] = critic.q_network.norm.weight
        weights[f"{side}/shared_layer_norm/bias"] = critic.q_network.norm.bias
    for name, layer in actor_pairs(model):
        weights[f"actor/{name}/weight"] = layer.weight
        weights[f"actor/{name}/bias"] = layer.bias
    heads = (model.actor.mu, model.actor.log_std)
    weights["actor/mean_and_log_std/weight"] = th.cat([head.weight for head in heads])
    weights["actor/mean_and_log_std/bias"] = th.cat([head.bias for head in heads])
    return {name: tensor.detach() for name, tensor in weights.items()}


class Spaces(gym.Env):
    """An environment that has the right spaces and is never stepped."""

    def __init__(self, meta: dict):
        self.observation_space = spaces.Box(-np.inf, np.inf, (meta["observation_dim"],))
        self.action_space = spaces.Box(-1, 1, (meta["action_dim"],))


def build(reference: Reference, **kwargs) -> CIR:
    """A CIR model with the file's weights and its batch as the whole replay buffer."""
    meta = reference.meta
    hidden = sum(f"before/actor/hidden{layer}/weight" in reference.data.files for layer in range(1, 20))
    model = CIR(
        "MlpPolicy",
        Spaces(meta),
        learning_rate=meta["learning_rate"],
        buffer_size=meta["batch_size"],
        gamma=meta["gamma"],
        tau=meta["tau"],
        target_entropy=meta["target_entropy"],
        convex_coef=meta["convex_coef"],
        sample_reuse=meta["reuse"],
        policy_kwargs=dict(
            net_arch=dict(pi=[meta["hidden"]] * hidden, qf=[meta["hidden"]] * reference.depth),
            avg_r_norm_coef=meta["avg_r_norm_coef"],
            optimizer_kwargs=dict(eps=meta["adam_eps"]),
        ),
        device="cpu",
        **kwargs,
    )
    load_weights(model, reference)
    batch = {name: reference[f"batch/{name}"] for name in ("observations", "next_observations", "actions", "rewards", "dones")}
    for row in zip(*batch.values(), strict=True):
        model.replay_buffer.add(*row, infos=[{}])
    model.set_logger(configure(None, []))
    return model


def inject(monkeypatch: pytest.MonkeyPatch, model: CIR, reference: Reference) -> None:
    """
    Make sampling give the file's batch in order and the recorded noise, of each reuse the next action's first. What is drawn
    after the last one goes into the log alone.
    """
    batch_inds = np.arange(reference.meta["batch_size"])
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, **__: model.replay_buffer._get_samples(batch_inds))
    pairs = zip(reference.tensor("noise/next_action"), reference.tensor("noise/action"), strict=True)
    noise = iter([draw for pair in pairs for draw in pair])
    monkeypatch.setattr(th, "randn_like", lambda like: next(noise, th.zeros_like(like)).to(like.device))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def reference(request: pytest.FixtureRequest) -> Reference:
    return Reference(request.param)


def test_forward(reference: Reference) -> None:
    model = build(reference)
    observations = reference.tensor("batch/observations")
    with th.no_grad():
        q_values = th.cat(model.critic(observations, reference.tensor("batch/actions")), dim=1)
        mean, log_std, _ = model.actor.get_action_dist_params(observations)
        actions = model.actor(observations, deterministic=True)
    for name, value in dict(q_values=q_values, gaussian_mean=mean, log_std=log_std, deterministic_actions=actions).items():
        np.testing.assert_allclose(value, reference[f"before/{name}"], err_msg=name, **TOLERANCE)


def test_train(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(reference)
    inject(monkeypatch, model, reference)
    model.train(gradient_steps=1, batch_size=reference.meta["batch_size"])

    assert model._n_updates == reference.meta["reuse"]
    logged = model.logger.name_to_value
    expected = dict(
        critic_loss=reference["losses/critic_mse"].sum(axis=1).mean(),
        actor_loss=reference["losses/actor"].mean(),
        ent_coef_loss=reference["losses/ent_coef"].mean(),
    )
    for name, value in expected.items():
        np.testing.assert_allclose(logged[f"train/{name}"], value, err_msg=name, **TOLERANCE)
    weights = read_weights(model, reference)
    assert {f"after/{name}" for name in weights} == {name for name in reference.data.files if name.startswith("after/")}
    for name, value in weights.items():
        np.testing.assert_allclose(value, reference[f"after/{name}"], err_msg=name, **TOLERANCE)


def test_losses_of_each_reuse(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(reference)
    inject(monkeypatch, model, reference)
    for reuse in range(reference.meta["reuse"]):
        losses = model._update(model.replay_buffer.sample(0))
        expected = dict(
            critic_loss=reference["losses/critic_mse"][reuse].sum(),
            actor_loss=reference["losses/actor"][reuse],
            ent_coef_loss=reference["losses/ent_coef"][reuse],
        )
        for name, value in expected.items():
            np.testing.assert_allclose(losses[name], value, err_msg=f"{name} of reuse {reuse}", **TOLERANCE)
