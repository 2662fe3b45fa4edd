"""
The variants of CIR in the paper, by their short names: ``CIR("MlpPolicy", env, **arguments("no_tanh"))`` builds one.

``python -m sb3_cir.variants`` lists all variants and methods with the RL Zoo command that trains each. The data are in
``methods.py``.
"""

import argparse
import os
import shlex
import sys
from typing import Any

from sb3_cir import methods
from sb3_cir.methods import METHODS, Method
from sb3_cir.tasks import of_group
from sb3_cir.words import did_you_mean

VARIANTS: dict[str, Method] = {
    name.removeprefix("cir:"): method for name, method in METHODS.items() if name.startswith("cir:")
}


def arguments(name: str) -> dict[str, Any]:
    """
    :param name: A name of :data:`VARIANTS`
    :return: Arguments for CIR's constructor, to keep and change
    :raises ValueError: If there is no variant of this name; the message has the nearest one.
    """
    if name not in VARIANTS:
        raise ValueError(f"There is no variant {name!r}: {did_you_mean(name, list(VARIANTS))}")
    return methods.arguments(f"cir:{name}")


def listing(env_id: str) -> str:
    """
    :param env_id: The environment to train on; methods for two domains take one of ODRL's tasks instead
    :return: Two lines for each method that RL Zoo can train: its name and label, and the command
    """
    two_domains = env_id if env_id.startswith("odrl/") else of_group("odrl")[0].env_id
    lines = ["NAME (for benchmarks run --methods)  label\n    RL Zoo's command\n"]
    for name, method in METHODS.items():
        if method.algo:
            command = shlex.join(methods.zoo_command(name, two_domains if method.two_domains else env_id))
            lines.append(f"{name}  {method.label}\n    {command}")
    return "\n".join(lines)


def main() -> None:
    """List all variants and methods: name, the paper's label, the command that trains it."""
    parser = argparse.ArgumentParser(prog="python -m sb3_cir.variants", description=main.__doc__)
    parser.add_argument("--env", default="dm_control/walker-walk-v0", help="the environment to train on")
    text = listing(parser.parse_args().env)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The reader has seen enough (``| head``). Python flushes once more when it ends: give it somewhere to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
