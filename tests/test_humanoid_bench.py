"""HumanoidBench: its ids, the repair for today's MuJoCo, the paper's protocol. What needs the package skips without it."""

import copy
import importlib.util
import os
import subprocess
import sys
import textwrap

import gymnasium as gym
import numpy as np
import pytest
import yaml
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

import sb3_cir.envs
from sb3_cir import CIR
from sb3_cir.envs.humanoid_bench import drop_unknown_fields, install
from sb3_cir.tasks import TASKS, of_group
from sb3_cir.zoo import HYPERPARAMS

# Size of the observation: the paper's table of tasks, and for the six of its Table 1 what the environments have.
OBSERVATIONS = {
    "h1-balance_hard-v0": 77,
    "h1-balance_simple-v0": 64,
    "h1-crawl-v0": 51,
    "h1-hurdle-v0": 51,
    "h1-maze-v0": 51,
    "h1-pole-v0": 51,
    "h1-reach-v0": 57,
    "h1-run-v0": 51,
    "h1-sit_hard-v0": 64,
    "h1-sit_simple-v0": 51,
    "h1-slide-v0": 51,
    "h1-stair-v0": 51,
    "h1-stand-v0": 51,
    "h1-walk-v0": 51,
    "h1-door-v0": 55,
    "h1-highbar_simple-v0": 51,
    "h1hand-reach-v0": 157,
    "h1hand-run-v0": 151,
    "h1hand-sit_hard-v0": 164,
    "h1hand-sit_simple-v0": 151,
}
SMALL = dict(learning_starts=20, batch_size=16, policy_kwargs=dict(net_arch=dict(pi=[16, 16], qf=[16, 16])))

needs_humanoid_bench = pytest.mark.skipif(
    importlib.util.find_spec("humanoid_bench") is None, reason=f"HumanoidBench is not installed. {install()}"
)


def run_python(code: str, *, status: int = 0, **env: str) -> str:
    """
    :param code: What to run in a Python of its own
    :param status: The exit status that is expected
    :param env: Environment variables to set; the ones about rendering are unset otherwise
    :return: What it printed
    """
    base = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY")}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**base, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == status, result.stderr
    return result.stdout + result.stderr


def test_all_twenty_ids_are_known_before_any_simulator_is_imported():
    assert set(OBSERVATIONS) == {task.name for task in of_group("humanoid_bench", "humanoid_bench_wider")}
    run_python(f"""
        import sys
        import gymnasium as gym
        import sb3_cir
        assert all(task in gym.registry for task in {sorted(OBSERVATIONS)})
        assert not {{"humanoid_bench", "jax", "flax", "mujoco", "dm_control"}} & set(sys.modules)
    """)


def test_normalized_return_is_the_share_of_the_success_score_in_thousandths():
    assert TASKS["h1-reach-v0"].score(6000) == 500
    assert TASKS["h1-stand-v0"].score(800) == 1000


def test_hyperparameters_are_the_papers():
    params = yaml.safe_load((HYPERPARAMS / "cir.yml").read_text())
    short_sighted = ["balance_hard", "hurdle", "pole", "run", "walk", "reach", "sit_simple", "sit_hard", "crawl"]
    for task in OBSERVATIONS:
        of_task = params[task]
        assert of_task["gamma"] == (0.95 if task in [f"h1-{name}-v0" for name in short_sighted] else 0.99), task
        assert of_task["convex_coef"] == 1.0
        assert float(of_task["n_timesteps"]) == 1e6
        assert of_task["learning_starts"] == 2500
        assert of_task["env_wrapper"] == "sb3_cir.envs.paper_protocol"


@pytest.mark.parametrize("env_id", ["h1-push-v0", "h1hand-kitchen-v0", "h1strong-highbar_hard-v0", "g1-run-v0"])
def test_hyperparameters_of_tasks_that_the_paper_does_not_have(env_id):
    """The paper's λ on HumanoidBench, not that of dm_control."""
    assert yaml.safe_load((HYPERPARAMS / "cir.yml").read_text())[env_id]["convex_coef"] == 1.0


def test_repair_drops_exactly_the_fields_that_the_installed_mujoco_lacks():
    pytest.importorskip("mujoco")
    sizes = {
        "mjmodel": {"body_pos": ("nbody", 3), "gone_from_model": ("nbody",), "qpos0": ("nq",)},
        "mjdata": {"xpos": ("nbody", 3), "gone_from_data": ("nv",)},
    }
    drop_unknown_fields(sizes)
    assert sizes == {"mjmodel": {"body_pos": ("nbody", 3), "qpos0": ("nq",)}, "mjdata": {"xpos": ("nbody", 3)}}


# A package that does on import what HumanoidBench does: registers its ids, and has a table that MuJoCo has outgrown.
STAND_IN = """
from gymnasium.envs.registration import register
import humanoid_bench.dmc_deps.dmc_sizes
for task in ("h1-walk", "h1-kitchen"):
    register(id=f"{task}-v0", entry_point="humanoid_bench.env:HumanoidEnv")
"""


@pytest.fixture
def stand_in(tmp_path):
    """:return: A folder for ``PYTHONPATH`` with the stand-in"""
    table = tmp_path / "humanoid_bench" / "dmc_deps" / "dmc_sizes.py"
    table.parent.mkdir(parents=True)
    table.write_text("array_sizes = {'mjmodel': {'qpos0': (), 'gone': ()}, 'mjdata': {'qpos': (), 'gone': ()}}")
    (tmp_path / "humanoid_bench" / "__init__.py").write_text(STAND_IN)
    return tmp_path


def with_stand_in(stand_in, code: str) -> str:
    return run_python(code, PYTHONPATH=os.pathsep.join([str(stand_in), *sys.path]))


# Its environment likewise: ``terminated`` is what NumPy makes of a comparison.
STAND_IN_ENV = """
import gymnasium as gym
import numpy as np
from gymnasium import spaces

class HumanoidEnv(gym.Env):
    metadata = {"render_modes": ["human", "rgb_array", "depth_array"], "render_fps": 50}
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, robot, control, task, render_mode):
        pass

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.reset_model(), {}

    def reset_model(self):
        return np.zeros(3)

    def step(self, action):
        return np.zeros(3), 1.0, np.zeros(3)[2] < -1, False, {}
"""


def test_what_step_returns_is_what_gymnasium_asks_for(stand_in):
    (stand_in / "humanoid_bench" / "env.py").write_text(STAND_IN_ENV)
    with_stand_in(
        stand_in,
        """
        from stable_baselines3.common.env_checker import check_env
        import sb3_cir.envs
        check_env(sb3_cir.envs.make("h1-walk-v0"))
        """,
    )


@pytest.mark.parametrize("order", ["import humanoid_bench, sb3_cir", "import sb3_cir, humanoid_bench"])
def test_either_order_of_imports_repairs_without_a_warning_and_leaves_the_other_ids(stand_in, order):
    pytest.importorskip("mujoco")
    output = with_stand_in(
        stand_in,
        f"""
        {order}
        import gymnasium as gym
        sizes = humanoid_bench.dmc_deps.dmc_sizes.array_sizes
        assert sizes == {{"mjmodel": {{"qpos0": ()}}, "mjdata": {{"qpos": ()}}}}, sizes
        assert gym.spec("h1-walk-v0").entry_point == "sb3_cir.envs.humanoid_bench:load"
        assert gym.spec("h1-walk-v0").max_episode_steps == 1000
        assert gym.spec("h1-kitchen-v0").entry_point == "humanoid_bench.env:HumanoidEnv"
        """,
    )
    assert "verriding" not in output


def test_looking_for_the_package_or_failing_to_import_it_leaves_the_ids(stand_in):
    with (stand_in / "humanoid_bench" / "__init__.py").open("a") as file:
        file.write("\nimport a_package_that_is_missing\n")
    with_stand_in(
        stand_in,
        """
        import importlib.util
        import gymnasium as gym
        import sb3_cir
        assert importlib.util.find_spec("humanoid_bench") is not None
        ours = gym.spec("h1-walk-v0")
        for _ in range(2):
            try:
                import humanoid_bench
            except ImportError:
                assert gym.spec("h1-walk-v0") is ours
            else:
                raise AssertionError
        """,
    )


def test_without_the_package_the_error_names_both_installs_each_time():
    pytest.importorskip("mujoco")
    run_python("""
        import sys
        import sb3_cir.envs
        sys.modules["humanoid_bench"] = None  # Python's own way to forbid an import
        for _ in range(2):
            try:
                sb3_cir.envs.make("h1-walk-v0")
            except ImportError as error:
                assert "pip install " in str(error)
                assert "jax" in str(error) or "[humanoid-bench]" in str(error)
                assert "pip install --no-deps" in str(error)
                assert f"humanoid-bench.git@{sb3_cir.envs.humanoid_bench.COMMIT}" in str(error)
            else:
                raise AssertionError
    """)


def test_a_backend_that_mujoco_cannot_import_is_told_from_a_missing_package():
    pytest.importorskip("mujoco")
    # MuJoCo's import fails on an unknown backend, as it does where osmesa's library is missing.
    output = run_python("import sb3_cir.envs; sb3_cir.envs.make('h1-walk-v0')", status=1, MUJOCO_GL="mesa")
    last = output.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: MuJoCo can open no renderer (MUJOCO_GL is mesa)")
    for word in ("MUJOCO_GL=egl", "MUJOCO_GL=osmesa", "libegl1", "libgl1-mesa-dri", "libosmesa6"):
        assert word in last


@needs_humanoid_bench
@pytest.mark.parametrize("task", sorted(OBSERVATIONS))
def test_sizes_scores_and_protocol(task):
    env = sb3_cir.envs.make(task, seed=0)
    assert env.observation_space.shape == (OBSERVATIONS[task],)
    assert env.action_space.shape == (61 if task.startswith("h1hand") else 19,)
    assert env.observation_space.dtype == np.float32
    assert env.unwrapped.task.unwrapped.success_bar == TASKS[task].one
    assert env.unwrapped.task.unwrapped.max_episode_steps == env.spec.max_episode_steps == 1000
    observation, _ = env.reset()
    start = env.unwrapped.data.time
    next_observation, _, _, _, _ = env.step(env.action_space.sample())
    assert observation.dtype == next_observation.dtype == np.float32
    # Two steps of the simulator, each of 10 of MuJoCo's.
    assert env.unwrapped.data.time - start == pytest.approx(20 * env.unwrapped.model.opt.timestep)
    env.close()


@needs_humanoid_bench
@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(OBSERVATIONS))
def test_steps_and_trains(task):
    env = sb3_cir.envs.make(task, seed=0)
    check_env(env)
    env.reset()
    for _ in range(200):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        if terminated or truncated:
            env.reset()
    model = CIR("MlpPolicy", env, convex_coef=1.0, seed=0, **SMALL).learn(100)
    assert model._n_updates > 0
    env.close()


@needs_humanoid_bench
def test_falls_are_terminal_and_the_time_limit_is_not():
    env = sb3_cir.envs.make("h1-stand-v0", seed=0)
    env.reset()
    for _ in range(500):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated:
            break
    assert terminated
    assert not truncated
    env.close()

    env = sb3_cir.envs.make("h1-crawl-v0", seed=0)
    env.reset()
    for step in range(1, 501):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert not terminated
        assert truncated == (step == 500)
    env.close()


@needs_humanoid_bench
@pytest.mark.parametrize("task", ["h1-reach-v0", "h1-sit_hard-v0"])
def test_a_reset_repeats_with_its_seed_and_leaves_numpys_generator_alone(task):
    one, two = (sb3_cir.envs.make(task) for _ in range(2))
    np.random.seed(0)
    expected = np.random.random()
    np.random.seed(0)
    first, _ = one.reset(seed=1)
    assert np.random.random() == expected
    again, _ = two.reset(seed=1)
    np.testing.assert_array_equal(first, again)
    other, _ = two.reset()
    assert not np.array_equal(first, other)


@needs_humanoid_bench
@pytest.mark.parametrize("order", ["import humanoid_bench, sb3_cir.envs", "import sb3_cir.envs, humanoid_bench"])
def test_the_package_beside_ours_works_in_either_order(order):
    output = run_python(
        f"""
        import gymnasium as gym
        {order}
        for _ in range(2):
            gym.make("h1-walk-v0", render_mode="rgb_array").reset()
        sb3_cir.envs.make("h1-walk-v0").reset()
        gym.make("h1hand-walk-v0", render_mode=None).reset()  # one of HumanoidBench's own ids
        """,
        MUJOCO_GL="disabled",
    )
    assert "verriding" not in output


@needs_humanoid_bench
@pytest.mark.parametrize("start_method", [pytest.param("spawn", marks=pytest.mark.slow), "forkserver"])
def test_subprocesses(start_method):
    venv = make_vec_env(
        "h1-reach-v0",
        n_envs=2,
        seed=0,
        wrapper_class=sb3_cir.envs.paper_protocol,
        vec_env_cls=SubprocVecEnv,
        vec_env_kwargs=dict(start_method=start_method),
    )
    observation = venv.reset()
    assert observation.shape == (2, 57)
    assert not np.array_equal(observation[0, -3:], observation[1, -3:])  # each has its own goal
    venv.step(np.zeros((2, 19), dtype=np.float32))
    venv.close()


RENDER = """
    import numpy as np
    import sb3_cir.envs
    env = sb3_cir.envs.make("h1hand-reach-v0", seed=0, render_mode="rgb_array", width=128, height=96)
    env.reset()
    frames = [env.render()]
    for _ in range(5):
        env.step(env.action_space.sample())
    frames.append(env.render())
    env.close()
    assert all(frame.shape == (96, 128, 3) and frame.dtype == np.uint8 for frame in frames)
    assert frames[0].std() > 10, "an empty picture"
    assert not np.array_equal(*frames), "a still picture"
    red = (frames[0][..., 0] > 120) & (frames[0][..., 1] < 90)
    assert red.any(), "no goal"
"""


@needs_humanoid_bench
def test_rendering():
    try:
        run_python("import mujoco; mujoco.GLContext(8, 8).make_current()", MUJOCO_GL="egl")
    except AssertionError:
        pytest.skip("no EGL here: Debian packages libegl1 and libgl1-mesa-dri")
    run_python(RENDER, MUJOCO_GL="egl")


@needs_humanoid_bench
@pytest.mark.parametrize("backend", ["disabled", "glfw"])
def test_without_a_renderer_environments_run_and_render_says_what_to_do(backend):
    run_python(
        """
        import sb3_cir.envs
        env = sb3_cir.envs.make("h1-walk-v0", seed=0, render_mode="rgb_array")
        env.reset()
        env.step(env.action_space.sample())
        try:
            env.render()
        except RuntimeError as error:
            assert "MUJOCO_GL=egl" in str(error) and "libosmesa6" in str(error)
        else:
            raise AssertionError
        """,
        MUJOCO_GL=backend,
    )


@needs_humanoid_bench
def test_a_copy_is_the_same_task():
    env = sb3_cir.envs.make("h1-highbar_simple-v0", seed=0)
    twin = copy.deepcopy(env)
    assert type(twin.unwrapped.task) is type(env.unwrapped.task)
    np.testing.assert_array_equal(twin.reset(seed=1)[0], env.reset(seed=1)[0])


@needs_humanoid_bench
def test_the_first_episode_begins_as_others_do():
    env = sb3_cir.envs.make("h1-highbar_simple-v0")
    first, second = (env.reset(seed=0)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


@needs_humanoid_bench
def test_an_unknown_render_mode_is_refused():
    with pytest.raises(ValueError, match="render_mode='ascii' must be None or one of"):
        gym.make("h1-walk-v0", render_mode="ascii")


@needs_humanoid_bench
@pytest.mark.slow
def test_zoo_trains_without_a_renderer(tmp_path):
    run_python(
        f"""
        import sys
        import sb3_cir.zoo
        sb3_cir.zoo.register()
        from rl_zoo3.train import train
        sys.argv = (
            "train --algo cir --env h1-walk-v0 -n 60 --eval-freq 30 --eval-episodes 1 --seed 1 -f {tmp_path} --hyperparams "
            "learning_starts:20 batch_size:16 policy_kwargs:dict(net_arch=dict(pi=[16],qf=[16,16]))"
        ).split()
        train()
        """,
        MUJOCO_GL="disabled",
    )
    assert (tmp_path / "cir" / "h1-walk-v0_1" / "h1-walk-v0.zip").is_file()
