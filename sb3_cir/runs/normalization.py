"""
The statistics of ``VecNormalize``, saved without a pickle.

SB3's ``VecNormalize.save`` writes a pickle, which runs whatever code its maker put there when it is loaded. Here the
statistics are arrays and the settings are checked JSON beside them, in one safetensors file::

    normalization.save(env, "normalization.safetensors")
    env = normalization.load("normalization.safetensors", make_vec_env("Pendulum-v1"))
"""

import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_cir.runs import files
from sb3_cir.runs.files import Arrays, DamagedError
from sb3_cir.runs.plain import Count, NormalizerSettings, Schema, validate
from sb3_cir.words import short

RETURNS = "normalization/returns"  # those under way belong to the environments, and SB3 does not save them either


class Normalization(Schema):
    """
    A ``VecNormalize``, beside its statistics in the same file.

    :param format: Of the file
    :param settings: Its constructor's arguments
    :param checksum: Of the statistics, see :func:`~sb3_cir.runs.files.checksum`
    """

    format: Literal[1]
    settings: NormalizerSettings
    checksum: Count


def save(normalizer: VecNormalize, path: str | Path) -> None:
    """
    :param normalizer: What normalises observations and rewards
    :param path: Where to; ``.safetensors`` is added where it has no suffix. Folders are made.
    """
    arrays = _without_returns(normalizer)
    note = Normalization(format=1, settings=settings(normalizer), checksum=files.checksum(arrays)).model_dump_json()
    files.write_whole(files.place_for_arrays(path), files.pack(arrays, note))


def load(path: str | Path, venv: VecEnv, trusted: bool = False, kind: type[VecNormalize] = VecNormalize) -> VecNormalize:
    """
    :param path: What :func:`save` wrote, or SB3's ``VecNormalize.save``
    :param venv: The environments that are to be normalised
    :param trusted: Whether SB3's pickle is read, which can run any code
    :param kind: The class to be made
    :return: ``venv`` wrapped, with the settings and statistics that were saved
    :raises ValueError: If it is damaged, if it is of other observations, or if it is a pickle and ``trusted`` is False.
    """
    path = files.find(path, ".safetensors", ".pkl")
    what = str(path)
    if files.is_trusted_pickle(path, trusted, what):
        try:
            pickled = VecNormalize.load(what, venv)
        except AssertionError as error:  # SB3's word for other observations
            raise ValueError(f"{what}: it is of other observations than those here ({error}).") from error
        return _make(kind, venv, settings(pickled), _without_returns(pickled), what)
    note, arrays = files.read_arrays(path, what)
    said = validate(Normalization, files.read_json(note, what), what)
    if files.checksum(arrays) != said.checksum:
        raise DamagedError(f"{what}: its statistics are not those that were saved (the checksum differs).")
    return _make(kind, venv, said.settings, arrays, what)


def settings(normalizer: VecNormalize) -> NormalizerSettings:
    """
    :param normalizer: What normalises observations and rewards
    :return: What its constructor was given, or what was put in its place since
    """
    values = {name: getattr(normalizer, name) for name in NormalizerSettings.model_fields}
    numbers = {name: float(values[name]) for name in ("clip_obs", "clip_reward", "gamma", "epsilon")}
    return validate(NormalizerSettings, values | numbers, "VecNormalize")


def plain_settings(normalizer: VecNormalize) -> NormalizerSettings | None:
    """
    :param normalizer: What normalises observations and rewards
    :return: Its :func:`settings`; None where one is of another kind, such as a limit for each number
    """
    try:
        return settings(normalizer)
    except (TypeError, ValueError):
        return None


def _without_returns(normalizer: VecNormalize) -> dict[str, np.ndarray]:
    """Its statistics, but for those under way."""
    return {name: array for name, array in take(normalizer).items() if name != RETURNS}


def _make(
    kind: type[VecNormalize], venv: VecEnv, said: NormalizerSettings, arrays: dict[str, np.ndarray], what: str
) -> VecNormalize:
    arguments: dict[str, Any] = said.model_dump()
    known = getattr(venv.observation_space, "spaces", {})
    if said.norm_obs and not set(said.norm_obs_keys or ()) <= set(known):
        raise ValueError(
            f"{what}: norm_obs_keys={short(said.norm_obs_keys)}, and the observations here have {short(sorted(known))}."
        )
    made = kind(venv, **arguments)
    check(made, {**arrays, RETURNS: made.returns}, what)
    put(made, arrays)
    return made


def differences(normalizer: VecNormalize, said: NormalizerSettings) -> dict[str, tuple[Any, Any]]:
    """
    :param normalizer: What takes the place of another
    :param said: The other's settings
    :return: Those in which the two differ, the other's first
    """
    ours = plain_settings(normalizer)
    if ours is None:
        return {}
    pairs = {name: (getattr(said, name), getattr(ours, name)) for name in NormalizerSettings.model_fields}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def put_settings(normalizer: VecNormalize, said: NormalizerSettings, what: str) -> None:
    """
    :param normalizer: What goes on in the place of another
    :param said: The other's settings, which it gets
    :param what: Where they are from, for a warning that names those that it had otherwise
    """
    different = differences(normalizer, said)
    for name, (was, _) in different.items():
        setattr(normalizer, name, was)
    if different:
        changes = ", ".join(f"{name}={short(was)} in the place of {short(ours)}" for name, (was, ours) in different.items())
        warnings.warn(f"VecNormalize has the settings of {what}: {changes}. Others can be set on it now.", stacklevel=3)


# The statistics as arrays: in a file of their own above, in a checkpoint among its other arrays


def take(normalizer: VecNormalize) -> dict[str, np.ndarray]:
    """
    :param normalizer: What normalises observations and rewards
    :return: Its statistics
    """
    arrays = {RETURNS: normalizer.returns}
    for name, each in _running(normalizer).items():
        arrays |= {
            f"normalization/{name}/{key}": np.asarray(getattr(each, key), np.float64) for key in ("mean", "var", "count")
        }
    return arrays


def check(normalizer: VecNormalize, arrays: Arrays, what: str) -> None:
    """
    :param normalizer: What normalises observations and rewards
    :param arrays: Statistics that it is to have
    :param what: Where they are from, for the error
    :raises ValueError: If they are others, or not finite.
    """
    ours = take(normalizer)
    theirs = {name: array for name, array in arrays.items() if name.startswith("normalization/")}
    for name in sorted({*ours, *theirs}):
        was, is_now = (each[name].shape if name in each else "not there" for each in (theirs, ours))
        if was != is_now:
            raise ValueError(f"VecNormalize's {name.removeprefix('normalization/')} was {was} in {what} and is {is_now}.")
        if not np.isfinite(theirs[name]).all() or (name.endswith(("var", "count")) and (theirs[name] < 0).any()):
            raise ValueError(f"{what}: VecNormalize's {name.removeprefix('normalization/')} cannot be {short(theirs[name])}.")


def put(normalizer: VecNormalize, arrays: Arrays) -> None:
    """
    :param normalizer: What normalises observations and rewards; its running returns stay
    :param arrays: The statistics that it is to have
    """
    for name, each in _running(normalizer).items():
        each.mean, each.var = (arrays[f"normalization/{name}/{key}"].copy() for key in ("mean", "var"))
        each.count = float(arrays[f"normalization/{name}/count"])


def _running(normalizer: VecNormalize) -> dict[str, RunningMeanStd]:
    # Those of a normalizer that was told later on to leave observations alone are of no use to anybody.
    observations = normalizer.obs_rms if normalizer.norm_obs else {}
    named = observations if isinstance(observations, dict) else {"": observations}
    return {"rewards": normalizer.ret_rms} | {f"observations/{key}": each for key, each in named.items()}
