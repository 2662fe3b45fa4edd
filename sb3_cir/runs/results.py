"""What callbacks have counted and found, taken and put back: numbers, and nothing that names a place or a thing to do."""

import inspect
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from stable_baselines3.common import callbacks as sb3
from stable_baselines3.common.callbacks import BaseCallback

from sb3_cir.runs import files
from sb3_cir.runs.files import DamagedError
from sb3_cir.words import short

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

# What every callback has from SB3's base classes: no results.
SB3S_OWN = {"num_timesteps", "verbose", "model", "parent", "locals", "globals", "_total_max_episodes", "_is_success_buffer"}

# On a callback, what of it may be a result: before ``on_training_start()``, and when its first run began after that.
BEFORE, AT_FIRST = "_sb3_cir_before", "_sb3_cir_at_first"


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


def remember(callback: BaseCallback) -> None:
    """
    Note on each callback what it is before ``on_training_start()``.

    :param callback: The one that ``learn()`` was given
    """
    for each in tree(callback):
        setattr(each, BEFORE, _results(each))


def begun(callback: BaseCallback) -> None:
    """
    Note on each callback what it was when its first run began. What ``on_training_start()`` sets, such as a start time, counts
    as a result only if it changes later.

    :param callback: The one that ``learn()`` was given
    """
    if BEFORE not in vars(callback):
        return  # it was noted before an earlier rollout
    for each in tree(callback):
        now = _results(each)
        set_now = _changed(vars(each).pop(BEFORE, {}), now)
        setattr(each, AT_FIRST, getattr(each, AT_FIRST, now) | set_now)


def take(callback: BaseCallback) -> dict[str, list[dict[str, Any]]]:
    """
    :param callback: The one that ``learn()`` was given
    :return: For each class of callback in it, what of each object goes on. What has never changed is no result.
    """
    states: dict[str, list[dict[str, Any]]] = {}
    room = MOST_VALUES
    for each in tree(callback):
        changed = _changed(getattr(each, AT_FIRST, {}), _results(each))
        kept: dict[str, Any] = {}
        for name, value in changed.items():
            if (value is None or _is_result(value)) and (size := _size(value)) <= room:
                kept[name] = value
                room -= size
        lost = changed.keys() - kept.keys()
        if lost:
            warnings.warn(
                f"{type(each).__name__}: no checkpoint can hold its {', '.join(sorted(lost))}: numbers alone, not too many.",
                stacklevel=2,
            )
        states.setdefault(type(each).__name__, []).append(kept)
    return states


def check(saved: Mapping[str, list[dict[str, Any]]], what: str) -> None:
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


def put(callback: BaseCallback, saved: Mapping[str, list[dict[str, Any]]]) -> None:
    """
    Where something no longer fits, a warning names it.

    :param callback: The one that ``learn()`` was given
    :param saved: What :func:`take` took, as :func:`check` let it pass
    """
    counts: dict[str, int] = {}
    for each in tree(callback):
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


def _changed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in now.items() if name not in before or before[name] != value}


def _results(callback: BaseCallback) -> dict[str, Any]:
    return {name: _as_lists(getattr(callback, name)) for name in _state_names(callback) if hasattr(callback, name)}


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
