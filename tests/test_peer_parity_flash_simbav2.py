"""
FlashSAC and SimbaV2 against the originals' code, number by number: several whole updates, and what is fed to them.

The files are those in ``tests/data/parity``, and in ``PEER_PARITY_FILES`` (``os.pathsep`` between paths), whose ``meta`` names
one of the two methods. A file holds, besides ``meta``, arrays under these names.

``meta`` is JSON: ``method`` ("flash_sac" or "simba_v2"), ``n_observations``, ``n_actions``, ``batch_size``, ``n_updates``,
``net_arch`` (``pi`` and ``qf``, a width for each block), ``n_critics``, ``n_bins``, ``largest_value``, ``decay_updates`` (in
how many the learning rate falls), and ``arguments``, which go to the constructor as they are.

- ``transitions/rewards``, ``transitions/dones``, ``(steps, n_envs)``: what the return statistics were made of, step by step;
  ``return_scale/{returns, largest_return, mean, var, count}``: what they were after it
- SimbaV2's ``observed``, ``(steps, n_envs, n_observations)``, likewise; ``observation_norm/{mean, var}``
- ``before/...`` and ``after/...``: all parameters and running statistics before the first and after the last update, for
  ``actor``, ``critic`` and ``critic_target``, and ``log_ent_coef``. The first axis is of the networks side by side, 1 for
  the actor. Weights are ``(networks, out, in)``, all else ``(networks, size)``. In the order in which data meets them::

    flash_sac   embedding/batch_norm, embedding/linear; for each of block0, block1, ...: linear1, batch_norm1, linear2,
                batch_norm2; norm; mean and log_std (actor) or head (critics). A batch_norm has scale, shift, mean, var; norm
                has scale; the last three have weight and bias.
    simba_v2    embedding/linear, embedding/scaler; for each block: linear1, scaler, linear2, lerp; for each of mean and
                log_std (actor) or head (critics): linear1, scaler, linear2, of which the last has a bias. A scaler and a lerp
                have scale.

- for the update k from 0: ``update<k>/{observations, actions, next_observations, rewards, dones}``, with the rewards and
  observations as the environment gave them; ``actor_noise`` (unless the actor was left out) and ``next_noise``,
  ``(batch, n_actions)`` from N(0, 1); the losses ``actor_loss``, ``ent_coef_loss`` (likewise) and ``critic_loss``
- ``acting/observations`` and ``acting/deterministic``: actions after the last update
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from sb3_cir.baselines.categorical import CategoricalSAC
from sb3_cir.baselines.flash_sac import FlashSAC, UnitBatchNorm, UnitRMSNorm
from sb3_cir.baselines.parts import UnitLinear
from sb3_cir.baselines.simba_v2 import Scaler, SimbaV2

METHODS: dict[str, type[CategoricalSAC]] = {"flash_sac": FlashSAC, "simba_v2": SimbaV2}
HERE = Path(__file__).parent / "data" / "parity"
FURTHER = [Path(path) for path in os.environ.get("PEER_PARITY_FILES", "").split(os.pathsep) if path]


class Reference:
    """One parity file."""

    def __init__(self, path: Path):
        self.data = np.load(path)
        self.meta = json.loads(str(self.data["meta"]))

    def tensor(self, name: str) -> th.Tensor:
        return th.as_tensor(self.data[name])

    def names(self, start: str) -> set[str]:
        return {name.removeprefix(start) for name in self.data.files if name.startswith(start)}


def of_our_methods(paths: list[Path]) -> list[Path]:
    return [path for path in paths if Reference(path).meta.get("method") in METHODS]


FILES = of_our_methods(sorted(HERE.glob("*.npz")) + FURTHER)


class Spaces(gym.Env):
    """Nothing but the spaces."""

    def __init__(self, meta: dict[str, Any]):
        self.observation_space = spaces.Box(-np.inf, np.inf, (meta["n_observations"],))
        self.action_space = spaces.Box(-1, 1, (meta["n_actions"],))


def tensors_of(module: nn.Module) -> dict[str, th.Tensor]:
    """Views of what one module holds, in the file's layout."""
    if isinstance(module, UnitLinear):
        weight = {"weight": module.weight.transpose(1, 2)}
        return weight if module.bias is None else weight | {"bias": module.bias[:, 0]}
    if isinstance(module, UnitBatchNorm):
        names = dict(scale=module.weight, shift=module.bias, mean=module.running_mean, var=module.running_var)
        return {name: tensor[:, 0] for name, tensor in names.items()}
    assert isinstance(module, (UnitRMSNorm, Scaler))
    return {"scale": module.weight[:, 0]}


def flash_modules(body: nn.Sequential, heads: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    batch_norm, linear, *blocks, norm = body
    yield from {"embedding/batch_norm": batch_norm, "embedding/linear": linear}.items()
    for index, block in enumerate(blocks):
        linear1, batch_norm1, _, linear2, batch_norm2, _ = block.branch
        names = dict(linear1=linear1, batch_norm1=batch_norm1, linear2=linear2, batch_norm2=batch_norm2)
        yield from ((f"block{index}/{name}", module) for name, module in names.items())
    yield "norm", norm
    yield from heads.items()


def sphere_modules(body: nn.Sequential, heads: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    embedding, *blocks = body
    yield from ((f"embedding/{name}", module) for name, module in embedding.named_children())
    for index, block in enumerate(blocks):
        yield from ((f"block{index}/{name}", module) for name, module in block.named_children())
    for name, head in heads.items():
        yield from ((f"{name}/{layer}", module) for layer, module in zip(("linear1", "scaler", "linear2"), head, strict=True))


MODULES = {"flash_sac": flash_modules, "simba_v2": sphere_modules}


def weights(model: CategoricalSAC, method: str) -> dict[str, th.Tensor]:
    """Views of all parameters and running statistics, under the file's names."""
    actor, critics = model.actor, dict(critic=model.critic, critic_target=model.critic_target)
    networks = {"actor": (actor.latent_pi, dict(mean=actor.mu, log_std=actor.log_std))}
    networks |= {name: (critic.q_network[0], dict(head=critic.q_network[1])) for name, critic in critics.items()}
    named = {
        f"{network}/{place}/{name}": tensor
        for network, (body, heads) in networks.items()
        for place, module in MODULES[method](body, heads)
        for name, tensor in tensors_of(module).items()
    }
    return named | {"log_ent_coef": model.log_ent_coef}


def envs(reference: Reference) -> DummyVecEnv:
    return DummyVecEnv([lambda: Spaces(reference.meta)] * reference.data["transitions/rewards"].shape[1])


def build(reference: Reference, with_statistics: bool = True) -> CategoricalSAC:
    meta, n_envs = reference.meta, reference.data["transitions/rewards"].shape[1]
    policy_kwargs = {name: meta[name] for name in ("net_arch", "n_critics", "n_bins", "largest_value")}
    model = METHODS[meta["method"]](
        "MlpPolicy",
        envs(reference),
        buffer_size=n_envs,
        gradient_steps=1,
        decay_timesteps=meta["decay_updates"] * n_envs,
        policy_kwargs=policy_kwargs,
        device="cpu",
        **meta["arguments"],
    )
    model.set_logger(configure(None, []))
    with th.no_grad():
        ours = weights(model, meta["method"])
        assert ours.keys() == reference.names("before/")
        for name, tensor in ours.items():
            tensor.copy_(reference.tensor(f"before/{name}"))
        if with_statistics:
            for name, buffer in statistics(model).items():
                buffer.copy_(reference.tensor(name))
    return model


def statistics(model: CategoricalSAC) -> dict[str, th.Tensor]:
    """Those of returns and, in SimbaV2, of observations, under the file's names."""
    norm, scale = model.actor.features_extractor, model.return_scale
    named = {f"return_scale/{name}": buffer for name, buffer in scale.named_buffers()}
    return named | {f"observation_norm/{name}": getattr(norm, name) for name in ("mean", "var") if hasattr(norm, name)}


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def reference(request: pytest.FixtureRequest) -> Reference:
    return Reference(request.param)


def test_files() -> None:
    """One for each method; together they have episodes that go on and that end."""
    assert {Reference(path).meta["method"] for path in FILES} == METHODS.keys()
    for path in FILES:
        each = Reference(path)
        dones = np.concatenate([each.data[f"update{k}/dones"] for k in range(each.meta["n_updates"])])
        assert 0 < dones.mean() < 1


def test_statistics(reference: Reference) -> None:
    """
    Those of returns and, in SimbaV2, of observations, step by step. The originals keep them in float32, and SimbaV2's of
    observations begin with a variance of 1 that has the weight of 1e-4 observations.
    """
    model = METHODS[reference.meta["method"]](
        "MlpPolicy", envs(reference), buffer_size=10, device="cpu", gamma=reference.meta["arguments"]["gamma"]
    )
    for rewards, dones in zip(*(reference.tensor(f"transitions/{name}") for name in ("rewards", "dones")), strict=True):
        model.return_scale.update(rewards.double(), dones.double())
    if isinstance(model, SimbaV2):
        for observations in reference.data["observed"]:
            model.actor.features_extractor.update(th.as_tensor(observations))
    ours = statistics(model)
    assert ours.keys() == {name for name in reference.data.files if name.startswith(("return_scale", "observation_norm"))}
    for name, buffer in ours.items():
        rtol = 1e-5 if name.startswith("return_scale") else 1e-4
        np.testing.assert_allclose(buffer, reference.tensor(name), rtol=rtol, err_msg=name)


def test_updates(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses of each update, and all parameters after the last."""
    meta, model = reference.meta, build(reference)
    for k in range(meta["n_updates"]):
        columns = {name: reference.tensor(f"update{k}/{name}") for name in reference.names(f"update{k}/")}
        noise = iter([columns[name] for name in ("actor_noise", "next_noise") if name in columns])
        batch = ReplayBufferSamples(
            *(columns[name] for name in ("observations", "actions", "next_observations")),
            *(columns[name].reshape(-1, 1) for name in ("dones", "rewards")),
        )
        monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, batch=batch, **__: batch)
        monkeypatch.setattr(model, "_draw_noise", lambda _, noise=noise: next(noise))
        model.logger.name_to_value.clear()
        model.train(gradient_steps=1, batch_size=meta["batch_size"])
        assert next(noise, None) is None
        losses = {name for name in columns if name.endswith("_loss")}
        for name in ("actor_loss", "ent_coef_loss", "critic_loss"):
            ours = model.logger.name_to_value.get(f"train/{name}")
            assert (ours is not None) == (name in losses)
            if ours is not None:
                assert ours == pytest.approx(columns[name].item(), rel=0, abs=1e-5), (k, name)
    for name, tensor in weights(model, meta["method"]).items():
        after = reference.tensor(f"after/{name}")
        np.testing.assert_allclose(tensor.detach(), after, rtol=0, atol=5e-6, err_msg=name)
        assert name == "log_ent_coef" or not th.equal(after, reference.tensor(f"before/{name}")), name
    actions, _ = model.predict(reference.data["acting/observations"], deterministic=True)
    np.testing.assert_allclose(actions, reference.data["acting/deterministic"], rtol=0, atol=1e-5)
