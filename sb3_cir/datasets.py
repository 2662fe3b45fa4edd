"""
Transitions that somebody recorded, into the replay buffer of a model that is to learn from them::

    model = CIR("MlpPolicy", env)
    datasets.fill(model, "episodes/")                      # a folder of .npz files, one episode each
    datasets.fill(model, "mujoco/pusher/expert-v0")        # a Minari dataset (the minari extra)
    model.learn(1e5)

An episode of T steps has

- ``observations``, ``(T + 1, ...)``: the last one is what the last step led to. Dict observations are one array for each
  entry, ``observations/<name>``. Images may have their channels last, as environments give them, or first;
- ``actions``, ``(T, ...)``, in the environment's own units;
- ``rewards``, ``terminations`` and ``truncations``, ``(T,)``. Only the last step may be either: a termination is the task's
  own end, after which nothing is earned, a truncation is a time limit's, after which more would have been.

:class:`~sb3_cir.buffers.SymmetricReplayBuffer` keeps recorded transitions apart, and half of each batch is of them.
"""

import copy
import importlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecTransposeImage
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_cir.buffers import DeviceReplayBuffer, cut_off
from sb3_cir.extras import install_hint
from sb3_cir.runs import rows
from sb3_cir.runs.watch import LARGEST, TAKES
from sb3_cir.words import short

COLUMNS = ("actions", "rewards", "terminations", "truncations")
# How far observations may leave the bounds of their space, as a share of its range: a little they often do.
BEYOND_BOUNDS = 0.1
# Columns of replay buffers in which an episode's end is marked, in transitions before it too
ENDS = ("dones", "timeouts", "ep_start", "ep_length")


@dataclass(frozen=True)
class Episode:
    """
    One recorded episode of T steps, see the module.

    :param what: Where it is from, for errors
    :param observations: ``(T + 1, ...)`` by name; one that has no names is called ``observations``
    :param columns: Actions, rewards, terminations and truncations, ``(T, ...)`` each
    """

    what: str
    observations: dict[str, np.ndarray]
    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(np.atleast_1d(self.columns["rewards"]))


def fill(model: OffPolicyAlgorithm, source: Any, part: str | None = None) -> int:
    """
    Add recorded transitions to a model's replay buffer: to its ``offline`` part if it has one. Where it has a column for each
    of several environments, episodes are dealt to them, and what would stand in one column alone is left out, with a warning.

    A model that was resumed has the recorded transitions already, of which a warning reminds.

    :param model: A model; its ``learning_starts`` counts its own steps alone.
    :param source: A folder of ``.npz`` episodes; or the id of a Minari dataset on this machine, its folder, or the dataset
    :param part: Of a replay buffer of two domains, "source" or "target": which of them was recorded
    :return: How many transitions were added. All are checked before the first one is: nothing of a failed call stays.
    :raises ValueError: If spaces differ or actions are no Box, if an episode is damaged or has numbers that the buffer cannot
        hold, if there is no room, or if the buffer keeps what no episode has.
    :raises FileNotFoundError: If there is neither such a folder nor such a dataset.
    :raises ImportError: If a Minari dataset is asked for and Minari is not installed.
    """
    buffer = _checked_buffer(model, part)
    read = _read_folder(Path(source)) if _is_folder(source) else _read_minari(source, model)
    episodes = [_channels_first(episode, model) for episode in read]
    for episode in episodes:
        _check(episode, model)
    _warn_of_bounds(episodes, model)
    dealt, count = _dealt(episodes, buffer.n_envs)
    room = buffer.buffer_size - buffer.size()
    if count == 0:
        raise ValueError(f"{short(str(source))} has too few episodes for {buffer.n_envs} environments: {len(episodes)}.")
    if count > room:
        raise ValueError(
            f"{short(str(source))} has {count * buffer.n_envs} transitions, and the replay buffer has room for "
            f"{room * buffer.n_envs}: pass a larger buffer_size."
        )
    total = sum(len(episode) for episode in episodes)
    if count * buffer.n_envs < total:
        warnings.warn(
            f"{count * buffer.n_envs} of {total} recorded transitions are added: the replay buffer has a column for each of "
            f"{buffer.n_envs} environments, and no column may be longer. SymmetricReplayBuffer takes all.",
            stacklevel=2,
        )
    columns = [chain.from_iterable(_steps(episode, model) for episode in each) for each in dealt]
    _add(buffer, zip(*columns, strict=False))
    return count * buffer.n_envs


def _checked_buffer(model: OffPolicyAlgorithm, part: str | None) -> ReplayBuffer:
    """What is to be filled. Anything that would not take recorded episodes is refused; a resumed model is warned of."""
    assert model.replay_buffer is not None
    if not isinstance(model.action_space, spaces.Box):
        raise ValueError(f"action_space is {model.action_space}: recorded episodes go into models with a Box of actions.")
    buffer = _part(rows.parts(model.replay_buffer), part)
    if getattr(model, "_resumed", None) is not None:
        warnings.warn(
            "This model was resumed from a checkpoint, which has all transitions of its run, recorded ones too: what is added "
            "now is in the replay buffer twice if it was added before.",
            stacklevel=3,
        )
    if isinstance(buffer, HerReplayBuffer) and buffer.copy_info_dict:
        raise ValueError(
            "copy_info_dict=True: recorded episodes have no infos, from which rewards of new goals could be made."
        )
    return buffer


def _dealt(episodes: list[Episode], n_envs: int) -> tuple[list[list[Episode]], int]:
    """
    :param episodes: In their order
    :param n_envs: Columns to deal them to, each to the shortest so far
    :return: The episodes of each column, and the transitions of the shortest
    """
    dealt: list[list[Episode]] = [[] for _ in range(n_envs)]
    lengths = [0] * n_envs
    for episode in episodes:
        least = lengths.index(min(lengths))
        dealt[least].append(episode)
        lengths[least] += len(episode)
    return dealt, min(lengths)


def _part(parts: Mapping[str, ReplayBuffer], part: str | None) -> ReplayBuffer:
    if part is None and "target" in parts:
        raise ValueError("which of the two domains was recorded? Pass part='source' or part='target'.")
    name = part or ("offline" if "offline" in parts else next(iter(parts)))
    if name not in parts:
        raise ValueError(f"part={part!r}: the model's replay buffer has {', '.join(map(repr, parts))}.")
    return parts[name]


def _is_folder(source: Any) -> bool:
    """Minari keeps a dataset in a folder too, in another one there."""
    return isinstance(source, (str, Path)) and Path(source).is_dir() and not Path(source, "data").is_dir()


# Reading


def _read_folder(folder: Path) -> Iterator[Episode]:
    for path in sorted(folder.glob("*.npz")):
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except Exception as error:  # a damaged zip can fail in any way
            raise ValueError(f"{path}: this is no file of arrays that can be read ({short(str(error))}).") from error
        observations = {name: arrays.pop(name) for name in list(arrays) if name.split("/")[0] == "observations"}
        if set(arrays) != set(COLUMNS) or not observations:
            raise ValueError(
                f"{path} has {', '.join(sorted([*arrays, *observations]))}; an episode has observations, {', '.join(COLUMNS)}."
            )
        yield Episode(str(path), observations, arrays)


def _read_minari(source: Any, model: OffPolicyAlgorithm) -> Iterator[Episode]:
    dataset = _load_minari(str(source)) if isinstance(source, (str, Path)) else source
    name = short(str(source))
    _check_spaces(dataset, model)
    flat = _flattened(dataset.observation_space, model) if _is_flattened(dataset, model) else None
    try:
        recorded = list(dataset.iterate_episodes())
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(f"{name}: this Minari dataset cannot be read ({short(str(error))}).") from error
    for index, episode in enumerate(recorded):
        what, observations = f"episode {index} of {name}", episode.observations
        if flat is not None:
            _check_entries(what, "observations", observations, len(episode.rewards), flat)
            steps = range(len(episode.rewards) + 1)
            observations = np.stack([np.asarray(spaces.flatten(flat, _at(observations, step))) for step in steps])
        named = observations if isinstance(observations, dict) else {"": observations}
        yield Episode(
            what,
            {f"observations/{key}" if key else "observations": np.asarray(value) for key, value in named.items()},
            {column: np.asarray(getattr(episode, column)) for column in COLUMNS},
        )


def _load_minari(name: str) -> Any:
    try:
        minari = importlib.import_module("minari")
    except ImportError as error:
        raise ImportError(
            f"{name} is no folder here; to read it as a Minari dataset needs Minari: {install_hint('minari')}"
        ) from error
    try:
        return minari.MinariDataset(Path(name, "data")) if Path(name, "data").is_dir() else minari.load_dataset(name)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{name} is neither a folder nor a Minari dataset on this machine: `minari list local` shows those that are here, "
            f"`minari download {name}` fetches one."
        ) from error
    except Exception as error:  # damaged metadata can fail in any way
        raise ValueError(f"{short(name)}: this Minari dataset cannot be read ({short(str(error))}).") from error


def _at(value: Any, step: int) -> Any:
    if isinstance(value, dict):
        return {key: _at(entry, step) for key, entry in value.items()}
    return tuple(_at(entry, step) for entry in value) if isinstance(value, tuple) else value[step]


def _is_flattened(dataset: Any, model: OffPolicyAlgorithm) -> bool:
    return isinstance(dataset.observation_space, spaces.Dict) and not isinstance(model.observation_space, spaces.Dict)


def _check_spaces(dataset: Any, model: OffPolicyAlgorithm) -> None:
    observations = dataset.observation_space
    if _is_flattened(dataset, model):
        observations = spaces.flatten_space(observations)
    alike = {
        "observation_space": _shapes(observations) == _shapes(model.observation_space),
        "action_space": _bounds(dataset.action_space) == _bounds(model.action_space),
    }
    for name, is_alike in alike.items():
        if not is_alike:
            raise ValueError(f"The dataset's {name} is {getattr(dataset, name)}, the model's {getattr(model, name)}.")


def _shapes(space: spaces.Space[Any]) -> Any:
    """What two observation spaces must have in common: bounds and kinds of number may differ, as float64 and float32 do."""
    if isinstance(space, spaces.Dict):
        return {name: _shapes(entry) for name, entry in space.spaces.items()}
    if isinstance(space, spaces.Box) and is_image_space(space) and not is_image_space_channels_first(space):
        space = VecTransposeImage.transpose_space(space)
    return space.shape if isinstance(space, spaces.Box) else space


def _bounds(space: spaces.Space[Any]) -> Any:
    return (
        (space.low.astype(np.float32).tolist(), space.high.astype(np.float32).tolist())
        if isinstance(space, spaces.Box)
        else space
    )


def _flattened(space: spaces.Dict, model: OffPolicyAlgorithm) -> spaces.Dict:
    """
    :param space: A dataset's observations
    :param model: A model whose environment flattens them
    :return: The same with its entries in the order of the environment's: those of a file are sorted by name.
    :raises ValueError: If this order cannot be known.
    """
    names = (
        f"The dataset's observations are named {', '.join(space.spaces)}. In which order they stand in the model's one vector"
    )
    if model.env is None:
        raise ValueError(f"{names} cannot be seen without its environment: pass one by set_env().")
    if not hasattr(model.env, "envs"):
        raise ValueError(
            f"{names} cannot be seen in other processes: fill a model with a DummyVecEnv, and save its replay buffer."
        )
    env = model.env.envs[0]
    while env is not None:
        if isinstance(env.observation_space, spaces.Dict) and _shapes(env.observation_space) == _shapes(space):
            return env.observation_space
        env = getattr(env, "env", None)
    raise ValueError(f"{names} cannot be known: none of its environments has these names with these shapes.")


def _spaces(model: OffPolicyAlgorithm) -> dict[str, spaces.Space[Any]]:
    space = model.observation_space
    if isinstance(space, spaces.Dict):
        return {f"observations/{key}": entry for key, entry in space.spaces.items()}
    return {"observations": space}


def _channels_first(episode: Episode, model: OffPolicyAlgorithm) -> Episode:
    """:return: The same with images as the model has them: SB3 puts the channels of an environment's images first."""
    observations = dict(episode.observations)
    for name, space in _spaces(model).items():
        if name in observations and isinstance(space, spaces.Box) and is_image_space(space):
            channels_last = (*space.shape[1:], space.shape[0])
            if observations[name].shape[1:] == channels_last != space.shape:
                observations[name] = np.moveaxis(observations[name], -1, 1)
    return replace(episode, observations=observations)


def _check(episode: Episode, model: OffPolicyAlgorithm) -> None:
    """
    :param episode: A recorded episode
    :param model: The model that is to learn from it
    :raises ValueError: If it does not fit. The sentence names the episode, what it has and what the model has.
    """
    assert isinstance(model.action_space, spaces.Box)
    what, length, known = episode.what, len(episode), _spaces(model)
    if length == 0:
        raise ValueError(f"{what} has no steps.")
    for name in COLUMNS[1:]:  # which the others are as long as
        _check_array(what, name, episode.columns[name], length)
    if episode.observations.keys() != known.keys():
        one = "observations" in known
        hint = " Record it flattened too (sb3_cir.envs.FlatFloat32), or learn with MultiInputPolicy." if one else ""
        raise ValueError(f"{what} has {', '.join(episode.observations)}, the model {', '.join(known)}.{hint}")
    for name, space in known.items():
        _check_array(what, name, episode.observations[name], length, space)
    actions, low, high = episode.columns["actions"], model.action_space.low, model.action_space.high
    _check_array(what, "actions", actions, length, model.action_space)
    for name in ("terminations", "truncations"):
        early = np.flatnonzero(episode.columns[name][:-1])
        if len(early):
            raise ValueError(f"{what}: {name} are true at step {early[0]} of {length}, before the end of the episode.")
    # What rounding makes of the bounds. float32 has seven digits, also where there is no bound.
    slack = 1e-4 * np.where(np.isfinite(low) & np.isfinite(high), (high - low) / 2, 1)
    outside = (actions < low - slack) | (actions > high + slack)
    if outside.any():
        raise ValueError(
            f"{what}: actions have {actions[outside][0]} in them, the model's action_space is {model.action_space}."
        )


def _warn_of_bounds(episodes: list[Episode], model: OffPolicyAlgorithm) -> None:
    """Once. Observations far out of the bounds of their space are as a rule some that a wrapper has not rescaled."""
    bounds = {
        name: (space.low.astype(float), space.high.astype(float))
        for name, space in _spaces(model).items()
        # Most spaces of floats have no bounds at all: nothing to look at.
        if isinstance(space, spaces.Box) and space.dtype.kind == "f" and (space.bounded_below & space.bounded_above).any()
    }
    for episode in episodes:
        for name, (low, high) in bounds.items():
            observations = episode.observations[name]
            beyond = np.maximum(low - observations, observations - high) > BEYOND_BOUNDS * (high - low)
            if beyond.any():
                place = tuple(np.argwhere(beyond)[0][1:])
                warnings.warn(
                    f"{episode.what}: {name} have {observations[beyond][0]} in them, and the model's environment says "
                    f"{low[place]} to {high[place]}. If a wrapper rescales them there, record with it.",
                    stacklevel=3,
                )
                return


def _check_entries(what: str, name: str, value: Any, length: int, space: spaces.Space[Any]) -> None:
    """As :func:`_check_array`, for all entries of a space that is going to be flattened."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for key, entry in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            there = range(len(value)) if isinstance(value, (tuple, list)) else value if isinstance(value, dict) else ()
            if key not in there:
                raise ValueError(f"{what}: {name} have no {key}, which the dataset's space has.")
            _check_entries(what, f"{name}/{key}", value[key], length, entry)
    else:
        _check_array(what, name, np.asarray(value), length, space)


def _check_array(what: str, name: str, array: np.ndarray, length: int, space: spaces.Space[Any] | None = None) -> None:
    """
    :param what: The episode
    :param name: What the array is in it
    :param array: Something of each step
    :param length: How many steps there are
    :param space: Of what space it is; None for one number of any kind
    :raises ValueError: If it is of another shape or kind, or if the replay buffer would make another number of one in it.
    """
    expected = (length + name.startswith("observations"), *((space and space.shape) or ()))
    if array.shape != expected or array.dtype.kind not in "biuf":
        raise ValueError(
            f"{what}: {name} are {array.dtype} of shape {array.shape}, {expected} was expected: {length} steps, "
            f"and the model has {space or 'a number for each'}."
        )
    if space is not None and array.dtype.kind not in TAKES[np.dtype(space.dtype).kind]:
        raise ValueError(f"{what}: {name} are {array.dtype}, and the model has {space}, which takes whole numbers.")
    low, high = (np.broadcast_to(limit, array.shape) for limit in _limits(space))
    outside = ~((array >= low) & (array <= high))  # NaN too
    if outside.any():
        allowed = f"{low[outside][0]} to {high[outside][0]}"
        raise ValueError(f"{what}: {name} have {array[outside][0]} in them, where {allowed} is allowed.")


def _limits(space: spaces.Space[Any] | None) -> tuple[Any, Any]:
    """What can be stored. That is all of float32 where a space is of floats: few environments keep to the bounds of those."""
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        return space.start, space.start + count - 1
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    if isinstance(space, spaces.Box) and space.dtype.kind != "f":
        return space.low, space.high
    return -np.float64(LARGEST), np.float64(LARGEST)


# Adding


def _steps(episode: Episode, model: OffPolicyAlgorithm) -> Iterator[tuple[Any, ...]]:
    """:return: For each step what ``ReplayBuffer.add`` takes of one environment"""
    named = {name.removeprefix("observations").removeprefix("/"): array for name, array in episode.observations.items()}
    actions, rewards, terminations, truncations = (episode.columns[name] for name in COLUMNS)
    scaled = np.clip(model.policy.scale_action(actions), -1, 1)
    for index in range(len(episode)):
        last = index == len(episode) - 1
        # One that ends in neither way was cut off by whoever recorded it: as a time limit does.
        truncated = last and not terminations[index]
        obs, following = ({key: array[at] for key, array in named.items()} for at in (index, index + 1))
        done = bool(truncated or truncations[index] or terminations[index])
        yield obs, following, scaled[index], rewards[index], done, {"TimeLimit.truncated": bool(truncated)}


def _add(buffer: ReplayBuffer, lines: Any) -> None:
    """
    :param buffer: A replay buffer that is no pair, with room
    :param lines: For each row a step of each environment
    """
    pos, values = buffer.pos, copy.deepcopy(rows.values(buffer))
    # Where memory usage is optimised, the next row has the last one's next observation already.
    row = {name: column[pos].copy() for name, column in rows.columns(buffer).items()}
    before = {name: column[:pos].copy() for name, column in rows.columns(buffer).items() if name in ENDS}
    try:
        cut_off(buffer)
        for line in lines:
            obs, following, actions, rewards, dones, infos = zip(*line, strict=True)
            buffer.add(
                _stack(obs), _stack(following), np.stack(actions), np.array(rewards), np.array(dones, np.float32), list(infos)
            )
    except BaseException:  # Ctrl-C too
        for name, column in rows.columns(buffer).items():
            column[pos:] = 0
            column[pos] = row[name]
            if name in before:
                column[:pos] = before[name]
        buffer.pos, buffer.full = pos, False
        vars(buffer).update(values)
        if isinstance(buffer, DeviceReplayBuffer):
            buffer.rewritten()
        raise
    cut_off(buffer)


def _stack(observations: tuple[dict[str, np.ndarray], ...]) -> Any:
    stacked = {key: np.stack([each[key] for each in observations]) for key in observations[0]}
    return stacked.get("", stacked)
