"""RL Zoo's own folders as logs: the evaluations of a run, and what RL Zoo wrote down about it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sb3_cir.methods import METHODS
from sb3_cir.tasks import action_repeat, name_of

FILE = "evaluations.npz"


class _PlainLoader(yaml.SafeLoader):
    """RL Zoo's yaml names Python classes (an OrderedDict). Take what they hold, and build nothing."""


def _plain(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    return loader.construct_scalar(node)


_PlainLoader.add_multi_constructor("tag:yaml.org,2002:python/", _plain)


def read(file: Path) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    """
    :param file: An ``evaluations.npz`` of RL Zoo, in a run's folder
    :return: Rows of a log (mean return of each evaluation), and how the run was made
    :raises ValueError: If the files that RL Zoo writes beside it are missing.
    """
    arguments, settings = (_yaml(file, name) for name in ("args.yml", "config.yml"))
    env_id = arguments["env"]
    # Without the paper's protocol every action is taken once.
    repeat = action_repeat(env_id) if "sb3_cir.envs.paper_protocol" in str(settings.get("env_wrapper")) else 1
    task = name_of(env_id)
    run = {"exp_name": _method(arguments), "env_name": task, "seed": arguments["seed"]}
    with np.load(file) as evaluations:
        steps, returns = evaluations["timesteps"] * repeat, evaluations["results"].mean(axis=1)
    rows = [(*run.values(), "avg_return", step, value) for step, value in zip(steps, returns, strict=True)]
    return rows, {**run, "command": _command(file)}


def _beside(file: Path, name: str) -> Path:
    found = next(iter(sorted(file.parent.glob(f"*/{name}"))), None)
    if found is None:
        raise ValueError(f"{str(file)!r} is of no RL Zoo run: there is no {name} in a folder beside it.")
    return found


def _yaml(file: Path, name: str) -> dict[str, Any]:
    (pairs,) = yaml.load(_beside(file, name).read_text(encoding="utf-8"), Loader=_PlainLoader)
    return dict(pairs)


def _method(arguments: dict[str, Any]) -> str:
    """The algorithm, or the variant of CIR that the command's ``-params`` make; other ``-params`` stand in the name."""
    given = dict(arguments["hyperparams"] or {})
    given.pop("compile", None)  # the same numbers, sooner
    if isinstance(given.get("policy_kwargs"), dict):
        # SB3 adds this one before RL Zoo writes the file.
        given["policy_kwargs"] = {key: value for key, value in given["policy_kwargs"].items() if key != "use_sde"}
    algo = str(arguments["algo"])
    names = [name for name, method in METHODS.items() if method.algo == algo and method.arguments == given]
    return names[0] if names else f"{algo} {' '.join(f'{key}={value}' for key, value in given.items())}".strip()


def _command(file: Path) -> str:
    """Without the Python that ran it and without absolute folders."""
    words = _beside(file, "command.txt").read_text().split(" ")
    return without_folders(" ".join(["python", *words[1:]]))


def without_folders(command: str) -> str:
    """
    :param command: A command
    :return: The same without absolute folders, which are of one machine
    """
    return re.sub(r"(?<![\w.])/(?:[^/\s'\"]+/)+", "", command)
