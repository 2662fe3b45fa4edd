"""What runs inside a job's RL Zoo process: an SB3 callback that keeps the log, the progress and the checkpoint."""

import json
import os
import shutil
import time
from pathlib import Path

import pandas as pd
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback, EvalCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from benchmarks import log

PROGRESS_EVERY = 2.0  # seconds


class Recorder(BaseCallback):
    """
    Turns each evaluation of the zoo's ``EvalCallback`` into rows, and makes checkpoints of model and replay buffer.

    A checkpoint is a folder that appears whole (written under another name, then renamed) and holds the rows up to its step;
    ``rows.csv`` is replaced, whole, after it. So a row that was once in ``rows.csv`` stays there, however the process ends:
    a run that goes on from the checkpoint has it already and makes the following ones.

    SB3's archive has model and optimisers; random states and the episode under way are not in it, so a run that went on is
    not bit for bit the one that was not interrupted. The zoo counts steps from zero after ``--trained-agent``: the count
    is put back here, and with it the warm-up, the schedules and the end of the run.

    :param folder: The job's folder
    :param exp_name: Name of the method in the rows
    :param env_name: Name of the task in the rows
    :param action_repeat: Steps of the simulator for one of the agent
    :param total_steps: Steps of the agent in the whole run
    :param checkpoint_every: Least steps of the agent between checkpoints
    :param checkpoint: The checkpoint that the zoo's ``--trained-agent`` belongs to, where a run goes on
    """

    model: OffPolicyAlgorithm

    def __init__(
        self,
        folder: str,
        exp_name: str,
        env_name: str,
        action_repeat: int,
        total_steps: int,
        checkpoint_every: int,
        checkpoint: str | None = None,
    ) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.exp_name, self.env_name = exp_name, env_name
        self.action_repeat = action_repeat
        self.total_steps = total_steps
        self.checkpoint_every = checkpoint_every
        self.checkpoint = checkpoint
        self.rows: list[tuple[str, str, int | None, str, int, float]] = []
        self.first_step = self.checkpoint_step = 0
        self.seconds_before = 0.0
        self.evaluated = False

    def _on_training_start(self) -> None:
        self.began = self.last_progress = time.monotonic()
        evaluation = next(each for each in self.locals["callback"].callbacks if isinstance(each, EvalCallback))
        evaluation.callback = ConvertCallback(lambda *_: self._after_evaluation(evaluation))
        evaluation.callback.init_callback(self.model)
        if self.checkpoint is not None:
            state = json.loads((Path(self.checkpoint) / "state.json").read_text())
            self.model.num_timesteps = self.first_step = self.checkpoint_step = state["step"]
            self.model._n_updates = state["updates"]
            evaluation.n_calls = state["step"] // self.training_env.num_envs
            self.seconds_before = state["seconds"]
            self.rows = [tuple(row) for row in state["rows"]]
            self._publish()
        self._write_progress()

    def _on_rollout_start(self) -> None:
        # Not right after the evaluation: that one step is in no buffer and no update yet.
        if self.evaluated and self.num_timesteps >= self.checkpoint_step + self.checkpoint_every:
            self._make_checkpoint()
        self.evaluated = False

    def _on_step(self) -> bool:
        if time.monotonic() > self.last_progress + PROGRESS_EVERY:
            self._write_progress()
        return True

    def _after_evaluation(self, evaluation: EvalCallback) -> bool:
        values = {
            log.RETURN: evaluation.last_mean_reward,
            log.SECONDS: self._seconds(),
            log.UPDATES: self.model._n_updates,
        }
        step = self.num_timesteps * self.action_repeat
        self.rows += [(self.exp_name, self.env_name, self.model.seed, key, step, value) for key, value in values.items()]
        self.evaluated = True
        if self.num_timesteps >= self.total_steps:
            self._publish()
            self._write_progress()
        return True

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.began

    def _make_checkpoint(self) -> None:
        part = self.folder / f".part_{os.getpid()}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        self.model.save(part / "model.zip")
        self.model.save_replay_buffer(part / "replay_buffer.pkl")
        state = {"step": self.num_timesteps, "updates": self.model._n_updates, "seconds": self._seconds(), "rows": self.rows}
        (part / "state.json").write_text(json.dumps(state))
        for file in part.iterdir():
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
        part.rename(self.folder / f".checkpoint_{self.num_timesteps}")
        self.checkpoint_step = self.num_timesteps
        self._publish()
        for old in self.folder.glob(".checkpoint_*"):
            if old.name != f".checkpoint_{self.num_timesteps}":
                shutil.rmtree(old, ignore_errors=True)

    def _publish(self) -> None:
        log.write(self.folder / "rows.csv", pd.DataFrame(self.rows, columns=log.COLUMNS))

    def _write_progress(self) -> None:
        self.last_progress = time.monotonic()
        steps = self.num_timesteps * self.action_repeat
        progress = {
            "step": steps,
            "total": self.total_steps * self.action_repeat,
            "rate": (self.num_timesteps - self.first_step) * self.action_repeat / max(self.last_progress - self.began, 1e-3),
        }
        log.write_whole(self.folder / "progress.json", json.dumps(progress))
