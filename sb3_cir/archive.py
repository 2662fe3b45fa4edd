"""
Saved models that others made: SB3's archives hold pickles, which run whatever code their maker put there when they are loaded.

What SB3 pickles is saved as plain JSON too. ``load(..., trusted=False)`` reads this, and tensors, and no pickle.
"""

import io
import json
import pathlib
import pickle
import zipfile
from collections.abc import Iterable
from typing import Any

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import is_json_serializable, open_path
from stable_baselines3.common.type_aliases import GymEnv
from typing_extensions import Self

from sb3_cir.checkpoint import is_checkpoint
from sb3_cir.plain import from_plain, to_plain

# What a model does without: made anew when it is set up, or by the next learn(), which then starts with a reset.
DISPENSABLE = ("lr_schedule", "_last_obs", "_last_episode_starts", "_last_original_obs", "ep_info_buffer", "ep_success_buffer")
_SPACES = ("observation_space", "action_space")


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
            if name not in DISPENSABLE and not is_json_serializable(value):
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
        :raises ValueError: If the file is a checkpoint, or if ``trusted`` is False and the file has something that the model
            needs as a pickle alone, or more than tensors among its tensors.
        """
        if isinstance(path, (str, pathlib.Path)) and is_checkpoint(pathlib.Path(path)):
            raise ValueError(f"{path} is a checkpoint: {cls.__name__}.resume(path, env) reads it.")
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
            except ValueError as error:
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
