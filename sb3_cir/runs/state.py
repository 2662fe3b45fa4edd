"""
The state of a run, taken and put back.

It is put back in two steps. :func:`put` makes the model what it was. What the environments and callbacks have is put back by
:func:`go_on`, when ``learn()`` has reset the environments and made the callbacks ready.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_cir.buffers import cut_off
from sb3_cir.runs import arguments, normalization, parameters, randomness, results, rows
from sb3_cir.runs.files import Arrays, DamagedError
from sb3_cir.runs.plain import Checkpoint
from sb3_cir.words import short

# At most as many of the last episodes go into a checkpoint. A longer file would be refused when it is read.
EPISODES = 20_000
COUNTERS = ("num_timesteps", "_n_updates", "_episode_num")


@dataclass(frozen=True)
class Stored:
    """
    A checkpoint that was read and found whole.

    :param path: The file
    :param manifest: What JSON has of it
    :param arrays: The arrays beside it, but for the rows of replay buffers
    """

    path: Path
    manifest: Checkpoint
    arrays: Arrays = field(repr=False)


def counters(model: OffPolicyAlgorithm) -> tuple[str, ...]:
    """
    :param model: A model
    :return: Its attributes that count something, all of them numbers
    """
    names: tuple[str, ...] = getattr(model, "counters", COUNTERS)
    return names


# What is taken


def take_arrays(model: OffPolicyAlgorithm) -> dict[str, np.ndarray]:
    """
    :param model: A model that learns, between two rollouts
    :return: All of its state that is arrays, but for the rows of replay buffers
    """
    arrays = parameters.take(model) | randomness.take_arrays()
    arrays |= {f"action_noise/{index}": noise.noise_prev for index, noise in enumerate(_noises(model))}
    arrays |= {f"observation/{key}": value for key, value in _named(_original_observation(model)).items()}
    for name, buffer in rows.parts_of(model).items():
        arrays |= {f"buffers/{name}/{key}": value for key, value in rows.volatile(buffer).items()}
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        assert model._last_obs is not None
        arrays |= normalization.take(normalizer)
        arrays |= {f"normalized/{key}": value for key, value in _named(model._last_obs).items()}
    return arrays


def take_counters(model: OffPolicyAlgorithm) -> dict[str, Any]:
    """
    :param model: A model
    :return: How far it has come
    """
    values = {name: getattr(model, name) for name in counters(model)}
    # NumPy's, where a VecEnv counts its environments so
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}


def take_episodes(model: OffPolicyAlgorithm) -> list[dict[str, float]]:
    """
    :param model: A model
    :return: What ``Monitor`` said of the last episodes, as far as it is numbers; of more than :data:`EPISODES` the newest
    """
    assert model.ep_info_buffer is not None
    newest = list(model.ep_info_buffer)[-EPISODES:]
    episodes = [{key: number for key, value in each.items() if (number := _number(value)) is not None} for each in newest]
    return [each for each in episodes if {"r", "l"} <= each.keys()]


def take_successes(model: OffPolicyAlgorithm) -> list[float]:
    """
    :param model: A model
    :return: Which of the last episodes succeeded, likewise
    """
    assert model.ep_success_buffer is not None
    return [float(success) for success in list(model.ep_success_buffer)[-EPISODES:]]


def _number(value: Any) -> float | None:
    """A simulator of many environments may have arrays and tensors of one number."""
    if isinstance(value, (str, bytes)):
        return None
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (RuntimeError, TypeError, ValueError):
        return None


# What is put back


def check(model: OffPolicyAlgorithm, stored: Stored) -> None:
    """
    :param model: A model that is to go on
    :param stored: From where
    :raises ValueError: If they do not fit each other. Nothing is changed before all of it is known to fit.
    """
    manifest, what = stored.manifest, f"the run to resume ({stored.path.name})"
    parameters.check(model, _learned(model, stored.arrays), what)
    parameters.check_rates(model, manifest.learning_rates, str(stored.path))
    if set(manifest.counters) != set(counters(model)):
        raise ValueError(f"{stored.path}: its counters are {short(sorted(manifest.counters))}.")
    check_counters(model, manifest.counters, str(stored.path))
    arguments.check_noise(model.action_noise, model.action_space.shape or (), str(stored.path))
    normalizer = model.get_vec_normalize_env()
    normalized = normalization.RETURNS in stored.arrays
    if (normalizer is not None) != normalized:
        wrapped, plain = ("the run's", "this model's") if normalized else ("this model's", "the run's")
        raise ValueError(f"VecNormalize: {wrapped} environment was wrapped in it and {plain} is not ({stored.path.name}).")
    if normalizer is not None:
        normalization.check(normalizer, stored.arrays, what)
    buffers = rows.parts_of(model)
    if buffers.keys() != manifest.buffers.keys():
        raise ValueError(
            f"replay_buffer_class: the run's had {short(', '.join(manifest.buffers))}, not {', '.join(buffers)} "
            f"({stored.path.name})."
        )
    asked = _asked_of_buffer(model, manifest)
    for name, buffer in buffers.items():
        rows.check(buffer, manifest.buffers[name].without(asked), what)
        elsewhere = elsewhere_of(stored.arrays, name)
        if elsewhere != set(getattr(buffer, "volatile", ())):
            raise ValueError(f"The replay buffer's {', '.join(sorted(elsewhere))} changed all the time in {what}.")
    _check_episode(model, stored)
    known = {*_sources(model), "random", "action_noise", "observation", "buffers", "normalization", "normalized"}
    unknown = {name.split("/")[0] for name in stored.arrays} - known
    if unknown:
        raise ValueError(f"{stored.path}: nothing here has a {short(sorted(unknown))}.")


def _asked_of_buffer(model: OffPolicyAlgorithm, manifest: Checkpoint) -> set[str]:
    """:return: The replay buffer's arguments that are not as they were: what was asked for counts more than what was saved"""
    saved = manifest.arguments.get("replay_buffer_kwargs")
    before: Any = None if saved is None else saved.value
    given = before if isinstance(before, dict) else {}
    return {name for name, value in model.replay_buffer_kwargs.items() if not np.array_equal(given.get(name, np.nan), value)}


def _check_episode(model: OffPolicyAlgorithm, stored: Stored) -> None:
    """What :func:`go_on` needs of the episode under way. By then it is too late to say that it is not there."""
    forms = {f"observation/{key}": (model.n_envs, *space.shape) for key, space in _spaces(model).items()}
    if model.get_vec_normalize_env() is not None:
        forms |= {name.replace("observation", "normalized", 1): form for name, form in forms.items()}
    found = {name: each.shape for name, each in stored.arrays.items() if name.split("/")[0] in ("observation", "normalized")}
    if found != forms:
        raise DamagedError(f"{stored.path}: its last observation is {short(found)}, where {short(forms)} was expected.")
    for name, each in stored.arrays.items():
        if name.startswith("action_noise/") and not (each.shape == model.action_space.shape and np.isfinite(each).all()):
            raise DamagedError(f"{stored.path}: {short(name)} is {short(each)}, it must be as an action.")


def _spaces(model: OffPolicyAlgorithm) -> dict[str, Any]:
    space = model.observation_space
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}


def elsewhere_of(arrays: Arrays, name: str) -> set[str]:
    """
    :param arrays: Of a checkpoint
    :param name: A replay buffer's
    :return: Its columns that are among them
    """
    start = f"buffers/{name}/"
    return {each.removeprefix(start) for each in arrays if each.startswith(start)}


def put(model: OffPolicyAlgorithm, stored: Stored) -> None:
    """
    Make a model what it was, as far as the environments and callbacks are not needed.

    :param model: A model that :func:`check` let pass
    :param stored: What it is to become
    """
    manifest, arrays = stored.manifest, stored.arrays
    asked = _asked_of_buffer(model, manifest)
    for name, buffer in rows.parts_of(model).items():
        saved = manifest.buffers[name].without(asked)
        rows.load(buffer, saved, ((block.first, rows.read_block(stored.path.parent, block)) for block in saved.blocks))
        for key, column in rows.volatile(buffer).items():
            column[:] = arrays[f"buffers/{name}/{key}"]
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        normalization.put(normalizer, arrays)
    parameters.put(model, _learned(model, arrays), manifest.learning_rates)
    put_counters(model, manifest.counters)
    model.ep_info_buffer = deque(map(dict, manifest.episodes), maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(manifest.successes, maxlen=model._stats_window_size)
    model._last_obs = None


def check_counters(model: OffPolicyAlgorithm, values: Mapping[str, Any], what: str) -> None:
    """
    :param model: A model
    :param values: How far another has come, by the names of its counters; others are passed over
    :param what: Where they are from, for the error
    :raises DamagedError: If one of SB3's is missing, or if one is of another kind than the model's.
    """
    for name in counters(model):
        if name not in values and name in COUNTERS:
            raise DamagedError(f"{what}: its counter {name} is missing.")
        value, ours = values.get(name, getattr(model, name)), getattr(model, name)
        whole = isinstance(ours, int)
        if isinstance(value, bool) != isinstance(ours, bool) or not isinstance(value, int if whole else (int, float)):
            raise DamagedError(f"{what}: {name} is {short(value)}, a {'whole ' if whole else ''}number was expected.")
        if name in COUNTERS and not 0 <= value < 2**53:
            raise DamagedError(f"{what}: {name} is {short(value)}, which nothing can have counted to.")


def put_counters(model: OffPolicyAlgorithm, values: Mapping[str, Any]) -> None:
    """
    :param model: A model
    :param values: How far it has come, by the names of its counters, as :func:`check_counters` let them pass
    """
    for name in counters(model):
        if name in values:
            setattr(model, name, type(getattr(model, name))(values[name]))


def go_on(model: OffPolicyAlgorithm, stored: Stored, callback: BaseCallback, anew: bool) -> None:
    """
    What can be put back only now that the environments are reset and the callbacks are ready.

    :param model: The model
    :param stored: What it goes on from
    :param callback: The one that ``learn()`` was given
    :param anew: Whether each environment began a new episode after the checkpoint, whatever it observes now
    """
    arrays = stored.arrays
    goes_on = np.zeros(model.n_envs, bool) if anew else _where_it_was(model, arrays)
    _cut_off(model, callback, goes_on)
    if anew:
        _begin_others(callback, episode_seed(model, stored.manifest.run))
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        normalizer.returns[goes_on] = arrays[normalization.RETURNS][goes_on]
        if goes_on.all():
            # The first observation is in the statistics already.
            normalization.put(normalizer, arrays)
            last = {key: arrays[f"normalized/{key}"].copy() for key in _named(model._last_obs)}
            model._last_obs = last if isinstance(model._last_obs, dict) else last[""]
    if not anew:
        for index, noise in enumerate(_noises(model)):
            if f"action_noise/{index}" in arrays:
                noise.noise_prev = arrays[f"action_noise/{index}"].copy()
    results.put(callback, stored.manifest.callbacks)
    randomness.put(model, stored.manifest.random, arrays)


def _cut_off(model: OffPolicyAlgorithm, callback: BaseCallback, goes_on: np.ndarray) -> None:
    """
    :param model: A model
    :param callback: The one that ``learn()`` was given. One that fills a part of the replay buffer from an environment of its
        own (see :func:`_steppers`) says by ``observations()`` what it sees there, by the part's name. All others are the
        model's to fill.
    :param goes_on: Whether each of the model's environments goes on where it was
    """
    seen = {name: obs for each in _steppers(callback) for name, obs in each.observations().items()}
    leave_episodes(model, goes_on)
    for name, buffer in list(rows.parts_of(model).items())[1:]:
        cut_off(buffer, np.array([goes_on.any() and name in seen and _follows(buffer, seen[name])]))


def leave_episodes(model: OffPolicyAlgorithm, goes_on: np.ndarray) -> None:
    """
    End the episodes under way: in the part of the replay buffer that the model's environments fill, and in each module that
    has ``cut_off(goes_on)``.

    :param model: A model
    :param goes_on: For each environment, whether its episode goes on
    """
    for buffer in rows.first(model.replay_buffer):
        cut_off(buffer, goes_on)
    for module in parameters.modules(model).values():
        end = getattr(module, "cut_off", None)
        if end is not None:
            end(goes_on)


def episode_seed(model: OffPolicyAlgorithm, run: str) -> int:
    """
    :param model: A model
    :param run: Its run, for a model without a seed
    :return: For the environments, when they begin anew at this step: not the first episode of the run once more
    """
    return seed_at_this_step(model, int(run[:7], 16) if model.seed is None else model.seed)


def seed_at_this_step(model: OffPolicyAlgorithm, seed: int) -> int:
    """
    :param model: A model
    :param seed: Its own, or another of its run
    :return: For environments that begin at this step: at step 0 the seed itself
    """
    return (seed + model.num_timesteps) % 2**31


def begin_episodes(model: OffPolicyAlgorithm, run: str, callback: BaseCallback) -> None:
    """
    End the episode under way in each environment that learning or evaluation steps, and begin another from a seed. A run that
    is to be resumed to the bit does this at each checkpoint, since a resumed one cannot help it.

    :param model: The model
    :param run: Its run
    :param callback: The one that ``learn()`` was given
    """
    seed, states, arrays = episode_seed(model, run), randomness.take(model), randomness.take_arrays()
    _cut_off(model, callback, np.zeros(model.n_envs, bool))
    _begin_others(callback, seed)
    assert model.env is not None
    model.env.seed(seed)
    model._last_obs = model.env.reset()  # type: ignore[assignment]
    model._last_episode_starts = np.ones(model.n_envs, bool)
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        model._last_original_obs = normalizer.get_original_obs()
    if model.action_noise is not None:
        model.action_noise.reset()
    randomness.put(model, states, arrays)


def _begin_others(callback: BaseCallback, seed: int) -> None:
    """The environments that callbacks have: one that steps an environment of its own begins another episode."""
    for each in results.tree(callback):
        evaluated = getattr(each, "eval_env", None)
        if isinstance(evaluated, VecEnv):
            evaluated.seed(seed + 1000)
    for each in _steppers(callback):
        each.begin_episode(seed + 2000)


def _steppers(callback: BaseCallback) -> list[Any]:
    """
    Those that step an environment of their own, and have ``observations()`` and ``begin_episode(seed)`` for it. Their class
    says so by ``steps_own_env = True``: others have attributes of such names by chance.
    """
    return [each for each in results.tree(callback) if getattr(type(each), "steps_own_env", False)]


def _where_it_was(model: OffPolicyAlgorithm, arrays: Arrays) -> np.ndarray:
    """:return: Whether each environment observes now what it did at the checkpoint, and so goes on where it was"""
    observation = _named(_original_observation(model))
    was = {key: arrays[f"observation/{key}"] for key in observation}
    return np.array([all(np.array_equal(observation[key][i], was[key][i]) for key in was) for i in range(model.n_envs)])


def _follows(buffer: Any, observation: Any) -> bool:
    """Whether an observation is the one that the newest transition of the single environment led to."""
    following = {key: value[buffer.pos - 1] for key, value in _named(buffer.next_observations).items()}
    return all(
        np.array_equal(np.reshape(value, following[key].shape), following[key]) for key, value in _named(observation).items()
    )


def _learned(model: OffPolicyAlgorithm, arrays: Arrays) -> dict[str, np.ndarray]:
    sources = _sources(model)
    return {name: each for name, each in arrays.items() if name.split("/")[0] in sources}


def _sources(model: OffPolicyAlgorithm) -> set[str]:
    """What arrays of :mod:`sb3_cir.runs.parameters` begin with."""
    return {*parameters.modules(model), *parameters.optimizers(model), parameters.VARIABLES}


def _original_observation(model: OffPolicyAlgorithm) -> Any:
    return model._last_obs if model.get_vec_normalize_env() is None else model._last_original_obs


def _named(value: Any) -> dict[str, np.ndarray]:
    return value if isinstance(value, dict) else {"": value}


def _noises(model: OffPolicyAlgorithm) -> list[Any]:
    noise = model.action_noise
    noises = noise.noises if isinstance(noise, VectorizedActionNoise) else [noise]
    # Ornstein-Uhlenbeck's alone has a state.
    return [each for each in noises if hasattr(each, "noise_prev")]
