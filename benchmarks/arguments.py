"""Command-line options that several commands have: what they take, checked before anything is measured."""

import argparse
import math
from pathlib import Path


def positive(text: str) -> int:
    """
    :param text: As it was typed
    :return: A number of at least 1
    :raises ArgumentTypeError: If it is smaller.
    """
    return _at_least(1, text)


def not_negative(text: str) -> int:
    """
    :param text: As it was typed
    :return: A number of at least 0
    :raises ArgumentTypeError: If it is smaller.
    """
    return _at_least(0, text)


def above_zero(text: str) -> float:
    """
    :param text: As it was typed
    :return: A finite number above 0
    :raises ArgumentTypeError: If it is none.
    """
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: it must be positive and finite.")
    return value


def _at_least(least: int, text: str) -> int:
    if (value := int(text)) < least:
        raise argparse.ArgumentTypeError(f"{value}: it must be at least {least}.")
    return value


def folder(text: str) -> Path:
    """
    :param text: As it was typed
    :return: A folder, or what can become one
    :raises ArgumentTypeError: If there is a file of this name.
    """
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a file: name a folder.")
    return path
