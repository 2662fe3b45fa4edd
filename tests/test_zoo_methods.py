"""Variants and compared methods in RL Zoo: their hyperparameters, their search spaces, and training with each."""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from small import small
from stable_baselines3 import SAC
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_cir import CIR, methods
from sb3_cir.methods import as_zoo_params, zoo_command
from sb3_cir.tasks import DMC_OTHER, of_group
from sb3_cir.variants import VARIANTS, arguments, main

pytest.importorskip("rl_zoo3", reason="needs RL Zoo: pip install 'sb3-cir[zoo]'")
import rl_zoo3.callbacks
import rl_zoo3.exp_manager
import rl_zoo3.hyperparams_opt
import rl_zoo3.train

from sb3_cir import zoo

zoo.register()

ON_DMC = [name for name, method in methods.METHODS.items() if method.algo == name and not method.two_domains]
STEPS = 300
TINY = dict(learning_starts=STEPS - 20, batch_size=16, buffer_size=1000)
NET_ARCH = dict(pi=[16, 16], qf=[16, 16])
# Updates for each step of the agent by the yaml on dm_control, where they are not 2; -1 is as many as steps.
UPDATES = {"sac_smr": 1, "sac_tanh": 1, "sac_tanh_norm": 1, "td7": -1, "bro": 10}
# Arguments for a quick run in place of TINY's: TD7 learns after the first episode that follows this many steps.
QUICK: dict[str, dict[str, Any]] = {"td7": dict(learning_starts=50)}
# TD7 goes on to the end of an episode.
STEPS_MADE = {"td7": 400}


def config(algo: str, env_id: str, **kwargs: Any) -> Path:
    """The yaml that RL Zoo settles on."""
    return Path(rl_zoo3.exp_manager.ExperimentManager(argparse.Namespace(), algo, env_id, "logs", **kwargs).config)


def test_names() -> None:
    """Every method that we can train is an algorithm of RL Zoo, and has a yaml there."""
    trainable = {name for name, method in methods.METHODS.items() if method.algo == name}
    assert zoo.ALGOS.keys() | {"sac"} == trainable
    assert all(zoo.yaml_of(name).is_file() for name in trainable)
    assert rl_zoo3.utils.ALGOS.items() >= zoo.ALGOS.items()


@pytest.mark.parametrize("algo", [name for name in ON_DMC if methods.METHODS[name].action_repeat is None])
def test_yaml(algo: str) -> None:
    """All 27 tasks, with the paper's budgets in steps of the agent and its protocol; no argument is misspelt."""
    hyperparams = yaml.safe_load(zoo.yaml_of(algo).read_text())
    for task in of_group("dmc_easy_medium", "dmc_hard"):
        entry = dict(hyperparams[task.env_id])
        assert entry.pop("n_timesteps") == task.agent_steps
        assert entry.pop("env_wrapper") == "sb3_cir.envs.paper_protocol"
        assert entry["policy"] == "MlpPolicy"
    model_class = zoo.ALGOS.get(algo, SAC)
    model = model_class(env="Pendulum-v1", device="cpu", **entry | dict(buffer_size=10))
    # TD7 makes as many updates as steps.
    assert model.gradient_steps * getattr(model, "sample_reuse", 1) == UPDATES.get(algo, 2)
    if "sac_" in algo:
        assert model.learning_starts == 2_500
        assert model.policy.net_arch == dict(pi=[512, 512], qf=[512, 512])
    if algo.startswith("simba"):
        assert model.critic.n_critics == 1


@pytest.mark.parametrize("algo", ["simba", "simba_v2"])
def test_one_critic_on_dm_control(algo: str) -> None:
    """On all of it, as in the originals, and not on the paper's tasks alone."""
    hyperparams = yaml.safe_load(zoo.yaml_of(algo).read_text())
    tasks = [*DMC_OTHER, *(task.name for task in of_group("dmc_easy_medium", "dmc_hard"))]
    assert all(hyperparams[f"dm_control/{task}-v0"]["episodic"] is False for task in tasks)


def test_discount_on_humanoid_bench() -> None:
    """The SAC that CIR's authors released takes 0.95 on the tasks where CIR does (their ``train_humanoid.py``)."""
    ours, cirs = (yaml.safe_load(zoo.yaml_of(algo).read_text()) for algo in ("sac_smr", "cir"))
    found = {task.env_id: cirs[task.env_id]["gamma"] for task in of_group("humanoid_bench", "humanoid_bench_wider")}
    assert set(found.values()) == {0.95, 0.99}
    assert found == {env_id: ours.get(env_id, {}).get("gamma", 0.99) for env_id in found}


def test_yaml_of_other_peoples_algorithm() -> None:
    """SAC's on dm_control and HumanoidBench is ours, since RL Zoo has none; all else stays RL Zoo's."""
    ours, theirs = zoo.HYPERPARAMS, Path(rl_zoo3.__file__).parent / "hyperparams"
    assert config("sac", "dm_control/cartpole-balance-v0") == ours / "sac.yml"
    for task in of_group("humanoid_bench", "humanoid_bench_wider"):
        assert config("sac", task.env_id) == ours / "sac.yml"
    assert config("sac", "Pendulum-v1") == theirs / "sac.yml"
    assert config("sac", "CartPole-v1") == theirs / "sac.yml"
    assert config("tqc", "dm_control/cartpole-balance-v0") == theirs / "tqc.yml"
    assert config("simba", "CartPole-v1") == config("simba_smr", "CartPole-v1") == ours / "simba.yml"
    assert config("sac_tanh", "Pendulum-v1") == config("sac_tanh_norm", "Pendulum-v1") == ours / "sac_smr.yml"
    assert config("sac", "dm_control/cartpole-balance-v0", config="mine.yml") == Path("mine.yml")


def test_their_yaml_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should RL Zoo get an entry of its own, or ours one that RL Zoo has."""
    (tmp_path / "sac.yml").write_text("{Pendulum-v1: {}, CartPole-v1: {}}")
    monkeypatch.setattr(zoo, "HYPERPARAMS", tmp_path)
    assert config("sac", "CartPole-v1") == tmp_path / "sac.yml"
    assert config("sac", "Pendulum-v1") != tmp_path / "sac.yml"


@pytest.mark.parametrize("algo", zoo.ALGOS)
def test_search_space(algo: str) -> None:
    """What a trial samples, and what is converted from its values later, builds a model."""
    optuna = pytest.importorskip("optuna", reason="needs Optuna")
    trial = optuna.create_study().ask()
    additional = dict(using_her_replay_buffer=False, her_kwargs={})
    sampled = rl_zoo3.hyperparams_opt.HYPERPARAMS_SAMPLER[algo](trial, 1, 1, additional)
    assert rl_zoo3.hyperparams_opt.HYPERPARAMS_CONVERTER[algo](trial.params) == sampled
    model = zoo.ALGOS[algo]("MlpPolicy", "Pendulum-v1", buffer_size=10, device="cpu", **sampled)
    assert model.gamma == trial.user_attrs["gamma"]
    if algo == "cir_simba":  # one block, as its own: CIR's actor would be two
        assert model.policy.net_arch["pi"] == [trial.params["actor_width"]]


def small_params(algo: str, variant: str | None = None) -> list[str]:
    """``-params`` for a quick run, with narrow networks unless the variant is about size."""
    params = TINY | QUICK.get(algo, {}) | ({} if variant is None else arguments(variant))
    net_arch = dict(pi=[16], qf=[16, 16]) if "simba" in algo or "bro" in algo else NET_ARCH
    params["policy_kwargs"] = dict(net_arch=net_arch) | params.get("policy_kwargs", {})
    return ["-params", *as_zoo_params(params)]


def check_trained(folder: Path, algo: str, model_class: type[BaseAlgorithm], env_id: str = "Pendulum-v1") -> BaseAlgorithm:
    """RL Zoo has saved a model that has learnt for as long as it should and that loads."""
    (path,) = folder.glob(f"{algo}/*/*.zip")
    model = model_class.load(path, device="cpu", buffer_size=1)
    assert path.stem == env_id.replace("/", "-")
    assert model.num_timesteps == STEPS_MADE.get(algo, STEPS)
    assert model._n_updates >= 20
    action, _ = model.predict(np.zeros(model.observation_space.shape, np.float32), deterministic=True)
    assert np.isfinite(action).all()
    return model


def check_arguments(model: BaseAlgorithm, expected: dict[str, Any]) -> None:
    """The model was made with these, whatever else."""
    for name, value in expected.items():
        if name == "policy_kwargs":
            assert model.policy_kwargs.items() >= value.items()
        else:
            assert getattr(model, name) == value


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_trains(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By RL Zoo's own ``train()``, without a start of Python for each."""
    command = zoo_command("cir", "Pendulum-v1")[2:]
    options = ["-n", str(STEPS), "--eval-freq", "-1", "-f", str(tmp_path), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [*command, *options, *small_params("cir", variant)])
    rl_zoo3.train.train()
    model = check_trained(tmp_path, "cir", CIR)
    check_arguments(model, dict(policy_kwargs=dict(net_arch=NET_ARCH)) | arguments(variant))


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """A shell's environment in which ``python`` is ours and knows our algorithms, installed or not."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if not any(type(finder).__name__ == '_AfterImport' for finder in sys.meta_path):\n"
        "    import sb3_cir.zoo_hook\n"
    )
    root = Path(__file__).parent.parent
    return os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.slow
@pytest.mark.parametrize("algo", ON_DMC)
def test_method_trains(algo: str, tmp_path: Path, shell: dict[str, str]) -> None:
    """SAC on dm_control, where its yaml is ours."""
    env_id = "dm_control/cartpole-balance-v0" if algo == "sac" else "Pendulum-v1"
    if algo == "sac":
        pytest.importorskip("dm_control", reason="needs the dm-control extra")
    options = ["-n", str(STEPS), "--eval-freq", "-1", "-f", str(tmp_path), "--device", "cpu", *small_params(algo)]
    subprocess.run([*zoo_command(algo, env_id), *options], env=shell, cwd=tmp_path, check=True)
    check_trained(tmp_path, algo, zoo.ALGOS.get(algo, SAC), env_id)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["no_tanh", "width_128"])
def test_printed_command(
    variant: str, tmp_path: Path, shell: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``python -m sb3_cir.variants`` prints it, given to a shell; here with fewer steps than there are before learning."""
    monkeypatch.setattr(sys, "argv", ["variants", "--env", "Pendulum-v1"])
    main()
    listing = capsys.readouterr().out.splitlines()
    (index,) = [index for index, line in enumerate(listing) if line.startswith(f"cir:{variant} ")]
    line = f"{listing[index + 1].strip()} -n 50 --eval-freq -1 -f {tmp_path} --device cpu"
    subprocess.run(line, shell=True, env=shell, cwd=tmp_path, check=True)
    (path,) = tmp_path.glob("cir/*/*.zip")
    check_arguments(CIR.load(path, buffer_size=1), arguments(variant))


def test_parallel_training_is_the_models_own() -> None:
    """RL Zoo's callback learns with a copy of the model, which it would load as SB3's SAC."""
    model = small("Pendulum-v1", sample_reuse=3, train_freq=5)
    callback = rl_zoo3.callbacks.ParallelTrainCallback(gradient_steps=2)
    model.learn(60, callback=callback)
    assert type(callback._model) is CIR
    assert callback._model._n_updates > 0
    assert callback._model._n_updates % (2 * 3) == 0
    assert rl_zoo3.callbacks.SAC is SAC


@pytest.mark.parametrize("algo", ["simba", "cir_simba", "simba_v2", "flash_sac"])
def test_parallel_training_keeps_statistics(algo: str) -> None:
    """The copy that learns sees no step: RSNorm and the scale of returns are those of the model that acts."""
    kwargs: dict[str, Any] = dict(learning_starts=5, batch_size=8, policy_kwargs=dict(net_arch=dict(pi=[8], qf=[8])))
    model = zoo.ALGOS[algo]("MlpPolicy", "Pendulum-v1", train_freq=5, **kwargs)
    callback = rl_zoo3.callbacks.ParallelTrainCallback(gradient_steps=1)
    model.learn(40, callback=callback)
    for each in (model, callback._model):
        counted = [float(part.count) for part in zoo._statistics(each)]
        assert counted
        assert all(count == pytest.approx(40, abs=0.1) for count in counted)
        assert each.num_timesteps == 40
