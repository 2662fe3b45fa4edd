"""
Transitions that somebody recorded, into the replay buffer of a model that is to learn from them::

    model = CIR("MlpPolicy", env)
    datasets.fill(model, "episodes/")                      # a folder of .npz files, one episode each
    datasets.fill(model, "mujoco/pusher/expert-v0")        # a Minari dataset (the minari extra)
    model.learn(1e5)

An episode of T steps has

- ``observations``, ``(T + 1, ...)``: the last one is what the last step led to. Dict observations are one array for each
  entry, ``observations/<name>``;
- ``actions``, ``(T, ...)``, in the environment's own units;
- ``rewards``, ``terminations`` and ``truncations``, ``(T,)``. Only the last step may be either: a termination is the task's
  own end, after which nothing is earned, a truncation is a time limit's, after which more would have been.

:class:`~sb3_cir.buffers.SymmetricReplayBuffer` keeps recorded transitions apart, and half of each batch is of them.
"""

import copy
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_cir.buffers import DeviceReplayBuffer, cut_off
from sb3_cir.extras import install_hint
from sb3_cir.runs import rows
from sb3_cir.runs.files import short

COLUMNS = ("actions", "rewards", "terminations", "truncations")


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
        return len(self.columns["rewards"])


def fill(model: OffPolicyAlgorithm, source: Any) -> int:
    """
    Add recorded transitions to a model's replay buffer: to its ``offline`` part if it has one. Where it has a column for each
    of several environments, episodes are dealt to them, and what would stand in one column alone is left out.

    :param model: A model; its ``learning_starts`` counts its own steps alone.
    :param source: A folder of ``.npz`` episodes, the id of a Minari dataset on this machine, or such a dataset
    :return: How many transitions were added. All are checked before the first one is: nothing of a failed call stays.
    :raises ValueError: If spaces differ, if an episode is damaged or not finite, or if there is no room.
    :raises ImportError: If a Minari dataset is asked for and Minari is not installed.
    """
    assert model.replay_buffer is not None
    parts = rows.parts(model.replay_buffer)
    buffer = parts.get("offline", next(iter(parts.values())))
    episodes = list(_read_folder(Path(source)) if _is_folder(source) else _read_minari(source, model))
    for episode in episodes:
        _check(episode, model)
    dealt: list[list[Any]] = [[] for _ in range(buffer.n_envs)]
    for episode in episodes:
        min(dealt, key=len).extend(_steps(episode, model))
    count, room = min(map(len, dealt)), buffer.buffer_size - buffer.size()
    if count == 0:
        raise ValueError(f"{short(str(source))} has too few episodes for {buffer.n_envs} environments: {len(episodes)}.")
    if count > room:
        raise ValueError(
            f"{short(str(source))} has {count * buffer.n_envs} transitions, and the replay buffer has room for "
            f"{room * buffer.n_envs}: pass a larger buffer_size."
        )
    _add(buffer, zip(*dealt, strict=False))
    return count * buffer.n_envs


def _is_folder(source: Any) -> bool:
    return isinstance(source, (str, Path)) and Path(source).is_dir()


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
    dataset = source
    if isinstance(source, (str, Path)):
        try:
            minari = importlib.import_module("minari")
        except ImportError as error:
            raise ImportError(
                f"{source} is no folder here; to read it as a Minari dataset needs Minari: {install_hint('minari')}"
            ) from error
        dataset = minari.load_dataset(str(source))
    if dataset.action_space != model.action_space:
        raise ValueError(f"The dataset's action_space is {dataset.action_space}, the model's {model.action_space}.")
    for index, episode in enumerate(dataset.iterate_episodes()):
        observations = episode.observations
        named = observations if isinstance(observations, dict) else {"": observations}
        yield Episode(
            f"episode {index}",
            {f"observations/{key}" if key else "observations": np.asarray(value) for key, value in named.items()},
            {name: np.asarray(getattr(episode, name)) for name in COLUMNS},
        )


def _spaces(model: OffPolicyAlgorithm) -> dict[str, spaces.Space[Any]]:
    space = model.observation_space
    if isinstance(space, spaces.Dict):
        return {f"observations/{key}": entry for key, entry in space.spaces.items()}
    return {"observations": space}


def _check(episode: Episode, model: OffPolicyAlgorithm) -> None:
    """
    :param episode: A recorded episode
    :param model: The model that is to learn from it
    :raises ValueError: If it does not fit. The sentence names the episode, what it has and what the model has.
    """
    assert isinstance(model.action_space, spaces.Box)
    what, length, known = episode.what, len(episode), _spaces(model)
    if episode.observations.keys() != known.keys():
        raise ValueError(f"{what} has {', '.join(episode.observations)}, the model {', '.join(known)}.")
    expected = {name: (length + 1, *(space.shape or ())) for name, space in known.items()}
    expected |= {"actions": (length, *(model.action_space.shape or ()))} | dict.fromkeys(COLUMNS[1:], (length,))
    arrays = episode.observations | episode.columns
    for name, array in arrays.items():
        if array.shape != expected[name] or array.dtype.kind not in "biuf":
            space = known.get(name, model.action_space if name == "actions" else "a number for each step")
            raise ValueError(
                f"{what}: {name} are {array.dtype} of shape {array.shape}, {expected[name]} was expected: "
                f"{length} steps, and the model has {space}."
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{what}: {name} have {array[~np.isfinite(array)][0]} in them.")
    for name in ("terminations", "truncations"):
        early = np.flatnonzero(episode.columns[name][:-1])
        if len(early):
            raise ValueError(f"{what}: {name} are true at step {early[0]} of {length}, before the end of the episode.")
    actions, low, high = episode.columns["actions"], model.action_space.low, model.action_space.high
    outside = (actions < low - 1e-4) | (actions > high + 1e-4)
    if outside.any():
        raise ValueError(
            f"{what}: actions have {actions[outside][0]} in them, the model's action_space is {model.action_space}."
        )


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
    try:
        for line in lines:
            obs, following, actions, rewards, dones, infos = zip(*line, strict=True)
            buffer.add(
                _stack(obs), _stack(following), np.stack(actions), np.array(rewards), np.array(dones, np.float32), list(infos)
            )
    except BaseException:  # Ctrl-C too
        for column in rows.columns(buffer).values():
            column[pos:] = 0
        buffer.pos, buffer.full = pos, False
        vars(buffer).update(values)
        if isinstance(buffer, DeviceReplayBuffer):
            buffer.rewritten()
        raise
    cut_off(buffer)


def _stack(observations: tuple[dict[str, np.ndarray], ...]) -> Any:
    stacked = {key: np.stack([each[key] for each in observations]) for key in observations[0]}
    return stacked.get("", stacked)
