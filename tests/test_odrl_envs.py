"""ODRL's tasks against the models that MuJoCo compiles, with the edits written out here once more."""

import copy
import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import yaml

import sb3_cir
from sb3_cir.envs.odrl import normalized_score
from sb3_cir.tasks import BY_ID, ODRL_SHIFTS, of_group

pytest.importorskip("mujoco", reason="needs MuJoCo (the odrl extra)")

TASKS = sorted(env_id for env_id in gym.registry if env_id.startswith("odrl/"))
OF_ROBOT = {"walker2d": "Walker2d-v5", "ant": "Ant-v5", "hopper": "Hopper-v5", "halfcheetah": "HalfCheetah-v5"}
ANKLE_END = dict(easy=0.32, medium=0.2, hard=0.08)
ANKLE_ANGLE = dict(easy=62, medium=50, hard=38)
HIP_ANGLE = dict(easy=24, medium=15, hard=6)
# Degrees for the hopper and the walker, radians for the cheetah.
JOINT_RANGES = {
    ("hopper", "footjnt"): dict(easy={"foot": (-36, 36)}, medium={"foot": (-22.5, 22.5)}, hard={"foot": (-9, 9)}),
    ("hopper", "legjnt"): dict(easy={"leg": (-120, 0)}, medium={"leg": (-75, 0)}, hard={"leg": (-30, 0)}),
    ("walker2d", "footjnt"): dict(
        easy={"foot": (-36, 36), "foot_left": (-36, 36)},
        medium={"foot": (-22.5, 22.5), "foot_left": (-22.5, 22.5)},
        hard={"foot": (-9, 9), "foot_left": (-9, 9)},
    ),
    ("walker2d", "thighjnt"): dict(
        easy={"thigh": (-120, 0), "thigh_left": (-120, 0)},
        medium={"thigh": (-75, 0), "thigh_left": (-75, 0)},
        hard={"thigh": (-30, 0), "thigh_left": (-30, 0)},
    ),
    ("halfcheetah", "footjnt"): dict(
        easy={"bfoot": (-0.32, 0.628), "ffoot": (-0.4, 0.4)},
        medium={"bfoot": (-0.2, 0.3925), "ffoot": (-0.25, 0.25)},
        hard={"bfoot": (-0.08, 0.157), "ffoot": (-0.1, 0.1)},
    ),
    ("halfcheetah", "thighjnt"): dict(
        easy={"bthigh": (-0.416, 0.84), "fthigh": (-0.8, 0.56)},
        medium={"bthigh": (-0.26, 0.525), "fthigh": (-0.5, 0.35)},
        hard={"bthigh": (-0.104, 0.21), "fthigh": (-0.2, 0.14)},
    ),
}
# Capsules, as (from, to, radius) in the robot's first position, and bodies' or joints' places there.
TORSO = dict(easy=(1.53, 0.075), medium=(1.69, 0.1), hard=(1.85, 0.125))
FOOT = dict(easy=(-0.104, 0.208, 0.048), medium=(-0.078, 0.156, 0.036), hard=(-0.052, 0.104, 0.024))
KNEE = dict(easy=0.5, medium=0.35, hard=0.2)
CHEETAH_TORSO = dict(easy=0.4, medium=0.25, hard=0.1)
CHEETAH_KNEES = dict(
    easy=((0.11, -0.11), (-0.09, -0.1)), medium=((0.08, -0.08), (-0.07, -0.08)), hard=((0.02, -0.02), (-0.04, -0.05))
)
# What a shift may change, other than contact and gravity; masses and inertias follow from sizes.
FIELDS = (
    *("geom_friction", "geom_size", "geom_pos", "geom_quat", "geom_solref", "geom_solimp", "geom_margin", "geom_contype"),
    *("body_mass", "body_inertia", "body_pos", "body_quat", "body_ipos", "jnt_range", "jnt_limited", "jnt_stiffness"),
    *("dof_damping", "dof_armature", "actuator_gear", "actuator_ctrlrange", "qpos0"),
)


def split(env_id: str) -> tuple[str, str, str]:
    """``odrl/ant-morph-alllegs-hard-v0`` to ``ant``, ``morph-alllegs``, ``hard``."""
    robot, *shift, level = env_id.removeprefix("odrl/").removesuffix("-v0").split("-")
    return robot, "-".join(shift), level


def expected_model(env_id: str) -> dict[str, np.ndarray]:
    """The source's model with the task's edit, made on the compiled numbers."""
    robot, shift, level = split(env_id)
    model = gym.make(env_id, domain="source").unwrapped.model
    expected = {name: np.array(getattr(model, name)) for name in FIELDS} | {"gravity": np.array(model.opt.gravity)}
    if shift == "friction":
        expected["geom_friction"] *= float(level)
    elif shift == "gravity":
        expected["gravity"] *= float(level)
    elif shift == "kinematic-anklejnt":
        for name, sign in (("ankle_1", 1), ("ankle_2", -1), ("ankle_3", -1), ("ankle_4", 1)):
            angles = np.deg2rad(sorted([sign * 30, sign * ANKLE_ANGLE[level]]))
            expected["jnt_range"][model.joint(name).id] = angles
    elif shift.startswith("kinematic") and robot != "ant":
        for name, angles in JOINT_RANGES[robot, shift.split("-")[1]][level].items():
            joint = model.joint(name if robot == "halfcheetah" else f"{name}_joint")
            expected["jnt_range"][joint.id] = angles if robot == "halfcheetah" else np.deg2rad(angles)
    elif shift == "kinematic-hipjnt":
        for name in ("hip_1", "hip_2", "hip_3", "hip_4"):
            expected["jnt_range"][model.joint(name).id] = np.deg2rad([-HIP_ANGLE[level], HIP_ANGLE[level]])
    else:
        legs = ("left", "right", "third", "fourth") if shift == "morph-alllegs" else ("left", "right")
        for leg in legs:
            geom = model.geom(f"{leg}_ankle_geom")
            half_length = math.sqrt(2) * ANKLE_END[level] / 2
            expected["geom_size"][geom.id, 1] = half_length
            expected["geom_pos"][geom.id, :2] *= ANKLE_END[level] / 0.4
            radius, density = 0.08, 5.0
            volume = math.pi * radius**2 * 2 * half_length + 4 / 3 * math.pi * radius**3
            expected["body_mass"][geom.bodyid] = density * volume
            expected["body_ipos"][geom.bodyid] = expected["geom_pos"][geom.id]
        del expected["body_inertia"]  # follows from size and density, which are checked
    return expected


def test_all_tasks_are_registered() -> None:
    factors = ["0.1", "0.5", "2.0", "5.0"]
    expected = {f"odrl/{robot}-{shift}-{f}-v0" for robot in OF_ROBOT for shift in ("friction", "gravity") for f in factors}
    for robot, shifts in ODRL_SHIFTS.items():
        expected |= {f"odrl/{robot}-{shift}-{level}-v0" for shift in shifts for level in ("easy", "medium", "hard")}
    assert set(TASKS) == expected == {task.env_id for task in of_group("odrl", "odrl_other")}
    assert len(TASKS) == 80


OTHER_BODIES = [env_id for env_id in TASKS if "-morph-" in env_id and "/ant-" not in env_id]


@pytest.mark.parametrize("env_id", [env_id for env_id in TASKS if env_id not in OTHER_BODIES])
def test_compiled_model(env_id: str) -> None:
    env = gym.make(env_id)
    model = env.unwrapped.model
    for name, value in expected_model(env_id).items():
        actual = model.opt.gravity if name == "gravity" else getattr(model, name)
        np.testing.assert_allclose(actual, value, rtol=2e-5, atol=2e-6, err_msg=name)
    source = gym.make(env_id, domain="source").unwrapped
    assert (model.opt.timestep, model.opt.integrator) == (source.model.opt.timestep, source.model.opt.integrator)
    assert env.spec.max_episode_steps == 1000
    assert env.observation_space == source.observation_space
    assert env.action_space == source.action_space


def upright(model):
    """Where everything is in the robot's first position, with all angles 0."""
    mujoco = pytest.importorskip("mujoco")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return data


def capsules(model) -> dict[str, tuple[list[float], float]]:
    """Name -> (x and z of both ends, the lesser z or x first; radius), in the first position."""
    data, found = upright(model), {}
    for index in range(model.ngeom):
        geom = model.geom(index)
        if geom.name != "floor":
            axis = data.geom_xmat[index].reshape(3, 3)[:, 2] * geom.size[1]
            ends = sorted((data.geom_xpos[index] + sign * axis)[[0, 2]].round(6).tolist() for sign in (-1, 1))
            found[geom.name] = (np.concatenate(ends), geom.size[0])
    return found


def expected_capsules(env_id: str, source) -> dict[str, tuple[list[float], float]]:
    """The capsules that a shift changes, or moves."""
    robot, shift, level = split(env_id)
    part = shift.removeprefix("morph-")
    if robot != "halfcheetah" and part == "torso":
        top, radius = TORSO[level]
        return {"torso_geom": ([0, 1.05, 0, top], radius)}
    if part == "foot":
        heel, toe, radius = FOOT[level]
        return {"foot_geom": ([heel, 0.1, toe, 0.1], radius)}
    if part == "leg":
        knee = KNEE[level]
        thigh, leg = ([0, knee, 0, 1.05], 0.05), ([0, 0.1, 0, knee], 0.04)
        return {"thigh_geom": thigh, "thigh_left_geom": thigh, "leg_geom": leg, "leg_left_geom": leg}
    before = capsules(source)
    if part == "torso":
        half = CHEETAH_TORSO[level]
        moved = {name: before[name][0] - np.array([0.5 - half, 0] * 2) for name in ("head", "fthigh", "fshin", "ffoot")}
        moved |= {name: before[name][0] + np.array([0.5 - half, 0] * 2) for name in ("bthigh", "bshin", "bfoot")}
        return {"torso": ([-half, 0.7, half, 0.7], 0.046)} | {name: (ends, 0.046) for name, ends in moved.items()}
    back, front = CHEETAH_KNEES[level]
    found = {}
    for name, hip, knee, shin, old_foot in (
        ("b", (-0.5, 0.7), back, (-0.13, -0.15), (0.16 - 0.28, -0.25 - 0.14)),
        ("f", (0.5, 0.7), front, (0.11, -0.13), (-0.14 + 0.13, -0.24 - 0.18)),
    ):
        places = np.cumsum([hip, knee, shin], axis=0)
        for piece, ends in (("thigh", places[:2]), ("shin", places[1:])):
            found[f"{name}{piece}"] = (np.concatenate(sorted(ends.tolist())), 0.046)
        shift_of_foot = places[2] - hip - old_foot
        found[f"{name}foot"] = (before[f"{name}foot"][0] + np.tile(shift_of_foot, 2), 0.046)
    return found


@pytest.mark.parametrize("env_id", OTHER_BODIES)
def test_other_bodies(env_id: str) -> None:
    """Each capsule lies where ODRL's file has it, and nothing else differs from the source; masses follow from sizes."""
    robot, shift, level = split(env_id)
    env, source = gym.make(env_id).unwrapped, gym.make(env_id, domain="source").unwrapped
    changed, before, after = expected_capsules(env_id, source.model), capsules(source.model), capsules(env.model)
    assert after.keys() == before.keys()
    for name, (ends, radius) in (before | changed).items():
        np.testing.assert_allclose(after[name][0], ends, atol=1e-5, err_msg=name)
        assert after[name][1] == pytest.approx(radius), name
    # The shift is one: no level is the source.
    assert any(not np.allclose(after[name][0], before[name][0]) for name in changed)
    for name in ("geom_friction", "jnt_range", "jnt_stiffness", "dof_damping", "actuator_gear", "qpos0"):
        np.testing.assert_allclose(getattr(env.model, name), getattr(source.model, name), rtol=1e-5, err_msg=name)
    # A joint is where the two capsules meet.
    joints = {env.model.joint(index).name: place for index, place in enumerate(upright(env.model).xanchor)}
    was = {source.model.joint(index).name: place for index, place in enumerate(upright(source.model).xanchor)}
    if shift == "morph-leg":
        for name in ("leg_joint", "leg_left_joint"):
            np.testing.assert_allclose(joints.pop(name), [0, 0, KNEE[level]], atol=1e-6)
    elif robot == "halfcheetah":
        ends = {name: after[name][0].reshape(2, 2) for name in ("bthigh", "bshin", "fthigh", "fshin")}
        for name in ("bthigh", "bshin", "fthigh", "fshin", "bfoot", "ffoot"):
            place = joints.pop(name)[[0, 2]]
            if shift == "morph-thigh" and name in ends:
                assert min(abs(ends[name] - place).max(axis=1)) < 1e-5
    for name, place in joints.items():
        np.testing.assert_allclose(place, was[name], atol=1e-6, err_msg=name)
    if robot == "halfcheetah":  # its file fixes the sum
        assert env.model.body_mass.sum() == pytest.approx(14, abs=1e-3)
    else:
        assert env.model.body_mass.sum() != pytest.approx(source.model.body_mass.sum())
    assert env.observation_space == source.observation_space


@pytest.mark.parametrize("robot", OF_ROBOT)
def test_source_is_gymnasiums_robot(robot: str) -> None:
    ours = gym.make(f"odrl/{robot}-friction-0.5-v0", domain="source").unwrapped
    gymnasiums = gym.make(OF_ROBOT[robot]).unwrapped
    for name in FIELDS:
        if robot == "walker2d" and name == "geom_friction":
            continue
        np.testing.assert_array_equal(getattr(ours.model, name), getattr(gymnasiums.model, name), err_msg=name)
    if robot == "walker2d":  # v3's feet; walker2d_v5.xml has 1.9 for both
        assert ours.model.geom("foot_geom").friction[0] == 0.9
        assert ours.model.geom("foot_left_geom").friction[0] == 1.9


def test_ant_has_no_contact_forces() -> None:
    env = gym.make("odrl/ant-friction-0.5-v0")
    observation, _ = env.reset(seed=0)
    assert observation.shape == (27,)
    for _ in range(50):
        *_, info = env.step(env.action_space.sample())
        assert info["reward_contact"] == 0


@pytest.mark.parametrize("domain", ["source", "target"])
def test_copy(domain: str) -> None:
    """A copy has the same model and arguments."""
    env = gym.make("odrl/ant-morph-alllegs-hard-v0", domain=domain, healthy_reward=3.0).unwrapped
    copied = copy.deepcopy(env)
    np.testing.assert_array_equal(copied.model.geom_size, env.model.geom_size)
    assert copied._healthy_reward == 3
    assert copied.observation_space == env.observation_space


def test_a_pickle_is_read_by_another_process(tmp_path: Path) -> None:
    """Neither needs a file of the other. None is left, though a worker process ends without tidying up."""
    code = """
import os, pickle, sys
import gymnasium, sb3_cir
if sys.argv[1] == "write":
    with open("env.pickle", "wb") as file:
        pickle.dump(gymnasium.make("odrl/ant-morph-alllegs-hard-v0"), file)
else:
    with open("env.pickle", "rb") as file:
        print(pickle.load(file).unwrapped.model.geom_size.tolist(), flush=True)
os._exit(0)
"""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    for what in ("write", "read"):
        command, environ = [sys.executable, "-c", code, what], {**os.environ, "TMPDIR": str(temporary)}
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
        assert not list(temporary.glob("sb3_cir_odrl_*"))
    expected = gym.make("odrl/ant-morph-alllegs-hard-v0").unwrapped.model.geom_size
    np.testing.assert_array_equal(json.loads(done.stdout), expected)


def test_wrong_domain() -> None:
    with pytest.raises(ValueError, match="domain='both': it must be 'source' or 'target'"):
        gym.make("odrl/ant-gravity-0.5-v0", domain="both")


def test_mujoco_is_imported_late_and_asked_for() -> None:
    code = """
import sys
import gymnasium, sb3_cir
assert "mujoco" not in sys.modules
sys.modules["mujoco"] = None
try:
    gymnasium.make("odrl/ant-gravity-0.5-v0")
except ImportError as error:
    print(error)
"""
    root = Path(sb3_cir.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert "odrl tasks need MuJoCo: pip install " in done.stdout


def test_reference_scores_are_the_papers() -> None:
    table: dict[str, dict[str, float]] = {}
    path = Path(__file__).parent.parent / "benchmarks" / "published" / "odrl_reference_scores.csv"
    with path.open() as file:
        for line in csv.DictReader(file):
            table.setdefault(line["row"], {})[line["column"]] = float(line["mean"])
    assert list(table) == [task.name for task in of_group("odrl")]
    for task in of_group("odrl"):
        assert round(task.zero, 2) == table[task.name]["Reference random policy score"]
        assert task.one == table[task.name]["Reference expert policy score"]


@pytest.mark.parametrize(
    ("task", "random", "expert"),
    [
        ("walker2d-gravity-0.1", 10.079455055289959, 2074.904),
        ("ant-friction-5.0", -325.6, 4545.021),
        ("ant-gravity-2.0", -325.6, 6705.12),
        ("halfcheetah-friction-2.0", -280.178953, 11255.9677734375),
        ("halfcheetah-morph-thigh-hard", -280.178953, 12135.0),
        ("hopper-kinematic-legjnt-easy", -26.3360015397715, 3234.3),
        ("walker2d-morph-leg-medium", 10.079455055289959, 4592.3),
    ],
)
def test_reference_scores_are_odrls(task: str, random: float, expert: float) -> None:
    found = BY_ID[f"odrl/{task}-v0"]
    assert (found.zero, found.one) == (random, expert)


def test_normalized_score() -> None:
    assert normalized_score("odrl/ant-gravity-0.5-v0", -325.6) == 0
    assert normalized_score("odrl/ant-gravity-0.5-v0", 4317.065) == 100
    assert normalized_score("odrl/walker2d-gravity-0.5-v0", 10.08 + (5194.713 - 10.08) / 4) == pytest.approx(25, abs=1e-3)
    assert normalized_score("odrl/hopper-friction-0.5-v0", 3234.3) == 100
    with pytest.raises(ValueError, match=r"no reference scores for 'odrl/pen-broken-joint-easy-v0', only for ODRL's tasks"):
        normalized_score("odrl/pen-broken-joint-easy-v0", 0.0)


def test_yaml_has_all_tasks() -> None:
    entries = yaml.safe_load((Path(__file__).parent.parent / "hyperparams" / "cir.yml").read_text(encoding="utf-8"))
    assert set(TASKS) == {env_id for env_id in entries if env_id.startswith("odrl/")}
    assert all(entries[env_id] == entries[TASKS[0]] for env_id in TASKS)


def random_returns(env_id: str, n_episodes: int, **kwargs) -> np.ndarray:
    env = gym.make(env_id, domain="source", **kwargs)
    env.action_space.seed(0)
    returns = np.zeros(n_episodes)
    for episode in range(n_episodes):
        env.reset(seed=episode)
        over = False
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            returns[episode] += reward
            over = terminated or truncated
    return returns


def test_random_returns() -> None:
    """
    The paper's random scores are 10.08 and -325.6; benchmarks/README.md has what ours differ by and why. The ant's fits
    1,000 steps of random actions whether or not it falls, so the fall does not end the episode here.
    """
    walker = random_returns("odrl/walker2d-friction-0.5-v0", 100)
    assert abs(walker.mean() - 10.08) < 12
    ant = random_returns("odrl/ant-friction-0.5-v0", 4, terminate_when_unhealthy=False)
    assert abs(ant.mean() + 325.6) < 80
