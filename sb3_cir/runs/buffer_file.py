"""A replay buffer in one file without pickles, saved and read without trusting it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_cir.buffers import cut_off
from sb3_cir.runs import files, rows
from sb3_cir.runs.files import DamagedError, File
from sb3_cir.runs.plain import Buffer, Rows, validate


def save(buffer: ReplayBuffer, path: File) -> None:
    """
    :param buffer: A replay buffer
    :param path: Where to
    """
    rows.warn_of_losses(buffer)
    described, arrays = _rows_of(buffer)
    said = Buffer(format=1, buffers=described, checksum=0)
    manifest = said.model_copy(update={"checksum": _checksum(said, arrays)}).model_dump_json()
    if not isinstance(path, (str, Path)):
        path.write(files.pack(arrays, manifest))
        return
    files.write_arrays(files.place_for_arrays(path), arrays, manifest)


def _rows_of(buffer: ReplayBuffer) -> tuple[dict[str, Rows], dict[str, np.ndarray]]:
    parts = rows.parts(buffer)
    arrays = {
        f"{name}/{key}": column[: rows.filled(part)]
        for name, part in parts.items()
        for key, column in rows.columns(part).items()
    }
    return {name: rows.describe(part, []) for name, part in parts.items()}, arrays


def _checksum(manifest: Buffer, arrays: dict[str, np.ndarray]) -> int:
    """Of all rows, and of all that the manifest says besides this."""
    return files.checksum(arrays, manifest.model_copy(update={"checksum": 0}).model_dump_json())


def load(model: OffPolicyAlgorithm, path: File, truncate: bool, trusted: bool, unpickle: Callable[..., None]) -> None:
    """
    :param model: A model, whose replay buffer is filled
    :param path: Where one was saved
    :param truncate: Whether the episode that was under way counts as ended
    :param trusted: Whether a pickle is read
    :param unpickle: SB3's own ``load_replay_buffer``
    :raises ValueError: If it does not fit, or is a pickle that is not trusted.
    """
    _fill(model, path, truncate, trusted, unpickle)
    assert model.replay_buffer is not None
    for part in rows.parts(model.replay_buffer).values() if truncate else ():
        if isinstance(part, NStepReplayBuffer):  # which SB3 leaves as it is
            cut_off(part)


def _fill(model: OffPolicyAlgorithm, path: File, truncate: bool, trusted: bool, unpickle: Callable[..., None]) -> None:
    """:func:`load`, but for n-step returns that would run into another episode."""
    if isinstance(path, (str, Path)):
        path = files.find(path, ".safetensors", ".pkl")
    what = str(path if isinstance(path, (str, Path)) else getattr(path, "name", path))
    if files.is_trusted_pickle(path, trusted, what):
        own = getattr(model, "replay_buffer", None)
        unpickle(path, truncate)
        kind = type(own) if own is not None else model.replay_buffer_class
        pickled = model.replay_buffer
        if pickled is not None and type(pickled) is not kind:  # SB3 would learn from another kind than the method's
            model.replay_buffer = own
            _put(model, *_rows_of(pickled), truncate, what)
            return
        if pickled is not None and own is not None:
            model.replay_buffer = own
            _check_pickled(own, pickled, what)
            model.replay_buffer = pickled
        if isinstance(pickled, NStepReplayBuffer) and isinstance(own, NStepReplayBuffer):
            pickled.n_steps, pickled.gamma = own.n_steps, own.gamma
        return
    said, arrays = files.read_arrays(path, what)
    manifest = validate(Buffer, files.read_json(said, what), what)
    if _checksum(manifest, arrays) != manifest.checksum:
        raise DamagedError(f"{what}: its rows are not those that were saved (the checksum differs).")
    _put(model, manifest.buffers, arrays, truncate, what)


def _check_pickled(own: ReplayBuffer, pickled: ReplayBuffer, what: str) -> None:
    """
    :param own: A model's replay buffer
    :param pickled: One of its class that is to take its place, as large as it likes
    :param what: Where it is from
    :raises ValueError: If it is of other environments.
    """
    for ours, theirs in zip(rows.parts(own).values(), rows.parts(pickled).values(), strict=True):
        for name in ("n_envs", "obs_shape", "action_dim"):
            was, is_now = getattr(theirs, name), getattr(ours, name)
            if was != is_now:
                raise ValueError(f"{what}: the replay buffer in it has {name}={was}, the model's {name}={is_now}.")


def _put(
    model: OffPolicyAlgorithm, saved: Mapping[str, Rows], arrays: dict[str, np.ndarray], truncate: bool, what: str
) -> None:
    """Fill the model's own replay buffer with another's rows."""
    buffer = _buffer_to_fill(model, saved, what)
    parts = rows.parts(buffer)
    if parts.keys() != saved.keys():
        raise ValueError(f"{what} has {', '.join(saved)}, this model's replay buffer {', '.join(parts)}.")
    columns: dict[str, dict[str, np.ndarray]] = {name: {} for name in parts}
    for key, array in arrays.items():
        owner, _, column = key.partition("/")
        columns.setdefault(owner, {})[column] = array
    for name, part in parts.items():
        rows.check(part, saved[name], what)
        rows.check_columns(columns[name], saved[name], rows.filled_of(saved[name], part), set(), what)
    if columns.keys() != parts.keys():
        raise DamagedError(f"{what}: it holds rows of {', '.join(columns.keys() - parts.keys())}, which it does not name.")
    for name, part in parts.items():
        rows.load(part, saved[name], iter([(0, columns[name])]))
        if truncate and isinstance(part, HerReplayBuffer):
            part.truncate_last_trajectory()
    buffer.device = model.device
    model.replay_buffer, model.buffer_size = buffer, max(part.buffer_size * part.n_envs for part in parts.values())


def _buffer_to_fill(model: OffPolicyAlgorithm, saved: Mapping[str, Rows], what: str) -> ReplayBuffer:
    """
    :param model: A model
    :param saved: The replay buffers that are in a file
    :param what: The file
    :return: The model's own. Where it has been given away, and where the saved one has another size, which is the one that
        counts with SB3: one as the model was made with, of that size
    :raises ValueError: If that does not fit into memory.
    """
    own = getattr(model, "replay_buffer", None)
    sizes = [each.size * each.n_envs for each in saved.values()] or [model.buffer_size]
    if own is not None and {each.buffer_size * each.n_envs for each in rows.parts(own).values()} == set(sizes):
        return cast(ReplayBuffer, own)
    assert model.replay_buffer_class is not None
    kwargs: dict[str, Any] = dict(model.replay_buffer_kwargs)
    if issubclass(model.replay_buffer_class, HerReplayBuffer):
        kwargs["env"] = model.env
    try:
        return model.replay_buffer_class(
            max(sizes),
            model.observation_space,
            model.action_space,
            device=model.device,
            n_envs=model.n_envs,
            optimize_memory_usage=model.optimize_memory_usage,
            **kwargs,
        )
    except MemoryError as error:
        raise ValueError(f"{what}: a replay buffer of {max(sizes)} transitions does not fit into memory.") from error
