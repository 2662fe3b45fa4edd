"""
The rows of replay buffers, to files and back.

A buffer is cut into blocks of consecutive rows, at the same places each time. A checkpoint writes the blocks that are not as
the checkpoint before has them, and names the older files of the others. So it makes no difference how rows have changed: added
by the run or by hand, overwritten by the ring, or relabelled where they are.

Which arrays of a buffer are rows is seen from their shape, so that any ``ReplayBuffer`` will do. Three attributes of its class
say what cannot be seen: ``volatile`` names columns that change all the time, such as priorities, which no block holds and each
checkpoint has whole; ``derived`` names attributes that are made anew from the rows; ``parts()`` gives the buffers of which one
consists.
"""

import inspect
import uuid
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_cir.runs.arguments import is_known
from sb3_cir.runs.files import (
    ROWS_FOLDER,
    Arrays,
    DamagedError,
    checksum,
    flush,
    pack,
    read_regular,
    unpack,
    write_whole,
)
from sb3_cir.runs.plain import Block, Column, Rows
from sb3_cir.words import short

# A checkpoint writes at least one block, and a file of each is open once: neither too large nor too many.
BLOCK_BYTES = 2**21
BLOCKS = 256

# What SB3's buffers have beside rows: made by their constructors, said in the manifest, or another object.
KNOWN = {"observation_space", "action_space", "obs_shape", "action_dim", "device", "n_envs", "buffer_size", "pos", "full"}
KNOWN |= {"optimize_memory_usage", "handle_timeout_termination", "n_steps", "gamma"}
KNOWN |= {"env", "copy_info_dict", "goal_selection_strategy", "n_sampled_goal", "her_ratio", "infos"}


def parts(buffer: ReplayBuffer) -> dict[str, ReplayBuffer]:
    """
    :param buffer: A replay buffer
    :return: The buffers that it consists of, by name
    """
    return buffer.parts() if hasattr(buffer, "parts") else {"replay": buffer}


def parts_of(model: OffPolicyAlgorithm) -> dict[str, ReplayBuffer]:
    """
    :param model: A model that has a replay buffer
    :return: The buffers that its replay buffer consists of, by name
    """
    assert model.replay_buffer is not None
    return parts(model.replay_buffer)


def first(buffer: ReplayBuffer | None) -> list[ReplayBuffer]:
    """
    :param buffer: A replay buffer
    :return: The part that the model's own environments fill, if there is one
    """
    return [] if buffer is None else list(parts(buffer).values())[:1]


def columns(buffer: ReplayBuffer) -> dict[str, np.ndarray]:
    """
    :param buffer: A replay buffer that is no pair
    :return: What it keeps of each transition: ``(buffer_size, n_envs, ...)``, by name
    """
    found = {}
    for name, value in vars(buffer).items():
        for key, array in value.items() if isinstance(value, dict) else [(None, value)]:
            if (
                isinstance(array, np.ndarray)
                and array.shape[:2] == (buffer.buffer_size, buffer.n_envs)
                and array.dtype != object
            ):
                found[name if key is None else f"{name}/{key}"] = array
    return found


def values(buffer: ReplayBuffer) -> dict[str, Any]:
    """
    :param buffer: A replay buffer that is no pair
    :return: What it keeps besides: numbers, and small arrays of them, by name
    """
    settings = ((name, vars(buffer)[name]) for name in _own_arguments(buffer))
    return {name: value for name, value in (*_others(buffer), *settings) if _is_plain(value)}


def warn_of_losses(buffer: ReplayBuffer) -> None:
    """:param buffer: A replay buffer, or one that consists of several, with state that no file holds. A warning names it."""
    for part in parts(buffer).values():
        lost = [name for name, value in _others(part) if not _is_plain(value)]
        if getattr(part, "copy_info_dict", False):
            lost.append("infos (copy_info_dict=True)")
        if lost:
            warnings.warn(
                f"{type(part).__name__}: no checkpoint can hold its {', '.join(lost)}: a run that is resumed will be without.",
                stacklevel=2,
            )


def _arguments(kinds: Iterable[type]) -> set[str]:
    return {name for kind in kinds if "__init__" in vars(kind) for name in inspect.signature(kind).parameters}


def _own_arguments(buffer: ReplayBuffer) -> set[str]:
    """
    Arguments of a class of somebody's own that it keeps under their names, and may change as it learns: the β of prioritised
    replay is one.
    """
    kinds = type(buffer).__mro__
    ours = [kind for kind in kinds if is_known(kind)]
    own = _arguments(kind for kind in kinds if not is_known(kind))
    return (own - _arguments(ours) - KNOWN) & vars(buffer).keys()


def _others(buffer: ReplayBuffer) -> Iterator[tuple[str, Any]]:
    # Constructor arguments are passed again by the code that resumes.
    given = _arguments(type(buffer).__mro__)
    known = KNOWN | given | {name.split("/")[0] for name in columns(buffer)} | set(getattr(buffer, "derived", ()))
    return ((name, value) for name, value in vars(buffer).items() if name not in known)


def _is_plain(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf" and value.size <= 10_000
    return isinstance(value, (bool, int, float, np.number))


def filled(buffer: ReplayBuffer) -> int:
    """
    :param buffer: A replay buffer that is no pair
    :return: How many of its first rows have something in them
    """
    if buffer.full:
        return buffer.buffer_size
    # Where memory usage is optimised, the next row has the last one's next observation already.
    return min(buffer.pos + buffer.optimize_memory_usage, buffer.buffer_size)


def filled_of(saved: Rows, buffer: ReplayBuffer) -> int:
    """
    :param saved: What a manifest says of a replay buffer
    :param buffer: The one to be filled, which is as large
    :return: How many rows the saved one has, as :func:`filled` counts them
    """
    return saved.size if saved.full else min(saved.pos + buffer.optimize_memory_usage, saved.size)


def describe(buffer: ReplayBuffer, blocks: list[Block]) -> Rows:
    """
    :param buffer: A replay buffer that is no pair
    :param blocks: Its rows in files
    :return: What a manifest says of it
    """
    kept = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values(buffer).items()}
    return Rows(
        size=int(buffer.buffer_size),  # NumPy's, where it was made with that
        n_envs=int(buffer.n_envs),
        pos=buffer.pos,
        full=buffer.full,
        columns={
            name: Column(dtype=str(column.dtype), shape=list(column.shape[2:])) for name, column in columns(buffer).items()
        },
        values=kept,
        blocks=blocks,
    )


def check(buffer: ReplayBuffer, saved: Rows, what: str) -> None:
    """
    :param buffer: A replay buffer that is no pair, to be filled
    :param saved: What the manifest says
    :param what: What it is of, for the error
    :raises ValueError: If they do not fit each other.
    """
    for name, was, is_now in (
        ("n_envs", saved.n_envs, buffer.n_envs),
        ("buffer_size", saved.size * saved.n_envs, buffer.buffer_size * buffer.n_envs),
    ):
        if was != is_now:
            raise ValueError(f"{name}={is_now}: it was {was} in {what}.")
    ours = describe(buffer, []).columns
    for name in [*saved.columns, *ours]:
        before, now = (_say(each.get(name)) for each in (saved.columns, ours))
        if before != now:
            raise ValueError(f"The replay buffer's {name} were {before} in {what} and are {now}.")
    if saved.pos >= saved.size:
        raise DamagedError(f"{what}: pos is {saved.pos}, a buffer of {saved.size} rows has none of that number.")
    for name, value in _restored(buffer, saved).items():
        if not _is_like(saved.values.get(name), value):
            raise ValueError(f"The replay buffer's {name} is not in {what} as it is here.")


def _restored(buffer: ReplayBuffer, saved: Rows) -> dict[str, Any]:
    """What of :func:`values` is put back. Arguments of a class of somebody's own are not in files of before."""
    optional = _own_arguments(buffer) - saved.values.keys()
    return {name: value for name, value in values(buffer).items() if name not in optional}


def _is_like(saved: Any, ours: Any) -> bool:
    try:
        array = np.asarray(saved)
    except ValueError:  # lists of different lengths
        return False
    return array.dtype.kind in "biuf" and array.shape == np.shape(ours) and bool(np.isfinite(array).all())


def _say(column: Column | None) -> str:
    return "not there" if column is None else f"{column.dtype} of shape {tuple(column.shape)}"


def volatile(buffer: ReplayBuffer) -> dict[str, np.ndarray]:
    """
    :param buffer: A replay buffer that is no pair
    :return: The filled rows of columns that change all the time
    """
    found = columns(buffer)
    return {name: found[name][: filled(buffer)] for name in getattr(buffer, "volatile", ())}


def write(name: str, buffer: ReplayBuffer, folder: Path, step: int, before: list[Block], new: list[Path]) -> list[Block]:
    """
    Write the blocks that are not as the checkpoint before has them.

    :param name: The replay buffer's
    :param buffer: The replay buffer, no pair
    :param folder: The folder of checkpoints
    :param step: The run's
    :param before: The blocks of the checkpoint before
    :param new: Gets the files that were written
    :return: The buffer's blocks
    """
    (folder / ROWS_FOLDER).mkdir(parents=True, exist_ok=True)
    known = {(block.first, block.rows, block.checksum): block for block in before}
    blocks = []
    for first, arrays in _cut(buffer):
        rows = len(next(iter(arrays.values())))
        value = checksum(arrays)
        block = known.get((first, rows, value))
        if block is None or not (folder / ROWS_FOLDER / block.file).exists():  # somebody may have deleted it
            # A name of its own: one of the same step may be in use by a checkpoint that a run went back behind.
            file = f"{name}_{step}_{uuid.uuid4().hex[:12]}.safetensors"
            new.append(folder / ROWS_FOLDER / file)
            write_whole(new[-1], pack(arrays))
            block = Block(file=file, first=first, rows=rows, checksum=value)
        blocks.append(block)
    flush(folder / ROWS_FOLDER)
    return blocks


def _cut(buffer: ReplayBuffer) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """:return: For each block its first row, and its part of each column that is not volatile"""
    fixed = {name: column for name, column in columns(buffer).items() if name not in getattr(buffer, "volatile", ())}
    row_bytes = max(sum(column[:1].nbytes for column in fixed.values()), 1)
    rows = max(BLOCK_BYTES, row_bytes * buffer.buffer_size // BLOCKS) // row_bytes + 1
    end = filled(buffer)
    for first in range(0, end, rows):
        yield first, {name: column[first : min(first + rows, end)] for name, column in fixed.items()}


def read_block(folder: Path, block: Block) -> dict[str, np.ndarray]:
    """
    :param folder: The folder of checkpoints
    :param block: A block
    :return: Its part of each column
    :raises DamagedError: If it is not what was written.
    """
    path = folder / ROWS_FOLDER / block.file
    try:
        arrays = unpack(read_regular(path), block.file)
    except FileNotFoundError as error:
        raise DamagedError(f"{block.file} is missing.") from error
    if checksum(arrays) != block.checksum:
        raise DamagedError(f"the checksum of {block.file} differs.")
    return arrays


def check_blocks(saved: Rows, folder: Path, elsewhere: set[str]) -> None:
    """
    :param saved: What the manifest says of a replay buffer
    :param folder: The folder of checkpoints
    :param elsewhere: The columns that are in no block
    :raises DamagedError: If a block is not what was written, or if they are not all of its rows.
    """
    end = 0
    if len({block.file for block in saved.blocks}) < len(saved.blocks):
        raise DamagedError("two blocks of rows are in one file")
    for block in saved.blocks:
        arrays = read_block(folder, block)
        if block.first != end:
            raise DamagedError(f"{block.file} begins at row {block.first}, not {end}.")
        end += block.rows
        check_columns(arrays, saved, block.rows, elsewhere, block.file)
    # Where memory usage is optimised, the next row has something in it too, see :func:`filled`.
    expected = [saved.size] if saved.full else [saved.pos, min(saved.pos + 1, saved.size)]
    if end not in expected:
        raise DamagedError(f"there are {end} rows of a replay buffer that has come to {saved.pos}.")


def check_columns(arrays: Arrays, saved: Rows, rows: int, elsewhere: set[str], what: str) -> None:
    """
    :param arrays: Rows of a replay buffer, by column
    :param saved: What the manifest says of it
    :param rows: How many there should be
    :param elsewhere: The columns that should not be here
    :param what: Where they stand, for the error
    :raises DamagedError: If they are others.
    """
    expected = {name: (column.dtype, (rows, saved.n_envs, *column.shape)) for name, column in saved.columns.items()}
    for name in {*arrays, *expected} - elsewhere:
        found = (str(arrays[name].dtype), arrays[name].shape) if name in arrays else "not there"
        if found != expected.get(name):
            raise DamagedError(f"{what}: {short(name)} is {found}, where {expected.get(name, 'nothing')} was expected.")


def load(buffer: ReplayBuffer, saved: Rows, arrays: Iterator[tuple[int, Arrays]]) -> None:
    """
    Fill a buffer that :func:`check` has found to fit.

    :param buffer: The replay buffer, no pair
    :param saved: What the manifest says
    :param arrays: First row and columns of each block
    """
    buffer.reset()
    ours = columns(buffer)
    if "ep_length" in ours:  # by which HER tells which rows to draw from, also behind the last one
        ours["ep_length"][:] = 0
    for first, block in arrays:
        for name, rows in block.items():
            ours[name][first : first + len(rows)] = rows
    buffer.pos, buffer.full = saved.pos, saved.full
    for name, value in _restored(buffer, saved).items():
        kept = saved.values[name]
        if isinstance(value, np.ndarray):
            value[...] = kept
        else:  # What began as 0 may have become 0.4.
            setattr(buffer, name, kept if type(value) is int and isinstance(kept, float) else type(value)(kept))
