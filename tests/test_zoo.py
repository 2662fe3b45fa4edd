"""RL Zoo as a user calls it: from an empty folder, with no option that names this package."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import gymnasium as gym
import optuna
import pytest
import yaml
from rl_zoo3 import utils
from small import small

from sb3_cir import CIR, zoo
from sb3_cir.tasks import TASKS

ROOT = Path(__file__).parent.parent
TINY = ["-params", "learning_starts:100", "policy_kwargs:dict(net_arch=[16])", "batch_size:16"]
WALKER = "dm_control/walker-walk-v0"
HOOK = "_sb3_cir_zoo_hook"

installed = pytest.mark.skipif(importlib.util.find_spec(HOOK) is None, reason="sb3_cir is not installed (make install)")


def run(*command: str, cwd: Path, python: str = sys.executable, **env: str) -> str:
    """Run Python with these arguments and return what it printed; fail with it where it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run([python, *command], cwd=cwd, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the zoo has trained a tiny CIR on walker-walk."""
    folder = tmp_path_factory.mktemp("zoo")
    output = run("-m", "rl_zoo3.train", "--algo", "cir", "--env", WALKER, "-n", "110", "--eval-freq", "60", *TINY, cwd=folder)
    assert "hyperparams/cir.yml" in output
    return folder


@installed
def test_train(trained: Path) -> None:
    path = trained / "logs" / "cir" / "dm_control-walker-walk-v0_1"
    model = CIR.load(path / "dm_control-walker-walk-v0.zip")
    assert model.num_timesteps == 110
    # Trained at each of the steps 101 to 110, each batch used twice.
    assert model._n_updates == 20
    assert model.observation_space.shape == (24,)
    # Two steps of the simulator for one of the agent: its 1,000 step limit comes after 500, so no episode ends here.
    assert (path / "evaluations.npz").is_file()


@installed
def test_enjoy(trained: Path) -> None:
    command = ["rl_zoo3.enjoy", "--algo", "cir", "--env", WALKER, "-f", "logs", "--no-render", "-n", "501"]
    assert "Mean reward" in run("-m", *command, cwd=trained)


@installed
def test_record_video(trained: Path) -> None:
    command = ["rl_zoo3.record_video", "--algo", "cir", "--env", WALKER, "-f", "logs", "--no-render", "-n", "5", "-o", "film"]
    probe = "import mujoco; mujoco.GLContext(8, 8).make_current()"
    backends = [os.environ["MUJOCO_GL"]] if "MUJOCO_GL" in os.environ else ["egl", "osmesa"]
    for backend in backends:
        env = {**os.environ, "MUJOCO_GL": backend}
        if subprocess.run([sys.executable, "-c", probe], env=env, capture_output=True).returncode == 0:
            break
    else:
        pytest.skip("no GL backend opens: install libegl1 and libgl1-mesa-dri, or libosmesa6")
    run("-m", *command, cwd=trained, MUJOCO_GL=backend)
    assert [video.stat().st_size > 0 for video in (trained / "film").glob("*.mp4")] == [True]


@installed
def test_console_script(tmp_path: Path) -> None:
    script = Path(sysconfig.get_path("scripts"), "rl_zoo3")
    command = ["train", "--algo", "cir", "--env", "Pendulum-v1", "-n", "110", "--eval-freq", "-1", *TINY]
    run(str(script), *command, cwd=tmp_path)
    assert (tmp_path / "logs" / "cir" / "Pendulum-v1_1" / "Pendulum-v1.zip").is_file()


@installed
def test_optimize(tmp_path: Path) -> None:
    options = ["-optimize", "--n-trials", "1", "--n-evaluations", "1", "--no-optim-plots", "--eval-episodes", "1"]
    output = run(
        *("-m", "rl_zoo3.train", "--algo", "cir", "--env", "Pendulum-v1", "-n", "10", *options, *TINY[:2]), cwd=tmp_path
    )
    assert "Trial 0 finished" in output
    assert "convex_coef" in output


@installed
def test_other_algorithms_are_left_alone(tmp_path: Path) -> None:
    command = ["--algo", "ppo", "--env", "CartPole-v1", "-n", "1", "--eval-freq", "-1", "-params", "n_envs:1", "n_steps:8"]
    output = run("-m", "rl_zoo3.train", *command, cwd=tmp_path)
    assert "rl_zoo3/hyperparams/ppo.yml" in output


@installed
def test_start_up_imports_nothing_heavy(tmp_path: Path) -> None:
    modules = run("-c", "import sys; print(*sys.modules)", cwd=tmp_path).split()
    assert HOOK in modules
    assert not {"torch", "numpy", "gymnasium", "stable_baselines3", "sb3_cir", "rl_zoo3"} & set(modules)


def test_wheel(tmp_path: Path) -> None:
    """A wheel installed into a bare environment serves the zoo, and leaves nothing when removed."""
    source = tmp_path / "source"
    for name in ("sb3_cir", "hyperparams"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    run("-m", "venv", "--without-pip", str(tmp_path / "venv"), cwd=tmp_path)
    python = str(tmp_path / "venv" / "bin" / "python")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = Path(run("-c", ask, cwd=tmp_path, python=python).strip())
    # What the wheel needs is taken from this environment; this environment's own .pth files are not read from there.
    (site_packages / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    before = set(site_packages.iterdir())

    pip = ["-m", "pip", "--python", python, "--quiet"]
    run(*pip, "install", "--no-deps", "--no-build-isolation", str(source), cwd=tmp_path)
    command = ["--algo", "cir", "--env", WALKER, "-n", "20", "--eval-freq", "-1", *TINY]
    output = run("-m", "rl_zoo3.train", *command, cwd=tmp_path, python=python, PYTHONPATH="")
    assert str(site_packages / "sb3_cir" / "hyperparams" / "cir.yml") in output

    run(*pip, "uninstall", "--yes", "sb3-cir", cwd=tmp_path)
    assert {path for path in site_packages.iterdir() if path.name != "__pycache__"} == before


def test_scripts_that_ask_for_a_models_path(tmp_path: Path) -> None:
    """RL Zoo's programs get a model to play with. Whoever else asks may train it on and save it."""
    zoo.register()
    place = tmp_path / "cir" / "Pendulum-v1_1"
    place.mkdir(parents=True)
    small("Pendulum-v1").learn(30).save(place / "Pendulum-v1")
    _, path, _ = utils.get_model_path(1, str(tmp_path), "cir", utils.EnvironmentName("Pendulum-v1"))
    assert utils.ALGOS["cir"] is CIR
    model = utils.ALGOS["cir"].load(path, env=gym.make("Pendulum-v1"), device="cpu")
    model.learn(20, reset_num_timesteps=False).save(tmp_path / "more")
    assert CIR.load(tmp_path / "more", device="cpu").num_timesteps == 50


def test_yaml_has_the_papers_tasks_and_budgets() -> None:
    """The yaml and the table of tasks say the same of every task: steps, discount, λ."""
    entries = yaml.safe_load((zoo.HYPERPARAMS / "cir.yml").read_text())
    for task in TASKS.values():
        entry = entries[task.env_id]
        assert entry["n_timesteps"] == task.agent_steps, task
        assert entry["learning_starts"] * task.action_repeat == 5_000
        assert entry["env_wrapper"] == "sb3_cir.envs.paper_protocol"
        assert entry.get("gamma", 0.99) == task.gamma, task
        assert entry.get("convex_coef", 0.3) == task.convex_coef, task
    assert {"default", "Pendulum-v1", "LunarLanderContinuous-v3", "BipedalWalker-v3", "HalfCheetah-v5"} <= set(entries)


@pytest.mark.parametrize("env_id", ["LunarLanderContinuous-v3", "BipedalWalker-v3"])
def test_the_extra_box2d_is_enough(env_id: str) -> None:
    pytest.importorskip("Box2D", reason="needs the extra box2d")
    gym.make(env_id).reset(seed=0)


def test_the_extra_video_films_pendulum() -> None:
    pytest.importorskip("moviepy", reason="needs the extra video")
    env = gym.make("Pendulum-v1", render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (500, 500, 3)
    assert picture.std() > 0


def test_yaml_entries_are_arguments_of_cir() -> None:
    zoo.register()
    from rl_zoo3.utils import ALGOS

    assert ALGOS["cir"] is CIR
    zoos_own = {"callback", "env_kwargs", "env_wrapper", "n_timesteps"}
    for entry in yaml.safe_load((zoo.HYPERPARAMS / "cir.yml").read_text()).values():
        CIR(env="Pendulum-v1", _init_setup_model=False, **{k: v for k, v in entry.items() if k not in zoos_own})


def test_search_space_and_converter_agree() -> None:
    zoo.register()
    from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(5):
        trial = study.ask()
        sampled = HYPERPARAMS_SAMPLER["cir"](trial, 1, 1, {"using_her_replay_buffer": False, "her_kwargs": {}})
        assert HYPERPARAMS_CONVERTER["cir"](trial.params) == sampled
        CIR("MlpPolicy", "Pendulum-v1", buffer_size=1, **sampled)
        trial = study.ask()
        sampled = HYPERPARAMS_SAMPLER["cir"](trial, 1, 1, {"using_her_replay_buffer": True, "her_kwargs": {}})
        assert set(sampled["replay_buffer_kwargs"]) == {"n_sampled_goal", "goal_selection_strategy"}
        assert HYPERPARAMS_CONVERTER["cir"](trial.params) == sampled
