"""
ODRL's off-dynamics tasks (https://arxiv.org/abs/2410.20750): ``odrl/<robot>-<shift>-<level>-v0``.

Such an id is the *target* domain, the shifted robot; ``gymnasium.make(id, domain="source")`` is the robot as it was. All
shifts are the table ``SHIFTS``, edits of the models that Gymnasium brings; MuJoCo is imported when a task is made.

What differs from ODRL, which runs gym's v3 tasks on mujoco-py:

- v3 pays the healthy reward on the step that ends an episode too, Gymnasium's v5 does not: at most 1 an episode.
- The ant's observation has 27 entries, not 111: the other 84 are contact forces, which read 0 there. For the same reason
  the contact cost is off.
- ODRL's hopper friction files leave the floor as it is, with MuJoCo's default friction of 1; here every geom is scaled, as
  ODRL does for the other robots.
"""

import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from sb3_cir.envs.tasks import ODRL_REFERENCE_SCORES
from sb3_cir.extras import install_hint


class Robot(NamedTuple):
    """
    The unshifted robot. What ``kwargs`` does not name has the same default in v3 and v5.

    :param env: Gymnasium's class
    :param model: Its model file, in Gymnasium's folder of them
    :param kwargs: Arguments that make v5 the v3 task that ODRL uses
    """

    env: str
    model: str
    kwargs: dict[str, Any] = {}


ROBOTS = {
    # Not walker2d_v5.xml: v3's left foot has twice the friction of its right one.
    "walker2d": Robot("gymnasium.envs.mujoco.walker2d_v5:Walker2dEnv", "walker2d.xml"),
    "ant": Robot(
        "gymnasium.envs.mujoco.ant_v5:AntEnv",
        "ant.xml",
        dict(contact_cost_weight=0.0, include_cfrc_ext_in_observation=False),
    ),
    "hopper": Robot("gymnasium.envs.mujoco.hopper_v5:HopperEnv", "hopper.xml"),
    "halfcheetah": Robot("gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv", "half_cheetah.xml"),
}


# Each edit takes a mujoco.MjSpec and the level's number.
def scale_friction(spec: Any, factor: float) -> None:
    """Scale sliding, torsional and rolling friction of every geom and of the default class."""
    for geom in (spec.default.geom, *spec.geoms):
        geom.friction = geom.friction * factor


def scale_gravity(spec: Any, factor: float) -> None:
    """Scale gravity; the time step stays."""
    spec.option.gravity = spec.option.gravity * factor


def limit_ankles(spec: Any, degrees: float) -> None:
    """Let the ant's ankles bend from 30 to ``degrees`` (unshifted: 70), each to its side."""
    for name, angles in dict(
        ankle_1=[30, degrees], ankle_2=[-degrees, -30], ankle_3=[-degrees, -30], ankle_4=[30, degrees]
    ).items():
        spec.joint(name).range = angles


def limit_hips(spec: Any, degrees: float) -> None:
    """Let the ant's hips turn ``degrees`` to either side (unshifted: 30)."""
    for index in range(1, 5):
        spec.joint(f"hip_{index}").range = [-degrees, degrees]


def shorten_lower_legs(spec: Any, end: float, legs: tuple[str, ...]) -> None:
    """Move the far ends of the lower legs' capsules to ``end`` in x and y (unshifted: 0.4), signs kept."""
    for leg in legs:
        geom = spec.geom(f"{leg}_ankle_geom")
        ends = geom.fromto.copy()
        ends[3:5] *= end / abs(ends[3:5])
        geom.fromto = ends


class Shift(NamedTuple):
    """
    One kind of shift.

    :param robots: Who can have it
    :param edit: What it does to the model
    :param levels: The number that the edit gets at each level
    """

    robots: tuple[str, ...]
    edit: Callable[[Any, float], None]
    levels: dict[str, float]


FACTORS = {"0.1": 0.1, "0.5": 0.5, "2.0": 2.0, "5.0": 5.0}
FRONT_LEGS = ("left", "right")
ALL_LEGS = (*FRONT_LEGS, "third", "fourth")

SHIFTS = {
    "friction": Shift(tuple(ROBOTS), scale_friction, FACTORS),
    "gravity": Shift(tuple(ROBOTS), scale_gravity, FACTORS),
    "kinematic-anklejnt": Shift(("ant",), limit_ankles, dict(easy=62, medium=50, hard=38)),
    "kinematic-hipjnt": Shift(("ant",), limit_hips, dict(easy=24, medium=15, hard=6)),
    "morph-alllegs": Shift(
        ("ant",), functools.partial(shorten_lower_legs, legs=ALL_LEGS), dict(easy=0.32, medium=0.2, hard=0.08)
    ),
    "morph-halflegs": Shift(
        ("ant",), functools.partial(shorten_lower_legs, legs=FRONT_LEGS), dict(easy=0.32, medium=0.2, hard=0.08)
    ),
}


def specs() -> Iterator[EnvSpec]:
    """Yield all tasks, for Gymnasium's registry."""
    for name, shift in SHIFTS.items():
        for robot in shift.robots:
            for level in shift.levels:
                yield EnvSpec(
                    f"odrl/{robot}-{name}-{level}-v0",
                    entry_point="sb3_cir.envs.odrl:load",
                    kwargs=dict(robot=robot, shift=name, level=level),
                    max_episode_steps=1000,
                )


def load(robot: str, shift: str, level: str, domain: str = "target", **kwargs: Any) -> gym.Env[Any, Any]:
    """
    Make one domain of a task.

    :param robot: A key of ``ROBOTS``
    :param shift: A key of ``SHIFTS``
    :param level: One of the shift's levels
    :param domain: "target", the shifted robot, or "source", the robot as it was
    :param kwargs: Passed on to Gymnasium's class (``render_mode`` ...)
    :return: The environment
    :raises ValueError: If there is no such domain
    :raises ImportError: If MuJoCo is missing; the message has the pip command.
    """
    if domain not in ("source", "target"):
        raise ValueError(f"domain={domain!r}: it must be 'source' or 'target'.")
    try:
        create: Callable[..., Any] = load_env_creator(ROBOTS[robot].env)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise ImportError(f"odrl tasks need MuJoCo: {install_hint('odrl')}. ({error})") from error
    model = ROBOTS[robot].model if domain == "source" else _shifted_model(robot, shift, level)
    env: gym.Env[Any, Any] = create(xml_file=model, **{**ROBOTS[robot].kwargs, **kwargs})
    return env


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="sb3_cir_odrl_")


# The file stays as long as the process: a copy of an environment reads it again.
@functools.cache
def _shifted_model(robot: str, shift: str, level: str) -> str:
    """Write the shifted model to a file, since Gymnasium takes a model by its path only; return that."""
    import mujoco
    from gymnasium.envs.mujoco.mujoco_env import expand_model_path

    spec = mujoco.MjSpec.from_file(expand_model_path(ROBOTS[robot].model))
    SHIFTS[shift].edit(spec, SHIFTS[shift].levels[level])
    spec.compile()
    path = Path(_folder().name) / f"{robot}-{shift}-{level}.xml"
    path.write_text(spec.to_xml())
    return str(path)


def has_reference_score(env_id: str) -> bool:
    """
    :param env_id: Any Gymnasium id
    :return: Whether it is one of the paper's eight tasks, which have reference scores.
    """
    return _task(env_id) in ODRL_REFERENCE_SCORES


def normalized_score(env_id: str, episode_return: float) -> float:
    """
    ODRL's score: 0 for the random policy's return, 100 for the expert's.

    :param env_id: ``odrl/<task>-v0`` for one of the paper's eight tasks
    :param episode_return: Return in the target domain
    :return: ``(J - random) / (expert - random) * 100``
    :raises ValueError: If the paper gives no reference scores for the task.
    """
    if not has_reference_score(env_id):
        raise ValueError(f"There are no reference scores for {env_id!r}, only for {', '.join(ODRL_REFERENCE_SCORES)}.")
    random, expert = ODRL_REFERENCE_SCORES[_task(env_id)]
    return (episode_return - random) / (expert - random) * 100


def _task(env_id: str) -> str:
    return env_id.removeprefix("odrl/").removesuffix("-v0")
