"""
What becomes of long runs: killed at random moments, on a full disk, with damaged files, and over many steps.

Every run here is real: a process of its own, with small networks, on an environment whose observations say which step they are
of, so that each row of a replay buffer that comes back can be checked, and that none is missing or out of place.
"""

import argparse
import contextlib
import faulthandler
import multiprocessing
import os
import random
import shutil
import struct
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from rich.console import Console
from rich.progress import Progress, track
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from benchmarks.arguments import positive
from benchmarks.machine import resident
from sb3_cir import CIR
from sb3_cir.callbacks import Checkpoint
from sb3_cir.runs.files import checkpoints

FOREVER = 10**9
EPISODE = 37
EVERY = 50  # steps between checkpoints, of the runs that are killed
ROWS = 1_000  # of their replay buffers: the ring turns many times
EARLY = 0.2  # of them are killed while they start
AIMED = 0.5  # of the others when they begin to write a file, if that comes before the random moment
START = 300  # seconds that it may take to start; where it does not, it says what it was doing
LIFE = 130  # steps that such a run lives, at most: not seconds, in which a busy machine may come nowhere
BIRTH = 0.6  # seconds that a run lives, at most, that is killed while it starts


class Numbered(gym.Env[np.ndarray, np.ndarray]):
    """
    Observations are (number of the step in all of the run, position). Episodes are cut off after 37 steps.

    :param place: A file that gets the number of steps as each is made, so that it outlives the process
    """

    def __init__(self, place: Path | None = None):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.steps = 0
        self.position = np.float32(0)
        self.file = None if place is None else os.open(place, os.O_RDWR | os.O_CREAT)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(**kwargs)
        self.position = np.float32(0)
        return np.array([self.steps, self.position], np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.position = moved(self.position, action[0])
        if self.file is not None:
            os.pwrite(self.file, struct.pack("q", self.steps), 0)
        return np.array([self.steps, self.position], np.float32), float(self.position), False, self.steps % EPISODE == 0, {}


def moved(position: Any, action: Any) -> Any:
    """
    :param position: Positions, float32
    :param action: Actions, float32
    :return: The next positions
    """
    return np.float32(0.5) * position + action


def small_model(env: Any, **kwargs: Any) -> CIR:
    """
    :param env: An environment
    :param kwargs: Arguments that differ
    :return: A model with small networks
    """
    defaults = dict(policy_kwargs=dict(net_arch=[16, 16]), batch_size=16, learning_starts=20, buffer_size=ROWS, device="cpu")
    return CIR("MlpPolicy", env, **{**defaults, "seed": 0, **kwargs})


def check_rows(model: CIR) -> None:
    """
    :param model: A model that learned in one :class:`Numbered`
    :raises ValueError: If its replay buffer is not, row for row, what the run's last steps gave.
    """
    buffer = model.replay_buffer
    assert buffer is not None
    rows = np.arange(buffer.size()) if not buffer.full else (np.arange(buffer.buffer_size) + buffer.pos) % buffer.buffer_size
    now, following = buffer.observations[rows, 0], buffer.next_observations[rows, 0]
    numbers = np.arange(model.num_timesteps - len(rows), model.num_timesteps)
    ended = (numbers + 1) % EPISODE == 0
    # What an episode ends with has been through VecNormalize and back.
    led_to = moved(now[:, 1], buffer.actions[rows, 0, 0])
    near = np.isclose(following[:, 1], led_to, rtol=1e-4, atol=1e-4) & ended
    goes_on = now[1:, 1] == following[:-1, 1]
    begins = now[1:, 1] == 0
    for what, holds in (
        ("one is missing or out of place", now[:, 0] == numbers),
        ("a next observation is of another step", np.round(following[:, 0]) == numbers + 1),
        ("an action does not lead to the next observation", near | (led_to == following[:, 1])),
        ("a reward is another one's", np.isclose(buffer.rewards[rows, 0], following[:, 1], rtol=1e-4, atol=1e-4)),
        ("an end is not where it was", (buffer.dones[rows, 0] == 1) == ended),
        ("one joins another's episode", goes_on | begins),
        ("an episode goes on behind its end", begins[ended[:-1]]),
    ):
        if not holds.all():
            raise ValueError(f"torn buffer at step {model.num_timesteps}: {what} (row {int(np.argmin(holds))} of {len(rows)})")


def numbered(place: Path | None = None) -> VecNormalize:
    """
    :param place: See :class:`Numbered`
    :return: One environment, with statistics of its observations
    """
    return VecNormalize(DummyVecEnv([lambda: Numbered(place)]), norm_reward=False)


def resumed(place: Path, progress: Path | None = None) -> CIR:
    """
    Resume and check.

    :param place: A checkpoint, or a folder of them
    :param progress: See :class:`Numbered`
    :return: A model whose environment counts on from where it is
    :raises ValueError: If its replay buffer or its statistics are not those of the run.
    """
    env = numbered(progress)
    model = CIR.resume(place, env, device="cpu")
    check_rows(model)
    if not model.num_timesteps <= env.obs_rms.count <= 2 * model.num_timesteps + 10:
        raise ValueError(f"the statistics are of {env.obs_rms.count:.0f} observations at step {model.num_timesteps}")
    env.set_attr("steps", model.num_timesteps)
    return model


def live(folder: Path, to_parent: Connection) -> None:
    """
    A run that goes on from where the last one was killed, until it is.

    :param folder: Its folder
    :param to_parent: Is told what was found
    """
    th.set_num_threads(1)
    faulthandler.dump_traceback_later(START - 10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = checkpoints(folder / "checkpoints")
        try:
            for _, path in found[1:]:
                resumed(path)
            if found:
                model = resumed(folder / "checkpoints", folder / "steps")
            else:
                model = small_model(numbered(folder / "steps"), train_freq=5)
        except (ValueError, FileNotFoundError) as error:
            to_parent.send({"problem": str(error)})
            return
        damaged = [str(each.message) for each in caught if "damaged" in str(each.message)]
        faulthandler.cancel_dump_traceback_later()
        to_parent.send({"step": model.num_timesteps, "checkpoints": len(found), "damaged": damaged})
    model.learn(FOREVER, callback=Checkpoint(EVERY, folder / "checkpoints"))


def kills(options: argparse.Namespace, console: Console) -> list[str]:
    """
    :param options: Has the number of kills
    :param console: For progress
    :return: What was found
    :raises ValueError: If a run did not come back as it should.
    """
    with tempfile.TemporaryDirectory() as name:
        runs = KilledRuns(Path(name), random.Random(options.seed))
        for _ in track(range(options.kills), "killed", console=console):
            runs.start_and_kill()
        return runs.findings()


class KilledRuns:
    """
    One run that is started again and again, and killed each time.

    :param folder: Its folder
    :param generator: Draws the moments
    """

    def __init__(self, folder: Path, generator: random.Random):
        self.folder, self.generator = folder, generator
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["benchmarks.reliability"])
        self.reached, self.there = 0, False  # steps made, and whether there is a checkpoint
        self.kills = self.most_lost = self.writing = self.with_two = self.early = 0
        self.slowest = 0.0  # seconds

    def start_and_kill(self) -> None:
        """:raises ValueError: If the run did not come back as it should."""
        ours, theirs = self.context.Pipe(duplex=False)
        left = half_written(self.folder)
        process = self.context.Process(target=live, args=(self.folder, theirs))
        process.start()
        theirs.close()
        try:
            if self.there and self.generator.random() < EARLY:
                self.early += 1
                time.sleep(self.generator.uniform(0, BIRTH))
            else:
                self._hear(ours)
                self._let_live(left)
        finally:
            process.kill()
            process.join()
        self.kills += 1
        self.writing += bool(half_written(self.folder) - left)
        self.reached = steps_made(self.folder)
        self.there = bool(checkpoints(self.folder / "checkpoints"))

    def _hear(self, ours: Connection) -> None:
        """What the run found when it started."""
        began = time.monotonic()
        if not ours.poll(START):
            raise ValueError(f"a run did not start within {START} seconds")
        self.slowest = max(self.slowest, time.monotonic() - began)
        answer = ours.recv()
        if "problem" in answer:
            raise ValueError(answer["problem"])
        if self.there and answer["step"] == 0:
            raise ValueError("a run started anew where there was a checkpoint")
        if answer["damaged"]:
            raise ValueError(answer["damaged"][0])
        lost = self.reached - answer["step"]
        if self.there and lost > EVERY:
            raise ValueError(f"{lost} steps were lost")
        self.most_lost = max(self.most_lost, lost)
        self.with_two += answer["checkpoints"] == 2

    def _let_live(self, left: set[tuple[str, int]]) -> None:
        """
        Until a random step, or until it begins to write a file.

        :param left: Files that an earlier run left half written
        """
        aimed = self.generator.random() < AIMED
        if not self.there:
            # Nothing is promised to a run that was killed before its first checkpoint.
            wait_for_first(self.folder / "checkpoints")
        last = steps_made(self.folder) + self.generator.uniform(0, LIFE)
        while steps_made(self.folder) < last and not (aimed and half_written(self.folder) - left):
            time.sleep(0.001 if aimed else 0.01)

    def findings(self) -> list[str]:
        """:return: What was found, after a last start"""
        steps = resumed(self.folder / "checkpoints").num_timesteps
        return [
            f"{self.kills} kills (SIGKILL), {self.early} of them while a run started and {self.writing} while a file was "
            f"being written: each run went on from the newest checkpoint, {self.with_two} times with an older one there and "
            f"whole too",
            f"most steps lost: {self.most_lost}, with a checkpoint every {EVERY}; slowest start, checks included: "
            f"{self.slowest:.0f} s",
            f"every row of the replay buffer was right each time; its ring turned {steps / ROWS:.1f} times, {steps} steps",
        ]


def half_written(folder: Path) -> set[tuple[str, int]]:
    """
    :param folder: A run's folder
    :return: Name and time of each file in it that has no name of its own yet
    """
    found = set()
    for path in folder.rglob("*.part"):
        with contextlib.suppress(FileNotFoundError):
            found.add((path.name, path.stat().st_mtime_ns))
    return found


def steps_made(folder: Path) -> int:
    """
    :param folder: A run's folder
    :return: How many steps it has made, see :class:`Numbered`
    """
    file = folder / "steps"
    content = file.read_bytes() if file.exists() else b""
    return int(struct.unpack("q", content)[0]) if content else 0


def wait_for_first(folder: Path) -> None:
    """:param folder: A folder of checkpoints that is about to have one"""
    began = time.monotonic()
    while not checkpoints(folder):
        if time.monotonic() > began + START:
            raise ValueError(f"no checkpoint was written within {START} seconds")
        time.sleep(0.01)


def full_disk(options: argparse.Namespace, console: Console) -> list[str]:
    """
    :param options: Not used
    :param console: Not used
    :return: What was found
    :raises ValueError: If the run did not go on, or nothing good was left.
    """
    with tempfile.TemporaryDirectory() as name:
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", name], capture_output=True, text=True)
        if mount.returncode:
            return [f"full disk: not run, a small file system cannot be mounted here ({mount.stderr.strip()})"]
        try:
            folder = Path(name) / "checkpoints"
            filler = Path(name) / "filler"

            def at(step: int) -> None:
                if step == 120:
                    with contextlib.suppress(OSError), open(filler, "wb") as file:
                        while True:
                            file.write(bytes(4096))
                            file.flush()
                if step == 320:
                    resumed(folder)  # the last good one
                    filler.unlink()

            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                small_model(numbered()).learn(450, callback=[Checkpoint(100, folder), AtStep(at)])
            said = [str(each.message) for each in caught if "full" in str(each.message)]
            if len(said) != 2:
                raise ValueError(f"two checkpoints did not fit, and {len(said)} warnings said that the disk is full")
            model = resumed(folder)
            if [step for step, _ in checkpoints(folder)] != [450, 400]:
                raise ValueError(f"checkpoints {checkpoints(folder)} after there was room again")
        finally:
            subprocess.run(["umount", name], check=True)
    return [
        f"full disk: training went on, both tries were given up with a warning ({said[0]!r}), the last good checkpoint could "
        f"be read, and with room again the next one had all {model.num_timesteps} steps"
    ]


class AtStep(BaseCallback):
    """
    Call a function at each step.

    :param function: Gets the number of the step
    """

    def __init__(self, function: Callable[[int], None]):
        super().__init__()
        self.function = function

    def _on_step(self) -> bool:
        self.function(self.num_timesteps)
        return True


def damage(options: argparse.Namespace, console: Console) -> list[str]:
    """
    :param options: Not used
    :param console: Not used
    :return: What was found
    :raises ValueError: If a damaged checkpoint was used, or none.
    """

    def cut(path: Path) -> None:
        os.truncate(path, path.stat().st_size // 2)

    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    said = []
    for how, spoil in (("cut in half", cut), ("one bit altered", flip), ("deleted", Path.unlink)):
        for what in ("step_300.zip", "transitions/replay_300_*.safetensors"):
            if how == "deleted" and what == "step_300.zip":
                continue  # then it is just not there
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                small_model(numbered()).learn(300, callback=Checkpoint(100, folder))
                (path,) = folder.glob(what)
                spoil(path)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    step = resumed(folder).num_timesteps
                messages = [str(each.message) for each in caught if "damaged" in str(each.message)]
                if step != 200 or len(messages) != 1:
                    raise ValueError(f"{what} {how}: resumed at {step}, warnings {messages}")
                said.append(f"{what.partition('_')[0]} {how}")
    return [f"{', '.join(said)}: each time the older checkpoint was used and a warning named the damaged one"]


def soak(options: argparse.Namespace, console: Console) -> list[str]:
    """
    :param options: Has the number of steps
    :param console: For progress
    :return: What was found
    """
    n_envs, rows = 8, options.soak // 5
    with tempfile.TemporaryDirectory() as name:
        env = SubprocVecEnv([Numbered] * n_envs)
        model = small_model(env, buffer_size=rows)
        samples = []
        every = options.soak // 20
        with track_steps(options.soak, console) as advance:

            def at(step: int) -> None:
                advance(step)
                if step >= every * (len(samples) + 1):
                    samples.append(sample())

            began = time.monotonic()
            model.learn(options.soak, callback=[Checkpoint(every, Path(name)), AtStep(at)])
            seconds = time.monotonic() - began
        env.close()
        left = len(children())
    full = samples[4:]  # since the buffer is full, a fifth of the run
    lines = [
        f"soak: {options.soak:,} steps with {n_envs} environments in processes of their own, {seconds:.0f} s, a checkpoint "
        f"every {every:,}, a replay buffer of {rows:,} that is full from step {rows:,} on",
    ]
    for what in samples[0]:
        values = [each[what] for each in full]
        first, least, most, last = (f"{value:.4g}" for value in (values[0], min(values), max(values), values[-1]))
        lines.append(f"{what}: first {first}, least {least}, most {most}, last {last}")
    lines.append(f"processes left once the environments are closed: {left}, Python's own two for starting others among them")
    return lines


@contextlib.contextmanager
def track_steps(total: int, console: Console) -> Any:
    """
    :param total: Steps
    :param console: Where to show progress
    :return: A context whose value is a function that takes the step
    """
    with Progress(console=console) as progress:
        task = progress.add_task("soak", total=total)
        yield lambda step: progress.update(task, completed=step)


def sample() -> dict[str, float]:
    """:return: Resident memory, file handles and processes, now"""
    states = children()
    return {
        "memory (MiB)": resident(os.getpid()) / 2**20,
        "memory of its workers (MiB)": sum(resident(pid) for pid, state in states.items() if state != "Z") / 2**20,
        "file handles": len(os.listdir("/proc/self/fd")),
        "processes": len(states),
        "zombies": sum(state == "Z" for state in states.values()),
    }


def children() -> dict[int, str]:
    """:return: The states of all processes that descend from this one, by id"""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = (state, int(parent))
    found: dict[int, str] = {}
    ours = {os.getpid()}
    while ours:
        ours = {pid for pid, (_, parent) in parents.items() if parent in ours}
        found |= {pid: parents[pid][0] for pid in ours}
    return found


CHECKS = {"kills": kills, "full_disk": full_disk, "damage": damage, "soak": soak}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the command's options.

    :param parser: Gets them
    """
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS), help="which checks (default: all)")
    parser.add_argument("--kills", type=positive, default=100, help="how often a run is killed (default: %(default)s)")
    parser.add_argument("--soak", type=positive, default=100_000, help="steps of the long run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments to kill at (default: %(default)s)")


def main(options: argparse.Namespace) -> int:
    """
    :param options: See :func:`add_arguments`
    :return: 0; a check that fails raises.
    """
    if not shutil.which("mount"):
        raise FileNotFoundError("mount: the checks need Linux.")
    th.set_num_threads(1)
    console = Console(stderr=True)
    for name in options.only:
        for line in CHECKS[name](options, console):
            print(line, flush=True)
    return 0
