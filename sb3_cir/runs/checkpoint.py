"""
Checkpoints: what an interrupted run needs to go on as if it had not been, in files that hold no code.

A folder of checkpoints has a file ``step_<n>.zip`` for each of the last few, and ``transitions/``, which they share::

    step_20000.zip      manifest.json: arguments, counters, random states, and which files hold the replay buffer
    step_30000.zip      arrays.safetensors: networks, optimisers and other arrays
    transitions/        blocks of rows of the replay buffer, see ``rows.py``

No file is ever changed: each is written under another name, flushed to the disk, then renamed. A file of rows is deleted when
no checkpoint there names it, so the older checkpoint stays whole while the newer one is written. Each checkpoint carries its
run and its step, so that one which lies in the wrong place is noticed.
"""

import contextlib
import os
import uuid
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_cir.runs import arguments, files, normalization, parameters, randomness, results, rows, state
from sb3_cir.runs.files import DamagedError
from sb3_cir.runs.plain import Block, Checkpoint, NormalizerSettings, to_plain, validate
from sb3_cir.runs.state import Stored
from sb3_cir.words import short

FORMAT = 2
MANIFEST, ARRAYS = "manifest.json", "arrays.safetensors"


@dataclass(frozen=True)
class Saved:
    """
    The newest checkpoint of a run, to which the next one adds.

    :param folder: The folder of checkpoints
    :param run: The run
    :param step: The checkpoint's
    :param blocks: Of each replay buffer
    """

    folder: Path
    run: str
    step: int
    blocks: dict[str, list[Block]]


def write(model: OffPolicyAlgorithm, folder: Path, keep: int, callback: BaseCallback, before: Saved | None) -> Saved:
    """
    Write a checkpoint, and delete those that are older than the last ``keep``.

    :param model: The model, between two rollouts
    :param folder: Where to; made if it is not there
    :param keep: How many to keep
    :param callback: The one that ``learn()`` was given, of which some have state
    :param before: The run's checkpoint before, None where there is none
    :return: What the next one adds to
    :raises OSError: If it cannot be written. What was there is still there.
    :raises DamagedError: If what callbacks keep is too much to be read again; likewise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = uuid.uuid4().hex if before is None else before.run
    known = before.blocks if before is not None and before.folder == folder else {}
    new: list[Path] = []
    place = folder / f"step_{model.num_timesteps}.zip"
    try:
        blocks = {
            name: rows.write(name, buffer, folder, model.num_timesteps, known.get(name, []), new)
            for name, buffer in rows.parts_of(model).items()
        }
        manifest = _manifest(model, run, blocks, callback).model_dump_json().encode()
        files.read_json(manifest, MANIFEST)  # one that is too long to be read would take the place of one that is not
        members = {MANIFEST: manifest, ARRAYS: files.pack(state.take_arrays(model))}
        files.write_whole(place, files.pack_archive(members).getbuffer())
    except BaseException:
        for each in [] if place.exists() else new:  # Ctrl-C may come when it is done
            with contextlib.suppress(OSError):
                each.unlink(missing_ok=True)
        raise
    saved = Saved(folder, run, int(model.num_timesteps), blocks)
    with contextlib.suppress(OSError):
        # Nothing older is deleted before this one is sure to be there.
        files.flush(folder)
        _clean(saved, None if before is None else before.step, keep)
    return saved


def _manifest(model: OffPolicyAlgorithm, run: str, blocks: dict[str, list[Block]], callback: BaseCallback) -> Checkpoint:
    return Checkpoint(
        **describe_model(model),
        run=run,
        step=int(model.num_timesteps),
        episodes=state.take_episodes(model),
        successes=state.take_successes(model),
        random=randomness.take(model),
        buffers={name: rows.describe(buffer, blocks[name]) for name, buffer in rows.parts_of(model).items()},
        callbacks=results.take(callback),
        log=_log_folder(model),
    )


def _log_folder(model: OffPolicyAlgorithm) -> str | None:
    if model.tensorboard_log is None or model._custom_logger or (folder := model.logger.get_dir()) is None:
        return None
    return Path(os.path.relpath(folder, model.tensorboard_log)).as_posix()


def describe_model(model: OffPolicyAlgorithm) -> dict[str, Any]:
    """
    :param model: A model
    :return: What the manifest of a saved model says of it, see :class:`~sb3_cir.runs.plain.Model`
    """
    return dict(
        format=FORMAT,
        algorithm=type(model).__name__,
        arguments=arguments.take(model),
        spaces={name: to_plain(getattr(model, name)) for name in ("observation_space", "action_space")},
        n_envs=int(model.n_envs),
        counters=state.take_counters(model),
        learning_rates=parameters.learning_rates(model),
        # A model that was loaded without an environment is of the one that it learned in.
        normalization=getattr(model, "_normalization", None) if model.env is None else _settings_of_normalizer(model),
    )


def _settings_of_normalizer(model: OffPolicyAlgorithm) -> NormalizerSettings | None:
    normalizer = model.get_vec_normalize_env()
    return None if normalizer is None else normalization.plain_settings(normalizer)


def _clean(saved: Saved, before: int | None, keep: int) -> None:
    """
    Delete what is not needed: older checkpoints of this run, those of it that are damaged or of a future that it went back
    behind, and files left half-written. What is another's, or cannot be read just now, is not judged and stays.

    :param saved: The newest checkpoint
    :param before: The step of the one that it adds to: what lies between the two is of a future that was left
    :param keep: How many to keep
    """
    # The newest is known: it was written just now.
    kept, unknown = 1, False
    used = {block.file for blocks in saved.blocks.values() for block in blocks}
    for step, path in files.checkpoints(saved.folder):
        if step == saved.step:
            continue
        try:
            manifest, _ = _open(path)
        except DamagedError:
            if not _is_whole(path):
                path.unlink()
            continue
        except (OSError, FormatError):
            unknown = True
            continue
        ours = manifest.run == saved.run
        left = before is None or step > before
        if ours and (left or kept >= keep):
            path.unlink()
            continue
        kept += ours
        used |= {block.file for buffer in manifest.buffers.values() for block in buffer.blocks}
    if not unknown:  # whose rows they may be
        for path in (saved.folder / files.ROWS_FOLDER).iterdir():
            if path.name not in used and files.ROWS.fullmatch(path.name):
                path.unlink()
    for path in (*saved.folder.iterdir(), *(saved.folder / files.ROWS_FOLDER).iterdir()):
        if files.PART.fullmatch(path.name):
            path.unlink()


def _is_whole(path: Path) -> bool:
    """Whether an archive that is no checkpoint is somebody's own, such as a saved model."""
    try:
        members = files.unpack_archive(files.read_regular(path), path.name)
    except DamagedError:
        return False
    return MANIFEST not in members or "data" in members  # which a saved model has


def read(place: Path) -> Stored:
    """
    Read the newest checkpoint that is whole. A warning says why another was passed over.

    :param place: The folder of checkpoints, or one of its ``.zip`` files, to go back to
    :return: The checkpoint
    :raises FileNotFoundError: If there is none.
    :raises ValueError: If the place is something else, if there are checkpoints of two runs, or if one is of another format.
    :raises OSError: If the newest one cannot be read, which does not say that it is damaged.
    """
    folder, newest = _find(place)
    there = [(step, path) for step, path in files.checkpoints(folder) if newest is None or step <= newest]
    found: Stored | None = None
    for _, path in there:
        try:
            if found is None:
                found = _read_whole(path)
            elif newest is None and (other := _open(path)[0]).run != found.manifest.run:
                raise ValueError(
                    f"{folder}: {found.path.name} and {path.name} are of two runs ({found.manifest.run[:8]}, "
                    f"{other.run[:8]}): name the file to go on from."
                )
        except DamagedError as problem:
            if found is None:
                warnings.warn(f"{path} is damaged ({problem}): going back to the checkpoint before it.", stacklevel=2)
        except OSError as error:
            if found is None:
                raise type(error)(
                    error.errno, f"{error.strerror}: it cannot be read, so whether it is whole is not known", str(path)
                ) from error
    if found is None:
        message = f"{place}: there is no checkpoint that can be read"
        if len(there) < len(files.checkpoints(folder)):
            message += ", newer ones are there"
        elif there:
            names = ", ".join(path.name for _, path in there)
            message += f" (damaged: {names}; moved out of the folder, the run can begin anew)"
        raise FileNotFoundError(f"{message}.")
    return found


def _find(place: Path) -> tuple[Path, int | None]:
    """:return: The folder of checkpoints, and the step to go back to if there is one"""
    match = files.CHECKPOINT.fullmatch(place.name)
    if match is None:
        if place.is_file():
            raise ValueError(f"{place} is no checkpoint: a model that was saved is loaded by load(), not resumed.")
        return place, None
    if not place.exists():
        there = ", ".join(str(step) for step, _ in files.checkpoints(place.parent)) or "none"
        raise FileNotFoundError(f"{place}: there is no such checkpoint (steps in this folder: {there}).")
    return place.parent, int(match[1])


def _open(path: Path) -> tuple[Checkpoint, dict[str, bytes]]:
    """:return: The manifest, and the archive's members"""
    members = files.unpack_archive(files.read_regular(path), path.name)
    files.require(members, [MANIFEST], path.name)
    said = files.read_json(members[MANIFEST], f"{path.name}: {MANIFEST}")
    if said.get("format") == 1:
        raise FormatError(f"{path}: version 0.1 wrote it; this version cannot resume it, finish the run with 0.1.")
    manifest = validate(Checkpoint, said, f"{path.name}: {MANIFEST}")
    match = files.CHECKPOINT.fullmatch(path.name)
    if match is not None and not int(match[1]) == manifest.step == manifest.counters.get("num_timesteps"):
        raise DamagedError(f"it is of step {manifest.step}, which is not its name")
    results.check(manifest.callbacks, path.name)
    return manifest, members


def saved(stored: Stored) -> Saved:
    """
    :param stored: A checkpoint that a run goes on from
    :return: The same, for the next one to add to
    """
    manifest = stored.manifest
    blocks = {name: buffer.blocks for name, buffer in manifest.buffers.items()}
    return Saved(stored.path.parent.resolve(), manifest.run, manifest.step, blocks)


class FormatError(ValueError):
    """A checkpoint that another version wrote."""


def _read_whole(path: Path) -> Stored:
    manifest, members = _open(path)
    files.require(members, [ARRAYS], path.name)
    arrays = files.unpack(members[ARRAYS], ARRAYS)
    randomness.check(manifest.random, arrays, path.name)
    for name, saved in manifest.buffers.items():
        elsewhere = state.elsewhere_of(arrays, name)
        rows.check_blocks(saved, path.parent, elsewhere)
    return Stored(path, manifest, arrays)


def check_class(kind: type, algorithm: str, what: str) -> None:
    """
    :param kind: The class that is to be made
    :param algorithm: The name of the class that was saved
    :param what: Where it stands, for the error
    :raises ValueError: If they are two. Sharing a base class is not being the same algorithm; only somebody's own subclass, of
        which we know nothing, may take what its base class saved.
    """
    own = not kind.__module__.startswith(("sb3_cir.", "stable_baselines3.", "sb3_contrib."))
    if algorithm != kind.__name__ and not (own and algorithm in [each.__name__ for each in kind.__mro__]):
        raise ValueError(f"{what} is of a {short(algorithm)}, not of a {kind.__name__}.")
