"""A run that was interrupted and goes on: the same, bit by bit, as one that was not."""

import errno
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import QRDQN, TQC, CrossQ
from small import PowerError, small
from stable_baselines3 import DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from test_off_dynamics import SOURCE, TARGET, Drift, check_buffer
from test_save_load import members, same_tensors, wait_for
from torch import nn

from sb3_cir import CIR
from sb3_cir.baselines import SACTanh, SACTanhNorm, SimBa
from sb3_cir.baselines.darc import DARC
from sb3_cir.baselines.par import PAR
from sb3_cir.baselines.two_domain_sac import TwoDomainSAC
from sb3_cir.buffers import DeviceReplayBuffer, SymmetricReplayBuffer
from sb3_cir.callbacks import Checkpoint
from sb3_cir.off_dynamics import OffDynamicsCallback, TwoDomainReplayBuffer
from sb3_cir.runs import files, resumable, rows
from sb3_cir.runs.checkpoint import read
from sb3_cir.runs.files import checkpoints
from sb3_cir.runs.plain import from_plain, to_plain
from sb3_cir.runs.watch import FailedEnvError
from sb3_cir.smr import SMR


class Walk(gym.Env):
    """
    A walk whose whole state is in its observation, so that an episode can be entered anywhere. Observations are (position,
    step); episodes are cut off after 23 steps, unless ``length`` says otherwise.

    :param start: The first observation of the first episode
    :param form: "flat", "dict", "scalar" (a Dict with a 0-d entry) or "goal"
    """

    def __init__(self, start=(0.0, 0.0), form: str = "flat", length: int = 23):
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.form, self.start, self.length = form, np.array(start, np.float32), length
        self.observation_space = {
            "flat": box,
            "dict": spaces.Dict(a=box, b=box),
            "scalar": spaces.Dict(a=box, height=spaces.Box(-np.inf, np.inf, (), np.float32)),
            "goal": spaces.Dict(observation=box, achieved_goal=box, desired_goal=box),
        }[form]
        self.action_space = spaces.Box(-2, 2, (1,), np.float32)

    def observe(self):
        state = self.state.copy()
        if self.form == "flat":
            return state
        if self.form == "dict":
            return {"a": state, "b": state + 1}
        if self.form == "scalar":
            return {"a": state, "height": np.array(state[0])}
        return {"observation": state, "achieved_goal": state, "desired_goal": np.ones(2, np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.start = self.start.copy(), np.zeros(2, np.float32)
        return self.observe(), {}

    def step(self, action):
        self.state = np.array([0.9 * self.state[0] + 0.3 * action[0], self.state[1] + 1], np.float32)
        return self.observe(), float(1 - abs(self.state[0])), False, bool(self.state[1] % self.length == 0), {}

    def compute_reward(self, achieved, desired, info):
        return -np.linalg.norm(achieved - desired, axis=-1)


FORMS: dict[str, dict[str, Any]] = {
    "flat": {},
    "wrapped ring": dict(buffer_size=30),
    "several envs": dict(n_envs=3, buffer_size=90),
    "dict": dict(form="dict"),
    "scalar entries": dict(form="scalar"),
    "n-step": dict(n_steps=3, buffer_size=50),
    "little memory": dict(
        optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False), buffer_size=45
    ),
    "her": dict(form="goal", replay_buffer_class=HerReplayBuffer, buffer_size=60, learning_starts=40),
    "normalised": dict(normalize=True, n_envs=3),
    "normalised dict": dict(normalize=True, form="dict"),
    "gsde": dict(use_sde=True, train_freq=5, sde_sample_freq=2),
    "noise": dict(action_noise=OrnsteinUhlenbeckActionNoise(np.zeros(1), np.ones(1)), n_envs=3),
    "on the device": dict(replay_buffer_class=DeviceReplayBuffer, n_envs=3, buffer_size=90),
    "fixed temperature": dict(ent_coef=0.1),
    "schedule": dict(learning_rate=LinearSchedule(1e-2, 0.0, 1.0)),
    "other layers": dict(policy_kwargs=dict(activation_fn=nn.Tanh, net_arch=dict(pi=[8], qf=[8, 8, 8]))),
    "several updates": dict(train_freq=5, gradient_steps=3, sample_reuse=3),
}


def make_env(starts: list, normalize: bool = False, **kwargs: Any):
    env = DummyVecEnv([lambda start=start: Walk(start, **kwargs) for start in starts])
    return VecNormalize(env) if normalize else env


def state_of(env) -> list:
    """What the environments' observations were last."""
    return [tuple(each.unwrapped.state) for each in env.unwrapped.envs]


class Stop(BaseCallback):
    """Notes where the environments are, and stops, at one step."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self.step:
            raise PowerError(state_of(self.training_env))

    def _on_step(self) -> bool:
        return True


def everything(model: CIR) -> dict[str, Any]:
    """All that must be equal, as tensors."""
    buffer = model.replay_buffer
    arrays = {}
    for name, value in vars(buffer).items():
        if isinstance(value, np.ndarray) and value.dtype != object:
            arrays[name] = value
        elif name in ("observations", "next_observations"):
            arrays |= {f"{name} {key}": entry for key, entry in value.items()}
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        statistics = normalizer.obs_rms if isinstance(normalizer.obs_rms, dict) else {"": normalizer.obs_rms}
        for key, each in {**statistics, "r": normalizer.ret_rms}.items():
            arrays |= {f"mean {key}": each.mean, f"var {key}": each.var, f"count {key}": np.array(each.count)}
        arrays["returns"] = normalizer.returns
    return {
        "parameters": model.get_parameters(),
        "log_ent_coef": model.log_ent_coef,
        "buffer": {name: th.as_tensor(array) for name, array in arrays.items()},
        "pos": (buffer.pos, buffer.full),
        "counts": (model.num_timesteps, model._n_updates, model._episode_num, model._current_progress_remaining),
        "random": (random.random(), np.random.random(), th.rand(1).item(), model.action_space.sample().tolist()),
    }


@pytest.mark.parametrize("form", FORMS)
def test_bit_identical(form: str, tmp_path: Path) -> None:
    """Interrupted twice, so that what was resumed is saved again."""
    kwargs = dict(FORMS[form])
    n_envs = kwargs.pop("n_envs", 1)
    env_kwargs = dict(form=kwargs.pop("form", "flat"), normalize=kwargs.pop("normalize", False))
    policy = "MlpPolicy" if env_kwargs["form"] == "flat" else "MultiInputPolicy"
    starts: list = [(0.1 * i, 0.0) for i in range(n_envs)]
    whole = small(make_env(starts, **env_kwargs), policy, **kwargs).learn(120)
    expected = everything(whole)

    model = small(make_env(starts, **env_kwargs), policy, **kwargs)
    for step, every in ((60, 30), (90, 15)):
        with pytest.raises(PowerError) as power:
            model.learn(120, callback=CallbackList([Checkpoint(every, tmp_path), Stop(step)]))
        (starts,) = power.value.args
        assert [each for each, _ in checkpoints(tmp_path)] == [step, step - every]
        for seed in (random.seed, np.random.seed, th.manual_seed):
            seed(1)
        model = CIR.resume(tmp_path, make_env(starts, **env_kwargs))
        assert model.num_timesteps == step
    model.learn(120, callback=Checkpoint(15, tmp_path))
    found = everything(model)
    assert [name for name, value in expected.items() if not same_tensors(value, found[name])] == []


def test_the_total_is_the_runs(tmp_path: Path) -> None:
    """The same line starts a run and continues it; SB3's own way to ask for more steps still does."""
    small(Walk()).learn(40, callback=Checkpoint(20, tmp_path))
    model = CIR.resume(tmp_path, Walk())
    assert model.learn(60).num_timesteps == 60
    assert model._total_timesteps == 60
    assert model.learn(10, reset_num_timesteps=False).num_timesteps == 70
    assert CIR.resume(tmp_path, Walk()).learn(10, reset_num_timesteps=False).num_timesteps == 50
    assert CIR.resume(tmp_path, Walk()).learn(30).num_timesteps == 40


def test_arguments_come_back(tmp_path: Path) -> None:
    noise = NormalActionNoise(np.zeros(1), 0.2 * np.ones(1))
    arguments = dict(gamma=0.9, convex_coef=0.7, train_freq=(2, "step"), n_steps=3, action_noise=noise, ent_coef="auto_0.5")
    small(Walk(), learning_rate=LinearSchedule(1e-3, 1e-4, 0.5), **arguments).learn(40, callback=Checkpoint(20, tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = CIR.resume(tmp_path, Walk(), tau=0.1)
    assert (model.gamma, model.convex_coef, model.n_steps, model.ent_coef, model.tau) == (0.9, 0.7, 3, "auto_0.5", 0.1)
    assert (model.train_freq.frequency, model.seed, model.batch_size, model.buffer_size) == (2, 0, 16, 500)
    assert model.lr_schedule(0.75) == pytest.approx(5.5e-4)
    assert repr(model.action_noise) == repr(noise)
    small(Walk(), learning_rate=lambda progress: 1e-3).learn(20, callback=Checkpoint(20, tmp_path / "other"))
    with pytest.raises(ValueError, match=r"step_20\.zip: learning_rate: .* in JSON; pass learning_rate=\.\.\.$"):
        CIR.resume(tmp_path / "other", Walk())
    assert CIR.resume(tmp_path / "other", Walk(), learning_rate=1e-3).num_timesteps == 20


def test_a_file_does_not_choose_what_is_run() -> None:
    for module, name in (("subprocess", "Popen"), ("os", "system"), ("not_there", "Net"), ("torch", "load")):
        with pytest.raises(ValueError, match="there is no class"):
            from_plain({":class:": f"{module}.{name}"})
    for value in (nn.ReLU, HerReplayBuffer, dict(a=(1, [2.5, None])), th.optim.AdamW):
        assert from_plain(json.loads(json.dumps(to_plain(value)))) == value


def test_what_does_not_fit(tmp_path: Path) -> None:
    small(Walk()).learn(20, callback=Checkpoint(20, tmp_path))
    with pytest.raises(ValueError, match="n_envs=2: it was 1"):
        CIR.resume(tmp_path, make_env([(0, 0)] * 2))
    with pytest.raises(ValueError, match="buffer_size=100: it was 500"):
        CIR.resume(tmp_path, Walk(), buffer_size=100)
    with pytest.raises(ValueError, match="VecNormalize: this model's environment was wrapped in it and the run's is not"):
        CIR.resume(tmp_path, make_env([(0, 0)], normalize=True))
    with pytest.raises(ValueError, match=r"latent_pi\.0\.weight is \(16, 2\) there, and \(8, 2\) here\.$"):
        CIR.resume(tmp_path, Walk(), policy_kwargs=dict(net_arch=[8, 8]))
    with pytest.raises(ValueError, match=r"step_20\.zip is a checkpoint: CIR\.resume"):
        CIR.load(tmp_path / "step_20.zip")
    shutil.copy(tmp_path / "step_20.zip", tmp_path / "best.zip")
    for read_it in (CIR.load, small(Walk()).set_parameters):
        with pytest.raises(
            ValueError, match=r"best\.zip is a checkpoint: CIR\.resume\(path, env\) reads it, as step_<n>\.zip in"
        ):
            read_it(tmp_path / "best.zip")
    with pytest.raises(ValueError, match="is of a CIR, not of a SimBa"):
        SimBa.resume(tmp_path, Walk())
    with pytest.raises(FileNotFoundError, match="no checkpoint that can be read"):
        CIR.resume(tmp_path / "nowhere", Walk())
    with pytest.raises(ValueError, match=r"it holds step 20 of another run. Continue that one with CIR.resume\(\), or choose"):
        small(Walk()).learn(20, callback=Checkpoint(20, tmp_path))
    with pytest.warns(UserWarning, match=r"HerReplayBuffer: no checkpoint can hold its infos \(copy_info_dict=True\)"):
        learn_her(tmp_path / "her", copy_info_dict=True)
    for arguments in (dict(every=0), dict(every=1, keep=0)):
        with pytest.raises(ValueError, match="must be at least 1"):
            Checkpoint(folder=tmp_path, **arguments)
    with pytest.raises(ValueError, match=r"a SAC cannot be resumed. sb3_cir.runs.resumable\(SAC\) makes a class that can"):
        small(Walk(), model_class=SAC).learn(20, callback=Checkpoint(20, tmp_path / "sac"))


class Odd(ReplayBuffer):
    """One with plain values of its own, a column of its own, and something that no file holds."""

    def __init__(self, *args, alpha: float = 0.6, **kwargs):
        super().__init__(*args, **kwargs)
        self.alpha = alpha
        self.largest = 1.0
        self.sums = np.zeros(3)
        self.weights = np.zeros((self.buffer_size, self.n_envs), np.float32)
        self.where = Path()

    def add(self, obs, *args):
        self.largest += 1
        self.sums += 0.5
        self.weights[self.pos] = self.largest
        super().add(obs, *args)


def test_a_buffer_of_ones_own(tmp_path: Path) -> None:
    """What it keeps goes on; what cannot be kept is named."""
    kwargs = dict(replay_buffer_class=Odd, replay_buffer_kwargs=dict(alpha=0.3))
    with pytest.warns(UserWarning, match="Odd: no checkpoint can hold its where: a run that is resumed will be without"):
        model = small(Walk(), **kwargs).learn(30, callback=Checkpoint(10, tmp_path))
    found = CIR.resume(tmp_path, Walk(), replay_buffer_class=Odd).replay_buffer
    assert (found.alpha, found.largest, found.sums.tolist()) == (0.3, 31.0, [15.0] * 3)
    np.testing.assert_array_equal(found.weights, model.replay_buffer.weights)


def test_rows_that_are_changed_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relabelled where they are, or added: the next checkpoint has them as they are then."""
    monkeypatch.setattr(rows, "BLOCK_BYTES", 300)

    class Relabel(BaseCallback):
        def _on_rollout_start(self) -> None:
            buffer = self.model.replay_buffer
            if self.num_timesteps == 35:
                buffer.rewards[3:20] = -7
                for _ in range(100):
                    buffer.add(np.ones(2), np.ones(2), np.ones(1), np.ones(1), np.zeros(1), [{}])

        def _on_step(self) -> bool:
            return True

    model = small(Walk(), learning_starts=1000, buffer_size=90)
    model.learn(60, callback=[Checkpoint(20, tmp_path), Relabel()])
    for name in ("observations", "rewards", "actions", "dones"):
        found = CIR.resume(tmp_path, Walk()).replay_buffer
        np.testing.assert_array_equal(getattr(found, name), getattr(model.replay_buffer, name))
    assert CIR.resume(tmp_path / "step_40.zip", Walk()).replay_buffer.pos == 50


def learn_her(folder: Path, **kwargs) -> CIR:
    arguments = dict(replay_buffer_class=HerReplayBuffer, replay_buffer_kwargs=kwargs, learning_starts=40)
    return small(Walk(form="goal"), "MultiInputPolicy", **arguments).learn(60, callback=Checkpoint(20, folder))


def test_an_episode_that_was_left_is_cut_off(tmp_path: Path) -> None:
    """With an environment that starts anew, nothing joins the last transition to the next one."""
    small(Walk(), n_steps=3).learn(30, callback=Checkpoint(30, tmp_path / "n"))
    model = CIR.resume(tmp_path / "n", Walk()).learn(40)
    assert np.flatnonzero(model.replay_buffer.timeouts[:40, 0]).tolist() == [22, 29]
    assert np.flatnonzero(model.replay_buffer.dones[:40, 0]).tolist() == [22]
    assert (model.replay_buffer.observations[29, 0, 1], model.replay_buffer.observations[30, 0, 1]) == (6, 0)

    kwargs = dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False))
    small(Walk(), **kwargs).learn(30, callback=Checkpoint(30, tmp_path / "m"))
    model = CIR.resume(tmp_path / "m", Walk()).learn(40)
    assert np.flatnonzero(model.replay_buffer.dones[:40, 0]).tolist() == [22, 29]

    learn_her(tmp_path / "h")
    model = CIR.resume(tmp_path / "h", Walk(form="goal")).learn(90, callback=Checkpoint(10, tmp_path / "h"))
    lengths = model.replay_buffer.ep_length[:90, 0].tolist()
    assert lengths == [23] * 46 + [14] * 14 + [23] * 23 + [0] * 7
    again = CIR.resume(tmp_path / "h", Walk(form="goal"))
    assert again.replay_buffer.ep_length[:90, 0].tolist() == lengths


class Fails(gym.Wrapper):
    """Raises once, at its 15th step."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 15:
            raise OSError("the simulator is gone")
        return super().step(action)


@pytest.mark.parametrize(
    ("kwargs", "end"),
    [
        (dict(n_steps=3), "timeouts"),
        (dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False)), "dones"),
    ],
)
def test_an_episode_that_failed_is_cut_off(kwargs: dict, end: str) -> None:
    """When the same model goes on, nothing joins what was before the failure to the new episode."""
    model = small(Fails(Walk()), **kwargs)
    with pytest.raises(FailedEnvError, match="the simulator is gone"):
        model.learn(30)
    model.learn(20, reset_num_timesteps=False)
    buffer = model.replay_buffer
    assert (buffer.observations[13, 0, 1], buffer.observations[14, 0, 1]) == (13, 0)
    assert np.flatnonzero(getattr(buffer, end)[:34, 0]).tolist() == [13]


def test_her_after_a_failure() -> None:
    model = small(Fails(Walk(form="goal")), "MultiInputPolicy", replay_buffer_class=HerReplayBuffer, learning_starts=100)
    with pytest.raises(FailedEnvError, match="the simulator is gone"):
        model.learn(30)
    model.learn(30, reset_num_timesteps=False)
    assert model.replay_buffer.ep_length[:44, 0].tolist() == [14] * 14 + [23] * 23 + [0] * 7


def test_only_changed_blocks_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the ring turns, a checkpoint writes the blocks with new rows, and nothing useless is kept."""
    monkeypatch.setattr(rows, "BLOCK_BYTES", 1)
    monkeypatch.setattr(rows, "BLOCKS", 12)  # of six rows each
    written, kept = [], []

    class Sizes(BaseCallback):
        def _on_step(self) -> bool:
            there = list((tmp_path / "transitions").glob("*")) if (tmp_path / "transitions").exists() else []
            if self.num_timesteps % 10 == 1 and there:
                written.append(len([path for path in there if f"_{self.num_timesteps - 1}_" in path.name]))
                kept.append(len(there))
            return True

    model = small(Walk(), buffer_size=60, learning_starts=1000)
    model.learn(333, callback=[Checkpoint(10, tmp_path), Sizes()])
    assert len(written) == 33
    assert all(number in (2, 3) for number in written)
    assert max(kept) <= 10 + 3
    for step, path in checkpoints(tmp_path):
        for_step = CIR.resume(path, Walk())
        order = (np.arange(60) + for_step.replay_buffer.pos) % 60
        assert for_step.num_timesteps == step
        np.testing.assert_array_equal(for_step.replay_buffer.observations[order, 0, 1], np.arange(step - 60, step) % 23)
    assert [step for step, _ in checkpoints(tmp_path)] == [333, 330]


@pytest.mark.parametrize("what", ["step_60.zip", "transitions/replay_60_*.safetensors"])
@pytest.mark.parametrize("how", ["cut", "altered", "deleted"])
def test_damaged(what: str, how: str, tmp_path: Path) -> None:
    model = small(Walk()).learn(60, callback=Checkpoint(30, tmp_path))
    (path,) = tmp_path.glob(what)
    if how == "cut":
        os.truncate(path, path.stat().st_size - 100)
    elif how == "altered":
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
    elif what.startswith("step"):
        pytest.skip("a checkpoint that is not there was not written")
    else:
        path.unlink()
    with pytest.warns(UserWarning, match=r"step_60.zip is damaged \(.*\): going back to the checkpoint before it"):
        found = CIR.resume(tmp_path, Walk())
    assert found.num_timesteps == 30
    # The damaged one is gone when there is a new one, and counts for nothing.
    found.learn(45, callback=Checkpoint(15, tmp_path))
    assert [step for step, _ in checkpoints(tmp_path)] == [45, 30]
    assert CIR.resume(tmp_path, Walk()).num_timesteps == 45
    for path in tmp_path.glob("step_*.zip"):
        path.write_bytes(b"nothing")
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(FileNotFoundError, match="there is no checkpoint that can be read"),
    ):
        CIR.resume(tmp_path, Walk())
    assert model.num_timesteps == 60


@pytest.mark.parametrize("what", ["step_37.zip", "transitions/replay_37_*.safetensors"])
def test_going_on_behind_a_damaged_one(what: str, tmp_path: Path) -> None:
    """It counts for nothing, though it is between the one that is gone back to and the next."""
    small(Walk()).learn(37, callback=Checkpoint(30, tmp_path))
    (path,) = tmp_path.glob(what)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.warns(UserWarning, match=r"step_37.zip is damaged"):
        model = CIR.resume(tmp_path, Walk())
    model.learn(60, callback=Checkpoint(30, tmp_path))
    assert [step for step, _ in checkpoints(tmp_path)] == [60, 30]
    assert [CIR.resume(path, Walk()).num_timesteps for _, path in checkpoints(tmp_path)] == [60, 30]


def test_a_future_that_was_left(tmp_path: Path) -> None:
    small(Walk()).learn(37, callback=Checkpoint(30, tmp_path))
    CIR.resume(tmp_path / "step_30.zip", Walk()).learn(60, callback=Checkpoint(30, tmp_path))
    assert [step for step, _ in checkpoints(tmp_path)] == [60, 30]


def test_no_such_step(tmp_path: Path) -> None:
    small(Walk()).learn(40, callback=Checkpoint(20, tmp_path))
    with pytest.raises(FileNotFoundError, match=r"step_30.zip: there is no such checkpoint \(steps in this folder: 40, 20\)"):
        CIR.resume(tmp_path / "step_30.zip", Walk())


def test_files_of_others_stay(tmp_path: Path) -> None:
    names = ["expert_demos.npz", "notes.txt", "replay_20.npz"]
    (tmp_path / "transitions").mkdir()
    for name in names:
        (tmp_path / "transitions" / name).write_text("mine")
    small(Walk()).learn(80, callback=Checkpoint(20, tmp_path))
    assert all((tmp_path / "transitions" / name).read_text() == "mine" for name in names)


def test_a_model_that_is_called_as_a_checkpoint_stays(tmp_path: Path) -> None:
    """It is whole, and somebody's own."""

    class SavesThere(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 15:
                self.model.save(tmp_path / "step_15.zip")
            return True

    small(Walk()).learn(60, callback=[Checkpoint(20, tmp_path), SavesThere()])
    assert CIR.load((tmp_path / "step_15.zip").rename(tmp_path / "mine.zip"), device="cpu").num_timesteps == 15


def test_interrupted_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is in its place, and what belongs to it stays."""
    write_whole = files.write_whole

    def interrupted(path: Path, content: bytes) -> None:
        write_whole(path, content)
        if path.name == "step_20.zip":
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_whole", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small(Walk()).learn(60, callback=Checkpoint(20, tmp_path))
    assert CIR.resume(tmp_path, Walk(), device="cpu").num_timesteps == 20


def test_no_memory_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(files, "pack", fails)
    with pytest.warns(UserWarning, match="step 20 in .*: there is no memory left for it; the last good one is none"):
        assert small(Walk()).learn(25, callback=Checkpoint(20, tmp_path)).num_timesteps == 25


@pytest.mark.parametrize("every", [np.nan, "100", 0])
def test_an_interval_that_is_none(every: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"every={every}: it must be at least 1\."):
        Checkpoint(every, tmp_path)


def test_more_episodes_in_an_evaluation(tmp_path: Path) -> None:
    """They are rows of one table: those of before are left, with a warning."""

    def evaluation(n: int) -> EvalCallback:
        return EvalCallback(DummyVecEnv([Walk]), n_eval_episodes=n, eval_freq=10, log_path=str(tmp_path), warn=False)

    small(Walk()).learn(40, callback=[Checkpoint(20, tmp_path), evaluation(2)])
    model, now = CIR.resume(tmp_path, Walk(), device="cpu"), evaluation(3)
    with pytest.warns(UserWarning, match="EvalCallback: the checkpoint's evaluations_.* cannot be put back"):
        model.learn(60, callback=[Checkpoint(20, tmp_path), now])
    assert (now.evaluations_timesteps, np.shape(now.evaluations_results)) == ([50, 60], (2, 3))
    assert now.best_mean_reward > -np.inf


class NumPys(DummyVecEnv):
    """A simulator of many environments: it counts them by NumPy, and has arrays of one number in an episode's record."""

    def __init__(self):
        super().__init__([Walk, Walk])
        self.num_envs = np.int64(2)

    def step_wait(self):
        *results, dones, infos = super().step_wait()
        for done, info in zip(dones, infos, strict=True):
            if done:
                info["episode"] = dict(r=np.array([2.5]), l=th.tensor(23), name="x", both=np.zeros(2))
        return *results, dones, infos


def test_numpys_numbers(tmp_path: Path) -> None:
    model = small(NumPys()).learn(60, callback=Checkpoint(60, tmp_path))
    model.save(tmp_path / "model")
    for found in (CIR.load(tmp_path / "model", device="cpu"), CIR.resume(tmp_path, NumPys(), device="cpu")):
        assert found.num_timesteps == 60
    assert list(found.ep_info_buffer) == [dict(r=2.5, l=23.0)] * 2


@pytest.mark.parametrize("what", ["", "transitions"])
def test_folder_emptied_between_two_runs(what: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    model = small(Walk()).learn(40, callback=Checkpoint(20, folder))
    shutil.rmtree(folder / what)
    model.learn(40, callback=Checkpoint(20, folder), reset_num_timesteps=False)
    found = CIR.resume(folder, Walk())
    assert found.num_timesteps == 80
    np.testing.assert_array_equal(found.replay_buffer.observations, model.replay_buffer.observations)


def test_episodes_without_a_time(tmp_path: Path) -> None:
    """Environments that are many in one keep their own accounts, often without SB3's seconds."""

    class Counts(Walk):
        def step(self, action):
            *results, done, info = super().step(action)
            return *results, done, {"episode": {"r": 1.5, "l": 23}} if done else info

    small(DummyVecEnv([Counts])).learn(60, callback=Checkpoint(30, tmp_path))
    assert list(CIR.resume(tmp_path, DummyVecEnv([Counts])).ep_info_buffer) == [{"r": 1.5, "l": 23.0}] * 2


def test_buffer_arguments_beside_n_steps(tmp_path: Path) -> None:
    kwargs = dict(n_steps=3, replay_buffer_kwargs=dict(handle_timeout_termination=False))
    small(Walk(), **kwargs).learn(40, callback=Checkpoint(20, tmp_path))
    buffer = CIR.resume(tmp_path, Walk()).replay_buffer
    assert (buffer.handle_timeout_termination, buffer.n_steps) == (False, 3)


class MyNSteps(NStepReplayBuffer):
    """One that SB3 does not choose."""


@pytest.mark.parametrize("kind", [MyNSteps, SymmetricReplayBuffer])
def test_a_buffer_of_n_steps_that_was_given(kind: type, tmp_path: Path) -> None:
    kwargs = dict(n_steps=3, gamma=0.99)
    model = small(Walk(), n_steps=3, replay_buffer_class=kind, replay_buffer_kwargs=kwargs, learning_starts=1000)
    model.learn(20, callback=Checkpoint(20, tmp_path))
    given = dict(replay_buffer_class=kind) if kind is MyNSteps else {}  # a class that no file may name
    found = CIR.resume(tmp_path, Walk(), **given)
    assert type(found.replay_buffer) is kind
    assert found.replay_buffer_kwargs == kwargs
    assert [part.n_steps for part in rows.first(found.replay_buffer)] == [3]


def test_other_n_steps(tmp_path: Path) -> None:
    """SB3 chooses another replay buffer for them, of the same rows."""
    small(Walk()).learn(20, callback=Checkpoint(20, tmp_path / "1"))
    found = CIR.resume(tmp_path / "1", Walk(), n_steps=3)
    assert (type(found.replay_buffer), found.replay_buffer.n_steps) == (NStepReplayBuffer, 3)
    found.learn(40, callback=Checkpoint(40, tmp_path / "3"))
    assert type(CIR.resume(tmp_path / "3", Walk(), n_steps=1).replay_buffer) is ReplayBuffer


def test_another_temperature(tmp_path: Path) -> None:
    small(Walk(), ent_coef=0.1).learn(40, callback=Checkpoint(20, tmp_path))
    assert CIR.resume(tmp_path, Walk()).ent_coef_tensor == pytest.approx(0.1)
    assert CIR.resume(tmp_path, Walk(), ent_coef=0.5).ent_coef_tensor == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"ent_coef='auto': the temperature of the run to resume .* was fixed"):
        CIR.resume(tmp_path, Walk(), ent_coef="auto")


def test_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any of the files of a checkpoint; the next one has all that the failed one was to have."""
    fsync = os.fsync
    for failing in (1, 2, 3):
        folder, calls = tmp_path / str(failing), []

        def full(handle: int, failing=failing, calls=calls) -> None:
            calls.append(handle)
            # A checkpoint flushes four times: rows, their folder, the rest, its folder.
            if len(calls) == 4 + failing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(handle)

        monkeypatch.setattr(os, "fsync", full)
        model = small(Walk())
        with pytest.warns(UserWarning, match="disk is full") as warned:
            model.learn(45, callback=Checkpoint(15, folder))
        monkeypatch.setattr(os, "fsync", fsync)
        said = [str(each.message) for each in warned if "checkpoint" in str(each.message)]
        last = 15
        assert said == [
            f"No checkpoint of step 30 in {folder}: the disk is full; the last good one is step {last}, training goes on and "
            "the next try is at step 45."
        ]
        assert not list(folder.rglob("*.part"))
        (good,) = (path for step, path in checkpoints(folder) if step == last)
        assert CIR.resume(good, Walk()).num_timesteps == last
        found = CIR.resume(folder, Walk())
        assert found.num_timesteps == 45
        np.testing.assert_array_equal(found.replay_buffer.observations, model.replay_buffer.observations)


class Signal(BaseCallback):
    """
    Sends this process a signal in the midst of a step.

    :param steps: When
    """

    def __init__(self, *steps: int, number: int = signal.SIGINT):
        super().__init__()
        self.steps, self.number = steps, number

    def _on_step(self) -> bool:
        if self.num_timesteps in self.steps:
            for _ in range(self.steps.count(self.num_timesteps)):
                os.kill(os.getpid(), self.number)
        return True


def test_ctrl_c(tmp_path: Path) -> None:
    """The step and its update are finished, a checkpoint is written, then it is what it would have been."""
    before = signal.getsignal(signal.SIGINT)
    model = small(Walk())
    with pytest.raises(KeyboardInterrupt):
        model.learn(100, callback=[Checkpoint(1000, tmp_path), Signal(37)])
    assert signal.getsignal(signal.SIGINT) is before
    assert [step for step, _ in checkpoints(tmp_path)] == [37]
    assert model._n_updates == 2 * 17
    found = CIR.resume(tmp_path, Walk())
    assert same_tensors(found.get_parameters(), model.get_parameters())
    assert found.replay_buffer.pos == 37
    # Twice: at once.
    with pytest.raises(KeyboardInterrupt):
        found.learn(100, callback=[Checkpoint(1000, tmp_path), Signal(45, 45)])
    assert signal.getsignal(signal.SIGINT) is before
    assert [step for step, _ in checkpoints(tmp_path)] == [37]
    assert found.replay_buffer.pos == 44


def test_ctrl_c_in_the_last_update(tmp_path: Path) -> None:
    """It is not lost, though nothing is left to do."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        small(Walk()).learn(40, callback=[Checkpoint(1000, tmp_path), Signal(40)])
    assert signal.getsignal(signal.SIGINT) is before
    assert [step for step, _ in checkpoints(tmp_path)] == [40]


def test_in_a_thread(tmp_path: Path) -> None:
    """Signals are the main thread's; checkpoints work all the same."""
    thread = threading.Thread(target=small(Walk()).learn, args=(40,), kwargs=dict(callback=Checkpoint(20, tmp_path)))
    thread.start()
    thread.join()
    assert CIR.resume(tmp_path, Walk()).num_timesteps == 40


def learn_forever(folder: Path, subproc: bool = False) -> None:
    env = make_vec_env(Walk, 2, vec_env_cls=SubprocVecEnv) if subproc else Walk()
    small(env).learn(10**9, callback=Checkpoint(20, folder))


@pytest.mark.parametrize("subproc", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_told_to_stop(subproc: bool, number: int, tmp_path: Path) -> None:
    """It ends as it would have without checkpoints. Ctrl-C in a terminal reaches the environments' processes too."""
    script, log = tmp_path / "script.py", tmp_path / "log.txt"
    call = f"learn_forever(Path({str(tmp_path)!r}), {subproc})"
    script.write_text(f"from test_resume import *\n\nif __name__ == '__main__':\n    {call}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with log.open("w") as output:
        run = subprocess.Popen(
            [sys.executable, str(script)], env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_for(lambda: bool(checkpoints(tmp_path)), run, log)
        if number == signal.SIGINT:
            # Who gets it first is chance: here the others are gone before the run sees it.
            os.kill(run.pid, signal.SIGSTOP)
            others = members(run.pid) - {run.pid}
            for pid in others:
                os.kill(pid, number)
            wait_for(lambda: len(members(run.pid) & others) <= len(others) - 2 * subproc, run, log)
        run.send_signal(number)
        os.kill(run.pid, signal.SIGCONT)
        code = run.wait(timeout=300)
        # Python turns a KeyboardInterrupt that nobody handles into one or the other.
        assert code in ([-signal.SIGTERM] if number == signal.SIGTERM else [1, -signal.SIGINT]), log.read_text()
        assert number == signal.SIGTERM or log.read_text().endswith("KeyboardInterrupt\n")
        assert "Writing a last checkpoint" in log.read_text()
        wait_for_none(run.pid)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    newest, older = checkpoints(tmp_path)[0][0], checkpoints(tmp_path)[-1][0]
    assert newest >= older >= 20
    model = CIR.resume(tmp_path, make_vec_env(Walk, 2) if subproc else Walk())
    assert model.num_timesteps == newest


def wait_for_none(group: int) -> None:
    deadline = time.monotonic() + 300
    while members(group):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.1)


def test_two_domains_and_ctrl_c(tmp_path: Path) -> None:
    def learn(model: CIR, *more: BaseCallback) -> OffDynamicsCallback:
        off_dynamics = OffDynamicsCallback(target=functools.partial(Drift, TARGET), eval_freq=0)
        model.learn(300, callback=[Checkpoint(40, tmp_path), off_dynamics, *more])
        return off_dynamics

    kwargs = dict(n_steps=3, gamma=0.99)
    model = small(Drift(SOURCE), replay_buffer_class=TwoDomainReplayBuffer, replay_buffer_kwargs=kwargs, learning_starts=40)
    with pytest.raises(KeyboardInterrupt):
        learn(model, Signal(105))
    found = CIR.resume(tmp_path, Drift(SOURCE))
    assert same_tensors(found.get_parameters(), model.get_parameters())
    for ours, theirs in zip(pair(found), pair(model), strict=True):
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    check_buffer(found.replay_buffer.source, SOURCE, 105)
    check_buffer(found.replay_buffer.target, TARGET, 10)
    off_dynamics = learn(found)
    # 105 steps owed five to the target's next; none is lost and none is made twice.
    assert (off_dynamics.target_steps, found.replay_buffer.target.size(), found.replay_buffer.source.size()) == (30, 30, 300)
    for buffer, n, first in ((found.replay_buffer.source, 105, 300), (found.replay_buffer.target, 10, 30)):
        assert buffer.observations[n, 0, 2] == 0
        assert buffer.timeouts[n - 1, 0] == 1 or buffer.dones[n - 1, 0] == 1
        assert (buffer.observations[:first, 0, 0] == buffer.observations[0, 0, 0]).all()
    again = CIR.resume(tmp_path, Drift(SOURCE))
    assert again.num_timesteps == 300
    np.testing.assert_array_equal(again.replay_buffer.target.observations, found.replay_buffer.target.observations)


def pair(model: CIR) -> list[ReplayBuffer]:
    return [model.replay_buffer.source, model.replay_buffer.target]


def test_evaluation_goes_on(tmp_path: Path) -> None:
    """In step, with its best return and its past; and a model saved meanwhile has nothing of the checkpoints in it."""

    def evaluation() -> EvalCallback:
        path = str(tmp_path)
        return EvalCallback(
            Monitor(Walk()), n_eval_episodes=1, eval_freq=15, best_model_save_path=path, log_path=path, verbose=0
        )

    first = evaluation()
    small(Walk()).learn(50, callback=[Checkpoint(20, tmp_path / "checkpoints"), first])
    second = evaluation()
    CIR.resume(tmp_path / "checkpoints", Walk()).learn(70, callback=second)
    assert second.evaluations_timesteps == [15, 30, 45, 60]
    assert second.evaluations_results[:3] == [list(each) for each in first.evaluations_results]
    assert second.best_mean_reward >= first.best_mean_reward
    assert CIR.load(tmp_path / "best_model.zip", device="cpu").num_timesteps in (15, 30, 45, 60)


def test_simba(tmp_path: Path) -> None:
    whole = small(Walk(), model_class=SimBa, policy_kwargs=dict(net_arch=dict(pi=[8], qf=[8]))).learn(60)
    model = small(Walk(), model_class=SimBa, policy_kwargs=dict(net_arch=dict(pi=[8], qf=[8])))
    with pytest.raises(PowerError) as power:
        model.learn(60, callback=[Checkpoint(20, tmp_path), Stop(40)])
    model = SimBa.resume(tmp_path, Walk(*power.value.args[0]))
    assert same_tensors(whole.get_parameters(), model.learn(60).get_parameters())


def test_what_callbacks_count_goes_on(tmp_path: Path) -> None:
    """SB3's own by their names; anybody's, what is numbers and was not given to the constructor."""

    class Mine(BaseCallback):
        def __init__(self, limit: int, path: str):
            super().__init__()
            self.limit, self.path, self.name, self._most = limit, path, path, 2 * limit
            self.seen, self.sums, self.array, self.pair = 0, [], np.zeros(2), (0, 0)
            self.newest: deque[int] = deque(maxlen=3)

        def _on_step(self) -> bool:
            self.seen += 1
            self.sums.append(self.seen)
            self.array += 1
            self.pair = (self.seen, -self.seen)
            self.newest.append(self.seen)
            return True

    def callbacks(limit: int, path: str) -> list[BaseCallback]:
        return [Mine(limit, path), StopTrainingOnMaxEpisodes(4), EveryNTimesteps(25, Mine(0, ""))]

    first = callbacks(3, "here")
    small(Walk()).learn(60, callback=[Checkpoint(30, tmp_path), *first])
    second = callbacks(5, "there")
    model = CIR.resume(tmp_path, Walk()).learn(200, callback=second)
    assert model.num_timesteps == 60 + 2 * 23  # the third and the fourth episode end there
    mine = second[0]
    assert (mine.limit, mine.path, mine.name, mine._most) == (5, "there", "there", 10)
    assert (mine.seen, mine.sums[:3], mine.array.tolist(), mine.pair) == (106, [1, 2, 3], [106.0, 106.0], (106, -106))
    assert (list(mine.newest), mine.newest.maxlen) == ([104, 105, 106], 3)
    assert second[2].last_time_trigger == 100


class Turns(BaseCallback):
    """Whose attributes become something else."""

    def __init__(self, n: int):
        super().__init__()
        self.best, self.last, self.long, self.too_long, self.n = None, 0, [], [], n

    def _on_step(self) -> bool:
        if self.n:
            self.best = self.later = self.num_timesteps
            self.last = [1.0, 2.0]
            self.long += [0.5] * self.n
            self.too_long = [0.5] * 300_000
        return True


def test_attributes_that_become_something_else(tmp_path: Path) -> None:
    """What was None or is long goes on; what cannot is named, when it is left out and when the run goes on without it."""
    with pytest.warns(UserWarning, match="Turns: no checkpoint can hold its too_long"):
        small(Walk()).learn(20, callback=[Checkpoint(20, tmp_path), Turns(600)])
    turns = Turns(0)
    with pytest.warns(UserWarning, match="Turns: the checkpoint's last, later cannot be put back"):
        CIR.resume(tmp_path, Walk()).learn(21, callback=turns)
    assert (turns.best, turns.last, len(turns.long)) == (20, 0, 12_000)


class CountsEvaluations(EvalCallback):
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.mine = 0

    def _on_step(self) -> bool:
        self.mine += 1
        return super()._on_step()


class SaysWhatGoesOn(CountsEvaluations):
    state = ("mine",)


@pytest.mark.parametrize("kind", [CountsEvaluations, SaysWhatGoesOn])
def test_evaluation_of_ones_own_goes_on(kind: type, tmp_path: Path) -> None:
    def evaluation() -> EvalCallback:
        return kind(Monitor(Walk()), n_eval_episodes=1, eval_freq=15, log_path=str(tmp_path), verbose=0)

    first, second = evaluation(), evaluation()
    small(Walk()).learn(40, callback=[Checkpoint(20, tmp_path), first])
    CIR.resume(tmp_path, Walk()).learn(41, callback=second)
    assert (second.mine, second.best_mean_reward) == (41, first.best_mean_reward)
    assert second.evaluations_timesteps == [15, 30]


class Clock(BaseCallback):
    """Counts, and notes when this start of a run began, as one that ends it before the cluster does."""

    def __init__(self, began: list[float]):
        super().__init__()
        self.steps, self.times = 0, iter(began)

    def _on_training_start(self) -> None:
        self.start, self.here = next(self.times), 0

    def _on_step(self) -> bool:
        self.steps += 1
        self.here += 1
        return True


@pytest.mark.parametrize("inside", [lambda clock: clock, lambda clock: CallbackList([EveryNTimesteps(1, clock)])])
def test_what_a_start_of_a_run_sets_stays(inside: Callable[[BaseCallback], BaseCallback], tmp_path: Path) -> None:
    """Also where a callback was in an earlier ``learn()``, and where it is another callback's. What changes later goes on."""
    clock = Clock([1.0, 2.0])
    model = small(Walk()).learn(20, callback=inside(clock))
    model.learn(20, callback=[Checkpoint(20, tmp_path), inside(clock)], reset_num_timesteps=False)
    (saved,) = read(tmp_path).manifest.callbacks["Clock"]
    assert saved == dict(n_calls=40, steps=40, here=20)
    clock = Clock([3.0])
    CIR.resume(tmp_path, Walk()).learn(45, callback=[Checkpoint(40, tmp_path), inside(clock)])
    assert (clock.start, clock.steps, clock.here) == (3.0, 45, 25)
    (saved,) = read(tmp_path).manifest.callbacks["Clock"]
    assert saved == dict(n_calls=45, steps=45, here=25)


def test_a_count_that_is_called_as_sb3s_lists(tmp_path: Path) -> None:
    class Mine(BaseCallback):
        def __init__(self):
            super().__init__()
            self.evaluations_done, self.evaluations_results = 0, 0.0

        def _on_step(self) -> bool:
            self.evaluations_done += 1
            self.evaluations_results += 0.5
            return True

    small(Walk()).learn(20, callback=[Checkpoint(20, tmp_path), Mine()])
    mine = Mine()
    CIR.resume(tmp_path, Walk()).learn(21, callback=mine)
    assert (mine.evaluations_done, mine.evaluations_results) == (21, 10.5)


def test_a_checkpoint_that_cannot_be_read_counts_for_nothing(tmp_path: Path) -> None:
    """Also where only what it says of callbacks cannot be: an older one is kept in its place."""

    class Spoil(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 45:
                path = tmp_path / "step_40.zip"
                members = files.unpack_archive(path.read_bytes(), "")
                said = json.loads(members["manifest.json"])
                said["callbacks"]["Spoil"] = [{"n_calls": -1}]
                path.write_bytes(files.pack_archive(members | {"manifest.json": json.dumps(said)}).getvalue())
            return True

    small(Walk()).learn(60, callback=[Checkpoint(20, tmp_path), Spoil()])
    assert [step for step, _ in checkpoints(tmp_path)] == [60, 20]


def test_numbers_of_episodes(tmp_path: Path) -> None:
    """Also those that ``Monitor`` was asked for."""

    class Info(Walk):
        def step(self, action):
            *results, _ = super().step(action)
            return *results, {"score": 2.5, "name": "x"}

    env = Monitor(Info(), info_keywords=("score", "name"))
    small(env).learn(60, callback=Checkpoint(30, tmp_path))
    (first, second) = CIR.resume(tmp_path, env).ep_info_buffer
    assert first["score"] == second["score"] == 2.5
    assert "name" not in first


class Deaf(Walk):
    """Begins its episodes at random, and its observation does not say where it is: no run can go on in their midst."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2).astype(np.float32)
        self.hidden = self.np_random.normal()
        return self.observe(), {}

    def step(self, action):
        observation, reward, *_ = super().step(action)
        return observation, reward + self.hidden, False, bool(self.np_random.random() < 0.04), {}


RESUMABLE: dict[str, dict[str, Any]] = {
    "CIR": dict(model_class=CIR),
    "SMR": dict(model_class=SMR),
    "SimBa": dict(model_class=SimBa, policy_kwargs=dict(net_arch=dict(pi=[8], qf=[8]))),
    "SACTanh": dict(model_class=SACTanh),
    "SACTanhNorm": dict(model_class=SACTanhNorm),
    "SAC": dict(model_class=resumable(SAC)),
    "TD3": dict(model_class=resumable(TD3), action_noise=NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))),
    "DDPG": dict(model_class=resumable(DDPG)),
    "TQC": dict(model_class=resumable(TQC)),
    "CrossQ": dict(model_class=resumable(CrossQ)),
    "DQN": dict(model_class=resumable(DQN), discrete=True),
    "several, normalised": dict(model_class=CIR, n_envs=3, normalize=True),
}


class Discrete(gym.ActionWrapper):
    """Two actions."""

    action_space = spaces.Discrete(2)

    def action(self, action):
        return np.array([2.0 * action - 1], np.float32)


@pytest.mark.parametrize("name", RESUMABLE)
def test_to_the_bit_with_episodes_that_begin_anew(name: str, tmp_path: Path) -> None:
    """For any off-policy algorithm: a run that was killed equals one that was not, and so do its evaluations."""
    kwargs = dict(RESUMABLE[name])
    n_envs, normalize = kwargs.pop("n_envs", 1), kwargs.pop("normalize", False)
    discrete = kwargs.pop("discrete", False)

    def env(n: int = n_envs):
        made = DummyVecEnv([lambda: Discrete(Deaf()) if discrete else Deaf()] * n)
        return VecNormalize(made) if normalize else made

    def callbacks(folder: Path, *more: BaseCallback) -> tuple[EvalCallback, list[BaseCallback]]:
        evaluated = env(1)
        evaluated.seed(5)
        evaluation = EvalCallback(evaluated, n_eval_episodes=2, eval_freq=15, log_path=str(folder), verbose=0, warn=False)
        return evaluation, [Checkpoint(30, folder, restart_episodes=True), evaluation, *more]

    make = functools.partial(small, **kwargs)
    expected, learning = callbacks(tmp_path / "whole")
    whole = make(env()).learn(120, callback=learning)
    _, learning = callbacks(tmp_path / "killed", Stop(76))
    with pytest.raises(PowerError):
        make(env()).learn(120, callback=learning)
    for seed in (random.seed, np.random.seed, th.manual_seed):
        seed(1)
    found, learning = callbacks(tmp_path / "killed")
    model = type(whole).resume(tmp_path / "killed", env())
    assert model.num_timesteps == 60
    model.learn(120, callback=learning)
    assert same_tensors(whole.get_parameters(), model.get_parameters())
    np.testing.assert_array_equal(whole.replay_buffer.observations, model.replay_buffer.observations)
    np.testing.assert_array_equal(whole.replay_buffer.rewards, model.replay_buffer.rewards)
    assert expected.evaluations_timesteps == found.evaluations_timesteps
    np.testing.assert_array_equal(expected.evaluations_results, found.evaluations_results)


@pytest.mark.parametrize(("kind", "arguments"), [(CIR, {}), (TwoDomainSAC, {}), (DARC, dict(correction_starts=20)), (PAR, {})])
def test_two_domains_to_the_bit(kind: type, arguments: dict, tmp_path: Path) -> None:
    def callbacks(folder: str, *more: BaseCallback) -> list[BaseCallback]:
        off_dynamics = OffDynamicsCallback(target=functools.partial(Drift, TARGET), eval_freq=0, target_freq=5)
        return [Checkpoint(40, tmp_path / folder, restart_episodes=True), off_dynamics, *more]

    make = functools.partial(small, model_class=kind, replay_buffer_class=TwoDomainReplayBuffer, **arguments)
    whole = make(Drift(SOURCE)).learn(160, callback=callbacks("whole"))
    with pytest.raises(PowerError):
        make(DummyVecEnv([lambda: Walkable(SOURCE)])).learn(160, callback=callbacks("killed", Stop(100)))
    model = kind.resume(tmp_path / "killed", Drift(SOURCE))
    assert model.num_timesteps == 80
    model.learn(160, callback=callbacks("killed"))
    assert same_tensors(whole.get_parameters(), model.get_parameters())
    for ours, theirs in zip(pair(whole), pair(model), strict=True):
        np.testing.assert_array_equal(ours.observations, theirs.observations)
        np.testing.assert_array_equal(ours.timeouts, theirs.timeouts)


class Walkable(Drift):
    """With the attribute that :class:`Stop` looks at."""

    state = (0.0,)


def test_sb3s_own_files_stay_sb3s(tmp_path: Path) -> None:
    """A model of a class that was made resumable is loaded by the class itself, and the other way round."""
    model = small(Walk(), model_class=resumable(SAC)).learn(30)
    model.save(tmp_path / "model")
    assert same_tensors(SAC.load(tmp_path / "model", device="cpu").get_parameters(), model.get_parameters())
    plain = small(Walk(), model_class=SAC).learn(30)
    plain.save(tmp_path / "plain")
    assert same_tensors(resumable(SAC).load(tmp_path / "plain", device="cpu").get_parameters(), plain.get_parameters())
    assert resumable(SAC) is resumable(SAC)


@pytest.mark.parametrize("kind", [DQN, QRDQN])
def test_discrete_actions_are_saved_and_loaded(kind: type, tmp_path: Path) -> None:
    model = small(Discrete(Walk()), model_class=resumable(kind), train_freq=1).learn(30)
    model.save(tmp_path / "model")
    loaded = resumable(kind).load(tmp_path / "model", Discrete(Walk()), "cpu")
    assert same_tensors(loaded.get_parameters(), model.get_parameters())
    assert (loaded.num_timesteps, loaded._n_calls) == (30, model._n_calls)
    assert loaded.learn(10, reset_num_timesteps=False).num_timesteps == 40
    with pytest.raises(ValueError, match="Action spaces do not match"):
        resumable(kind).load(tmp_path / "model", Walk(), "cpu")


def test_what_can_be_made_resumable() -> None:
    assert resumable(SAC) is resumable(SAC)
    assert resumable(CIR) is CIR
    with pytest.raises(TypeError, match="is no off-policy algorithm"):
        resumable(PPO)


def test_an_argument_under_another_name(tmp_path: Path) -> None:
    """It does not silently fall back to its default."""

    class Mine(CIR):
        def __init__(self, *args: Any, beta: float = 0.5, **kwargs: Any):
            self._beta = beta
            super().__init__(*args, **kwargs)

    small(Walk(), model_class=Mine, beta=0.9).learn(20, callback=Checkpoint(20, tmp_path))
    with pytest.raises(ValueError, match=r"beta: Mine keeps it under another name, or not at all; pass beta=\.\.\.$"):
        Mine.resume(tmp_path, Walk())
    assert Mine.resume(tmp_path, Walk(), beta=0.9)._beta == 0.9


def test_other_settings_are_named(tmp_path: Path) -> None:
    small(Walk()).learn(20, callback=Checkpoint(20, tmp_path))
    model = small(Walk(), convex_coef=1.0, batch_size=8)
    with pytest.warns(UserWarning, match=r"other settings than .* \(batch_size: 16 → 8; convex_coef: 0.3 → 1.0\)"):
        model.restore(tmp_path)


def test_a_folder_that_is_removed_or_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made again; and a relative one stays where it was when the callback was made."""

    class Leave(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 25:
                shutil.rmtree(tmp_path / "relative")
                monkeypatch.chdir("/")
            return True

    monkeypatch.chdir(tmp_path)
    small(Walk()).learn(40, callback=[Checkpoint(20, "relative"), Leave()])
    assert CIR.resume(tmp_path / "relative", Walk()).num_timesteps == 40


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    model = small(Walk()).learn(30, callback=Checkpoint(30, tmp_path / "folder"))
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"model\.zip is no checkpoint: a model that was saved is loaded by load\(\)"):
        CIR.resume(tmp_path / "model.zip", Walk())
    with pytest.raises(ValueError, match=r"step 30 of this model's earlier learn\(\), and the count begins anew"):
        model.learn(30, callback=Checkpoint(30, tmp_path / "folder"))


def test_checkpoints_that_are_mixed_up(tmp_path: Path) -> None:
    for name in "ab":
        small(Walk()).learn(60, callback=Checkpoint(20, tmp_path / name))
    shutil.copy(tmp_path / "a/step_40.zip", tmp_path / "a/step_60.zip")
    with pytest.warns(UserWarning, match=r"step_60.zip is damaged \(it is of step 40, which is not its name\)"):
        assert CIR.resume(tmp_path / "a", Walk()).num_timesteps == 40
    shutil.copy(tmp_path / "a/step_40.zip", tmp_path / "b/step_40.zip")
    with pytest.raises(ValueError, match=r"step_60.zip and step_40.zip are of two runs \(.*\): name the file to go on from"):
        CIR.resume(tmp_path / "b", Walk())
    assert CIR.resume(tmp_path / "b/step_60.zip", Walk()).num_timesteps == 60


def test_what_cannot_be_read_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may not read the newest one is told, and it is not deleted."""
    small(Walk()).learn(40, callback=Checkpoint(20, tmp_path))
    real = os.open

    def refuse(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith("step_40.zip"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError, match="Permission denied: it cannot be read, so whether it is whole is not known"):
        CIR.resume(tmp_path, Walk())
    CIR.resume(tmp_path / "step_20.zip", Walk()).learn(30, callback=Checkpoint(10, tmp_path))
    assert [step for step, _ in checkpoints(tmp_path)] == [40, 30, 20]


def test_version_0_1_is_refused(tmp_path: Path) -> None:
    small(Walk()).learn(20, callback=Checkpoint(20, tmp_path))
    path = tmp_path / "step_20.zip"
    path.write_bytes(files.pack_archive({"manifest.json": '{"format": 1}', "state.pt": b""}).getvalue())
    with pytest.raises(ValueError, match=r"version 0\.1 wrote it; this version cannot resume it, finish the run with 0\.1"):
        CIR.resume(tmp_path, Walk())
