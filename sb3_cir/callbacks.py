"""Callbacks for long runs."""

import contextlib
import os
import signal
import threading
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from sb3_cir.runs import checkpoint, rows, state
from sb3_cir.runs.algorithm import Resumable
from sb3_cir.runs.files import FULL, checkpoints


class Checkpoint(BaseCallback):
    """
    Save, every so often, all that an interrupted run needs to go on from there: see ``CIR.resume``.

    A checkpoint is written between an update and the next step, and at the end of ``learn()``. Ctrl-C and SIGTERM wait for
    that moment, write a last one and then do what they would have done; a second one does it at once. (Python gives signals to
    the main thread alone: where another one learns, they do what they always do.) Of the replay buffer only what is new is
    written. Where the disk is full, a warning says so, and training goes on to the next try.

    :param every: Steps of the agent between checkpoints
    :param folder: Where they go; a folder that holds those of another run is refused.
    :param keep: How many to keep. Two are needed for one to be there when the other is found damaged.
    :param restart_episodes: Whether each checkpoint ends the episodes under way, in evaluation too. A resumed run cannot go on
        in the midst of one. With this the run that is not interrupted does not either, and the two are the same to the bit,
        also where the environment's state is in no observation.
    :param verbose: 1 to say when one is written
    :raises ValueError: If ``every`` or ``keep`` is out of its range. From ``learn()``: if ``folder`` holds another run's
        checkpoints, or if the model cannot be resumed.
    """

    state = ()  # what it counts follows from the run's step

    def __init__(
        self,
        every: int,
        folder: str | os.PathLike[str],
        keep: int = 2,
        restart_episodes: bool = False,
        verbose: int = 0,
    ):
        super().__init__(verbose)
        for name, value in (("every", every), ("keep", keep)):
            if value < 1:
                raise ValueError(f"{name}={value}: it must be at least 1.")
        self.every = every
        # Whoever changes the working directory later on does not mean the checkpoints.
        self.folder = Path(folder).absolute()
        self.keep = keep
        self.restart_episodes = restart_episodes
        self._handlers: dict[int, Any] = {}
        self._signal: int | None = None
        self._root: BaseCallback = self

    def _on_training_start(self) -> None:
        model = self.model
        if not isinstance(model, Resumable):
            name = type(model).__name__
            raise ValueError(f"Checkpoint: a {name} cannot be resumed. sb3_cir.runs.resumable({name}) makes a class that can.")
        if model._saver is not None:
            raise ValueError("Checkpoint: one is enough.")
        assert model.replay_buffer is not None
        rows.warn_of_losses(model.replay_buffer)
        self.folder.mkdir(parents=True, exist_ok=True)
        there = checkpoints(self.folder)
        if not there:
            model._saved = None  # somebody may have emptied the folder
        saved = model._saved
        here = saved is not None and saved.folder == self.folder.resolve()
        goes_on = here and saved is not None and saved.step <= model.num_timesteps
        if there and not goes_on:
            step, folder = there[0][0], str(self.folder)
            raise ValueError(
                f"folder={folder!r}: it holds step {step} of this model's earlier learn(), and the count begins anew. Pass "
                "reset_num_timesteps=False to go on, or choose another folder."
                if here
                else f"folder={folder!r}: it holds step {step} of another run. Continue that one with "
                f"{type(model).__name__}.resume(), or choose another folder."
            )
        self._next = (model.num_timesteps // self.every + 1) * self.every
        self._attempt: int | None = saved.step if goes_on and saved is not None else None
        model._saver = self
        self._listen()

    def _on_step(self) -> bool:
        return True

    def between_rollouts(self, root: BaseCallback) -> None:
        """
        Save where it is time to, or where a signal waits, which is then passed on.

        :param root: The callback that ``learn()`` was given
        """
        self._root = root
        if self._signal is not None or self.model.num_timesteps >= self._next:
            self.save()
        if self._signal is not None:
            self._pass_on()

    def finish(self) -> None:
        """Write the last one; pass on a signal that came since the last rollout began."""
        self.save()
        self.stop_listening()
        if self._signal is not None:
            signal.raise_signal(self._signal)

    def workers_gone(self) -> None:
        """Where a signal has ended the environments' processes, save what there is and pass it on."""
        if self._signal is not None:
            self.save()
            self._pass_on()

    def save(self) -> None:
        """Write a checkpoint, unless this step has one; warn where it cannot be written."""
        model = self.model
        assert isinstance(model, Resumable)
        step = model.num_timesteps
        if step == self._attempt or step == 0:
            return
        self._next = (step // self.every + 1) * self.every
        try:
            model._saved = checkpoint.write(model, self.folder.resolve(), self.keep, self._root, model._saved)
        except OSError as error:
            why = "the disk is full" if error.errno in FULL else error.strerror or str(error)
            last = next((f"step {each}" for each, _ in checkpoints(self.folder)), "none")
            warnings.warn(
                f"No checkpoint of step {step} in {self.folder}: {why}; the last good one is {last}, training goes on and the "
                f"next try is at step {self._next}.",
                stacklevel=2,
            )
            return
        self._attempt = step
        if self.verbose:
            print(f"Checkpoint of step {step} in {self.folder}")
        if self.restart_episodes:
            state.begin_episodes(model, model._saved.run, self._root)

    def _listen(self) -> None:
        self._signal = None
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            # Whoever ignores a signal (nohup, a shell's background jobs) goes on doing so; None is not Python's to put back.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._handlers[number] = signal.signal(number, self._on_signal)

    def stop_listening(self) -> None:
        """Signals do again what they did before."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            self.stop_listening()
            signal.raise_signal(number)
            return
        self._signal = number
        with contextlib.suppress(OSError):
            # print() must not be called from within itself.
            os.write(2, b"\nWriting a last checkpoint; once more stops at once.\n")

    def _pass_on(self) -> None:
        number = self._signal
        assert number is not None
        self.stop_listening()
        signal.raise_signal(number)
        self._listen()
