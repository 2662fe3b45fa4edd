"""A job: one method on one task with one seed, as the one RL Zoo command that trains it. Knows files, not Ray."""

import fcntl
import importlib.util
import json
import math
import os
import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import log
from sb3_cir import methods, zoo
from sb3_cir.runs.files import checkpoints
from sb3_cir.tasks import Task
from sb3_cir.words import did_you_mean

EVAL_EPISODES = 10
# A checkpoint holds the whole replay buffer, so it is not made at every evaluation. This many in a run, or nearly.
CHECKPOINTS = 20


@dataclass(frozen=True)
class TrainedMethod:
    """
    :param name: Its name in logs: an algorithm of the zoo, or ``<algorithm>:<variant>``
    :param params: Hyperparameters of its own, each as the zoo's ``-params`` takes it (``name:value``)
    """

    name: str
    params: tuple[str, ...] = ()


def method(name: str) -> TrainedMethod:
    """
    :param name: E.g. ``cir``, ``sac`` or ``cir:cdq``
    :return: The method
    :raises ValueError: If the zoo has no such algorithm, if it is a variant of something else than CIR, or one that is not
        known.
    """
    algo, _, variant = name.partition(":")
    if variant and algo != "cir":
        raise ValueError(f"--methods {name}: only CIR has variants, as cir:{variant}.")
    zoos = _algorithms_of_the_zoo()
    trainable = {key for key, each in methods.METHODS.items() if each.algo}
    if name not in trainable | zoos:
        known = sorted({key for key in trainable if (":" in key) == bool(variant)} | (set() if variant else zoos))
        raise ValueError(f"--methods {name}: {did_you_mean(name, known)}")
    # SB3's own algorithms are tuned by the zoo's files, which know nothing of the paper's protocol.
    protocol = ("env_wrapper:'sb3_cir.envs.paper_protocol'",) if algo in zoos else ()
    own = methods.arguments(name) if variant else {}
    return TrainedMethod(name, (*protocol, *(f"{argument}:{value!r}" for argument, value in own.items())))


def _algorithms_of_the_zoo() -> set[str]:
    """Those with a replay buffer and continuous actions, which a job needs. Without a costly import: each has a file."""
    return {path.stem for path in (_zoo() / "hyperparams").glob("*.yml")} & {"ddpg", "sac", "td3", "tqc", "crossq"}


def _zoo() -> Path:
    spec = importlib.util.find_spec("rl_zoo3")
    if spec is None or spec.origin is None:
        raise ValueError("RL Zoo is not installed: pip install rl-zoo3.")
    return Path(spec.origin).parent


@dataclass(frozen=True)
class Settings:
    """
    What all jobs of a grid share.

    :param budget: Fraction of the paper's steps
    :param eval_every: Steps of the simulator between evaluations; None for the paper's
    :param params: Hyperparameters for all methods, as the zoo's ``-params`` takes them; a method's own of the same name win
    :param threads: torch's
    :param device: torch's
    """

    budget: float = 1.0
    eval_every: int | None = None
    params: tuple[str, ...] = ()
    threads: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not 0 < self.budget < math.inf:
            raise ValueError(f"--budget {self.budget}: it must be positive and finite.")
        if self.eval_every is not None and self.eval_every < 1:
            raise ValueError(f"--eval-every {self.eval_every}: it must be at least 1.")
        for word in self.params:
            if not word.partition(":")[1]:
                raise ValueError(f"--params {word}: it must be name:value, such as learning_rate:1e-3.")


@dataclass(frozen=True)
class Job:
    """
    One run. Its folder holds ``rows.csv`` (see :mod:`benchmarks.log`), ``manifest.json``, ``log.txt`` (what the zoo printed),
    ``zoo/`` (what it saved), and while it is not finished ``progress.json`` and a checkpoint.

    :param method: What is trained
    :param task: On what
    :param seed: With which seed
    :param out: Folder of the grid
    :param settings: What it shares with the others
    """

    method: TrainedMethod
    task: Task
    seed: int
    out: Path
    settings: Settings = Settings()

    def __str__(self) -> str:
        return f"{self.method.name} {self.task.name} seed {self.seed}"

    @property
    def algo(self) -> str:
        """The zoo's name of the algorithm. With two domains to learn from, SAC is ODRL's."""
        algo = self.method.name.split(":")[0]
        return "odrl_sac" if algo == "sac" and self.task.two_domains else algo

    @property
    def action_repeat(self) -> int:
        """Steps of the simulator for one of the agent: the task's, unless the method has one of its own."""
        known = methods.METHODS.get(self.algo)
        own = None if known is None else known.action_repeat
        return self.task.action_repeat if own is None else own

    @property
    def folder(self) -> Path:
        """A colon in a folder's name is not for every file system."""
        return self.out / re.sub(r"[:=]", "_", self.method.name) / self.task.name / f"seed_{self.seed}"

    @property
    def rows_file(self) -> Path:
        """The job's log."""
        return self.folder / "rows.csv"

    @property
    def log_file(self) -> Path:
        """What the zoo printed."""
        return self.folder / "log.txt"

    @property
    def eval_every(self) -> int:
        """Agent steps between evaluations."""
        wanted = self.settings.eval_every or self.task.eval_every
        return max(1, round(min(wanted, self.task.env_steps * self.settings.budget) / self.action_repeat))

    @property
    def agent_steps(self) -> int:
        """Steps of the agent: rounded up to whole evaluation intervals, so that the last step is evaluated."""
        wanted = self.task.env_steps * self.settings.budget / self.action_repeat
        return self.eval_every * math.ceil(round(wanted / self.eval_every, 6))

    @property
    def env_steps(self) -> int:
        """The same in steps of the simulator."""
        return self.agent_steps * self.action_repeat

    @property
    def done_steps(self) -> int:
        """Steps of the simulator that the log already covers."""
        return int(log.read([self.rows_file]).env_step.max()) if self.rows_file.exists() else 0

    @property
    def finished(self) -> bool:
        """Whether the log covers all of them, and the run came to its end: its checkpoints are gone then."""
        return self.done_steps >= self.env_steps and not self.checkpoints.exists()

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints. It begins with a dot, as all that is gone when the job is finished."""
        return self.folder / ".checkpoints"

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint, if there is one. Where it is damaged, the one before is taken when it is read."""
        return next((path for _, path in checkpoints(self.checkpoints)), None)

    def command(self, checkpoint: Path | None = None) -> list[str]:
        """
        :param checkpoint: Where to go on from; None to begin
        :return: The zoo's command, to be run where ``benchmarks`` can be imported
        """
        options = self._options() | ({} if checkpoint is None else {"--trained-agent": checkpoint})
        return self._zoo_command(options, self._params(), [self._recorder(), self._saver()])

    def short_command(self, warm_up: int, agent_steps: int, folder: Path, callback: dict[str, Any]) -> list[str]:
        """
        :param warm_up: Random steps before the first update
        :param agent_steps: All steps
        :param folder: For what the zoo saves
        :param callback: What runs beside training, in the place of what records a job
        :return: The zoo's command for a run of the same method with the same settings, without evaluations
        """
        changed = {"--n-timesteps": agent_steps, "--eval-freq": -1, "--log-folder": folder, "--save-freq": -1}
        return self._zoo_command(self._options() | changed, [*self._params(), f"learning_starts:{warm_up}"], [callback])

    def _options(self) -> dict[str, Any]:
        return {
            "--algo": self.algo,
            "--env": self.task.env_id,
            "--seed": self.seed,
            "--n-timesteps": self.agent_steps,
            "--eval-freq": self.eval_every,
            "--eval-episodes": EVAL_EPISODES,
            "--num-threads": self.settings.threads,
            "--device": self.settings.device,
            "--log-folder": self.folder / "zoo",
            # Whatever the algorithm, it is to make checkpoints; those of the zoo itself are never due.
            "--save-freq": 10**9,
        }

    def _params(self) -> list[str]:
        # Room for the whole run: it holds what the paper's million would, and a checkpoint of it is smaller.
        return [f"buffer_size:{min(1_000_000, self.agent_steps)}", *self.settings.params, *self.method.params]

    def _recorder(self) -> dict[str, Any]:
        recorder = {
            "folder": str(self.folder),
            "exp_name": self.method.name,
            "env_name": self.task.name,
            "action_repeat": self.action_repeat,
            "total_steps": self.agent_steps,
        }
        return {"benchmarks.recorder.Recorder": recorder}

    def _saver(self) -> dict[str, Any]:
        # With episodes that begin anew a job that was killed has the rows of one that was not. Between evaluations, whose
        # intervals are whole episodes on dm_control, it would cut episodes that are whole without checkpoints.
        n_evaluations = self.agent_steps // self.eval_every
        saver = {
            "every": self.eval_every * max(1, round(n_evaluations / CHECKPOINTS)),
            "folder": str(self.checkpoints),
            "restart_episodes": True,
        }
        return {"sb3_cir.callbacks.Checkpoint": saver}

    def _zoo_command(self, options: dict[str, Any], params: list[str], callbacks: list[dict[str, Any]]) -> list[str]:
        if self.task.two_domains:
            # It takes the place of the yaml's callback. The zoo's own evaluation, in the target, is what is recorded.
            callbacks = [{"sb3_cir.off_dynamics.OffDynamicsCallback": {"eval_freq": 0}}, *callbacks]
        words = [str(part) for item in options.items() for part in item]
        return [sys.executable, "-m", "rl_zoo3.train", *words, "-params", *params, f"callback:{callbacks}"]

    def settings_line(self) -> str:
        """What must be the same for a job to be continued: its command, without the machine's part in it."""
        anywhere = replace(self, out=Path(), settings=replace(self.settings, threads=1, device="auto"))
        return shlex.join(anywhere.command()[1:])

    def check_domains(self) -> None:
        """
        Refuse what would fail once it runs.

        :raises ValueError: If the method learns from two domains and the task has one, or the other way round.
        """
        known = methods.METHODS.get(self.algo)
        if known is not None and known.two_domains:
            if not self.task.two_domains:
                raise ValueError(f"--methods {self.method.name}: it learns from two domains, and {self.task.name} has one.")
        elif self.task.two_domains and not self._knows_two_domains():
            raise ValueError(
                f"--methods {self.method.name}: {self.task.name} has two domains, and its settings know nothing of them."
            )

    def _knows_two_domains(self) -> bool:
        given = any(word.startswith("replay_buffer_class:") for word in self.settings.params)
        return given or zoo.has_settings(zoo.yaml_of(self.algo), self.task.env_id)

    def check_settings(self) -> None:
        """
        Refuse to mix runs.

        :raises ValueError: If the folder holds the same job with other settings.
        """
        manifest = self.folder / "manifest.json"
        if not manifest.exists():
            return
        try:
            before = json.loads(manifest.read_text())["settings"]
        except (ValueError, KeyError) as error:
            raise ValueError(f"{manifest} is damaged ({error}): take another --out, or remove {self.folder}.") from error
        now = self.settings_line()
        if before != now:
            changed = "\n".join(f"  {line}" for line in _differences(before, now))
            raise ValueError(f"{self.folder} was made with other settings: take another --out, or remove it.\n{changed}")

    def lock(self) -> int:
        """
        Wait until no other process works in the folder, and keep others out while the returned descriptor is open here or in
        a child process.

        :return: A file descriptor
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor


def _differences(before: str, now: str) -> list[str]:
    """A line for each setting of two of the zoo's commands that is not the same."""
    then, after = _settings_of(before), _settings_of(now)
    names = [name for name in {**then, **after} if then.get(name) != after.get(name)]
    # The recorder's own follow from others, and say them once more.
    told = [name for name in names if name != "callback"] or names
    return [f"{name}: then {then.get(name, 'not given')}, now {after.get(name, 'not given')}" for name in told]


def _settings_of(line: str) -> dict[str, str]:
    words = shlex.split(line)
    start = words.index("-params") if "-params" in words else len(words)
    options = words[words.index("rl_zoo3.train") + 1 : start]
    return dict(zip(options[::2], options[1::2], strict=False)) | dict(word.split(":", 1) for word in words[start + 1 :])


def rates(jobs: list[Job]) -> pd.DataFrame:
    """
    :param jobs: A grid
    :return: For each of them whose log says so: ``method``, ``task``, and ``rate``, the simulator's steps in a second while it
        learns. Random steps before that take next to no time.
    """
    found = []
    for job in jobs:
        if job.rows_file.exists():
            table = log.read([job.rows_file]).pivot(index="env_step", columns="metric", values="value")
            seconds = table[table[log.UPDATES] > 0][log.SECONDS]
            if len(seconds) > 1:
                made, took = (each[-1] - each[0] for each in (seconds.index, seconds.to_numpy()))
                found.append((job.method.name, job.task.name, made / took))
    return pd.DataFrame(found, columns=["method", "task", "rate"])
