"""Faults that only show in runs as others make them: worker processes, callbacks of their own, second calls of ``learn()``."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from small import PowerError, small, weights
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from test_datasets import folder
from walk import Discrete, Stop, Walk

from sb3_cir import CIR, datasets
from sb3_cir.baselines import SimBa
from sb3_cir.baselines.par import PAR
from sb3_cir.buffers import cut_off
from sb3_cir.callbacks import Checkpoint
from sb3_cir.diagnostics import QGain
from sb3_cir.envs import FlatFloat32
from sb3_cir.off_dynamics import OffDynamicsCallback, TwoDomainReplayBuffer
from sb3_cir.runs import randomness, resumable
from sb3_cir.runs.files import checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:No update will be made")


class Quiet(BaseCallback):
    """Does nothing."""

    def _on_step(self) -> bool:
        return True


def test_simba_with_worker_processes() -> None:
    """It asks for the action repeat, which environments without a wrapper lack; the workers live on."""
    env = SubprocVecEnv([functools.partial(gym.make, "Pendulum-v1") for _ in range(2)], start_method="fork")
    model = small(env, model_class=SimBa, policy_kwargs=dict(net_arch=dict(pi=[8], qf=[8])))
    assert model.gamma == 1 - 5 / 200
    assert model.learn(24).num_timesteps == 24
    env.close()


class Grows(Quiet):
    """Has a result that is too long for a checkpoint after some steps, and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.returns: list[list[float]] = []
        self.seen = 0

    def _on_step(self) -> bool:
        self.returns.append([0.5] * 9000)
        self.seen += 1
        return True


def test_what_is_too_long_to_be_read_again_is_not_written(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Grows: no checkpoint can hold its returns"):
        small(Walk(), learning_starts=1000).learn(60, callback=[Grows(), Checkpoint(20, tmp_path, keep=1)])
    model, callback = CIR.resume(tmp_path, Walk(), learning_starts=1000), Grows()
    assert model.num_timesteps == 60
    model.learn(61, callback=callback)
    assert (callback.seen, len(callback.returns)) == (61, 1)


def two_domains() -> OffDynamicsCallback:
    return OffDynamicsCallback(
        target=functools.partial(Walk, length=11), source=Walk, eval_freq=20, n_eval_episodes=1, target_freq=5
    )


def test_evaluations_in_two_domains_go_on_at_their_steps(tmp_path: Path) -> None:
    """After a resume and in a second ``learn()``: not at every step until the count has caught up."""
    settings = dict(replay_buffer_class=TwoDomainReplayBuffer, learning_starts=1000)
    with pytest.raises(PowerError):
        small(Walk(), **settings).learn(120, callback=[two_domains(), Checkpoint(40, tmp_path), Stop(80)])
    callback = two_domains()
    model = CIR.resume(tmp_path, Walk())
    model.learn(120, callback=callback)
    assert [each["timesteps"] for each in callback.evaluations] == [20, 40, 60, 80, 100, 120]
    model.learn(40, callback=callback)
    assert [each["timesteps"] for each in callback.evaluations[6:]] == [20, 40]


class Recorder(Quiet):
    """Has attributes of names that mean something else elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.observations: list[Any] = []
        self.begin_episode = 3
        self.callbacks = None


@pytest.mark.parametrize("restart", [False, True])
def test_attributes_of_a_callback_of_ones_own(tmp_path: Path, restart: bool) -> None:
    def checkpoint() -> Checkpoint:
        return Checkpoint(20, tmp_path, restart_episodes=restart)

    small(Walk(), learning_starts=1000).learn(40, callback=[Recorder(), checkpoint()])
    assert CIR.resume(tmp_path, Walk()).learn(60, callback=[Recorder(), checkpoint()]).num_timesteps == 60


HOLD = """
import sys, time
sys.path.insert(0, {tests!r})
from small import small
from test_faults import Quiet, Walk
from sb3_cir.callbacks import Checkpoint

class Slow(Quiet):
    def _on_step(self):
        print("here", flush=True)
        time.sleep(600)
        return True

small(Walk(), learning_starts=1000).learn(40, callback=[Checkpoint(20, {folder!r}), Slow()])
"""


def test_two_processes_and_one_folder(tmp_path: Path) -> None:
    """The second is refused while the first one lives, and no longer."""
    code = HOLD.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "here\n"
        try:
            with pytest.raises(ValueError, match="another process writes its checkpoints there"):
                small(Walk(), learning_starts=1000).learn(40, callback=Checkpoint(20, tmp_path))
        finally:
            other.kill()
    assert checkpoints(tmp_path) == []
    small(Walk(), learning_starts=1000).learn(40, callback=Checkpoint(20, tmp_path))
    assert [step for step, _ in checkpoints(tmp_path)] == [40, 20]


def test_the_target_network_of_dqn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is copied at the steps at which it would have been, and actions are as random."""
    import stable_baselines3.dqn.dqn as module

    at: list[int] = []
    copy = module.polyak_update
    monkeypatch.setattr(module, "polyak_update", lambda *args: (at.append(model.num_timesteps), copy(*args)))
    settings = dict(model_class=resumable(DQN), target_update_interval=25, exploration_final_eps=0.5)
    model = small(Discrete(Walk()), **settings)
    model.learn(100)
    whole = sorted(set(at))
    at.clear()
    model = small(Discrete(Walk()), **settings)
    with pytest.raises(PowerError):
        model.learn(100, callback=[Checkpoint(20, tmp_path), Stop(40)])
    rate = model.exploration_rate
    model = resumable(DQN).resume(tmp_path, Discrete(Walk()))
    assert model.exploration_rate == rate < 1
    model.learn(100)
    assert sorted(set(at)) == whole == [25, 50, 75, 100]


def test_the_best_return_of_two_calls(tmp_path: Path) -> None:
    """What did not change in the second ``learn()`` is a result all the same."""
    evaluation = EvalCallback(Monitor(Walk()), eval_freq=10, n_eval_episodes=1, verbose=0, warn=False)
    model, saver = small(Walk(), learning_starts=1000), Checkpoint(20, tmp_path)
    model.learn(20, callback=[evaluation, saver])
    best = evaluation.best_mean_reward
    model.learn(20, callback=[evaluation, saver], reset_num_timesteps=False)
    assert evaluation.best_mean_reward == best  # nothing has been learned
    later = EvalCallback(Monitor(Walk()), eval_freq=10**6, n_eval_episodes=1, verbose=0, warn=False)
    CIR.resume(tmp_path, Walk()).learn(41, callback=later)
    assert later.best_mean_reward == best > -np.inf


class Bests(Quiet):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.bests = 0

    def _on_step(self) -> bool:
        self.bests += 1
        return True


def test_what_counts_new_bests(tmp_path: Path) -> None:
    def evaluation(every: int) -> EvalCallback:
        return EvalCallback(Monitor(Walk()), Bests(), eval_freq=every, n_eval_episodes=1, verbose=0, warn=False)

    first, second = evaluation(10), evaluation(10**6)
    small(Walk(), learning_starts=1000).learn(20, callback=[first, Checkpoint(20, tmp_path)])
    CIR.resume(tmp_path, Walk()).learn(21, callback=second)
    assert second.callback_on_new_best.bests == first.callback_on_new_best.bests > 0


def test_her_after_going_back(tmp_path: Path) -> None:
    """It draws from nothing that was taken back."""
    arguments = dict(replay_buffer_class=HerReplayBuffer, learning_starts=1000)
    model = small(Walk(form="goal"), "MultiInputPolicy", **arguments)
    model.learn(46, callback=Checkpoint(23, tmp_path))
    model.learn(92, reset_num_timesteps=False)
    model.restore(tmp_path / "step_23.zip")
    assert np.flatnonzero(model.replay_buffer.ep_length[:, 0]).tolist() == list(range(23))


def test_the_replay_buffer_of_sb3s_own(tmp_path: Path) -> None:
    """SB3 reads what its own algorithm, made resumable, has written."""
    model = small(Walk(), model_class=resumable(SAC)).learn(30)
    model.save_replay_buffer(tmp_path / "replay_buffer.pkl")
    for kind in (SAC, resumable(SAC)):
        plain = small(Walk(), model_class=kind)
        plain.load_replay_buffer(tmp_path / "replay_buffer.pkl")
        np.testing.assert_array_equal(plain.replay_buffer.observations, model.replay_buffer.observations)


def test_a_look_at_par_trains_nothing() -> None:
    def learn(*more: BaseCallback) -> Any:
        callback = OffDynamicsCallback(target=functools.partial(Walk, length=11), eval_freq=0, target_freq=5)
        return small(Walk(), model_class=PAR, encoder_freq=3, encoder_width=8).learn(60, callback=[callback, *more])

    without, with_looks = learn(), learn(QGain(every=1, batch_size=8))
    assert without.n_batches == with_looks.n_batches
    ours, others = weights(without), weights(with_looks)
    assert all((ours[name] == others[name]).all() for name in ours)


def test_two_calls_join_no_episodes() -> None:
    """The second begins with a reset."""
    model = small(Walk(), n_steps=3, learning_starts=1000).learn(10)
    model.learn(10)
    last = model.replay_buffer._get_samples(np.array([9]))
    assert last.next_observations[0, 1] == 10
    assert last.discounts == pytest.approx(model.gamma)
    going_on = small(Walk(), n_steps=3, learning_starts=1000).learn(10)
    going_on.learn(10, reset_num_timesteps=False)
    assert going_on.replay_buffer._get_samples(np.array([9])).next_observations[0, 1] == 12


def recording() -> dict[str, np.ndarray]:
    ends = np.arange(5) == 4
    return dict(
        observations=np.full((6, 2), 100, np.float32),
        actions=np.zeros((5, 1), np.float32),
        rewards=np.full(5, 1000.0),
        terminations=np.zeros(5, bool),
        truncations=ends,
    )


LITTLE = dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False))


@pytest.mark.parametrize("settings", [dict(n_steps=3), LITTLE])
def test_recorded_episodes_after_own_steps(tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's last transition is not joined to them, and is as it was where it fails."""
    source = folder(tmp_path / "episodes", recording())
    model = small(Walk(), learning_starts=1000, **settings).learn(10)
    buffer = model.replay_buffer
    with monkeypatch.context() as patch:
        patch.setattr(type(buffer), "add", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            datasets.fill(model, source)
    assert not buffer.dones[:10].any()
    assert not buffer.timeouts[:10].any()
    datasets.fill(model, source)
    last = buffer._get_samples(np.array([9]))
    assert last.rewards.item() < 2
    # Where memory is saved, the next observation is the recording's: nothing may be made of it.
    assert last.next_observations[0, 1] == 10 or last.dones.item() == 1


class KillsWorkers(Quiet):
    """As Ctrl-C in a terminal does."""

    def _on_step(self) -> bool:
        if self.num_timesteps == 30:
            assert isinstance(self.training_env, SubprocVecEnv)
            for process in self.training_env.processes:
                os.kill(process.pid, signal.SIGKILL)
                process.join()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        return True


@pytest.mark.parametrize("restart", [False, True])
def test_ctrl_c_that_reaches_the_workers(tmp_path: Path, restart: bool) -> None:
    env = SubprocVecEnv([Walk], start_method="fork")
    saver = Checkpoint(20, tmp_path, restart_episodes=restart)
    with pytest.raises(KeyboardInterrupt):
        small(env, learning_starts=1000, train_freq=7).learn(60, callback=[saver, KillsWorkers()])
    assert checkpoints(tmp_path)[0][0] == 30


class KillsWorkersBetween(KillsWorkers):
    """The same during an update, where the next reset finds that they are gone."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.num_timesteps == 35:
            self.num_timesteps = 30
            super()._on_step()


def test_ctrl_c_that_reaches_the_workers_between_rollouts(tmp_path: Path) -> None:
    env = SubprocVecEnv([Walk], start_method="fork")
    saver = Checkpoint(20, tmp_path, restart_episodes=True)
    with pytest.raises(KeyboardInterrupt):
        small(env, learning_starts=1000, train_freq=7).learn(60, callback=[saver, KillsWorkersBetween()])
    assert checkpoints(tmp_path)[0][0] == 35


def test_named_observations_in_other_processes() -> None:
    """In which order they stand in one vector cannot be seen there, and is not guessed."""
    made = Walk(form="dict").observation_space
    assert isinstance(made, gym.spaces.Dict)
    near = small(FlatFloat32(Walk(form="dict")))
    assert datasets._flattened(made, near) == made
    env = SubprocVecEnv([lambda: FlatFloat32(Walk(form="dict"))], start_method="fork")
    with pytest.raises(ValueError, match=r"named a, b\. In which order .* fill a model with a DummyVecEnv"):
        datasets._flattened(made, small(env))
    env.close()


def test_an_episode_that_ended_is_not_cut_off() -> None:
    """Its last transition is a terminal one, which no target looks beyond."""
    box = spaces.Box(-1, 1, (1,))
    buffer = ReplayBuffer(10, box, box, device="cpu")
    buffer.add(np.zeros(1), np.zeros(1), np.zeros(1), np.ones(1), np.ones(1), [{}])
    cut_off(buffer)
    assert buffer._get_samples(np.array([0])).dones.item() == 1


def test_generators_of_more_than_ten_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number: as words, 10 would come before 2."""
    put: list[int] = []
    monkeypatch.setattr(th.cuda, "is_available", lambda: True)
    monkeypatch.setattr(th.cuda, "device_count", lambda: 12)
    monkeypatch.setattr(th.cuda, "get_rng_state_all", lambda: [th.full((2,), index, dtype=th.uint8) for index in range(12)])
    monkeypatch.setattr(th.cuda, "set_rng_state_all", lambda states: put.extend(int(each[0]) for each in states))
    model = small(Walk())
    randomness.put(model, randomness.take(model), randomness.take_arrays())
    assert put == list(range(12))
