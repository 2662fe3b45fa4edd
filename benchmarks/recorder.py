"""What runs inside a job's RL Zoo process: an SB3 callback that keeps the log and the progress."""

import contextlib
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pandas as pd
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback, EvalCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from benchmarks import log
from sb3_cir.runs.files import write_whole

PROGRESS_EVERY = 2.0  # seconds
EVALUATION_SEED = 100  # beyond the run's


class Timed(BaseCallback):
    """Counts how long a run takes, and keeps rows in a file that a full disk may hold up."""

    state: ClassVar[tuple[str, ...]] = ("seconds",)

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    @property
    def seconds(self) -> float:
        """How long the run has taken, all its starts together."""
        return self._seconds_before + time.monotonic() - self._began

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._seconds_before, self._began = value, time.monotonic()

    def _on_training_start(self) -> None:
        self.seconds = 0.0

    def _on_step(self) -> bool:
        return True

    def _write_or_warn(self, write: Callable[[], None], path: Path, at_end: bool) -> None:
        """
        :param write: Writes the file
        :param path: The file
        :param at_end: Whether the run is over, so that nothing would be written later
        :raises OSError: If it cannot be written at the end; before, that is a warning.
        """
        try:
            write()
        except OSError as error:
            if at_end:
                raise
            warnings.warn(f"{path} could not be written, and will be tried again: {error}.", stacklevel=3)


class Recorder(Timed):
    """
    Turns each evaluation of the zoo's ``EvalCallback`` into rows.

    What it knows goes on when the run is resumed from a checkpoint, so that ``rows.csv`` has each evaluation once. The file is
    replaced, whole, and never by a shorter one: a run that went back makes rows anew that are there already.

    :param folder: The job's folder
    :param exp_name: Name of the method in the rows
    :param env_name: Name of the task in the rows
    :param action_repeat: Steps of the simulator for one of the agent
    :param total_steps: Steps of the agent in the whole run
    """

    model: OffPolicyAlgorithm
    state = ("evaluations", *Timed.state)

    def __init__(self, folder: str, exp_name: str, env_name: str, action_repeat: int, total_steps: int) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.exp_name, self.env_name = exp_name, env_name
        self.action_repeat = action_repeat
        self.total_steps = total_steps
        # Of each evaluation: simulator step, mean return, seconds and updates until then.
        self.evaluations: list[list[float]] = []

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self.last_progress = time.monotonic()
        # What the rate is counted from
        self._since, self._learns = (self.last_progress, self.num_timesteps), False
        self._first_updates = self.model._n_updates
        evaluation = next(each for each in self.locals["callback"].callbacks if isinstance(each, EvalCallback))
        if self.num_timesteps == 0 and self.model.seed is not None:
            # As in the authors' code and ODRL's: RL Zoo seeds training and evaluation alike, so that both would begin alike.
            evaluation.eval_env.seed(self.model.seed + EVALUATION_SEED)
        # Its own files would say nothing more, and a full disk would end the run there.
        evaluation.log_path = evaluation.best_model_save_path = None
        evaluation.callback = ConvertCallback(lambda *_: self._after_evaluation(evaluation))
        evaluation.callback.init_callback(self.model)
        self._write_progress()

    def _on_step(self) -> bool:
        if time.monotonic() > self.last_progress + PROGRESS_EVERY:
            self._write_progress()
        return True

    def _after_evaluation(self, evaluation: EvalCallback) -> bool:
        step = self.num_timesteps * self.action_repeat
        self.evaluations.append([step, float(evaluation.last_mean_reward), self.seconds, self.model._n_updates])
        self._publish()
        self._write_progress()
        return True

    def _publish(self) -> None:
        metrics = (log.RETURN, log.SECONDS, log.UPDATES)
        rows = [
            (self.exp_name, self.env_name, self.model.seed, metric, int(step), value)
            for step, *values in self.evaluations
            for metric, value in zip(metrics, values, strict=True)
        ]
        path = self.folder / "rows.csv"
        if path.exists() and len(log.read([path])) > len(rows):
            return
        table = pd.DataFrame(rows, columns=log.COLUMNS)
        self._write_or_warn(lambda: log.write(path, table), path, at_end=self.num_timesteps >= self.total_steps)

    def _write_progress(self) -> None:
        self.last_progress = time.monotonic()
        steps = self.num_timesteps * self.action_repeat
        since, first_step = self._since
        progress = {
            "step": steps,
            "total": self.total_steps * self.action_repeat,
            "rate": (self.num_timesteps - first_step) * self.action_repeat / max(self.last_progress - since, 1e-3),
        }
        with contextlib.suppress(OSError):  # on a full disk the view stands still, and the run goes on
            write_whole(self.folder / "progress.json", json.dumps(progress).encode())
        if not self._learns and self.model._n_updates > self._first_updates:
            # Random steps took next to no time, and say nothing of what is left.
            self._learns, self._since = True, (self.last_progress, self.num_timesteps)
