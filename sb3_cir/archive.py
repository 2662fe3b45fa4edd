"""
Saved models that others made: SB3's archives hold pickles, which run whatever code their maker put there when they are loaded.

What SB3 pickles is saved as plain JSON too. ``load(..., trusted=False)`` reads this, and tensors, and no pickle.
"""

import io
import json
import pathlib
import pickle
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import is_json_serializable, open_path
from stable_baselines3.common.type_aliases import GymEnv, TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import ConstantSchedule, LinearSchedule
from typing_extensions import Self

# What a model does without: made anew when it is set up, or by the next learn(), which then starts with a reset.
DISPENSABLE = ("lr_schedule", "_last_obs", "_last_episode_starts", "_last_original_obs", "ep_info_buffer", "ep_success_buffer")
_SPACES = ("observation_space", "action_space")
_SCHEDULES = {schedule.__name__: schedule for schedule in (ConstantSchedule, LinearSchedule)}
# Classes of these places and kinds may be named in an archive. None of them does anything when it is made.
_PLACES = ("sb3_cir.", "stable_baselines3.", "torch.nn.modules.", "torch.optim.")
_KINDS = (th.nn.Module, th.optim.Optimizer, ReplayBuffer)


class PlainArchive(BaseAlgorithm):
    """For an algorithm, to stand before it: ``class CIR(PlainArchive, SAC)``. Its archives can be loaded without a pickle."""

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """
        Save all the attributes of the object and the model parameters in a zip-file.

        :param path: path to the file where the rl agent should be saved
        :param exclude: name of parameters that should be excluded in addition to the default ones
        :param include: name of parameters that might be excluded but should be included anyway
        """
        self._plain: dict[str, Any] = {}
        for name, value in vars(self).items():
            if not is_json_serializable(value):
                try:
                    self._plain[name] = to_plain(value)
                except TypeError:
                    continue
        super().save(path, exclude, include)

    @classmethod
    def load(
        cls,
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        trusted: bool = True,
        **kwargs: Any,
    ) -> Self:
        """
        Load the model from a zip-file.

        :param path: path to the file (or a file-like) where to load the agent from
        :param env: the new environment to run the loaded model on (can be None if you only need prediction from a trained
            model)
        :param device: Device on which the code should run.
        :param custom_objects: Attributes by name, in place of what the file has
        :param print_system_info: Whether to print system info from the saved model and the current system info
        :param force_reset: Force call to ``reset()`` before training
        :param trusted: Whether to unpickle what the file has, which can run any code: only for files from someone you trust.
            Otherwise only plain values and tensors are read; what a model does not need (its last observation, the episodes
            that the log's means are of) is left out.
        :param kwargs: extra arguments to change the model when loading
        :return: new model instance with loaded parameters
        :raises ValueError: If ``trusted`` is False and the file has something that the model needs as a pickle alone, or
            more than tensors among its tensors.
        """
        arguments = dict(device=device, print_system_info=print_system_info, force_reset=force_reset, **kwargs)
        if trusted:
            return super().load(path, env, custom_objects=custom_objects, **arguments)
        file = open_path(path, "r", suffix="zip")
        # Read once: what is looked at here is what is loaded.
        archive = io.BytesIO(file.read())
        if isinstance(path, (str, pathlib.Path)):
            file.close()
        if env is not None:
            env = cls._wrap_env(env)
        objects = _replacements(archive, str(path), env, custom_objects or {})
        try:
            return super().load(archive, env, custom_objects=objects, **arguments)
        except pickle.UnpicklingError as error:
            raise ValueError(f"{path}: there is more than tensors in one of its .pth files, which is not read.") from error


def _replacements(archive: io.BytesIO, path: str, env: Any, custom_objects: dict[str, Any]) -> dict[str, Any]:
    """
    :param archive: The file's content
    :param path: Its name, for the error
    :param env: Where the spaces may be taken from
    :param custom_objects: What the user gives
    :return: Something for every attribute that is pickled in it, so that SB3 unpickles none
    :raises ValueError: If there is nothing for some.
    """
    try:
        with zipfile.ZipFile(archive) as content:
            data = json.loads(content.read("data"))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{path}: this is no archive of a model.") from error
    archive.seek(0)
    plain = data.get("_plain", {})
    # SB3 would make an environment of this name, and import the module that a name can have in it.
    objects: dict[str, Any] = {"env": None}
    missing = []
    for name, value in data.items():
        if name in custom_objects or not (isinstance(value, dict) and ":serialized:" in value):
            continue
        if name in DISPENSABLE:
            objects[name] = None
        elif name in plain:
            try:
                objects[name] = from_plain(plain[name])
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}: the plain value of {name} cannot be read ({error}).") from error
        elif name in _SPACES and env is not None:
            objects[name] = getattr(env, name)
        else:
            missing.append(name)
    if missing:
        hint = " or env=..." if set(missing) <= set(_SPACES) else ""
        example = ", ".join(f"{name!r}: ..." for name in missing)
        raise ValueError(
            f"{path}: {', '.join(missing)}: there is a pickle alone, which is not read from a file that is not trusted. Pass "
            f"custom_objects={{{example}}}{hint}, or trusted=True if you trust whoever made it."
        )
    return objects | custom_objects


def to_plain(value: Any) -> Any:
    """
    :param value: Numbers, strings, known classes (:func:`_named`), spaces, SB3's schedules and ``train_freq``, and
        lists, tuples and dicts of them
    :return: What JSON can hold
    :raises TypeError: If it is anything else.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return to_plain(value.item())
    if isinstance(value, list):
        return [to_plain(entry) for entry in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: to_plain(entry) for key, entry in value.items()}
    if isinstance(value, TrainFreq):
        return {":train_freq:": [value.frequency, value.unit.value]}
    if type(value) is tuple:
        return {":tuple:": [to_plain(entry) for entry in value]}
    if isinstance(value, spaces.Space):
        return {":space:": _space_to_plain(value)}
    if type(value) in _SCHEDULES.values():
        return {":schedule:": type(value).__name__, "arguments": to_plain(vars(value))}
    if isinstance(value, type) and _named(name := f"{value.__module__}.{value.__qualname__}") is value:
        return {":class:": name}
    raise TypeError(f"{type(value)} has no plain form.")


def from_plain(plain: Any) -> Any:
    """
    The inverse of :func:`to_plain`. Whatever it is given, it makes nothing else than this takes.

    :param plain: What JSON had
    :return: The value
    :raises ValueError: If it is nothing that :func:`to_plain` gives; also ``TypeError``, ``KeyError``, ``AttributeError``.
    """
    if isinstance(plain, list):
        return [from_plain(entry) for entry in plain]
    if not isinstance(plain, dict):
        return plain
    if ":train_freq:" in plain:
        frequency, unit = plain[":train_freq:"]
        return TrainFreq(int(frequency), TrainFrequencyUnit(unit))
    if ":tuple:" in plain:
        return tuple(from_plain(entry) for entry in plain[":tuple:"])
    if ":space:" in plain:
        return _space_from_plain(plain[":space:"])
    if ":schedule:" in plain:
        return _SCHEDULES[plain[":schedule:"]](**{name: float(value) for name, value in plain["arguments"].items()})
    if ":class:" in plain:
        found = _named(plain[":class:"])
        if found is None:
            raise ValueError(f"there is no class {plain[':class:']} that an archive may name, or its module is not imported")
        return found
    return {key: from_plain(entry) for key, entry in plain.items()}


def _named(name: str) -> type | None:
    """
    :param name: Module and name of a class
    :return: The class, if it is a network, policy, optimiser or replay buffer of PyTorch, SB3 or this package. Nothing is
        imported for it.
    """
    module, _, attribute = name.rpartition(".")
    found = getattr(sys.modules.get(module), attribute, None)
    return found if name.startswith(_PLACES) and isinstance(found, type) and issubclass(found, _KINDS) else None


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
