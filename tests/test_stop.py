"""Runs that are told to stop: Ctrl-C, and signals to a process."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from small import small
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv
from test_off_dynamics import SOURCE, TARGET, Drift, check_buffer
from test_save_load import members, same_tensors, wait_for
from walk import Walk, pair

from sb3_cir import CIR
from sb3_cir.callbacks import Checkpoint
from sb3_cir.off_dynamics import OffDynamicsCallback, TwoDomainReplayBuffer
from sb3_cir.runs.files import checkpoints


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
    script.write_text(f"from test_stop import *\n\nif __name__ == '__main__':\n    {call}\n")
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
