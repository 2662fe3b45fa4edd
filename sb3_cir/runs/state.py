"""
The state of a run, taken and put back.

It is put back in two steps. :func:`put` makes the model what it was. What the environments and callbacks have is put back by
:func:`go_on`, when ``learn()`` has reset the environments and made the callbacks ready.
"""

import inspect
import random
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common import callbacks as sb3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_cir.buffers import cut_off
from sb3_cir.runs import arguments, files, parameters, rows
from sb3_cir.runs.files import DamagedError, short
from sb3_cir.runs.plain import Checkpoint, NumpyRandom, PythonRandom, Random, SpaceRandom

Arrays = Mapping[str, np.ndarray]

COUNTERS = ("num_timesteps", "_n_updates", "_episode_num")

MOST_VALUES = files.JSON_VALUES // 2  # that callbacks may have: the manifest has others, and has to be read again

# Results and counts of SB3's callbacks that go on, beside the number of calls. What else they have is a limit, a path or a
# switch.
CALLBACKS: dict[type[BaseCallback], tuple[str, ...]] = {
    sb3.EvalCallback: (
        *("best_mean_reward", "last_mean_reward", "evaluations_timesteps", "evaluations_results"),
        *("evaluations_length", "evaluations_successes"),
    ),
    sb3.StopTrainingOnMaxEpisodes: ("n_episodes",),
    sb3.StopTrainingOnNoModelImprovement: ("last_best_mean_reward", "no_improvement_evals"),
    sb3.EveryNTimesteps: ("last_time_trigger",),
}

# What others have from them, which is none either.
SB3S_OWN = {"num_timesteps", "verbose", "model", "parent", "locals", "globals", "_total_max_episodes", "_is_success_buffer"}


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
    arrays = parameters.take(model) | take_random_arrays()
    arrays |= {f"action_noise/{index}": noise.noise_prev for index, noise in enumerate(_noises(model))}
    arrays |= {f"observation/{key}": value for key, value in _named(_original_observation(model)).items()}
    for name, buffer in rows.parts(_buffer(model)).items():
        arrays |= {f"buffers/{name}/{key}": value for key, value in rows.volatile(buffer).items()}
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        assert model._last_obs is not None
        arrays |= take_statistics(normalizer)
        arrays |= {f"normalized/{key}": value for key, value in _named(model._last_obs).items()}
    return arrays


def take_random_arrays() -> dict[str, np.ndarray]:
    """:return: Random states that are arrays: of Python's, NumPy's and torch's global generators"""
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    arrays = {
        "random/python": np.array(random.getstate()[1], np.uint32),
        "random/numpy": numpy_state["state"]["key"],
        "random/torch": th.get_rng_state().numpy(),
    }
    if th.cuda.is_available():
        arrays |= {f"random/cuda/{index}": each.numpy() for index, each in enumerate(th.cuda.get_rng_state_all())}
    return arrays


def take_statistics(normalizer: VecNormalize) -> dict[str, np.ndarray]:
    """
    :param normalizer: What normalises observations and rewards
    :return: Its statistics
    """
    arrays = {"normalization/returns": normalizer.returns}
    for name, each in _statistics(normalizer).items():
        arrays |= {
            f"normalization/{name}/{key}": np.asarray(getattr(each, key), np.float64) for key in ("mean", "var", "count")
        }
    return arrays


def take_counters(model: OffPolicyAlgorithm) -> dict[str, Any]:
    """
    :param model: A model
    :return: How far it has come
    """
    values = {name: getattr(model, name) for name in counters(model)}
    # NumPy's, where a VecEnv counts its environments so
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}


def take_random(model: OffPolicyAlgorithm) -> Random:
    """
    :param model: A model
    :return: Random states, but for the arrays among them
    """
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    space = model.action_space.np_random.bit_generator.state
    return Random(
        python=PythonRandom(gauss=random.getstate()[2]),
        numpy=NumpyRandom(
            pos=numpy_state["state"]["pos"], has_gauss=numpy_state["has_gauss"], gauss=float(numpy_state["gauss"])
        ),
        action_space=SpaceRandom(
            **{key: int(value) for key, value in space["state"].items()},
            has_uint32=space["has_uint32"],
            uinteger=space["uinteger"],
        ),
    )


# On a callback, what of it may be a result: before ``on_training_start()``, and when its first run began after that.
BEFORE, AT_FIRST = "_sb3_cir_before", "_sb3_cir_at_first"


def take_callbacks(callback: BaseCallback) -> dict[str, list[dict[str, Any]]]:
    """
    :param callback: The one that ``learn()`` was given
    :return: For each class of callback in it, what of each object goes on. What has never changed is no result.
    """
    states: dict[str, list[dict[str, Any]]] = {}
    room = MOST_VALUES
    for each in tree(callback):
        changed = _changed(getattr(each, AT_FIRST, {}), _results(each))
        lost = [name for name, value in changed.items() if value is not None and not _is_result(value)]
        for name in set(changed) - set(lost):
            size = _size(changed[name])
            if size > room:
                lost.append(name)
            else:
                room -= size
        if lost:
            warnings.warn(
                f"{type(each).__name__}: no checkpoint can hold its {', '.join(sorted(lost))}: numbers alone, not too many.",
                stacklevel=2,
            )
        kept = {name: value for name, value in changed.items() if name not in lost}
        states.setdefault(type(each).__name__, []).append(kept)
    return states


def remember(callback: BaseCallback) -> None:
    """
    Note on each callback what it is before ``on_training_start()``.

    :param callback: The one that ``learn()`` was given
    """
    for each in tree(callback):
        setattr(each, BEFORE, _results(each))


def begun(callback: BaseCallback) -> None:
    """
    Note on each callback what it was when its first run began. What ``on_training_start()`` set belongs to this start alone,
    as the time does: it is no result unless it changes from here on.

    :param callback: The one that ``learn()`` was given
    """
    if BEFORE not in vars(callback):
        return  # it was noted before an earlier rollout
    for each in tree(callback):
        now = _results(each)
        set_now = _changed(vars(each).pop(BEFORE, {}), now)
        setattr(each, AT_FIRST, getattr(each, AT_FIRST, now) | set_now)


def _changed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in now.items() if name not in before or before[name] != value}


def _results(callback: BaseCallback) -> dict[str, Any]:
    return {name: _as_lists(getattr(callback, name)) for name in _state_names(callback) if hasattr(callback, name)}


def take_episodes(model: OffPolicyAlgorithm) -> list[dict[str, float]]:
    """
    :param model: A model
    :return: What ``Monitor`` said of the last episodes, as far as it is numbers
    """
    assert model.ep_info_buffer is not None
    episodes = [
        {key: number for key, value in each.items() if (number := _number(value)) is not None} for each in model.ep_info_buffer
    ]
    return [each for each in episodes if {"r", "l"} <= each.keys()]


def _number(value: Any) -> float | None:
    """A simulator of many environments may have arrays and tensors of one number."""
    if isinstance(value, (str, bytes)):
        return None
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (RuntimeError, TypeError, ValueError):
        return None


def _state_names(callback: BaseCallback) -> list[str]:
    """
    The attributes of a callback that go on: what SB3's classes count, and with a class of one's own what it says itself
    (``state = ("best",)``). One that says nothing means all that are numbers, lists of numbers or None, but for those that its
    constructor was given.
    """
    known = [name for kind, attributes in CALLBACKS.items() if isinstance(callback, kind) for name in attributes]
    names = ["n_calls", *known]
    declared = getattr(type(callback), "state", None)
    if isinstance(declared, tuple):
        return [*names, *declared]
    if type(callback).__module__.startswith(("stable_baselines3.", "sb3_contrib.")):
        return names
    given = {name for kind in type(callback).__mro__ if "__init__" in vars(kind) for name in _arguments_of(kind)}
    others = {*names, *given, *SB3S_OWN, BEFORE, AT_FIRST}
    return [
        *names,
        *(name for name, value in vars(callback).items() if name not in others and (value is None or _is_result(value))),
    ]


def _arguments_of(kind: type) -> list[str]:
    """Those that are many in one are among them: ``*steps`` may be kept as ``steps``."""
    return list(inspect.signature(vars(kind)["__init__"]).parameters)


def _is_result(value: Any) -> bool:
    """Numbers, and lists, deques and dicts of them: nothing that names a place or a thing to do."""
    if isinstance(value, (list, tuple, deque)):
        return all(_is_result(each) for each in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_result(each) for key, each in value.items())
    return isinstance(value, (bool, int, float, np.number)) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf")


def _size(value: Any) -> int:
    """:return: Numbers, lists and dicts in it: at least what ``files.read_json`` counts"""
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + sum(map(_size, value)) if isinstance(value, list) else 1


def _as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_lists(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [_as_lists(entry) for entry in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def tree(callback: BaseCallback) -> Iterator[BaseCallback]:
    """
    :param callback: A callback
    :return: It, and all that it calls
    """
    yield callback
    others = [getattr(callback, name, None) for name in ("callback", "callback_on_new_best")]
    for child in [*(getattr(callback, "callbacks", None) or ()), *others]:
        if isinstance(child, BaseCallback):
            yield from tree(child)


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
    normalized = "normalization/returns" in stored.arrays
    if (normalizer is not None) != normalized:
        wrapped, plain = ("the run's", "this model's") if normalized else ("this model's", "the run's")
        raise ValueError(f"VecNormalize: {wrapped} environment was wrapped in it and {plain} is not ({stored.path.name}).")
    if normalizer is not None:
        check_statistics(normalizer, stored.arrays, what)
    buffers = rows.parts(_buffer(model))
    if buffers.keys() != manifest.buffers.keys():
        raise ValueError(
            f"replay_buffer_class: the run's had {short(', '.join(manifest.buffers))}, not {', '.join(buffers)} "
            f"({stored.path.name})."
        )
    for name, buffer in buffers.items():
        rows.check(buffer, manifest.buffers[name], what)
        elsewhere = elsewhere_of(stored.arrays, name)
        if elsewhere != set(getattr(buffer, "volatile", ())):
            raise ValueError(f"The replay buffer's {', '.join(sorted(elsewhere))} changed all the time in {what}.")
    _check_episode(model, stored)
    known = {*_sources(model), "random", "action_noise", "observation", "buffers", "normalization", "normalized"}
    unknown = {name.split("/")[0] for name in stored.arrays} - known
    if unknown:
        raise ValueError(f"{stored.path}: nothing here has a {short(sorted(unknown))}.")


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


def check_statistics(normalizer: VecNormalize, arrays: Arrays, what: str) -> None:
    """
    :param normalizer: What normalises observations and rewards
    :param arrays: Statistics that it is to have
    :param what: Where they are from, for the error
    :raises ValueError: If they are others, or not finite.
    """
    ours = take_statistics(normalizer)
    theirs = {name: array for name, array in arrays.items() if name.startswith("normalization/")}
    for name in sorted({*ours, *theirs}):
        was, is_now = (each[name].shape if name in each else "not there" for each in (theirs, ours))
        if was != is_now:
            raise ValueError(f"VecNormalize's {name.removeprefix('normalization/')} was {was} in {what} and is {is_now}.")
        if not np.isfinite(theirs[name]).all() or (name.endswith(("var", "count")) and (theirs[name] < 0).any()):
            raise ValueError(f"{what}: VecNormalize's {name.removeprefix('normalization/')} cannot be {short(theirs[name])}.")


def put(model: OffPolicyAlgorithm, stored: Stored) -> None:
    """
    Make a model what it was, as far as the environments and callbacks are not needed.

    :param model: A model that :func:`check` let pass
    :param stored: What it is to become
    """
    manifest, arrays = stored.manifest, stored.arrays
    for name, buffer in rows.parts(_buffer(model)).items():
        saved = manifest.buffers[name]
        rows.load(buffer, saved, ((block.first, rows.read_block(stored.path.parent, block)) for block in saved.blocks))
        for key, column in rows.volatile(buffer).items():
            column[:] = arrays[f"buffers/{name}/{key}"]
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        put_statistics(normalizer, arrays)
    parameters.put(model, _learned(model, arrays), manifest.learning_rates)
    put_counters(model, manifest.counters)
    model.ep_info_buffer = deque(map(dict, manifest.episodes), maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(manifest.successes, maxlen=model._stats_window_size)
    model._last_obs = None


def put_counters(model: OffPolicyAlgorithm, values: Mapping[str, Any]) -> None:
    """
    :param model: A model
    :param values: How far it has come, by the names of its counters, as :func:`check_counters` let them pass
    """
    for name in counters(model):
        if name in values:
            setattr(model, name, type(getattr(model, name))(values[name]))


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


def check_callbacks(saved: Mapping[str, list[dict[str, Any]]], what: str) -> None:
    """
    :param saved: What a manifest says of callbacks, of which nothing else is known yet
    :param what: Where it is from, for the error
    :raises DamagedError: If there is more than counts and results.
    """
    for kind, states in saved.items():
        for each in states:
            for name, value in each.items():
                whole = name == "n_calls" and not (isinstance(value, int) and value >= 0)
                if whole or (value is not None and not _is_result(value)):
                    raise DamagedError(f"{what}: {short(kind)}'s {short(name)} cannot be {short(value)}")


def put_statistics(normalizer: VecNormalize, arrays: Arrays) -> None:
    """
    :param normalizer: What normalises observations and rewards; its running returns stay
    :param arrays: The statistics that it is to have
    """
    for name, each in _statistics(normalizer).items():
        each.mean, each.var = (arrays[f"normalization/{name}/{key}"].copy() for key in ("mean", "var"))
        each.count = float(arrays[f"normalization/{name}/count"])


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
        normalizer.returns[goes_on] = arrays["normalization/returns"][goes_on]
        if goes_on.all():
            # The first observation is in the statistics already.
            put_statistics(normalizer, arrays)
            last = {key: arrays[f"normalized/{key}"].copy() for key in _named(model._last_obs)}
            model._last_obs = last if isinstance(model._last_obs, dict) else last[""]
    if not anew:
        for index, noise in enumerate(_noises(model)):
            if f"action_noise/{index}" in arrays:
                noise.noise_prev = arrays[f"action_noise/{index}"].copy()
    _put_callbacks(tree(callback), stored.manifest.callbacks)
    put_random(model, stored.manifest.random, arrays)


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
    for name, buffer in list(rows.parts(_buffer(model)).items())[1:]:
        cut_off(buffer, np.array([goes_on.any() and name in seen and _follows(buffer, seen[name])]))


def leave_episodes(model: OffPolicyAlgorithm, goes_on: np.ndarray) -> None:
    """
    What a model keeps of the episodes under way in its environments ends: in the part of the replay buffer that they fill, and
    in each of its modules that has ``cut_off(goes_on)``.

    :param model: A model
    :param goes_on: For each environment, whether its episode goes on
    """
    for buffer in rows.first(model.replay_buffer):
        cut_off(buffer, goes_on)
    for module in parameters.modules(model).values():
        end = getattr(module, "cut_off", None)
        if end is not None:
            end(goes_on)


def _put_callbacks(callbacks: Iterator[BaseCallback], saved: Mapping[str, list[dict[str, Any]]]) -> None:
    counts: dict[str, int] = {}
    for each in callbacks:
        name = type(each).__name__
        states, index = saved.get(name, []), counts.get(name, 0)
        counts[name] = index + 1
        if index < len(states):
            known = _state_names(each)
            other = _of_other_evaluations(each, states[index])
            fits = {key: value for key, value in states[index].items() if key in known and key not in other}
            left = [key for key in states[index] if key not in fits or not _put_result(each, key, fits[key])]
            if left:
                warnings.warn(
                    f"{name}: the checkpoint's {short(', '.join(left))} cannot be put back: the callback has no number of "
                    "this name now, or one of another form.",
                    stacklevel=2,
                )


def _of_other_evaluations(callback: BaseCallback, saved: Mapping[str, Any]) -> set[str]:
    """What an evaluation keeps of each of its episodes, where it has more or fewer of them now: rows of one table."""
    results, n_now = saved.get("evaluations_results"), getattr(callback, "n_eval_episodes", None)
    if not isinstance(results, list) or n_now is None or all(np.shape(row) == (n_now,) for row in results):
        return set()
    return {name for name in saved if name.startswith("evaluations_")}


def _put_result(callback: BaseCallback, name: str, value: Any) -> bool:
    """
    Numbers alone, and in the form that the callback has them, if it has any: nothing that a file says becomes a path.

    :return: Whether it was put back
    """
    ours = getattr(callback, name, callback)  # which is no number
    if ours is not None:
        if not _is_result(ours) or _form(_as_lists(ours)) is not _form(value):
            return False
        if isinstance(ours, np.ndarray):
            try:
                value = np.array(value, ours.dtype)
            except (OverflowError, TypeError, ValueError):  # not as deep everywhere, or too large
                return False
        elif isinstance(ours, tuple):
            value = tuple(value)
        elif isinstance(ours, deque):
            value = deque(value, ours.maxlen)
    setattr(callback, name, value)
    return True


def _form(value: Any) -> type:
    return next((kind for kind in (dict, list, type(None)) if isinstance(value, kind)), float)


def episode_seed(model: OffPolicyAlgorithm, run: str) -> int:
    """
    :param model: A model
    :param run: Its run, for a model without a seed
    :return: For the environments, when they begin anew at this step: not the first episode of the run once more
    """
    return ((int(run[:7], 16) if model.seed is None else model.seed) + model.num_timesteps) % 2**31


def begin_episodes(model: OffPolicyAlgorithm, run: str, callback: BaseCallback) -> None:
    """
    End the episode under way in each environment that learning or evaluation steps, and begin another from a seed. A run that
    is to be resumed to the bit does this at each checkpoint, since a resumed one cannot help it.

    :param model: The model
    :param run: Its run
    :param callback: The one that ``learn()`` was given
    """
    seed, states, arrays = episode_seed(model, run), take_random(model), take_random_arrays()
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
    put_random(model, states, arrays)


def _begin_others(callback: BaseCallback, seed: int) -> None:
    """The environments that callbacks have: one that steps an environment of its own begins another episode."""
    for each in tree(callback):
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
    return [each for each in tree(callback) if getattr(type(each), "steps_own_env", False)]


def put_random(model: OffPolicyAlgorithm, states: Random, arrays: Arrays) -> None:
    """
    :param model: A model
    :param states: Random states, but for the arrays among them
    :param arrays: Those
    """
    random.setstate((3, tuple(arrays["random/python"].tolist()), states.python.gauss))
    np.random.set_state(_numpy_state(states.numpy, arrays["random/numpy"]))
    space = states.action_space
    model.action_space.np_random.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": space.state, "inc": space.inc},
        "has_uint32": space.has_uint32,
        "uinteger": space.uinteger,
    }
    th.set_rng_state(th.from_numpy(arrays["random/torch"]))
    cuda = [arrays[name] for name in sorted(arrays) if name.startswith("random/cuda/")]
    if th.cuda.is_available() and len(cuda) == th.cuda.device_count():
        th.cuda.set_rng_state_all([th.from_numpy(each) for each in cuda])


def _numpy_state(state: NumpyRandom, key: np.ndarray) -> dict[str, Any]:
    return {
        "bit_generator": "MT19937",
        "state": {"key": key, "pos": state.pos},
        "has_gauss": state.has_gauss,
        "gauss": state.gauss,
    }


def check_random(states: Random, arrays: Arrays, what: str) -> None:
    """
    Try random states on generators that nobody uses. (NumPy takes a position of 10**9, and crashes with the next number.)

    :param states: Random states, but for the arrays among them
    :param arrays: Those
    :param what: Where they are from, for the error
    :raises DamagedError: If one cannot be.
    """
    try:
        internal, key = arrays["random/python"], arrays["random/numpy"]
        if internal.dtype != np.uint32 or internal.shape != (625,) or key.dtype != np.uint32 or key.shape != (624,):
            raise ValueError("a generator's numbers are not 625 and 624 of 32 bits")
        random.Random().setstate((3, tuple(internal.tolist()), states.python.gauss))
        np.random.RandomState().set_state(_numpy_state(states.numpy, key))
        th.Generator().set_state(th.from_numpy(arrays["random/torch"]))
        if states.action_space.inc % 2 == 0:
            raise ValueError("the action space's generator has an even increment")
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise DamagedError(f"{what}: its random states cannot be ({short(str(error))}).") from error


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


def _buffer(model: OffPolicyAlgorithm) -> Any:
    assert model.replay_buffer is not None
    return model.replay_buffer


def _original_observation(model: OffPolicyAlgorithm) -> Any:
    return model._last_obs if model.get_vec_normalize_env() is None else model._last_original_obs


def _named(value: Any) -> dict[str, np.ndarray]:
    return value if isinstance(value, dict) else {"": value}


def _noises(model: OffPolicyAlgorithm) -> list[Any]:
    noise = model.action_noise
    noises = noise.noises if isinstance(noise, VectorizedActionNoise) else [noise]
    # Ornstein-Uhlenbeck's alone has a state.
    return [each for each in noises if hasattr(each, "noise_prev")]


def _statistics(normalizer: VecNormalize) -> dict[str, RunningMeanStd]:
    observations = getattr(normalizer, "obs_rms", {})
    named = observations if isinstance(observations, dict) else {"": observations}
    return {"rewards": normalizer.ret_rms} | {f"observations/{key}": each for key, each in named.items()}
