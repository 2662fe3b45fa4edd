"""
The weights that CIR's authors publish, as a model of this package::

    python -m sb3_cir.authors weights.pt --env dm_control/walker-walk-v0 -o model.zip

Their files have the actor alone: a state dict of an MLP with two hidden layers, ``network.network.{0,2,4}``. Its last layer
gives the mean, and below it log_std. So the model's critics are new and know nothing. It plays; to go on learning, it has to
learn them first.

On dm_control their observations stand in dm_control's order (walker: orientations, height, velocity), and Gymnasium's in that
of the alphabet. The columns of the first layer are put into the order of the environment here.
"""

import argparse
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.preprocessing import get_action_dim

from sb3_cir.cir import CIR
from sb3_cir.envs import paper_protocol
from sb3_cir.runs import files, parameters
from sb3_cir.words import first_line, short

PREFIX = "network.network."
LAYERS = ("0", "2", "4")
KEYS = [f"{PREFIX}{layer}.{kind}" for layer in LAYERS for kind in ("weight", "bias")]


def read(path: str | Path) -> dict[str, th.Tensor]:
    """
    :param path: What ``torch.save`` made of the actor's state dict
    :return: The same. Nothing was unpickled but tensors.
    :raises ValueError: If it is anything else.
    """
    files.read_regular(Path(path), 1)  # no pipe, no device
    try:
        found = th.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what is no such file can fail in any way
        raise ValueError(f"{path}: these are no weights that can be read ({first_line(error)}).") from error
    if isinstance(found, dict) and all(isinstance(name, str) for name in found):
        found = parameters.unwrapped(found, KEYS, str(path))
    if not isinstance(found, dict) or list(found) != KEYS or not all(isinstance(each, th.Tensor) for each in found.values()):
        has = list(found) if isinstance(found, dict) else type(found).__name__
        raise ValueError(f"{path} has {short(has)}; an actor of CIR's authors has {', '.join(KEYS)}.")
    for name, value in found.items():
        dimensions = 2 if name.endswith("weight") else 1
        if value.dim() != dimensions or value.layout != th.strided or not value.is_floating_point():
            raise ValueError(
                f"{path}: its {name} is a {value.type()} of {value.dim()} dimensions, {dimensions} dense ones were expected."
            )
    return found


def columns(env: gym.Env[Any, Any]) -> list[int] | None:
    """
    :param env: An environment
    :return: Where each entry of its flat observation stands in the authors', if these have an order of their own
    """
    inner: Any = getattr(env.unwrapped, "_env", None)
    if not hasattr(inner, "observation_spec"):
        return None
    places, end = {}, 0
    for name, spec in inner.observation_spec().items():
        size = int(np.prod(spec.shape, dtype=int))
        places[name] = range(end, end + size)
        end += size
    space = env.unwrapped.observation_space
    assert isinstance(space, gym.spaces.Dict)
    return [column for name in space.spaces for column in places[name]]


def model(weights: Mapping[str, th.Tensor], env: gym.Env[Any, Any] | str, **kwargs: Any) -> CIR:
    """
    :param weights: An actor's, as :func:`read` gives them
    :param env: The environment that it acts in; or its id, for one in the paper's protocol
    :param kwargs: More of :class:`~sb3_cir.cir.CIR`'s arguments, ``policy_kwargs`` beside the authors' sizes too
    :return: A model with this actor and new critics
    :raises ValueError: If the actor's sizes are not the environment's, if a weight is not finite, or if actions are no Box.
    """
    env = paper_protocol(gym.make(env)) if isinstance(env, str) else env
    if not isinstance(env.action_space, gym.spaces.Box):
        raise ValueError(f"The environment's action_space is {env.action_space}: CIR's actors are for a Box of actions.")
    first, second, last = (weights[f"{PREFIX}{layer}.weight"] for layer in LAYERS)
    sizes = dict(net_arch=dict(pi=[len(first), len(second)], qf=[512, 512]))
    made = CIR("MlpPolicy", env, **kwargs | dict(policy_kwargs=sizes | (kwargs.get("policy_kwargs") or {})))
    actor = made.actor
    order = columns(env)
    if order is not None and first.shape[1] == len(order):
        first = first[:, order]
    n_actions = get_action_dim(made.action_space)
    pairs = {
        "latent_pi.0": (first, weights[KEYS[1]]),
        "latent_pi.2": (weights[KEYS[2]], weights[KEYS[3]]),
        "mu": (last[:n_actions], weights[KEYS[5]][:n_actions]),
        "log_std": (last[n_actions:], weights[KEYS[5]][n_actions:]),
    }
    for name, pair in pairs.items():
        layer = actor.get_submodule(name)
        for kind, value in zip(("weight", "bias"), pair, strict=True):
            own = layer.get_parameter(kind)
            if own.shape != value.shape:
                raise ValueError(
                    f"The weights are of another environment: their {name}.{kind} is {tuple(value.shape)}, and "
                    f"{tuple(own.shape)} with {made.observation_space} and {made.action_space}."
                )
            if not value.isfinite().all():
                raise ValueError(f"The weights' {name}.{kind} is not finite.")
            with th.no_grad():
                own.copy_(value)
    return made


def main(argv: list[str] | None = None) -> None:
    """
    Run ``python -m sb3_cir.authors``.

    :param argv: The command line
    """
    parser = argparse.ArgumentParser(prog="python -m sb3_cir.authors", description="Weights of CIR's authors as a model.")
    parser.add_argument("weights", help="the actor's state dict, weights.pt")
    parser.add_argument("--env", required=True, help="the environment's id")
    parser.add_argument("-o", "--output", required=True, help="where to: model.zip")
    options = parser.parse_args(argv)
    try:
        made = model(read(options.weights), options.env, buffer_size=1, device="cpu")
        # For whoever goes on to learn
        made.buffer_size = inspect.signature(CIR).parameters["buffer_size"].default
        made.save(options.output)
    except (ImportError, OSError, RuntimeError, ValueError, gym.error.Error) as error:
        raise SystemExit(f"error: {error}") from error
    print(f"{options.output}: the actor is that of {options.weights}; the critics are new and have learned nothing.")


if __name__ == "__main__":
    main()
