"""
Constructor arguments as JSON, and back.

What is read can make plain values, SB3's schedules and action noise, and name a class of network, optimiser or replay buffer
that is imported already or part of PyTorch or Stable-Baselines3. Nothing else: a file must not choose what code is run.
"""

import importlib
import sys
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise, VectorizedActionNoise
from stable_baselines3.common.type_aliases import TrainFreq
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

CLASSES = (th.nn.Module, th.optim.Optimizer, ReplayBuffer)
PACKAGES = ("torch", "stable_baselines3", "sb3_contrib", "sb3_cir")

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
    :param value: A constructor's argument
    :return: What JSON can hold, for :func:`from_plain`
    :raises TypeError: If there is no way to say it in JSON.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, TrainFreq):
        return {"tuple": [value.frequency, value.unit.value]}
    if isinstance(value, VectorizedActionNoise):
        return to_plain(value.base_noise)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"array": value.tolist(), "dtype": value.dtype.name}
    if type(value) in (list, tuple):
        return {type(value).__name__: [to_plain(entry) for entry in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: to_plain(entry) for key, entry in value.items()}}
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value).name
    if isinstance(value, type) and issubclass(value, CLASSES):
        return {"class": [value.__module__, value.__qualname__]}
    if type(value) in OBJECTS:
        arguments = {name: to_plain(getattr(value, attribute)) for name, attribute in OBJECTS[type(value)].items()}
        return {"object": type(value).__name__, "arguments": arguments}
    raise TypeError(f"{value!r} cannot be said in JSON")


def from_plain(plain: Any) -> Any:
    """
    :param plain: What :func:`to_plain` returned
    :return: The value
    :raises TypeError: If it names a class that is not to be had.
    """
    if not isinstance(plain, dict):
        return plain
    if "array" in plain:
        return np.array(plain["array"], dtype=plain["dtype"])
    if "list" in plain:
        return [from_plain(entry) for entry in plain["list"]]
    if "tuple" in plain:
        return tuple(from_plain(entry) for entry in plain["tuple"])
    if "dict" in plain:
        return {key: from_plain(entry) for key, entry in plain["dict"].items()}
    if "class" in plain:
        return _class(*plain["class"])
    kinds = {kind.__name__: kind for kind in OBJECTS}
    return kinds[plain["object"]](**{name: from_plain(entry) for name, entry in plain["arguments"].items()})


def _class(module: str, name: str) -> type:
    if module.partition(".")[0] in PACKAGES:
        importlib.import_module(module)
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, CLASSES):
        raise TypeError(f"there is no class {module}.{name} among what is imported")
    return found
