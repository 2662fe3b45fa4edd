"""The constructor's arguments of a model, which SB3 keeps as attributes, as plain values and back."""

import inspect
import warnings
from typing import Any

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_cir.runs.files import short
from sb3_cir.runs.plain import LARGEST_SPACE, Argument, from_plain, to_plain

# Where SB3 keeps an argument under another name.
ATTRIBUTES = {"policy": "policy_class", "stats_window_size": "_stats_window_size"}
NOT_KEPT = {"self", "env", "device", "_init_setup_model"}


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


def values(model: OffPolicyAlgorithm) -> dict[str, Any]:
    """
    :param model: A model
    :return: Its constructor's arguments by name, those that it has kept
    """
    kept = {name: vars(model)[attribute(name)] for name in names(type(model)) if attribute(name) in vars(model)}
    if model.n_steps > 1 and model.replay_buffer_kwargs.get("n_steps") == model.n_steps:
        # SB3 itself chose the class of the replay buffer, added these two, and would warn if it were passed both.
        kept["replay_buffer_class"] = None
        kept["replay_buffer_kwargs"] = {
            name: value for name, value in model.replay_buffer_kwargs.items() if name not in ("n_steps", "gamma")
        }
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


def read(
    kind: type, arguments: dict[str, Argument], given: dict[str, Any], what: str, largest: int = LARGEST_SPACE
) -> dict[str, Any]:
    """
    :param kind: The class that is to be made
    :param arguments: What a manifest has
    :param given: What is passed in its place
    :param what: Where the manifest is from, for the error
    :param largest: See :func:`~sb3_cir.runs.plain.from_plain`
    :return: Arguments for the constructor, without those that are given
    :raises ValueError: If one is missing, if it cannot be read, or if the constructor takes none of this name.
    """
    read = {}
    for name in names(kind):
        if name in given:
            continue
        if name not in arguments:
            raise ValueError(f"{what}: it has no argument {name}; pass {name}=...")
        if arguments[name].missing is not None:
            raise ValueError(f"{what}: {name}: {arguments[name].missing}; pass {name}=...")
        try:
            read[name] = from_plain(arguments[name].value, largest)
        except ValueError as error:
            raise ValueError(f"{what}: {name}: {error}; pass {name}=...") from error
    unknown = sorted(set(arguments) - set(names(kind)))
    if unknown:
        raise ValueError(f"{what}: a {kind.__name__} takes no argument {', '.join(unknown)}.")
    return read


def warn_of_differences(model: OffPolicyAlgorithm, before: dict[str, Argument]) -> None:
    """
    :param model: A model that goes on with a run
    :param before: The run's arguments. A warning names those that the model has otherwise.
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
    if different:
        warnings.warn(f"The run goes on with other settings than it was begun with ({'; '.join(different)}).", stacklevel=3)
