"""The constructor's arguments of a model, which SB3 keeps as attributes, as plain values and back."""

import contextlib
import inspect
import math
import os
import re
import types
import typing
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_cir.runs.files import DamagedError
from sb3_cir.runs.plain import OBJECTS, Argument, from_plain, to_plain
from sb3_cir.words import nearest, short

# Where SB3 keeps an argument under another name.
ATTRIBUTES = {"policy": "policy_class", "stats_window_size": "_stats_window_size"}
NOT_KEPT = {"self", "env", "device", "_init_setup_model"}
# A file does not say where a run writes to: whoever loads it does.
PATHS = {"tensorboard_log"}

# The least and the largest value of what SB3's constructors take without a look.
LIMITS: dict[str, tuple[float, float]] = {
    "learning_rate": (0, 1e6),
    "buffer_size": (1, 2**48),
    "learning_starts": (-(2**53), 2**53),
    "batch_size": (1, 2**24),
    "tau": (0, 1),
    "gamma": (0, 1),
    "train_freq": (1, 2**53),
    "gradient_steps": (-(2**53), 10**6),  # below 0: as many as there were steps
    "n_steps": (1, 10**6),
    "ent_coef": (0, 1e6),
    "target_entropy": (-1e6, 1e6),
    "target_update_interval": (1, 2**53),
    "sde_sample_freq": (-(2**53), 2**53),
    "stats_window_size": (0, 10**6),
    "verbose": (-(2**31), 2**31),
    "seed": (0, 2**32 - 1),
}

# Declared as a number by SB3, which takes None too
UNLIMITED = {"stats_window_size"}

# What Python says where a constructor gives its base class an argument itself and passes on all that it gets besides.
GIVEN_TWICE = re.compile(r"got multiple values for (?:keyword )?argument '(\w+)'")


def names(kind: type) -> list[str]:
    """
    :param kind: A class of algorithms
    :return: The arguments that its constructor takes: its own, and those that it passes on by ``**kwargs`` or ``*args``, but
        for the ``fixed_arguments`` that it gives its base class itself
    """
    found: dict[str, None] = {}
    for each in kind.__mro__:
        init = vars(each).get("__init__")
        if init is None:
            continue
        if each is OffPolicyAlgorithm:  # Its arguments are not an algorithm's.
            break
        parameters = inspect.signature(init).parameters.values()
        found |= dict.fromkeys(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        if not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters):
            break
    return [name for name in found if name not in NOT_KEPT and name not in getattr(kind, "fixed_arguments", ())]


def check_names(kind: type, given: Iterable[str], others: Iterable[str] = ()) -> None:
    """
    :param kind: A class of algorithms. One of somebody's own may take what no signature tells, and is passed over.
    :param given: Names of arguments that a caller passes
    :param others: What may be given besides
    :raises TypeError: If there is no such argument, as Python has it.
    """
    known = {*names(kind), *getattr(kind, "fixed_arguments", ()), *others}
    for name in given if all(is_known(each) for each in kind.__mro__) else ():
        if name not in known:
            near = nearest(name, names(kind))
            meant = "." if near is None else f": did you mean {near!r}?"
            raise TypeError(f"{kind.__name__} has no argument {name!r}{meant}")


def takes(kind: type, name: str) -> bool:
    """
    :param kind: A class of algorithms
    :param name: An argument
    :return: Whether its constructor takes it, by name or among all others
    """
    parameters = inspect.signature(kind).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def of_others(kind: type) -> set[str]:
    """
    :param kind: A class of algorithms
    :return: The arguments that a class of somebody's own takes by name. What it keeps under a name need not be what it took.
    """
    inits = [vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each) and not is_known(each)]
    return {name for init in inits for name in inspect.signature(init).parameters} - NOT_KEPT


def is_known(kind: type) -> bool:
    """
    :param kind: A class
    :return: Whether it is of this package, of SB3's or of Python's, and of nobody's own
    """
    return kind.__module__.partition(".")[0] in ("builtins", "abc", "sb3_cir", "stable_baselines3", "sb3_contrib")


def _declared(kind: type) -> dict[str, tuple[Any, Any]]:
    """:return: What each argument is declared to be, and its default; nothing for a class of somebody's own"""
    found: dict[str, tuple[Any, Any]] = dict.fromkeys(of_others(kind), (Any, None))
    for each in kind.__mro__:
        init = vars(each).get("__init__")
        if init is None or each is OffPolicyAlgorithm or not is_known(each):
            continue
        hints = typing.get_type_hints(init, localns={"VecEnv": VecEnv})  # SB3 knows it while it is type-checked alone
        for name, parameter in inspect.signature(init).parameters.items():
            if name in hints:
                found.setdefault(name, (hints[name], parameter.default))
    return found


def check(kind: type, given: Mapping[str, Any], what: str) -> None:
    """
    Look at values from a file before they are passed to a constructor, which may take anything without a look.

    :param kind: The class that is to be made
    :param given: Its constructor's arguments
    :param what: Where they are from, for the error
    :raises DamagedError: If one is of another kind than the constructor declares, or out of its range.
    """
    for fault in _faults(kind, given):
        raise DamagedError(f"{what}: {fault}")


def refuse(model: OffPolicyAlgorithm) -> None:
    """
    The same for arguments that a user passes. Otherwise a value that no file may have would be noticed only when the trained
    model is loaded.

    :param model: A model that has its arguments and no networks yet
    :raises ValueError: If one is of another kind than the constructor declares, or out of its range.
    """
    for fault in _faults(type(model), _kept(model)):
        raise ValueError(fault)


def _faults(algorithm: type, given: Mapping[str, Any]) -> Iterator[str]:
    declared = _declared(algorithm)
    for name, value in given.items():
        if name in UNLIMITED and value is None:
            continue
        kind, default = declared.get(name, (Any, None))
        is_default = value is default or (isinstance(value, Hashable) and value == default)  # no array, which has no answer
        if not is_default and not _fits(value, kind):
            yield f"{name} is {_shown(value)}, {_words(kind)} was expected."
        if name == "ent_coef" and isinstance(value, str) and not _is_ent_coef(value):
            yield f"{name} is {_shown(value)}, it must be 'auto', 'auto_0.1' with any first value above 0, or a number."
        number = value[0] if isinstance(value, tuple) and value else value
        number = number.item() if isinstance(number, np.generic) else number
        if isinstance(number, (int, float)):
            least, most = LIMITS.get(name, (-math.inf, math.inf) if isinstance(number, float) else (-(2**53), 2**53))
            if not least <= number <= most:
                allowed = "a number" if math.isnan(number) else f"from {least} to {most}"
                yield f"{name} is {short(value)}, it must be {allowed}."


def _shown(value: Any) -> str:
    return short(repr(value) if isinstance(value, str) else value)  # '0.1' is no number


def _is_ent_coef(text: str) -> bool:
    number = text.removeprefix("auto_")
    try:
        return text == "auto" or (0 < float(number) < math.inf) or (number == text and float(number) == 0)
    except ValueError:
        return False


def _alternatives(declared: Any) -> tuple[Any, ...]:
    return typing.get_args(declared) if isinstance(declared, (types.UnionType, typing._UnionGenericAlias)) else (declared,)  # type: ignore[attr-defined]


def _fits(value: Any, declared: Any) -> bool:
    """
    Numbers, texts and switches must be declared; a class and an object must be of a declared kind. Constructors look at no
    declaration, so that a number of NumPy's, a switch that is 0 or 1, and a path do in the place of what is declared.
    """
    kinds = [typing.get_origin(kind) or kind for kind in _alternatives(declared)]
    if Any in kinds or type(value) in kinds:
        return True
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (int, float)):
        whole = isinstance(value, int) or value.is_integer()
        return float in kinds or (int in kinds and whole) or (bool in kinds and value in (0, 1))
    if isinstance(value, (str, os.PathLike)) and str in kinds:
        return True
    if isinstance(value, str) or value is None:
        return False
    others = [kind for kind in kinds if isinstance(kind, type)]
    return isinstance(value, tuple(others)) if others else callable(value)


def _words(declared: Any) -> str:
    names = [getattr(kind, "__name__", str(kind)) for kind in _alternatives(declared)]
    return " or ".join("None" if name == "NoneType" else name for name in names)


def check_noise(noise: ActionNoise | None, shape: tuple[int, ...], what: str) -> None:
    """
    :param noise: A model's action noise
    :param shape: Of an action
    :param what: Where it is from, for the error
    :raises DamagedError: If it is no finite numbers of this shape.
    """
    attributes = OBJECTS.get(type(noise), {})
    for name in {"mean", "sigma", "initial_noise"} & attributes.keys():
        value = getattr(noise, attributes[name])
        array = np.zeros(()) if value is None else np.asarray(value)
        if array.dtype.kind not in "biuf" or array.shape not in ((), (1,), shape) or not np.isfinite(array).all():
            raise DamagedError(f"{what}: action_noise has a {name} of {short(value)}, {shape} finite numbers were expected.")


def construct_loaded(
    kind: type[Any], read: Mapping[str, Any], asked: Mapping[str, Any], **given: Any
) -> tuple[Any, list[str]]:
    """
    As :func:`construct`. Where that fails, what a class of somebody's own takes by name is not passed, as SB3 passes nothing:
    the class may keep something else under an argument's name, which the caller puts there.

    :param kind: The class that is to be made
    :param read: Its constructor's arguments from a file
    :param asked: Those that were asked for
    :param given: Others
    :return: As :func:`construct`
    """
    try:
        return construct(kind, {**read, **asked}, **given)
    except Exception:
        left = {name: value for name, value in read.items() if name not in of_others(kind)}
        if len(left) < len(read):
            with contextlib.suppress(Exception):
                return construct(kind, {**left, **asked}, **given)
        raise


def construct(kind: type[Any], read: Mapping[str, Any], **given: Any) -> tuple[Any, list[str]]:
    """
    A class of somebody's own may give its base class an argument itself, which its signature does not tell.

    :param kind: The class that is to be made
    :param read: Its constructor's arguments from a file
    :param given: Those that were asked for
    :return: The model, which is not set up, and the names of what was read but is the class's to say
    """
    left, fixed = dict(read), list[str]()
    while True:
        try:
            return kind(**left, **given, _init_setup_model=False), fixed
        except TypeError as error:
            found = GIVEN_TWICE.search(str(error))
            if found is None or found[1] not in left:
                raise
            del left[found[1]]
            fixed.append(found[1])


@contextlib.contextmanager
def constructing(kind: type, what: str) -> Iterator[None]:
    """
    While a model is made of what a file says, errors name the file.

    :param kind: The class that is made
    :param what: The file
    :raises ValueError: In the place of any error that a wrong value brings about.
    """
    try:
        yield
    except ValueError as error:
        text = str(error)
        raise ValueError(text if what in text else f"{what}: {' '.join(text.split())}") from error
    except MemoryError as error:
        raise ValueError(f"{what}: a model of these sizes does not fit into memory.") from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, AssertionError) as error:
        text = short(" ".join(str(error).split()))
        raise ValueError(f"{what}: no {kind.__name__} can have what it says ({type(error).__name__}: {text}).") from error


def _kept(model: OffPolicyAlgorithm) -> dict[str, Any]:
    return {name: vars(model)[attribute(name)] for name in names(type(model)) if attribute(name) in vars(model)}


def values(model: OffPolicyAlgorithm) -> dict[str, Any]:
    """
    :param model: A model
    :return: Its constructor's arguments by name, those that it has kept
    """
    kept = _kept(model)
    # Where SB3 itself chose the class of the replay buffer, it does so again: it would be another for other n_steps. For
    # more than one it has added two arguments, and would warn if it were passed both.
    added = {"n_steps": model.n_steps, "gamma": model.gamma} if model.n_steps > 1 else {}
    chosen, given = NStepReplayBuffer if added else ReplayBuffer, model.replay_buffer_kwargs
    if model.replay_buffer_class is chosen and added.items() <= given.items():
        kept["replay_buffer_class"] = None
        kept["replay_buffer_kwargs"] = {name: value for name, value in given.items() if name not in added}
    kept |= {name: os.fspath(kept[name]) for name in PATHS & kept.keys() if isinstance(kept[name], os.PathLike)}
    return kept


def attribute(name: str) -> str:
    """
    :param name: An argument
    :return: The attribute that keeps it
    """
    return ATTRIBUTES.get(name, name)


def take(model: OffPolicyAlgorithm) -> dict[str, Argument]:
    """
    :param model: A model
    :return: Its constructor's arguments, for a manifest
    """
    kept, arguments = values(model), {}
    for name in names(type(model)):
        if name not in kept:
            arguments[name] = Argument(missing=f"{type(model).__name__} keeps it under another name, or not at all")
            continue
        try:
            arguments[name] = Argument(value=to_plain(kept[name]))
        except TypeError as error:
            arguments[name] = Argument(missing=str(error))
    return arguments


def read(kind: type, arguments: dict[str, Argument], given: dict[str, Any], what: str) -> dict[str, Any]:
    """
    :param kind: The class that is to be made
    :param arguments: What a manifest has
    :param given: What is passed in its place
    :param what: Where the manifest is from, for the error
    :return: Arguments for the constructor, without those that are given
    :raises ValueError: If one is missing, if it cannot be read, or if the constructor takes none of this name.
    """
    read = {}
    for name in names(kind):
        if name in given:
            continue
        if name in PATHS:
            value = arguments.get(name, Argument()).value
            if value is not None:
                warnings.warn(f"{what}: {name} was {short(value)}, which only you can say: pass {name}=...", stacklevel=4)
            continue
        if name not in arguments:
            raise ValueError(f"{what}: it has no argument {name}; pass {name}=...")
        if arguments[name].missing is not None:
            raise ValueError(f"{what}: {name}: {arguments[name].missing}; pass {name}=...")
        try:
            read[name] = from_plain(arguments[name].value)
        except ValueError as error:
            raise ValueError(f"{what}: {name}: {error}; pass {name}=...") from error
    unknown = sorted(set(arguments) - set(names(kind)))
    if unknown:
        raise ValueError(f"{what}: a {kind.__name__} takes no argument {', '.join(unknown)}.")
    return read


def check_settled(kind: Any, given: Mapping[str, Any], before: Mapping[str, Argument], what: str) -> None:
    """
    :param kind: The class that is to be made
    :param given: What is passed to its constructor
    :param before: What the model was made with
    :param what: Where that is from, for the error
    :raises ValueError: If one of the class's ``settled_arguments`` is given another value than it had.
    """
    for name in kind.settled_arguments:
        if name in given and name in before and before[name].missing is None and to_plain(given[name]) != before[name].value:
            raise ValueError(f"{what}: {name}: the model was made with {short(before[name].value)}, it cannot be changed.")


def warn_of_differences(
    model: OffPolicyAlgorithm, before: Mapping[str, Argument], what: str, also: Mapping[str, tuple[Any, Any]] | None = None
) -> None:
    """
    :param model: A model that takes the place of another
    :param before: The other's arguments. A warning names those that the model has otherwise.
    :param what: Where they are from
    :param also: Settings of its ``VecNormalize`` that differ: the other's, and its own
    """
    ours = take(model)
    different = [
        f"{name}: {short(before[name].value)} → {short(argument.value)}"
        for name, argument in ours.items()
        if name in before
        and argument.missing is None
        and before[name].missing is None
        and argument.value != before[name].value
    ]
    different += [f"VecNormalize's {name}: {short(was)} → {short(is_now)}" for name, (was, is_now) in (also or {}).items()]
    if different:
        warnings.warn(f"The model has other settings than {what} ({'; '.join(different)}).", stacklevel=3)
