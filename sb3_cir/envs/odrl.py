"""
ODRL's off-dynamics tasks (https://arxiv.org/abs/2410.20750): ``odrl/<robot>-<shift>-<level>-v0``.

Such an id is the *target* domain, the shifted robot; ``gymnasium.make(id, domain="source")`` is the robot as it was. All
shifts are the table ``SHIFTS``, edits of the models that Gymnasium brings; MuJoCo is imported when a task is made.

What differs from ODRL, which runs gym's v3 tasks on mujoco-py:

- v3 pays the healthy reward on the step that ends an episode too, Gymnasium's v5 does not: at most 1 an episode.
- The ant's observation has 27 entries, not 111. The other 84 are contact forces, which read 0 there whatever the ant does,
  so they are dropped. For the same reason the contact cost is off.
- ODRL's hopper friction files leave the floor as it is, with MuJoCo's default friction of 1; here every geom is scaled, as
  ODRL does for the other robots. Of two geoms that touch MuJoCo takes the larger friction, so the foot feels the difference
  at a factor of 0.1 alone: 1.0 with ODRL's file, 0.2 here.

What ODRL's algorithms do otherwise than ours is in :mod:`sb3_cir.baselines.two_domain_sac`.
"""

import functools
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from sb3_cir.extras import install_hint
from sb3_cir.tasks import BY_ID, of_group


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


def narrow_joints(spec: Any, factor: float, joints: tuple[str, ...]) -> None:
    """Scale the two ends of these joints' ranges."""
    for name in joints:
        spec.joint(name).range = spec.joint(name).range * factor


def shorten_lower_legs(spec: Any, end: float, legs: tuple[str, ...]) -> None:
    """Move the far ends of the lower legs' capsules to ``end`` in x and y (unshifted: 0.4), signs kept."""
    for leg in legs:
        geom = spec.geom(f"{leg}_ankle_geom")
        ends = geom.fromto.copy()
        ends[3:5] *= end / abs(ends[3:5])
        geom.fromto = ends


# The hopper's and the walker's models are upright in their first position: a capsule's half length is along z there.
def grow_torso(spec: Any, factor: float) -> None:
    """
    Make the hopper's or the walker's torso ``factor`` times as thick and ``0.8 * factor`` times as long (unshifted: radius
    0.05, half length 0.2). Its lower end, the hip, stays where it is.
    """
    geom = spec.geom("torso_geom")
    radius, half_length = geom.size[:2]
    geom.size = [radius * factor, half_length * 0.8 * factor, 0]
    geom.pos = [*geom.pos[:2], geom.pos[2] + half_length * (0.8 * factor - 1)]


def shrink_foot(spec: Any, factor: float) -> None:
    """Scale the hopper's foot, in length and thickness, around its ankle."""
    geom, ankle = spec.geom("foot_geom"), spec.joint("foot_joint").pos
    geom.size = geom.size * factor
    geom.pos = ankle + (geom.pos - ankle) * factor


def lower_knees(spec: Any, height: float) -> None:
    """
    Put the walker's knees at ``height`` above the floor (unshifted: 0.6), between hips at 1.05 and ankles at 0.1: thighs
    become longer and lower legs shorter.
    """
    hip, ankle, leg_body = 1.05, 0.1, 0.35
    for side in ("", "_left"):
        thigh, leg, knee = spec.geom(f"thigh{side}_geom"), spec.geom(f"leg{side}_geom"), spec.joint(f"leg{side}_joint")
        thigh.size, thigh.pos = [thigh.size[0], (hip - height) / 2, 0], [0, 0, (height - hip) / 2]
        leg.size, leg.pos = [leg.size[0], (height - ankle) / 2, 0], [0, 0, (height + ankle) / 2 - leg_body]
        knee.pos = [0, 0, height - leg_body]


def shorten_cheetah(spec: Any, half_length: float) -> None:
    """Let the cheetah's torso end at ``half_length`` to either side (unshifted: 0.5); head and thighs move with its ends."""
    change = spec.geom("torso").fromto[3] - half_length
    spec.geom("torso").fromto = [-half_length, 0, 0, half_length, 0, 0]
    for part, sign in ((spec.geom("head"), 1), (spec.body("fthigh"), 1), (spec.body("bthigh"), -1)):
        part.pos = part.pos - [sign * change, 0, 0]


def shorten_thighs(spec: Any, knees: tuple[tuple[float, float], tuple[float, float]]) -> None:
    """
    Put the cheetah's back and front knee at these x and z from their hips (unshifted: 0.16, -0.25 and -0.14, -0.24). Each
    thigh is a capsule from hip to knee then. ODRL gives the shins such a capsule too, at each level the same one.
    """
    back, front = knees
    for part, lower, (x, z) in (
        ("bthigh", "bshin", back),
        ("bshin", "bfoot", (-0.13, -0.15)),
        ("fthigh", "fshin", front),
        ("fshin", "ffoot", (0.11, -0.13)),
    ):
        geom = spec.geom(part)
        geom.pos, geom.size = [x / 2, 0, z / 2], [geom.size[0], math.hypot(x, z) / 2, 0]
        geom.alt.axisangle = [0, 1, 0, math.atan2(-x, -z)]
        spec.body(lower).pos = [x, 0, z]


class Shift(NamedTuple):
    """
    One kind of shift. Two robots can have different edits under one name.

    :param name: Its name in ids
    :param robots: Who can have it
    :param edit: What it does to the model
    :param levels: What the edit gets at each level
    """

    name: str
    robots: tuple[str, ...]
    edit: Callable[[Any, Any], None]
    levels: dict[str, Any]


FACTORS = {"0.1": 0.1, "0.5": 0.5, "2.0": 2.0, "5.0": 5.0}
FRONT_LEGS = ("left", "right")
ALL_LEGS = (*FRONT_LEGS, "third", "fourth")

NARROWER = dict(easy=0.8, medium=0.5, hard=0.2)
SHORTER = dict(easy=0.32, medium=0.2, hard=0.08)
KNEES = dict(easy=((0.11, -0.11), (-0.09, -0.1)), medium=((0.08, -0.08), (-0.07, -0.08)), hard=((0.02, -0.02), (-0.04, -0.05)))


def _narrow(*joints: str) -> Callable[[Any, float], None]:
    return functools.partial(narrow_joints, joints=joints)


SHIFTS = (
    Shift("friction", tuple(ROBOTS), scale_friction, FACTORS),
    Shift("gravity", tuple(ROBOTS), scale_gravity, FACTORS),
    Shift("kinematic-anklejnt", ("ant",), limit_ankles, dict(easy=62, medium=50, hard=38)),
    Shift("kinematic-hipjnt", ("ant",), _narrow("hip_1", "hip_2", "hip_3", "hip_4"), NARROWER),
    Shift("kinematic-footjnt", ("hopper",), _narrow("foot_joint"), NARROWER),
    Shift("kinematic-footjnt", ("walker2d",), _narrow("foot_joint", "foot_left_joint"), NARROWER),
    Shift("kinematic-footjnt", ("halfcheetah",), _narrow("bfoot", "ffoot"), NARROWER),
    Shift("kinematic-legjnt", ("hopper",), _narrow("leg_joint"), NARROWER),
    Shift("kinematic-thighjnt", ("walker2d",), _narrow("thigh_joint", "thigh_left_joint"), NARROWER),
    Shift("kinematic-thighjnt", ("halfcheetah",), _narrow("bthigh", "fthigh"), NARROWER),
    Shift("morph-alllegs", ("ant",), functools.partial(shorten_lower_legs, legs=ALL_LEGS), SHORTER),
    Shift("morph-halflegs", ("ant",), functools.partial(shorten_lower_legs, legs=FRONT_LEGS), SHORTER),
    Shift("morph-torso", ("hopper", "walker2d"), grow_torso, dict(easy=1.5, medium=2.0, hard=2.5)),
    Shift("morph-torso", ("halfcheetah",), shorten_cheetah, dict(easy=0.4, medium=0.25, hard=0.1)),
    Shift("morph-foot", ("hopper",), shrink_foot, dict(easy=0.8, medium=0.6, hard=0.4)),
    Shift("morph-leg", ("walker2d",), lower_knees, dict(easy=0.5, medium=0.35, hard=0.2)),
    Shift("morph-thigh", ("halfcheetah",), shorten_thighs, KNEES),
)


def specs() -> Iterator[EnvSpec]:
    """Yield all tasks, for Gymnasium's registry."""
    for task in of_group("odrl", "odrl_other"):
        robot, _, rest = task.name.partition("-")
        shift, _, level = rest.rpartition("-")
        yield EnvSpec(
            task.env_id,
            entry_point="sb3_cir.envs.odrl:load",
            kwargs=dict(robot=robot, shift=shift, level=level),
            max_episode_steps=1000,
        )


def load(robot: str, shift: str, level: str, domain: str = "target", **kwargs: Any) -> gym.Env[Any, Any]:
    """
    Make one domain of a task.

    :param robot: A key of ``ROBOTS``
    :param shift: The name of one of ``SHIFTS`` that this robot can have
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
        kind = _remade(robot)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise ImportError(f"odrl tasks need MuJoCo: {install_hint('odrl')}. ({error})") from error
    kwargs = {**ROBOTS[robot].kwargs, **kwargs}
    if domain == "source":
        env = kind(xml_file=ROBOTS[robot].model, **kwargs)
    else:
        # Gymnasium takes a model by its path only, and reads it once.
        with tempfile.TemporaryDirectory(prefix="sb3_cir_odrl_") as folder:
            path = Path(folder) / "model.xml"
            path.write_text(_shifted_model(robot, shift, level))
            env = kind(xml_file=str(path), **kwargs)
    env.arguments = dict(robot=robot, shift=shift, level=level, domain=domain, **kwargs)
    return env


class _Remade(gym.Env[Any, Any]):
    """An environment that a copy or a pickle makes anew by :func:`load`: its model's file is gone."""

    arguments: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(load, **self.arguments), ()


@functools.cache
def _remade(robot: str) -> Callable[..., _Remade]:
    kind: Any = load_env_creator(ROBOTS[robot].env)
    return type(kind.__name__, (_Remade, kind), {})


@functools.cache
def _shifted_model(robot: str, name: str, level: str) -> str:
    """:return: The shifted model's XML"""
    import mujoco
    from gymnasium.envs.mujoco.mujoco_env import expand_model_path

    spec = mujoco.MjSpec.from_file(expand_model_path(ROBOTS[robot].model))
    shift = next(each for each in SHIFTS if each.name == name and robot in each.robots)
    shift.edit(spec, shift.levels[level])
    spec.compile()
    xml: str = spec.to_xml()
    return xml


def normalized_score(env_id: str, episode_return: float) -> float:
    """
    ODRL's score: 0 for the random policy's return, 100 for the expert's.

    :param env_id: ``odrl/<task>-v0``
    :param episode_return: Return in the target domain
    :return: ``(J - random) / (expert - random) * 100``
    :raises ValueError: If ODRL has no reference scores for the task.
    """
    if env_id not in BY_ID or not BY_ID[env_id].two_domains:
        example = of_group("odrl")[0].env_id
        raise ValueError(f"There are no reference scores for {env_id!r}, only for ODRL's tasks, such as {example!r}.")
    return float(BY_ID[env_id].score(episode_return))
