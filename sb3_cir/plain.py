"""
Arguments and attributes of a model as JSON, and back.

What is read can make plain values, spaces, SB3's schedules and action noise, and name a class of network, policy, optimiser or
replay buffer of PyTorch, Stable-Baselines3 or this package. Nothing else: a file must not choose what code is run.
"""

import importlib
import sys
from collections import OrderedDict
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise, VectorizedActionNoise
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

# Classes of these kinds and places may be named in a file. None of them does anything when it is made.
KINDS = (th.nn.Module, th.optim.Optimizer, ReplayBuffer)
PLACES = ("sb3_cir.", "stable_baselines3.", "sb3_contrib.", "torch.nn.modules.", "torch.optim.")

# Objects that are what their constructor was given: its arguments, and the attributes that keep them.
OBJECTS: dict[type, dict[str, str]] = {
    ConstantSchedule: dict(val="val"),
    LinearSchedule: dict(start="start", end="end", end_fraction="end_fraction"),
    FloatSchedule: dict(value_schedule="value_schedule"),
    NormalActionNoise: dict(mean="_mu", sigma="_sigma", dtype="_dtype"),
    OrnsteinUhlenbeckActionNoise: dict(
        mean="_mu", sigma="_sigma", theta="_theta", dt="_dt", initial_noise="initial_noise", dtype="_dtype"
    ),
}


def to_plain(value: Any) -> Any:
    """
    :param value: Numbers, strings, arrays, spaces, ``train_freq``, one of :data:`OBJECTS`, a class that may be named, and
        lists, tuples and dicts of them
    :return: What JSON can hold, for :func:`from_plain`
    :raises TypeError: If it is anything else.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value) is list:
        return [to_plain(entry) for entry in value]
    if isinstance(value, dict) and all(isinstance(key, str) and not key.startswith(":") for key in value):
        return {key: to_plain(entry) for key, entry in value.items()}
    if isinstance(value, TrainFreq):
        return {":train_freq:": [value.frequency, value.unit.value]}
    if type(value) is tuple:
        return {":tuple:": [to_plain(entry) for entry in value]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {":array:": value.tolist(), "dtype": value.dtype.name}
    if isinstance(value, spaces.Space):
        return {":space:": _space_to_plain(value)}
    if isinstance(value, VectorizedActionNoise):
        return to_plain(value.base_noise)
    if type(value) in OBJECTS:
        arguments = {name: to_plain(getattr(value, attribute)) for name, attribute in OBJECTS[type(value)].items()}
        return {":object:": type(value).__name__, "arguments": arguments}
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value).name
    if isinstance(value, type) and _named(name := f"{value.__module__}.{value.__qualname__}") is value:
        return {":class:": name}
    raise TypeError(f"{value!r} cannot be said in JSON")


def from_plain(plain: Any) -> Any:
    """
    The inverse of :func:`to_plain`. Whatever it is given, it makes nothing else than this takes.

    :param plain: What JSON had
    :return: The value
    :raises ValueError: If it is nothing that :func:`to_plain` gives.
    """
    try:
        return _from_plain(plain)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{plain!r} has no meaning here ({type(error).__name__}: {error})") from error


def _from_plain(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_from_plain(entry) for entry in plain]
    if not isinstance(plain, dict):
        return plain
    if ":train_freq:" in plain:
        frequency, unit = plain[":train_freq:"]
        return TrainFreq(int(frequency), TrainFrequencyUnit(unit))
    if ":tuple:" in plain:
        return tuple(_from_plain(entry) for entry in plain[":tuple:"])
    if ":array:" in plain:
        return np.array(plain[":array:"], dtype=plain["dtype"])
    if ":space:" in plain:
        return _space_from_plain(plain[":space:"])
    if ":object:" in plain:
        kinds = {kind.__name__: kind for kind in OBJECTS}
        return kinds[plain[":object:"]](**{name: _from_plain(entry) for name, entry in plain["arguments"].items()})
    if ":class:" in plain:
        found = _named(plain[":class:"])
        if found is None:
            raise ValueError(f"there is no class {plain[':class:']} that a file may name")
        return found
    return {key: _from_plain(entry) for key, entry in plain.items()}


def _named(name: str) -> type | None:
    """
    :param name: Module and name of a class
    :return: The class, if it is of :data:`KINDS` and :data:`PLACES`
    """
    module, _, attribute = name.rpartition(".")
    if not f"{module}.".startswith(PLACES):
        return None
    if module not in sys.modules:
        try:
            importlib.import_module(module)
        except ImportError:
            return None
    found = getattr(sys.modules[module], attribute, None)
    return found if isinstance(found, type) and issubclass(found, KINDS) else None


def _space_to_plain(space: spaces.Space[Any]) -> list[Any]:
    """:return: The kind of space and its arguments"""
    if type(space) is spaces.Box:
        bounds = [
            bound.flat[0].item() if (bound == bound.flat[0]).all() else bound.tolist() for bound in (space.low, space.high)
        ]
        return ["Box", *bounds, list(space.shape), space.dtype.name]
    if type(space) is spaces.Dict:
        return ["Dict", [[key, _space_to_plain(entry)] for key, entry in space.spaces.items()]]
    if type(space) is spaces.Discrete:
        return ["Discrete", int(space.n), int(space.start)]
    if type(space) is spaces.MultiDiscrete:
        return ["MultiDiscrete", space.nvec.tolist()]
    if type(space) is spaces.MultiBinary:
        return ["MultiBinary", space.n if isinstance(space.n, int) else list(space.n)]
    raise TypeError(f"{type(space)} has no plain form.")


def _space_from_plain(plain: list[Any]) -> spaces.Space[Any]:
    kind, *arguments = plain
    if kind == "Box":
        low, high, shape, name = arguments
        dtype = np.dtype(name)
        low, high = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (low, high))
        return spaces.Box(low, high, tuple(shape), dtype.type)
    if kind == "Dict":
        return spaces.Dict(OrderedDict((key, _space_from_plain(entry)) for key, entry in arguments[0]))
    if kind == "Discrete":
        return spaces.Discrete(arguments[0], start=arguments[1])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(arguments[0])
    if kind == "MultiBinary":
        return spaces.MultiBinary(arguments[0])
    raise ValueError(f"there is no space {kind}")
