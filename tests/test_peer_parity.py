"""
Update steps of the methods that CIR is compared with, against their authors' code, number by number.

The files are ``tests/data/parity/<method>.npz``, and others of the same form that ``PEER_PARITY_FILES`` names (``os.pathsep``
between paths). Each has a few whole update steps of the original code on small networks, one after the other:

- ``meta``: JSON with ``method`` (the zoo's name), ``steps``, ``batch_size``, ``observation_dim``, ``action_dim`` and the
  hyperparameters and widths that the method's reader below asks for
- ``before/...`` and ``after/...``: all that the steps change, before the first and after the last. A linear layer is
  ``<network>/<layer>/weight`` and ``/bias`` in ``nn.Linear``'s layout (output, input); all else has names of its own.
- ``batch/observations``, ``actions``, ``next_observations``, ``rewards``, ``dones``: ``(steps, batch_size, ...)``, a batch for
  each step; ``dones`` has 1 where an episode has ended, and not by a time limit.
- ``noise/<what for>``: what was drawn from N(0, 1) in each step, ``(steps, batch_size, action_dim)``
- ``losses/<name>``: ``(steps,)``, NaN where a step has none

A method is added by a reader: a function that builds the model from a file, makes its steps and returns a :class:`Steps`.
"""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import nn

from sb3_cir.ablations import StackedLayerNorm
from sb3_cir.baselines.bro import BRO
from sb3_cir.baselines.td7 import TD7
from sb3_cir.networks import StackedLinear

HERE = Path(__file__).parent / "data" / "parity"
METHODS = ("td7", "bro")
FILES = [HERE / f"{name}.npz" for name in METHODS]
FILES += [Path(path) for path in os.environ.get("PEER_PARITY_FILES", "").split(os.pathsep) if path]
LOSSES = dict(rtol=1e-5, atol=1e-5)
WEIGHTS = dict(rtol=0, atol=1e-5)


class Reference:
    """
    One file.

    :param path: The file
    """

    def __init__(self, path: Path):
        with np.load(path) as data:
            self.data = dict(data)
        self.meta: dict[str, Any] = json.loads(str(self.data.pop("meta")))

    def tensor(self, name: str) -> th.Tensor:
        """:param name: Of an array in the file"""
        return th.as_tensor(self.data[name])

    def batches(self) -> Iterable[ReplayBufferSamples]:
        """:return: The batch of each step"""
        for step in range(self.meta["steps"]):
            names = ("observations", "actions", "next_observations", "dones", "rewards")
            columns = [self.tensor(f"batch/{name}")[step] for name in names]
            yield ReplayBufferSamples(*columns[:3], *(column.unsqueeze(1) for column in columns[3:]))

    def losses(self) -> dict[str, np.ndarray]:
        """:return: ``(steps,)`` by name"""
        return {name.removeprefix("losses/"): value for name, value in self.data.items() if name.startswith("losses/")}

    def env(self) -> gym.Env:
        """:return: With the file's spaces, never to be stepped"""
        env = gym.Env()
        env.observation_space = spaces.Box(-np.inf, np.inf, (self.meta["observation_dim"],))
        env.action_space = spaces.Box(-1, 1, (self.meta["action_dim"],))
        return env


@dataclass
class Steps:
    """
    What our code made of a file.

    :param after: By the file's names, without ``after/``
    :param losses: Of each step by name, NaN where it has none
    """

    after: dict[str, th.Tensor] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)


def named_tensors(layers: dict[str, nn.Linear | tuple[StackedLinear, int]]) -> dict[str, th.Tensor]:
    """
    :param layers: By the file's name; of a stack the layer and which network of it
    :return: Views of their weights and biases in ``nn.Linear``'s layout, which may be written to
    """
    tensors = {}
    for name, layer in layers.items():
        if isinstance(layer, nn.Linear):
            weight, bias = layer.weight, layer.bias
        else:
            stack, index = layer
            weight, bias = stack.weight[index].T, stack.bias[index, 0]
        tensors[f"{name}/weight"] = weight
        if bias is not None:
            tensors[f"{name}/bias"] = bias
    return {name: tensor.detach() for name, tensor in tensors.items()}


def linear_layers(network: nn.Module) -> list[Any]:
    """:return: Its linear layers, stacked ones too, in the order data meets them"""
    return [layer for layer in network.modules() if isinstance(layer, (nn.Linear, StackedLinear))]


def load(reference: Reference, tensors: dict[str, th.Tensor]) -> None:
    """
    :param reference: The file
    :param tensors: By name: they get what the file has before the steps.
    """
    for name, tensor in tensors.items():
        tensor.copy_(reference.tensor(f"before/{name}"))


# --- TD7: before/values has the largest and smallest target so far, and what targets are clipped to ---


def td7_tensors(model: TD7) -> dict[str, th.Tensor]:
    """Networks are ``actor``, ``critic/<index>``, ``encoder/state``, ``encoder/state_action``, and what TD7 holds fixed."""
    layers: dict[str, Any] = {}
    for name in ("actor", "actor_target"):
        actor = getattr(model.policy, name)
        for part, layer in zip(TD7_LAYERS, linear_layers(actor.input) + linear_layers(actor.mu), strict=True):
            layers[f"{name}/{part}"] = layer
    for name in ("critic", "critic_target"):
        critic = getattr(model.policy, name)
        for part, stack in zip(TD7_LAYERS, linear_layers(critic.input) + linear_layers(critic.q_network), strict=True):
            layers |= {f"{name}/{index}/{part}": (stack, index) for index in range(2)}
    for name in ("encoder", "fixed_encoder", "fixed_encoder_target"):
        for half in ("state", "state_action"):
            encoder = linear_layers(getattr(getattr(model.policy, name), half))
            parts = ("hidden1", "hidden2", "out")
            layers |= {f"{name}/{half}/{part}": layer for part, layer in zip(parts, encoder, strict=True)}
    return named_tensors(layers) | {"priorities": th.as_tensor(model.replay_buffer.priorities[:, 0])}


TD7_LAYERS = ("input", "hidden1", "hidden2", "head")
TD7_VALUES = ("max_value", "min_value", "max_target", "min_target")


def td7(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> Steps:
    meta = reference.meta
    names = ("gamma", "learning_rate", "policy_delay", "target_update_interval", "target_policy_noise", "target_noise_clip")
    model = TD7(
        "MlpPolicy",
        reference.env(),
        buffer_size=len(reference.data["before/priorities"]),
        **{name: meta[name] for name in (*names, "priority_exponent", "min_priority")},
        policy_kwargs=dict(
            net_arch=dict(pi=[meta["actor_width"]] * 2, qf=[meta["critic_width"]] * 2), encoder_width=meta["encoder_width"]
        ),
        device="cpu",
    )
    load(reference, td7_tensors(model))
    model.replay_buffer.full = True
    model.replay_buffer.max_priority = float(reference.data["before/max_priority"])
    for name, value in zip(TD7_VALUES, reference.data["before/values"], strict=True):
        setattr(model, name, float(value))
    draws = iter(reference.tensor("noise/next_action"))
    monkeypatch.setattr(th, "randn_like", lambda like: next(draws))

    steps = Steps()
    for batch, rows in zip(reference.batches(), reference.data["batch/rows"], strict=True):
        scalars = model._update(batch, rows)
        for name in ("encoder", "critic", "actor"):
            steps.losses.setdefault(name, []).append(scalars.get(f"{name}_loss", np.nan))
    steps.after = td7_tensors(model) | {
        "values": th.tensor([getattr(model, name) for name in TD7_VALUES]),
        "max_priority": th.tensor(model.replay_buffer.max_priority),
    }
    return steps


# --- BRO: log_ent_coef, optimism and regularizer are as they are learned; losses/kl is the divergence's mean ---


def bro_tensors(model: BRO) -> dict[str, th.Tensor]:
    """
    Networks are ``critic/<index>``, ``critic_target/<index>``, ``actor`` and ``optimistic_actor``; layers ``input``,
    ``block<n>_hidden``, ``block<n>_out``, each with its ``_norm``, then the heads.
    """
    policy = model.policy
    layers: dict[str, Any] = {
        "actor/mean": policy.actor.mu,
        "actor/log_std": policy.actor.log_std,
        "optimistic_actor/shift": policy.optimistic_actor.shift,
    }
    norms: dict[str, tuple[StackedLayerNorm, int]] = {}
    networks = {
        f"{name}/{index}": (getattr(policy, name).q_network, index) for name in ("critic", "critic_target") for index in (0, 1)
    }
    networks |= {"actor": (policy.actor.latent_pi, 0), "optimistic_actor": (policy.optimistic_actor.body, 0)}
    for name, (network, index) in networks.items():
        linear, norm = linear_layers(network), [each for each in network.modules() if isinstance(each, StackedLayerNorm)]
        blocks = range(1, len(norm) // 2 + 1)
        parts = ["input", *(f"block{block}_{half}" for block in blocks for half in ("hidden", "out"))]
        norms |= {f"{name}/{part}_norm": (layer, index) for part, layer in zip(parts, norm, strict=True)}
        parts += ["head"] * ("critic" in name)
        layers |= {f"{name}/{part}": (layer, index) for part, layer in zip(parts, linear, strict=True)}
    tensors = named_tensors(layers)
    for name, (norm, index) in norms.items():
        tensors |= {f"{name}/{part}": getattr(norm, part)[index, 0].detach() for part in ("weight", "bias")}
    return tensors | {
        "log_ent_coef": model.log_ent_coef.detach(),
        "optimism": policy.optimism.log_value.detach(),
        "regularizer": policy.regularizer.log_value.detach(),
    }


def bro(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> Steps:
    meta = reference.meta
    names = ("gamma", "tau", "learning_rate", "adj_lr", "kl_target")
    net_arch = dict(pi=[meta["actor_width"]] * meta["actor_depth"], qf=[meta["critic_width"]] * meta["critic_depth"])
    model = BRO(
        "MlpPolicy",
        reference.env(),
        buffer_size=10,
        **{name: meta[name] for name in names},
        policy_kwargs=dict(net_arch=net_arch, n_quantiles=meta["n_quantiles"], std_multiplier=meta["std_multiplier"]),
        device="cpu",
    )
    load(reference, bro_tensors(model))
    draws = zip(*(reference.tensor(f"noise/{name}") for name in ("next_action", "action", "optimistic_action")), strict=True)
    noise = iter([draw for step in draws for draw in step])
    monkeypatch.setattr(th, "randn_like", lambda like: next(noise))

    steps = Steps()
    for batch in reference.batches():
        scalars = model._update(batch)
        model._n_updates += 1
        for name in reference.losses():
            key = name if name == "kl" else f"{name}_loss"
            if name in ("optimism", "regularizer"):  # the original's two losses of what is one step here
                sign, excess = {"optimism": 1, "regularizer": -1}[name], scalars["kl"] / meta["action_dim"] - meta["kl_target"]
                scalars[key] = sign * scalars[name] * excess
            steps.losses.setdefault(name, []).append(scalars[key].item())
    steps.after = bro_tensors(model)
    return steps


READERS: dict[str, Callable[[Reference, pytest.MonkeyPatch], Steps]] = {"td7": td7, "bro": bro}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = Reference(path)
    steps = READERS[reference.meta["method"]](reference, monkeypatch)

    expected = reference.losses()
    assert steps.losses.keys() == expected.keys()
    for name, values in steps.losses.items():
        np.testing.assert_allclose(values, expected[name], err_msg=name, **LOSSES)
    names = {name.removeprefix("after/") for name in reference.data if name.startswith("after/")}
    assert steps.after.keys() == names
    for name, value in steps.after.items():
        np.testing.assert_allclose(value, reference.data[f"after/{name}"], err_msg=name, **WEIGHTS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_can_tell(path: Path) -> None:
    """Every parameter moves, some transitions end an episode and some do not."""
    reference = Reference(path)
    assert set(np.unique(reference.data["batch/dones"])) == {0, 1}
    for name in (name for name in reference.data if name.startswith("after/")):
        assert not np.array_equal(reference.data[name], reference.data[f"before/{name.removeprefix('after/')}"]), name
