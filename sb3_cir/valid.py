"""Whether what a constructor was given will do: numbers, arguments that a method fixes, policies, spaces."""

import math
import warnings
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.sac.policies import SACPolicy
from torch import nn


def is_number(value: Any, whole: bool = False) -> bool:
    """
    :param value: What was given for an argument
    :param whole: Whether 1.5 will not do
    :return: Whether it is a number, of Python's or of NumPy's, and finite
    """
    return isinstance(value, (int, float, np.number)) and math.isfinite(value) and not (whole and int(value) != value)


def check_least(**given: tuple[Any, float]) -> None:
    """
    :param given: Arguments of a constructor by name, each with the least that it may be
    :raises ValueError: If one is less, not finite or no number.
    """
    for name, (value, least) in given.items():
        if not (is_number(value) and value >= least):
            raise ValueError(f"{name}={value!r}: it must be a number of at least {least}.")


def check_counts(**given: tuple[Any, int]) -> None:
    """
    :param given: Arguments of a constructor that count something, by name, each with the least that it may be
    :raises ValueError: If one is less or no whole number. 2.0 will do.
    """
    for name, (value, least) in given.items():
        if not (is_number(value, whole=True) and value >= least):
            raise ValueError(f"{name}={value!r}: it must be a whole number of at least {least}.")


def check_fixed_arguments(kind: Any, given: dict[str, Any]) -> None:
    """
    :param kind: A class of algorithms with ``fixed_arguments``
    :param given: What its constructor was given for its base class
    :raises ValueError: If one of those is among it.
    """
    for name in kind.fixed_arguments:
        if name in given:
            raise ValueError(f"{name}={given[name]!r}: {kind.__name__} takes no {name}, the method fixes it.")


def check_n_critics(policy_kwargs: dict[str, Any]) -> None:
    """
    :param policy_kwargs: A policy's arguments
    :raises ValueError: If ``n_critics`` is among them and below 1.
    """
    n_critics = policy_kwargs.get("n_critics", 1)
    if not (isinstance(n_critics, (int, np.integer)) and n_critics >= 1):
        raise ValueError(f"n_critics={n_critics!r}: at least 1 critic is needed, and a whole number of them.")


def check_gives_values(model: Any) -> None:
    """
    :param model: A model whose critics are made
    :raises ValueError: If they give distributions, whose bins or quantiles it would take for as many critics' values.
    """
    if not getattr(model.critic, "gives_values", True):
        raise ValueError(
            f"policy={type(model.policy).__name__}: its critics give distributions, and {type(model).__name__} learns from "
            f"values. Pass 'MlpPolicy', which is {model.policy_aliases['MlpPolicy'].__name__}."
        )


def check_observed(model: SAC | TD3) -> None:
    """
    :param model: With its networks
    :raises ValueError: If its actor has running statistics of observations, as RSNorm has, that nothing would ever fill.
    """
    extractor = model.actor.features_extractor
    observes = getattr(model, "observes", False) or getattr(model.actor, "observes_batches", False)
    if getattr(extractor, "must_observe", False) and not observes:
        raise ValueError(
            f"{type(extractor).__name__}: a {type(model).__name__} counts no observations, so nothing would be normalised. "
            "SimBa, SimbaV2 and CIRSimBa do; for all others there is VecNormalize."
        )


def check_activation(policy: type[SACPolicy], policy_kwargs: dict[str, Any]) -> None:
    """
    :param policy: A policy whose networks have an activation of their own
    :param policy_kwargs: Its arguments. SB3's default is among them where a policy is made anew from what it was.
    :raises ValueError: If another activation is among them.
    """
    activation = policy_kwargs.get("activation_fn", nn.ReLU)
    if activation is not nn.ReLU:
        name = getattr(activation, "__name__", activation)
        raise ValueError(f"activation_fn={name}: {policy.__name__} takes none, the method fixes it.")


def check_net_arch(net_arch: Any) -> None:
    """
    :param net_arch: What was given for it
    :raises ValueError: If it is no list of widths, and no Dict of such.
    """
    lists = list(net_arch.values()) if isinstance(net_arch, dict) else [net_arch]
    for widths in lists:
        if not isinstance(widths, (list, tuple)) or not all(
            isinstance(each, (int, np.integer)) and each >= 1 for each in widths
        ):
            raise ValueError(
                f"net_arch={net_arch!r}: it must be a list of widths, such as [64, 64], or dict(pi=[64, 64], qf=[64, 64])."
            )


def check_vectors(model: BaseAlgorithm) -> None:
    """
    :param model: Of a method whose networks take flat observations alone
    :raises ValueError: If the environment's are not.
    """
    if not isinstance(model.observation_space, spaces.Box) or len(model.observation_space.shape) != 1:
        raise ValueError(
            f"observation_space={model.observation_space}: {type(model).__name__} takes vectors only. A wrapper such as "
            "sb3_cir.envs.FlatFloat32 makes one of all observations of a fixed length."
        )


def check_policy(model: BaseAlgorithm, kind: type[BasePolicy]) -> None:
    """
    :param model: Of a method that works with its own policy alone, which is not made yet
    :param kind: That policy
    :raises ValueError: If it was given another.
    """
    if not issubclass(model.policy_class, kind):
        raise ValueError(
            f"policy={model.policy_class.__name__}: {type(model).__name__} needs its own, 'MlpPolicy' by name, or a subclass "
            f"of {kind.__name__}."
        )


def warn_of_sb3s_policy(model: BaseAlgorithm) -> None:
    """
    Warn where a policy of SB3's, imported as for SB3's SAC, takes the place of the method's.

    :param model: A model whose policy is not made yet
    """
    policy, own = model.policy_class, model.policy_aliases["MlpPolicy"]
    if policy.__module__.startswith("stable_baselines3."):
        warnings.warn(
            f"policy={policy.__name__} of {policy.__module__}: it has the networks of SB3's SAC, not those of "
            f"{type(model).__name__}. Pass 'MlpPolicy' by name, or {own.__name__} of {own.__module__}.",
            stacklevel=3,
        )


def check_action_space(space: spaces.Space[Any]) -> None:
    """
    Refuse a space that no squashed Gaussian can act in.

    :param space: Action space
    :raises ValueError: If it is a Box of integers or without an axis, or if a bound leaves no room.
    """
    if not isinstance(space, spaces.Box):
        return  # SB3 has a sentence of its own.
    if not np.issubdtype(space.dtype, np.floating):
        raise ValueError(f"The action space is a Box of {space.dtype}: it must be one of floats, such as float32.")
    if space.shape == ():
        raise ValueError("The action space is a Box of shape (): it must have an axis, as shape (1,) has.")
    for place in zip(*np.where(~(space.low < space.high)), strict=True):
        dimension = ", ".join(map(str, place))
        raise ValueError(
            f"The action space is a Box with low={space.low[place]} and high={space.high[place]} in dimension {dimension}: "
            "low must be below high, so leave out a dimension in which there is nothing to choose."
        )
