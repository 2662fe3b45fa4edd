"""
Checkpoints: what an interrupted run needs to go on as if it had not been, in files that hold no code.

A folder of checkpoints has a file ``step_<n>.zip`` for each of the last few, and ``transitions/``, which they share::

    step_20000.zip      manifest.json: arguments, counters, random states, and which files hold the replay buffer
    step_30000.zip      state.pt: networks, optimisers and other tensors, read with ``weights_only=True``
    transitions/        *.npz, read with ``allow_pickle=False``: the rows that were added between two checkpoints

No file is ever changed: each is written under another name, flushed to the disk, then renamed. A file of transitions is
deleted when no checkpoint there names it, so the older checkpoint stays whole while the newer one is written, however far the
ring of the replay buffer has turned meanwhile. The manifest has size and SHA-256 of every other file.
"""

import contextlib
import hashlib
import io
import itertools
import json
import os
import random
import re
import uuid
import warnings
import zipfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from typing_extensions import Self

from sb3_cir.buffers import cut_off
from sb3_cir.checks import FailedEnvError
from sb3_cir.off_dynamics import OffDynamicsCallback, TwoDomainReplayBuffer
from sb3_cir.plain import from_plain, to_plain

if TYPE_CHECKING:
    from sb3_cir.callbacks import Checkpoint

FORMAT = 1
NAME = re.compile(r"step_(\d+)\.zip")
ROWS = re.compile(r"\.?(replay|source|target)_\d+_[0-9a-f]{12}\.npz(\.part)?")  # whole or half-written
TRANSITIONS = "transitions"
SEGMENT_BYTES = 64 * 2**20  # what one file of transitions has at most, roughly: it passes through memory whole

# What a replay buffer has one row of for each step, and what it has besides; one with more state than this is refused.
COLUMNS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "ep_start")
NOT_STATE = {"observation_space", "action_space", "obs_shape", "action_dim", "device", "n_envs", "buffer_size", "pos", "full"}
NOT_STATE |= {"optimize_memory_usage", "handle_timeout_termination", "n_steps", "gamma"}
NOT_STATE |= {"env", "copy_info_dict", "goal_selection_strategy", "n_sampled_goal", "her_ratio", "infos"}
NOT_STATE |= {"decay", "min_weight"}  # arguments of RecencyWeighted
NOT_STATE |= {"_on_device", "_n_new"}  # of DeviceReplayBuffer's: a copy of the columns
NOT_STATE |= {"ep_length", "_current_ep_start"}  # of HER's: the one follows from the columns, the other is in the manifest

# Of an optimiser's settings: how a step is computed is this machine's choice, not the checkpoint's.
OURS = ("lr", "foreach", "fused", "capturable", "differentiable")

# Attributes of callbacks that go on where they were, beside every callback's count of calls.
CALLBACKS: dict[type[BaseCallback], tuple[str, ...]] = {
    EvalCallback: (
        *("best_mean_reward", "last_mean_reward", "evaluations_timesteps", "evaluations_results"),
        *("evaluations_length", "evaluations_successes"),
    ),
    OffDynamicsCallback: ("target_steps", "_steps_owed", "evaluations"),
}


class Segment(NamedTuple):
    """
    Rows of a replay buffer in a file.

    :param file: Its name in ``transitions/``
    :param first: The first row's place in the ring
    :param rows: Number of rows; the ring is closed.
    :param size: Bytes
    :param sha256: Of the whole file
    """

    file: str
    first: int
    rows: int
    size: int
    sha256: str


class Written(NamedTuple):
    """
    A replay buffer as the newest checkpoint has it.

    :param buffer: The replay buffer
    :param pos: Its position then
    :param segments: Oldest first: where two have the same row, the later counts.
    """

    buffer: ReplayBuffer
    pos: int
    segments: list[Segment]


class Saved(NamedTuple):
    """
    The newest checkpoint, to which the next one adds.

    :param folder: The folder of checkpoints
    :param step: Its step
    :param buffers: The replay buffers by name
    """

    folder: Path
    step: int
    buffers: dict[str, Written]


class Stored(NamedTuple):
    """
    A checkpoint that was read and found whole.

    :param path: The ``.zip`` file
    :param manifest: See :func:`_manifest`
    :param tensors: See :func:`_tensors`
    """

    path: Path
    manifest: dict[str, Any]
    tensors: dict[str, Any]


class Resumable(OffPolicyAlgorithm):
    """What an off-policy algorithm needs to be resumed: a base class before the algorithm's own."""

    # Beside SB3's own; a subclass with others adds them.
    counters: ClassVar[tuple[str, ...]] = ("num_timesteps", "_n_updates", "_episode_num")
    # Arguments of a base class that a subclass's constructor does not take.
    fixed_arguments: ClassVar[tuple[str, ...]] = ()

    _resumed: Stored | None = None  # until its first rollout
    _saved: Saved | None = None
    _checkpoint: "Checkpoint | None" = None  # while it learns

    @classmethod
    def resume(cls, place: str | os.PathLike[str], env: GymEnv | str, device: th.device | str = "auto", **kwargs: Any) -> Self:
        """
        The model of an interrupted run, from the newest whole checkpoint of a :class:`~sb3_cir.callbacks.Checkpoint`.

        ``learn(total)`` then goes on to ``total`` steps, those made before included: call it as the interrupted run did. (Only
        ``reset_num_timesteps=False`` makes it so many steps more, as SB3 has it.) The episode under way is not restored: it
        counts as cut off, unless the environment's first observation is the one the run was interrupted at.

        :param place: The folder of checkpoints, or one of its ``.zip`` files, to go back to
        :param env: The environment to go on in, as many in number as there were; ``VecNormalize``, if there was one, takes
            its statistics from the checkpoint.
        :param device: Device to go on on
        :param kwargs: The constructor's arguments that are to differ, and those that no JSON can hold. An optimiser's
            own, such as its weight decay, stay the checkpoint's.
        :return: The model
        :raises FileNotFoundError: If there is no checkpoint that can be read.
        :raises ValueError: If an argument is missing, or if ``env`` or an argument does not fit the checkpoint.
        """
        stored = read(Path(place))
        _check_class(cls, stored)
        arguments = {name: value for name, value in stored.manifest["arguments"].items() if name not in kwargs}
        for name, value in arguments.items():
            try:
                arguments[name] = from_plain(value["value"])
            except (KeyError, ValueError) as error:
                reason = value.get("missing", error)
                raise ValueError(f"{name}: {reason}, so pass {name}=... to resume().") from error
        model = cls(env=env, device=device, **arguments, **kwargs)
        model._restore(stored)
        return model

    def restore(self, place: str | os.PathLike[str]) -> None:
        """
        As :meth:`resume`, into this model, whose arguments stay as they are.

        :param place: The folder of checkpoints, or one of its ``.zip`` files, to go back to
        :raises FileNotFoundError: If there is no checkpoint that can be read.
        :raises ValueError: If the model does not fit the checkpoint.
        """
        stored = read(Path(place))
        _check_class(type(self), stored)
        self._restore(stored)

    def _restore(self, stored: Stored) -> None:
        manifest, tensors = stored.manifest, stored.tensors
        _check_networks(self, tensors)
        normalizer = self.get_vec_normalize_env()
        if (normalizer is None) != ("normalization" not in tensors):
            wrapped, plain = ("the run's", "this model's") if normalizer is None else ("this model's", "the run's")
            raise ValueError(f"VecNormalize: {wrapped} environment was wrapped in it and {plain} is not.")
        if normalizer is not None:
            _set_statistics(normalizer, tensors["normalization"])
        buffers = _load_buffers(self, stored)
        _load_parameters(self, tensors)
        for name, value in manifest["counters"].items():
            setattr(self, name, value)
        self.ep_info_buffer = deque(manifest["episodes"], maxlen=self._stats_window_size)
        self.ep_success_buffer = deque(manifest["successes"], maxlen=self._stats_window_size)
        self._last_obs = None
        if self.seed is not None and self.env is not None:
            # Not the first episode of the run once more.
            self.env.seed((self.seed + self.num_timesteps) % 2**31)
        self._saved = Saved(stored.path.parent.resolve(), manifest["step"], buffers)
        self._resumed = stored

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "run",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """As SB3's; the first after :meth:`resume` goes on to ``total_timesteps`` in all."""
        if self._resumed is not None and reset_num_timesteps:
            total_timesteps, reset_num_timesteps = max(total_timesteps - self.num_timesteps, 0), False
        try:
            super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
            if self._checkpoint is not None:
                self._checkpoint.finish()
        finally:
            if self._checkpoint is not None:
                self._checkpoint.stop_listening()
                self._checkpoint = None
        return self

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, *args: Any, **kwargs: Any) -> RolloutReturn:
        """As SB3's. Before it, the last update is complete and each step's transition stored: the place for checkpoints."""
        if self._resumed is not None:
            _begin_anew(self, self._resumed, callback)
            self._resumed = None
        if self._checkpoint is not None:
            self._checkpoint.between_rollouts(callback)
        try:
            return super().collect_rollouts(env, callback, *args, **kwargs)
        except (EOFError, BrokenPipeError, ConnectionResetError, FailedEnvError):
            # Ctrl-C reaches the worker processes of environments too, and they are gone at the next step.
            if self._checkpoint is not None:
                self._checkpoint.workers_gone()
            raise

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_resumed", "_saved", "_checkpoint"]


# Writing


def replay_buffers(model: OffPolicyAlgorithm) -> dict[str, ReplayBuffer]:
    """
    :param model: A model
    :return: Its replay buffers, by name
    :raises ValueError: If there is more in one than a checkpoint holds.
    """
    buffer = model.replay_buffer
    assert buffer is not None
    pair = isinstance(buffer, TwoDomainReplayBuffer)
    buffers = {"source": buffer.source, "target": buffer.target} if pair else {"replay": buffer}  # type: ignore[attr-defined]
    for each in buffers.values():
        more = set(vars(each)) - NOT_STATE - set(COLUMNS)
        if more:
            names = ", ".join(sorted(more))
            raise ValueError(f"replay_buffer_class={type(each).__name__}: no checkpoint can hold its attributes {names}.")
        if getattr(each, "copy_info_dict", False):
            raise ValueError("copy_info_dict=True: no checkpoint can hold info dictionaries.")
    return buffers


def write(model: Resumable, folder: Path, keep: int, callback: BaseCallback) -> None:
    """
    Write a checkpoint, and delete those that are older than the last ``keep``.

    :param model: The model, between two rollouts
    :param folder: Where to; it exists.
    :param keep: How many to keep
    :param callback: The one that ``learn()`` was given, of which some have state
    :raises OSError: If it cannot be written. What was there is still there.
    """
    folder = folder.resolve()
    before = model._saved if model._saved is not None and model._saved.folder == folder else None
    path = folder / f"step_{model.num_timesteps}.zip"
    path.unlink(missing_ok=True)  # damaged, or of a future that the run went back behind
    new: list[Path] = []
    try:
        buffers = {
            name: _write_rows(name, buffer, model, folder, before, new) for name, buffer in replay_buffers(model).items()
        }
        state = io.BytesIO()
        th.save(_tensors(model), state)
        manifest = _manifest(model, buffers, callback) | {"sha256": hashlib.sha256(state.getbuffer()).hexdigest()}
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as opened:
            opened.writestr("manifest.json", json.dumps(manifest))
            opened.writestr("state.pt", state.getbuffer())
        write_whole(path, archive.getbuffer())
    except BaseException:
        if path.exists():  # with its name it is whole
            model._saved = Saved(folder, model.num_timesteps, buffers)
        else:
            for each in new:
                each.unlink(missing_ok=True)
        raise
    model._saved = Saved(folder, model.num_timesteps, buffers)
    with contextlib.suppress(OSError):
        _clean(folder, model.num_timesteps, None if before is None else before.step, keep)


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """
    Write a file that is either there and whole or not there, also after the power fails.

    :param path: The file
    :param content: What is to be in it
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_rows(
    name: str, buffer: ReplayBuffer, model: Resumable, folder: Path, before: Saved | None, new: list[Path]
) -> Written:
    """
    Write the rows that were added since the checkpoint before, or all of them where there is none to add to.

    :param name: The replay buffer's
    :param buffer: The replay buffer
    :param model: The model
    :param folder: The folder of checkpoints
    :param before: The checkpoint before, in this folder
    :param new: Gets the files that were written
    :return: The replay buffer as this checkpoint has it
    """
    size, segments = buffer.buffer_size, []
    last = None if before is None or before.buffers[name].buffer is not buffer else before.buffers[name]
    if last is not None and not all((folder / TRANSITIONS / segment.file).exists() for segment in last.segments):
        last = None  # somebody has deleted them
    # More than this cannot have been added: each step of all environments adds a row, of the target at most one.
    if last is not None and before is not None and (model.num_timesteps - before.step) // buffer.n_envs + 2 < size:
        added = (buffer.pos - last.pos) % size
        if added == 0:
            return last
        # The row before, which resuming marks where it cut an episode off; and the next, which has the last one's next
        # observation where memory usage is optimised.
        first, rows = (last.pos - 1) % size, added + 2
        segments = list(last.segments)
    else:
        first, rows = (buffer.pos, size) if buffer.full else (0, min(buffer.pos + 1, size))
    columns = _columns(buffer)
    row_bytes = sum(column[:1].nbytes for column in columns.values())
    most = max(SEGMENT_BYTES // row_bytes, 1)
    (folder / TRANSITIONS).mkdir(exist_ok=True)
    for begin in range(first, first + rows, most):
        n = min(most, first + rows - begin)
        index = np.arange(begin, begin + n) % size
        content = io.BytesIO()
        np.savez(content, **{key: column[index] for key, column in columns.items()})  # type: ignore[arg-type]
        data = content.getbuffer()
        # A name of its own: one of the same step may be in use by a checkpoint that a run went back behind.
        path = folder / TRANSITIONS / f"{name}_{model.num_timesteps}_{uuid.uuid4().hex[:12]}.npz"
        new.append(path)
        write_whole(path, data)
        segments.append(Segment(path.name, begin % size, n, len(data), hashlib.sha256(data).hexdigest()))
    # Each has two rows of its neighbours. Those behind a whole turn of the ring are overwritten.
    needed, turned = [], 0
    for segment in reversed(segments):
        if turned < size:
            needed.append(segment)
        turned += max(segment.rows - 2, 0)
    return Written(buffer, buffer.pos, needed[::-1])


def _columns(buffer: ReplayBuffer) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    for name in COLUMNS:
        value = getattr(buffer, name, None)
        if isinstance(value, dict):
            columns |= {f"{name}/{key}": column for key, column in value.items()}
        elif value is not None:
            columns[name] = value
    return columns


def _clean(folder: Path, newest: int, before: int | None, keep: int) -> None:
    """
    Delete what is not needed, and nothing that no checkpoint made: older checkpoints, those that are damaged or of a future
    that the run went back behind, files left half-written.

    :param folder: The folder of checkpoints
    :param newest: Step of the newest one
    :param before: Step of the one that it adds to
    :param keep: How many to keep
    """
    kept, used = 0, set()
    for step, path in checkpoints(folder):
        of_this_run = step == newest or (before is not None and step <= before)
        files = _files(path) if of_this_run and kept < keep else None
        if files is None:
            path.unlink()
        else:
            kept += 1
            used |= files
    for path in (folder / TRANSITIONS).iterdir():
        if path.name not in used and ROWS.fullmatch(path.name):
            path.unlink()
    for path in folder.glob(".step_*.part"):
        path.unlink()


def _files(path: Path) -> set[str] | None:
    """The names of a checkpoint's files of transitions, None if it is damaged."""
    with contextlib.suppress(Exception):  # a damaged archive can fail in any way
        return {segment[0] for buffer in _read_manifest(path)["buffers"].values() for segment in buffer["segments"]}
    return None


def _manifest(model: Resumable, buffers: dict[str, Written], callback: BaseCallback) -> dict[str, Any]:
    generator = np.random.get_state(legacy=False)
    assert isinstance(generator, dict)
    assert model.ep_info_buffer is not None
    assert model.ep_success_buffer is not None
    return {
        "format": FORMAT,
        "class": type(model).__name__,
        "step": model.num_timesteps,
        "arguments": _arguments(model),
        "counters": {name: getattr(model, name) for name in model.counters},
        "episodes": [{key: float(each[key]) for key in ("r", "l", "t") if key in each} for each in model.ep_info_buffer],
        "successes": [float(success) for success in model.ep_success_buffer],
        "random": {
            "python": random.getstate(),
            "numpy": generator | {"state": {"key": generator["state"]["key"].tolist(), "pos": generator["state"]["pos"]}},
            "action_space": model.action_space.np_random.bit_generator.state,
        },
        "buffers": {
            name: {
                "size": written.buffer.buffer_size,
                "n_envs": written.buffer.n_envs,
                "pos": written.pos,
                "full": written.buffer.full,
                "episode_starts": getattr(written.buffer, "_current_ep_start", np.zeros(0)).tolist(),
                "columns": {key: [str(column.dtype), column.shape[1:]] for key, column in _columns(written.buffer).items()},
                "segments": written.segments,
            }
            for name, written in buffers.items()
        },
        "callbacks": _callback_states(callback),
    }


def _tensors(model: Resumable) -> dict[str, Any]:
    variables = {name: recursive_getattr(model, name).detach() for name in model._get_torch_save_params()[1]}
    normalizer = model.get_vec_normalize_env()
    observation = _original_observation(model)
    tensors = {
        "parameters": model.get_parameters(),
        "variables": variables,
        "random": th.get_rng_state(),
        "random_cuda": th.cuda.get_rng_state_all() if th.cuda.is_available() else [],
        "noise": [th.as_tensor(noise.noise_prev) for noise in _noises(model)],
        "observation": {key: th.as_tensor(value) for key, value in _named(observation).items()},
    }
    if normalizer is not None:
        assert model._last_obs is not None
        tensors["normalization"] = {
            "statistics": {
                name: {"mean": th.as_tensor(each.mean), "var": th.as_tensor(each.var), "count": float(each.count)}
                for name, each in _statistics(normalizer).items()
            },
            "returns": th.as_tensor(normalizer.returns),
            "normalized": {key: th.as_tensor(value) for key, value in _named(model._last_obs).items()},
        }
    return tensors


def _arguments(model: Resumable) -> dict[str, Any]:
    """The constructor's arguments: SB3 keeps each as the attribute of its name, but for these."""
    names = dict.fromkeys(name for kind in type(model).__mro__ for name in _parameters(kind))
    attributes = {"policy": "policy_class", "stats_window_size": "_stats_window_size"}
    not_kept = {"self", "env", "device", "_init_setup_model", *model.fixed_arguments}
    changed: dict[str, Any] = {}
    if _makes_n_step_buffer(model):
        not_kept.add("replay_buffer_class")
        # SB3 adds these two itself.
        kwargs = {name: value for name, value in model.replay_buffer_kwargs.items() if name not in ("n_steps", "gamma")}
        changed["replay_buffer_kwargs"] = kwargs
    arguments = {}
    for name in names:
        attribute = attributes.get(name, name)
        if name in not_kept or attribute not in vars(model):
            continue
        try:
            arguments[name] = {"value": to_plain(changed.get(name, getattr(model, attribute)))}
        except TypeError as error:
            arguments[name] = {"missing": str(error)}
    return arguments


def _parameters(kind: type) -> list[str]:
    init = vars(kind).get("__init__")
    # Those above an algorithm have arguments that it does not take.
    if init is None or not issubclass(kind, OffPolicyAlgorithm) or kind in (OffPolicyAlgorithm, Resumable):
        return []
    return list(init.__code__.co_varnames[: init.__code__.co_argcount + init.__code__.co_kwonlyargcount])


def _makes_n_step_buffer(model: Resumable) -> bool:
    """Whether SB3 itself chose the class of the replay buffer for ``n_steps``, and would warn if it were passed both."""
    return model.n_steps > 1 and model.replay_buffer_kwargs.get("n_steps") == model.n_steps


def _callback_states(callback: BaseCallback) -> dict[str, list[dict[str, Any]]]:
    states: dict[str, list[dict[str, Any]]] = {}
    for each in _tree(callback):
        names = [name for kind, names in CALLBACKS.items() if isinstance(each, kind) for name in names]
        state = {name: _as_lists(getattr(each, name)) for name in ["n_calls", *names]}
        states.setdefault(type(each).__name__, []).append(state)
    return states


def _as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_lists(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_lists(entry) for entry in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _tree(callback: BaseCallback) -> Iterator[BaseCallback]:
    yield callback
    for child in [*getattr(callback, "callbacks", []), getattr(callback, "callback", None)]:
        if isinstance(child, BaseCallback):
            yield from _tree(child)


# Reading


class DamagedError(Exception):
    """A checkpoint that is not as it was written."""


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """
    :param folder: A folder of checkpoints
    :return: Step and file of each, the newest first, looked at by name alone
    """
    found = [(NAME.fullmatch(path.name), path) for path in folder.glob("step_*.zip")]
    return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)


def is_checkpoint(path: Path) -> bool:
    """
    :param path: A file
    :return: Whether it is a checkpoint by its name and place; whether it is whole, only :func:`read` knows.
    """
    return NAME.fullmatch(path.name) is not None and (path.parent / TRANSITIONS).is_dir()


def read(place: Path) -> Stored:
    """
    Read the newest checkpoint that is whole. A warning says why another was passed over.

    :param place: The folder of checkpoints, or one of its ``.zip`` files, to go back to
    :return: The checkpoint
    :raises FileNotFoundError: If there is none.
    """
    match = NAME.fullmatch(place.name)
    if match and not place.exists():
        there = ", ".join(str(step) for step, _ in checkpoints(place.parent)) or "none"
        raise FileNotFoundError(f"{place}: there is no such checkpoint (steps in this folder: {there}).")
    folder, newest = (place.parent, int(match[1])) if match else (place, None)
    for step, path in checkpoints(folder):
        if newest is not None and step > newest:
            continue
        try:
            return _read_whole(path)
        except DamagedError as problem:
            warnings.warn(f"{path} is damaged ({problem}): going back to the checkpoint before it.", stacklevel=2)
    raise FileNotFoundError(f"{place}: there is no checkpoint that can be read.")


def _read_whole(path: Path) -> Stored:
    # A damaged archive can fail in any way, from a wrong checksum to a compression that nobody knows.
    try:
        manifest = _read_manifest(path)
        with zipfile.ZipFile(path) as archive:
            state = archive.read("state.pt")
    except Exception as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from error
    if manifest["format"] != FORMAT:
        raise ValueError(f"{path}: its format is {manifest['format']}, this version reads {FORMAT}.")
    if hashlib.sha256(state).hexdigest() != manifest["sha256"]:
        raise DamagedError("the checksum of its tensors differs")
    for buffer in manifest["buffers"].values():
        for segment in (Segment(*each) for each in buffer["segments"]):
            file = path.parent / TRANSITIONS / segment.file
            try:
                if file.stat().st_size != segment.size:
                    raise DamagedError(f"{file.name} has {file.stat().st_size} bytes, not {segment.size}")
                if hashlib.sha256(file.read_bytes()).hexdigest() != segment.sha256:
                    raise DamagedError(f"the checksum of {file.name} differs")
            except OSError as error:
                raise DamagedError(f"{file.name}: {error.strerror}") from error
    return Stored(path, manifest, th.load(io.BytesIO(state), map_location="cpu", weights_only=True))


def _read_manifest(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        manifest: dict[str, Any] = json.loads(archive.read("manifest.json"))
    return manifest


def _check_class(cls: type, stored: Stored) -> None:
    if stored.manifest["class"] != cls.__name__:
        raise ValueError(f"{stored.path} is of a {stored.manifest['class']}, not of a {cls.__name__}.")


def _check_networks(model: Resumable, tensors: dict[str, Any]) -> None:
    if tensors["variables"].keys() != set(model._get_torch_save_params()[1]):
        kind = "learned" if "log_ent_coef" in tensors["variables"] else "fixed"
        raise ValueError(f"ent_coef={getattr(model, 'ent_coef', None)!r}: the temperature of the run to resume was {kind}.")
    shapes, before = (
        {name: tuple(value.shape) for name, value in parameters.items()}
        for parameters in (model.policy.state_dict(), tensors["parameters"]["policy"])
    )
    for name in dict.fromkeys([*before, *shapes]):
        was, is_now = (each.get(name, "not there") for each in (before, shapes))
        if was != is_now:
            raise ValueError(
                f"policy_kwargs, or the environment, are not those of the run to resume: {name} was {was} and is {is_now}."
            )


def _load_parameters(model: Resumable, tensors: dict[str, Any]) -> None:
    """In place: what holds on to a parameter, such as an optimiser or a compiled update, must go on seeing it."""
    groups = [
        group
        for each in (recursive_getattr(model, name) for name in tensors["parameters"])
        if isinstance(each, th.optim.Optimizer)
        for group in each.param_groups
    ]
    ours = [{key: group[key] for key in OURS if key in group} for group in groups]
    model.set_parameters(tensors["parameters"])
    for group, kept in zip(groups, ours, strict=True):
        if isinstance(kept["lr"], th.Tensor):
            kept["lr"].fill_(group["lr"])
        else:
            kept["lr"] = float(group["lr"])
        group.update(kept)
    with th.no_grad():
        for name, value in tensors["variables"].items():
            if name != "ent_coef_tensor":  # a fixed temperature is an argument
                recursive_getattr(model, name).copy_(value)


def _load_buffers(model: Resumable, stored: Stored) -> dict[str, Written]:
    buffers, loaded = replay_buffers(model), {}
    if buffers.keys() != stored.manifest["buffers"].keys():
        raise ValueError(
            f"replay_buffer_class: the run's had {', '.join(stored.manifest['buffers'])}, not {', '.join(buffers)}."
        )
    for name, buffer in buffers.items():
        saved, columns = stored.manifest["buffers"][name], _columns(buffer)
        for what, was, is_now in (
            ("n_envs", saved["n_envs"], buffer.n_envs),
            ("buffer_size", saved["size"] * saved["n_envs"], buffer.buffer_size * buffer.n_envs),
        ):
            if was != is_now:
                raise ValueError(f"{what}={is_now}: it was {was} in the run to resume.")
        ours = {key: [str(column.dtype), list(column.shape[1:])] for key, column in columns.items()}
        if ours != saved["columns"]:
            key = next(key for key in [*saved["columns"], *ours] if saved["columns"].get(key) != ours.get(key))
            before, now = (each.get(key, "not there") for each in (saved["columns"], ours))
            raise ValueError(f"The replay buffer's {key} were {before} in the run to resume and are {now}.")
    for name, buffer in buffers.items():
        saved, columns = stored.manifest["buffers"][name], _columns(buffer)
        segments = [Segment(*each) for each in saved["segments"]]
        buffer.reset()
        for segment in segments:
            rows = np.arange(segment.first, segment.first + segment.rows) % buffer.buffer_size
            with np.load(stored.path.parent / TRANSITIONS / segment.file, allow_pickle=False) as arrays:
                for key, column in columns.items():
                    column[rows] = arrays[key]
        buffer.pos, buffer.full = saved["pos"], saved["full"]
        if isinstance(buffer, HerReplayBuffer):
            buffer._current_ep_start[:] = saved["episode_starts"]
            _find_episodes(buffer)
        loaded[name] = Written(buffer, buffer.pos, segments)
    return loaded


def _find_episodes(buffer: HerReplayBuffer) -> None:
    """HER's length of each row's episode, from where episodes start and end; 0 where one goes on or lacks its start."""
    order = np.arange(buffer.size())
    if buffer.full:
        order = (order + buffer.pos) % buffer.buffer_size
    buffer.ep_length[:] = 0
    for env in range(buffer.n_envs):
        starts, ended = buffer.ep_start[order, env], buffer.dones[order, env] > 0
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (starts[1:] != starts[:-1]) | ended[:-1]
        bounds = [*np.flatnonzero(begins), len(order)]
        for begin, end in itertools.pairwise(bounds):
            if order[begin] == starts[begin] and ended[end - 1]:
                buffer.ep_length[order[begin:end], env] = end - begin


# Going on


def _begin_anew(model: Resumable, stored: Stored, callback: BaseCallback) -> None:
    """What can be put back only now that the environment is reset and the callbacks are ready."""
    tensors, manifest = stored.tensors, stored.manifest
    callbacks = list(_tree(callback))
    observation, was = _named(_original_observation(model)), tensors["observation"]
    # The environments that go on where the run was interrupted.
    same = np.array([all(np.array_equal(observation[key][i], was[key][i]) for key in was) for i in range(model.n_envs)])
    for name, buffer in replay_buffers(model).items():
        if name == "target":
            stepping = next((each for each in callbacks if isinstance(each, OffDynamicsCallback)), None)
            cut_off(buffer, np.array([stepping is not None and _goes_on(buffer, stepping._last_obs)]))
        else:
            cut_off(buffer, same)
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        normalization = tensors["normalization"]
        normalizer.returns[same] = normalization["returns"].numpy()[same]
        if same.all():
            # The first observation is in the statistics already.
            returns = normalizer.returns
            _set_statistics(normalizer, normalization)
            normalizer.returns = returns
            last = {key: value.numpy().copy() for key, value in normalization["normalized"].items()}
            model._last_obs = last if isinstance(model._last_obs, dict) else last[""]
    for noise, previous in zip(_noises(model), tensors["noise"], strict=True):
        noise.noise_prev = previous.numpy().copy()
    counts: dict[str, int] = {}
    for each in callbacks:
        name = type(each).__name__
        states, index = manifest["callbacks"].get(name, []), counts.get(name, 0)
        counts[name] = index + 1
        if index < len(states):
            vars(each).update(states[index])
    _set_random_states(model, manifest["random"], tensors)


def _set_random_states(model: Resumable, states: dict[str, Any], tensors: dict[str, Any]) -> None:
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    generator = states["numpy"]
    np.random.set_state(generator | {"state": {**generator["state"], "key": np.array(generator["state"]["key"], np.uint32)}})
    model.action_space.np_random.bit_generator.state = states["action_space"]
    th.set_rng_state(tensors["random"])
    if th.cuda.is_available() and len(tensors["random_cuda"]) == th.cuda.device_count():
        th.cuda.set_rng_state_all(tensors["random_cuda"])


def _goes_on(buffer: ReplayBuffer, observation: Any) -> bool:
    """Whether an observation is the one that the newest transition of the single environment led to."""
    following = {key: value[buffer.pos - 1] for key, value in _named(buffer.next_observations).items()}
    return all(
        np.array_equal(np.reshape(value, following[key].shape), following[key]) for key, value in _named(observation).items()
    )


def _original_observation(model: Resumable) -> Any:
    return model._last_obs if model.get_vec_normalize_env() is None else model._last_original_obs


def _named(value: Any) -> dict[str, np.ndarray]:
    return value if isinstance(value, dict) else {"": value}


def _noises(model: Resumable) -> list[Any]:
    noise = model.action_noise
    noises = noise.noises if isinstance(noise, VectorizedActionNoise) else [noise]
    # Ornstein-Uhlenbeck's alone has a state.
    return [each for each in noises if hasattr(each, "noise_prev")]


def _statistics(normalizer: VecNormalize) -> dict[str, RunningMeanStd]:
    observations = getattr(normalizer, "obs_rms", {})
    named = observations if isinstance(observations, dict) else {"": observations}
    return {"rewards": normalizer.ret_rms} | {f"observations/{key}": each for key, each in named.items()}


def _set_statistics(normalizer: VecNormalize, normalization: dict[str, Any]) -> None:
    statistics = _statistics(normalizer)
    if statistics.keys() != normalization["statistics"].keys():
        raise ValueError(f"VecNormalize has {list(statistics)} here and had {list(normalization['statistics'])}.")
    for name, each in statistics.items():
        saved = normalization["statistics"][name]
        each.mean, each.var, each.count = saved["mean"].numpy().copy(), saved["var"].numpy().copy(), saved["count"]
