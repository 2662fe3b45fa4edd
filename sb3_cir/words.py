"""How errors and warnings put things: values, other errors, and names that nobody knows."""

import difflib
from collections.abc import Iterable
from typing import Any


def short(value: Any) -> str:
    """
    :param value: Whatever stood in a file or was given for an argument
    :return: It in words, cut off where it is long
    """
    try:
        text = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number of too many digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:97]}..."


def first_line(error: BaseException) -> str:
    """
    :param error: An error of somebody else's, whose text may be long
    :return: Its kind, and the first line of its text if it has one
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {short(lines[0])}" if lines else type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str | None:
    """
    :param name: What is not known
    :param known: What is
    :return: The one that may be meant, if one is near
    """
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str, known: list[str]) -> str:
    """
    :param name: What is not known
    :param known: What is
    :return: The end of a sentence that says so
    """
    near = nearest(name, known)
    return f"{'' if near is None else f'did you mean {near!r}? '}it must be one of {', '.join(known)}."
