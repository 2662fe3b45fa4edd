"""
What optimisers learn, as arrays by name and back: ``<index of the parameter>/<name>`` is what one keeps of a parameter, and
``group <index>/<name>`` what one such as Prodigy counts for a whole group of them.

Two rehearsals decide which arrays there are, never a file: new optimisers of the same class take their first steps, on
parameters that begin at 0 and at 1.
"""

import copy
import warnings
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any

import numpy as np
import torch as th

from sb3_cir.runs.files import Arrays
from sb3_cir.update import parameters_of

NUMPYS = (th.float16, th.float32, th.float64)
STARTS = (0.0, 1.0)

Form = tuple[tuple[int, ...], np.dtype[Any]]


def arguments_of(optimizer: th.optim.Optimizer) -> set[str]:
    """
    :param optimizer: Any
    :return: The names of what it was made with. What else its groups hold, it counts itself.
    """
    return {each for kind in type(optimizer).__mro__ if "__init__" in vars(kind) for each in signature(kind).parameters}


def take(optimizer: th.optim.Optimizer) -> dict[str, np.ndarray]:
    """
    :param optimizer: Any
    :return: What it has learned. What is neither a tensor nor a number, nor a list of them, is not among it, with a warning.
    """
    found = {}
    for index, parameter in enumerate(parameters_of(optimizer)):
        for key, value in _leaves(optimizer.state.get(parameter, {})):
            if _is_kept(value):
                found[f"{index}/{key}"] = to_array(value)
            elif value is not None and not _is_empty(value):
                kind = type(value).__name__
                warnings.warn(f"{type(optimizer).__name__}: its {key} is a {kind}, which is not saved.", stacklevel=4)
    for name, group, key in _counts(optimizer):
        if group[key] != optimizer.defaults.get(key):  # a file of one that counts nothing has none of them
            found[name] = to_array(group[key])
    return found


def to_array(value: Any) -> np.ndarray:
    """
    :param value: A tensor, or a number that an optimiser keeps
    :return: The same as an array
    """
    if not isinstance(value, th.Tensor):
        return np.array(value, np.float64)
    value = value.detach().cpu()
    # NumPy has no bfloat16 and no float8. float32 holds each of their values.
    array: np.ndarray = (value.float() if value.is_floating_point() and value.dtype not in NUMPYS else value).numpy()
    return array


def form(array: np.ndarray) -> Form:
    """
    :param array: Any
    :return: What must be the same for one to take another's place
    """
    return array.shape, array.dtype


class Expected:
    """
    What an optimiser of a class can have learned.

    :param optimizer: One of the class, which is not changed
    """

    def __init__(self, optimizer: th.optim.Optimizer):
        # What there is by name, in each of its forms: Prodigy keeps less of a parameter that begins at 0.
        self.forms: dict[str, list[Form]] = {}
        # What is there after the first step already, by the index of the parameter
        self.required: dict[int, set[str]] = {}
        self._states: list[dict[str, Any]] = []
        self._at_first: list[dict[str, Any]] = []
        for start in STARTS:
            self._rehearse(_another(optimizer, start))

    def _rehearse(self, other: th.optim.Optimizer) -> None:
        parameters = parameters_of(other)
        other.step()
        self._at_first = [dict(other.state[each]) for each in parameters]
        other.step()
        self._states = [other.state[each] for each in parameters]
        for index, (first, state) in enumerate(zip(self._at_first, self._states, strict=True)):
            for key, value in _leaves(state):
                if _is_kept(value):
                    self.forms.setdefault(f"{index}/{key}", []).append(form(to_array(value)))
            required = {f"{index}/{key}" for key, value in _leaves(first) if _is_kept(value)}
            self.required[index] = required & self.required.get(index, required)
        self._groups = other.param_groups
        for name, group, key in _counts(other):
            self.forms.setdefault(name, []).append(form(to_array(group[key])))

    def missing(self, names: set[str]) -> list[str]:
        """
        :param names: What there is
        :return: What is missing, of parameters of which there is something
        """
        begun = {name.partition("/")[0] for name in names}
        return [each for index, required in self.required.items() if str(index) in begun for each in sorted(required - names)]

    def put(self, optimizer: th.optim.Optimizer, arrays: Arrays) -> None:
        """
        :param optimizer: Gets all of it
        :param arrays: What :func:`take` gave, each in one of its forms
        """
        optimizer.state.clear()
        for index, parameter in enumerate(parameters_of(optimizer)):
            prefix = f"{index}/"
            learned = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            if learned:
                optimizer.state[parameter] = self._state(index, learned)
        for index, group in enumerate(self._groups):
            for key, value in group.items():
                if (name := f"group {index}/{key}") in arrays:
                    optimizer.param_groups[index][key] = type(value)(arrays[name])

    def _state(self, index: int, learned: Arrays) -> dict[str, Any]:
        """What the parameter of this index gets. What is not learned yet is as after the first step."""
        state = {}
        for key, value in self._states[index].items():
            if isinstance(value, (list, tuple)) and any(name in learned for name, _ in _leaves({key: value})):
                state[key] = type(value)(_like(each, learned.get(name)) for name, each in _leaves({key: value}))
            elif key in learned:
                state[key] = _like(value, learned[key])
            elif key in self._at_first[index] and not _is_kept(first := self._at_first[index][key]):
                state[key] = first
        return state


def _another(optimizer: th.optim.Optimizer, start: float) -> th.optim.Optimizer:
    """One of the same class, with the same arguments, about to make its first step on parameters that are all ``start``."""
    groups = [
        group | {"params": [th.zeros_like(parameter) for parameter in group["params"]]} for group in optimizer.param_groups
    ]
    kind: Any = type(optimizer)  # whose arguments are not those of their base class
    other: th.optim.Optimizer
    try:
        other = kind(groups)
    except TypeError:  # It asks for more, such as a learning rate, which nobody here knows the names of.
        other = object.__new__(kind)
        vars(other).update(copy.deepcopy(vars(optimizer)))
        other.state.clear()
    for parameter in parameters_of(other):
        parameter.detach().fill_(start)
        parameter.grad = th.ones_like(parameter)
    return other


def _counts(optimizer: th.optim.Optimizer) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Of each number that it counts for a group its name in a file, the group, and its name there."""
    asked = arguments_of(optimizer)
    for index, group in enumerate(optimizer.param_groups):
        for key, value in list(group.items()):
            if key not in asked and isinstance(value, (int, float)):
                yield f"group {index}/{key}", group, key


def _leaves(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What there is of a parameter. Shampoo and its kin keep lists: one matrix for each axis."""
    for key, value in state.items():
        if isinstance(value, (list, tuple)):
            yield from ((f"{key}/{index}", each) for index, each in enumerate(value))
        else:
            yield key, value


def _is_kept(value: Any) -> bool:
    return isinstance(value, (th.Tensor, int, float))


def _is_empty(value: Any) -> bool:
    """An axis that is too long for a matrix has an empty list."""
    return isinstance(value, (list, tuple)) and not value


def _like(value: Any, array: np.ndarray | None) -> Any:
    """An array as what stands in its place in a rehearsal; itself, if there is none."""
    if array is None:
        return value
    if not isinstance(value, th.Tensor):
        return type(value)(array)
    same = th.empty_like(value) if value.shape == array.shape else value.new_empty(array.shape)
    return same.copy_(th.from_numpy(array))
