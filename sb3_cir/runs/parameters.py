"""
Networks, optimisers and learned numbers of a model as arrays by name, and back.

SB3's ``_get_torch_save_params()`` of the model decides which there are, never a file. What a file has is compared with what
it replaces and copied into it. Nothing of a file becomes a part of the model: an optimiser's kernel would run past the
end of moments that are too small.
"""

import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import recursive_getattr
from torch import nn
from torch.overrides import TorchFunctionMode

from sb3_cir.runs import optimizer_state
from sb3_cir.runs.files import Arrays, DamagedError
from sb3_cir.runs.optimizer_state import Form, arguments_of, form, to_array
from sb3_cir.words import short

VARIABLES = "variables"
# What an optimiser keeps that is never below zero. It takes the root of some of it.
SQUARES = ("step", "exp_avg_sq", "max_exp_avg_sq", "square_avg")
# No network is so large that a count in its arguments may be larger than this, unless an array of the file is.
LARGEST_COUNT = 4096
# A fixed temperature is an argument.
NOT_LEARNED = {"ent_coef_tensor"}
# What wrappers put into the names of weights. No module but torch.compile's has a part of the first name.
COMPILED, PARALLEL = "_orig_mod.", "module."

Value = TypeVar("Value")


def modules(model: BaseAlgorithm) -> dict[str, nn.Module]:
    """
    :param model: A model
    :return: The modules that are saved with it, by SB3's names
    """
    return {name: each for name, each in _objects(model) if isinstance(each, nn.Module)}


def optimizers(model: BaseAlgorithm) -> dict[str, th.optim.Optimizer]:
    """
    :param model: A model
    :return: The optimisers that are saved with it, by SB3's names
    """
    return {name: each for name, each in _objects(model) if isinstance(each, th.optim.Optimizer)}


def _objects(model: BaseAlgorithm) -> Iterator[tuple[str, Any]]:
    for name in model._get_torch_save_params()[0]:
        yield name, recursive_getattr(model, name)


def _variables(model: BaseAlgorithm) -> dict[str, th.Tensor]:
    names = [name for name in model._get_torch_save_params()[1] if name not in NOT_LEARNED]
    return {name: recursive_getattr(model, name) for name in names}


def take(model: BaseAlgorithm) -> dict[str, np.ndarray]:
    """
    :param model: A model
    :return: All that it has learned: ``<module>/<parameter>``, ``<optimiser>/<index of the parameter>/<name>``,
        ``<optimiser>/group <index>/<name>`` and ``variables/<name>``. What modules give by ``get_extra_state()`` is not among
        it, with a warning.
    """
    extra = [f"{name}/{key}" for name, module in modules(model).items() for key in module.state_dict() if _is_extra(key)]
    if extra:
        warnings.warn(f"{', '.join(extra)}: what get_extra_state() gives is not saved.", stacklevel=2)
    learned = {
        f"{name}/{key}": array for name, each in optimizers(model).items() for key, array in optimizer_state.take(each).items()
    }
    return {name: to_array(value) for name, value in _fixed(model).items()} | learned


def learning_rates(model: BaseAlgorithm) -> dict[str, list[float]]:
    """
    :param model: A model
    :return: Of each optimiser, one for each group of parameters. A rate that no optimiser takes is 0 here: the next train call
        asks the schedule again, and the model can be saved.
    """
    return {
        name: [rate if 0 <= rate < math.inf else 0.0 for rate in (float(group["lr"]) for group in each.param_groups)]
        for name, each in optimizers(model).items()
    }


def settings(model: BaseAlgorithm) -> list[dict[str, Any]]:
    """
    :param model: A model
    :return: What its optimisers were made with, of each group of parameters, but for the learning rate
    """
    found = []
    for each in optimizers(model).values():
        asked = arguments_of(each) - {"params", "lr"}
        found += [{name: value for name, value in group.items() if name in asked} for group in each.param_groups]
    return found


def put_settings(model: BaseAlgorithm, settings: list[dict[str, Any]]) -> None:
    """
    :param model: A model whose optimisers have got the state of others, and with it their settings
    :param settings: Its own
    """
    groups = (group for each in optimizers(model).values() for group in each.param_groups)
    for group, own in zip(groups, settings, strict=True):
        group.update(own)


def for_its_environments(model: BaseAlgorithm, given: dict[str, Any]) -> dict[str, Any]:
    """
    :param model: A model
    :param given: What another's ``get_parameters()`` gave
    :return: The same, with the model's own where an array is of more or fewer environments
    """
    fitting = dict(given)
    for name in getattr(model, "per_environment", ()):
        module, key = name.split("/")
        own = getattr(model, module).state_dict()[key]
        if module in given and key in given[module] and given[module][key].shape != own.shape:
            fitting[module] = {**fitting[module], key: own}
    return fitting


def _fixed(model: BaseAlgorithm) -> dict[str, th.Tensor]:
    """What is there from the start, in its place."""
    tensors = {
        f"{name}/{key.replace(COMPILED, '')}": value
        for name, module in modules(model).items()
        for key, value in module.state_dict().items()
        if not _is_extra(key)
    }
    return tensors | {f"{VARIABLES}/{name}": value.detach() for name, value in _variables(model).items()}


def _is_extra(key: str) -> bool:
    """Whether a module's ``get_extra_state()`` gave it, which may be anything, and no tensor of the module's own."""
    return key.rpartition(".")[2] == "_extra_state"


def unwrapped(arrays: Mapping[str, Value], known: Collection[str], what: str = "") -> dict[str, Value]:
    """
    Names of weights without what ``torch.compile`` and ``DataParallel`` put into them. It is taken away only where a name is
    not known with it, is known without it, and does not stand beside it: a network may have a part called ``module``.

    :param arrays: Weights by name, as a file has them
    :param known: The names that are expected
    :param what: Where they are from, for a warning that says what was taken away; none is given without it.
    :return: The same under the names that are expected, as far as this makes them so
    """
    found, renamed = {}, {}
    for name, value in arrays.items():
        plain = _plain_name(name, known)
        if plain in arrays or plain in found:
            plain = name
        if plain != name:
            renamed[name] = plain
        found[plain] = value
    if renamed and what:
        name, plain = next(iter(renamed.items()))
        warnings.warn(
            f"{what}: {len(renamed)} names of weights are read without the {COMPILED} or {PARALLEL} that torch.compile or "
            f"DataParallel has put into them, {short(name)} as {short(plain)}.",
            stacklevel=2,
        )
    return found


def _plain_name(name: str, known: Collection[str]) -> str:
    """:return: The name without wrappers' parts, from the left no more of them than need be; itself if that is not known"""
    if name in known:
        return name
    owner, slash, key = name.rpartition("/")
    parts = key.replace(COMPILED, "").split(".")
    while (plain := owner + slash + ".".join(parts)) not in known:
        if PARALLEL[:-1] not in parts:
            return name
        parts.remove(PARALLEL[:-1])
    return plain


def check(model: BaseAlgorithm, arrays: Arrays, what: str, finite: bool = True) -> None:
    """
    :param model: A model
    :param arrays: What :func:`take` gave of another, to be put into this one
    :param what: Where they are from, for the error
    :param finite: Whether NaN and inf are refused
    :raises ValueError: If one is missing, is too many, has another shape or kind of number, or is not finite.
    """
    own = {name: to_array(value) for name, value in _fixed(model).items()}
    expected = {name: [form(value)] for name, value in own.items()}
    arrays = unwrapped(arrays, expected, what)
    of_optimizers = {name: optimizer_state.Expected(each) for name, each in optimizers(model).items()}
    learnable = {f"{name}/{key}": forms for name, each in of_optimizers.items() for key, forms in each.forms.items()}
    learned = any(name.startswith(f"{VARIABLES}/log_ent_coef") for name in arrays)
    if "log_ent_coef" in vars(model) and learned != (f"{VARIABLES}/log_ent_coef" in expected):
        kind = "learned" if learned else "fixed"
        raise ValueError(f"ent_coef={vars(model).get('ent_coef')!r}: the temperature of {what} was {kind}.")
    for name in dict.fromkeys([*expected, *arrays]):
        was, is_now = form(arrays[name]) if name in arrays else None, expected.get(name, learnable.get(name, [None]))
        if was not in is_now:
            raise ValueError(
                f"policy_kwargs, or the environment, are not those of {what}: {short(name)} was {_say(was)} "
                f"and is {_say(is_now[0])}."
            )
    for name, array in arrays.items():
        # A mask, such as attention's, has its infinities from the start.
        if finite and array.dtype.kind == "f" and (bad := ~np.isfinite(array) & (array != own.get(name))).any():
            raise ValueError(f"{what}: {name} has {array[bad][0]} in it.")
        if name in learnable and name.rpartition("/")[2] in SQUARES and (array < 0).any():
            raise ValueError(f"{what}: {name} has {array.min()} in it, which is never below zero.")
    for name, each in of_optimizers.items():
        for missing in each.missing(set(_part(arrays, name))):
            raise ValueError(f"{what}: {name}/{missing} is missing.")


def _part(arrays: Arrays, name: str) -> dict[str, np.ndarray]:
    """What there is of a module or an optimiser, by its names there."""
    return {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}


def check_rates(model: BaseAlgorithm, rates: Mapping[str, list[float]], what: str) -> None:
    """
    :param model: A model
    :param rates: The :func:`learning_rates` of another
    :param what: Where they are from, for the error
    :raises DamagedError: If they are not of its optimisers, or if one can be none.
    """
    groups = {name: len(each.param_groups) for name, each in optimizers(model).items()}
    if {name: len(each) for name, each in rates.items()} != groups:
        raise DamagedError(f"{what}: it has learning rates of {short(dict(rates))}, where {short(groups)} were expected.")
    for name, each in rates.items():
        if not all(0 <= rate < np.inf for rate in each):
            raise DamagedError(f"{what}: the learning rates of {name} cannot be {short(each)}.")


def check_counts(value: Any, arrays: Arrays, what: str) -> None:
    """
    Lists as long, and counts as large, as no network of these arrays has them would take hours to build.

    :param value: ``policy_kwargs``, or what is in it
    :param arrays: What the networks have learned
    :param what: Where both are from, for the error
    :raises DamagedError: If there is one.
    """
    most = max([LARGEST_COUNT, len(arrays), *(max(array.shape, default=0) for array in arrays.values())])
    if isinstance(value, dict):
        for each in value.values():
            check_counts(each, arrays, what)
    elif isinstance(value, (list, tuple)):
        if len(value) > max(len(arrays), 16):
            raise DamagedError(f"{what}: policy_kwargs has a list of {len(value)}, its networks {len(arrays)} arrays.")
        for each in value:
            check_counts(each, arrays, what)
    elif isinstance(value, int) and value > most:
        raise DamagedError(f"{what}: policy_kwargs has a {short(value)} in it, the largest of its arrays {most} rows.")


def of_both(
    model: BaseAlgorithm, arrays: Arrays, rates: Mapping[str, list[float]], what: str
) -> tuple[dict[str, np.ndarray], dict[str, list[float]]]:
    """
    :param model: A model
    :param arrays: What :func:`take` gave of another, or a part of it
    :param rates: The other's :func:`learning_rates`
    :param what: Where both are from, for a warning
    :return: The same without what this model has not, and with its own in the place of what is missing
    """
    fixed, own = _fixed(model), learning_rates(model)
    # An optimiser's moments are taken whole: those of a few parameters alone would be of two runs.
    kept = {name: array for name, array in take(model).items() if name.partition("/")[0] not in rates}
    taken = {
        name: array
        for name, array in unwrapped(arrays, fixed, what).items()
        if name in fixed or name.partition("/")[0] in own.keys() & rates.keys()
    }
    return kept | taken, own | {name: rate for name, rate in rates.items() if name in own}


class _WithoutMemory(TorchFunctionMode):
    """Networks are built without memory for their numbers, and stay so when they are sent to a device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0] if func is th.Tensor.to else func(*args, **(kwargs or {}))


def rehearse(model: Any, arrays: Arrays, what: str) -> None:
    """
    Build the networks once without memory, to see that they have the sizes of the arrays.

    :param model: A model that is not set up
    :param arrays: What is to be put into it
    :param what: Where they are from, for the error
    :raises DamagedError: If they have not.
    """
    # An optimiser that any policy can do with.
    kwargs = model.policy_kwargs | dict(optimizer_class=th.optim.Adam, optimizer_kwargs=None)
    try:
        with th.device("meta"), _WithoutMemory():
            policy = model.policy_class(model.observation_space, model.action_space, lambda _: 1e-3, **kwargs)
    except Exception:
        return  # One that looks at its own numbers cannot be built so. What else fails will fail again.
    state = {name: value for name, value in policy.state_dict().items() if not _is_extra(name)}
    shapes = {f"policy/{name}": tuple(value.shape) for name, value in state.items()}
    theirs = {name: array.shape for name, array in unwrapped(arrays, shapes).items() if name.startswith("policy/")}
    for name in dict.fromkeys([*shapes, *sorted(theirs)]):
        there, here = theirs.get(name, "nothing"), shapes.get(name, "nothing")
        if there != here:
            raise DamagedError(
                f"policy_kwargs, or the environment, are not those of {what}: {short(name)} is {there} there, and {here} here."
            )


def _say(form: Form | None) -> str:
    return "not there" if form is None else f"{form[0]} ({form[1]})"


def put(model: BaseAlgorithm, arrays: Arrays, rates: Mapping[str, list[float]]) -> None:
    """
    Make a model what another was. What holds on to a parameter, such as a compiled update, goes on seeing it.

    :param model: A model
    :param arrays: What :func:`take` gave of the other, and :func:`check` let pass
    :param rates: Its :func:`learning_rates`
    """
    tensors = _fixed(model)
    arrays = unwrapped(arrays, tensors)
    with th.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(th.from_numpy(arrays[name]))
        for name, optimizer in optimizers(model).items():
            optimizer_state.Expected(optimizer).put(optimizer, _part(arrays, name))
            for group, rate in zip(optimizer.param_groups, rates.get(name, []), strict=False):
                if isinstance(group["lr"], th.Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate
