"""Callbacks for long runs: checkpoints, and an end where there is NaN in the networks."""

import contextlib
import errno
import math
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EventCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.save_util import recursive_getattr
from torch import nn

from sb3_cir.runs import checkpoint, rows, state
from sb3_cir.runs.algorithm import Resumable
from sb3_cir.runs.files import FULL, DamagedError, checkpoints
from sb3_cir.runs.watch import FailedEnvError, first_non_finite
from sb3_cir.valid import check_counts

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


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
        in the midst of an episode. With this an uninterrupted run does not either, so that both are the same to the bit,
        whatever state the environment has. This does not hold for the checkpoint that Ctrl-C or SIGTERM wrote: the
        uninterrupted run ended no episode there.
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
        check_counts(every=(every, 1), keep=(keep, 1))
        self.every = every
        # Whoever changes the working directory later on does not mean the checkpoints.
        self.folder = Path(folder).absolute()
        self.keep = keep
        self.restart_episodes = restart_episodes
        self._handlers: dict[int, Any] = {}
        self._signal: int | None = None
        self._root: BaseCallback = self
        self._locked: TextIO | None = None

    def _on_training_start(self) -> None:
        model = self.model
        if not isinstance(model, Resumable):
            name = type(model).__name__
            off_policy = isinstance(model, OffPolicyAlgorithm)
            can = f"sb3_cir.runs.resumable({name}) makes a class that can" if off_policy else "only off-policy algorithms can"
            raise ValueError(f"Checkpoint: a {name} cannot be resumed; {can}.")
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
        self._lock()
        self._next = (model.num_timesteps // self.every + 1) * self.every
        self._attempt: int | None = saved.step if goes_on and saved is not None else None
        model._saver = self
        self._listen()

    def _on_step(self) -> bool:
        if getattr(self.model, "_saver", None) is not self:
            raise ValueError(
                "Checkpoint: it must be one of learn()'s own callbacks. As another one's callback_on_new_best it never starts."
            )
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
        self._stop_listening()
        if self._signal is not None:
            signal.raise_signal(self._signal)

    def workers_gone(self) -> None:
        """Where a signal has ended the environments' processes, save what there is and pass it on."""
        if self._signal is not None:
            self.save(environments_live=False)
            self._pass_on()

    def save(self, environments_live: bool = True) -> None:
        """
        Write a checkpoint, unless this step has one; warn where it cannot be written.

        :param environments_live: Whether the environments can be reset
        """
        model = self.model
        assert isinstance(model, Resumable)
        step = model.num_timesteps
        if step == self._attempt or step == 0:
            return
        self._next = (step // self.every + 1) * self.every
        bad = first_non_finite(named_tensors(model))
        if bad is not None:  # It could not be gone on from, and would take the place of one that can.
            self._warn(step, f"{bad[1]} in {bad[0]}")
            return
        try:
            model._saved = checkpoint.write(model, self.folder.resolve(), self.keep, self._root, model._saved)
        except OSError as error:
            self._warn(step, "the disk is full" if error.errno in FULL else error.strerror or str(error))
            return
        except MemoryError:
            self._warn(step, "there is no memory left for it")
            return
        except DamagedError as error:
            self._warn(step, str(error).rstrip("."))
            return
        self._attempt = step
        if self.verbose:
            print(f"Checkpoint of step {step} in {self.folder}")
        if self.restart_episodes and environments_live:
            try:
                state.begin_episodes(model, model._saved.run, self._root)
            except (EOFError, BrokenPipeError, ConnectionResetError, FailedEnvError):
                # Ctrl-C reaches the environments' processes too. What was written is whole, and the signal is passed on.
                if self._signal is None:
                    raise

    def _warn(self, step: int, why: str) -> None:
        last = next((f"step {each}" for each, _ in checkpoints(self.folder)), "none")
        warnings.warn(
            f"No checkpoint of step {step} in {self.folder}: {why}; the last good one is {last}, training goes on and the "
            f"next try is at step {self._next}.",
            stacklevel=3,
        )

    def _lock(self) -> None:
        """Keep other processes out of the folder while this one learns. The system lets go of it when the process ends."""
        if fcntl is None:
            return
        # A full disk, or one that knows no locks, does not stop the run.
        with contextlib.suppress(OSError):
            self._locked = open(self.folder / ".lock", "a")  # noqa: SIM115
        if self._locked is None:
            return
        try:
            fcntl.lockf(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._unlock()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise ValueError(
                    f"folder={str(self.folder)!r}: another process writes its checkpoints there, choose another folder."
                ) from error

    def _unlock(self) -> None:
        if self._locked is not None:
            self._locked.close()
            self._locked = None

    def _listen(self) -> None:
        self._signal = None
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            # Whoever ignores a signal (nohup, a shell's background jobs) goes on doing so; None is not Python's to put back.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._handlers[number] = signal.signal(number, self._on_signal)

    def close(self) -> None:
        """``learn()`` has ended: signals do again what they did before, and others may write to the folder."""
        self._stop_listening()
        self._unlock()

    def _stop_listening(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            self._stop_listening()
            signal.raise_signal(number)
            return
        self._signal = number
        with contextlib.suppress(OSError):
            # print() must not be called from within itself.
            os.write(2, b"\nWriting a last checkpoint; once more stops at once.\n")

    def _pass_on(self) -> None:
        number = self._signal
        assert number is not None
        self._stop_listening()
        signal.raise_signal(number)
        self._listen()


class NonFiniteGuard(BaseCallback):
    """
    Ends training with an error as soon as a loss or a parameter is NaN or inf, and saves the model as it is then. For any
    algorithm of Stable-Baselines3: ``model.learn(1e6, callback=NonFiniteGuard())``, or ``callback:
    sb3_cir.callbacks.NonFiniteGuard`` in RL Zoo's yaml.

    After each rollout it looks at what the algorithm has logged under ``train/``, and now and then at all parameters. Within a
    callback that has others called now and then, such as ``EveryNTimesteps``, it looks at both each time. Of on-policy
    algorithms it looks at each rollout's rewards and advantages too, before they train on it: PPO makes many updates at once,
    and where NaN begins in the midst of them, PyTorch ends the run first.

    :param folder: Where to save the model, as ``non_finite_<steps>_steps.zip``. Nothing that is there is written over.
        Default: the log's folder (``tensorboard_log``, or that of ``set_logger()``) if there is one, else the current one.
    :param check_freq: Rollouts (train calls) from one look at all parameters to the next. A bad one shows in the losses of
        the next train call, so this need not be often.
    :raises ValueError: From ``learn()``: what is not finite, at which step, and where the model was saved.
    """

    def __init__(self, folder: str | Path | None = None, check_freq: int = 1_000):
        super().__init__()
        check_counts(check_freq=(check_freq, 1))
        self.folder = folder
        self.check_freq = check_freq
        self._rollouts = 0
        self._raised = False

    def _on_rollout_start(self) -> None:
        # Between a train call and the first action that follows it.
        bad_loss = self._bad_loss()
        if bad_loss is not None or self._rollouts % self.check_freq == 0:
            self._check(bad_loss)
        self._rollouts += 1

    def _on_rollout_end(self) -> None:
        rollout = getattr(self.model, "rollout_buffer", None)
        for name in ("rewards", "advantages") if rollout is not None else ():
            values = getattr(rollout, name)
            finite = np.isfinite(values)
            if not finite.all():
                self._check((f"rollout_buffer.{name}", float(values[~finite][0])))

    def _on_step(self) -> bool:
        if isinstance(self.parent, EventCallback):  # which passes on steps alone
            self._check(self._bad_loss())
        return True

    def _on_training_end(self) -> None:
        # RL Zoo ends the training of a run which has failed, too.
        if not self._raised:
            self._check(self._bad_loss())

    def _bad_loss(self) -> tuple[str, float] | None:
        record_scalars = getattr(self.model, "record_scalars", None)
        if record_scalars is not None:
            record_scalars()  # an algorithm may keep its losses back until the log is written, as CIR does on a GPU
        for name, value in self.logger.name_to_value.items():
            if name == "train/explained_variance":
                continue  # which SB3 has as NaN where all returns are equal
            if name.startswith("train/") and isinstance(value, (float, np.floating)) and not math.isfinite(value):
                return name, float(value)
        return None

    def _check(self, bad_loss: tuple[str, float] | None) -> None:
        """
        :param bad_loss: What the log has, if it is not finite
        :raises ValueError: If there is one, or if a parameter is not finite.
        """
        tensors = dict(named_tensors(self.model))
        # The largest absolute value of all: one number to wait for where the tensors are on a GPU.
        if bad_loss is None and nn.utils.get_total_norm(list(tensors.values()), math.inf).isfinite():
            return
        found = [bad for bad in (bad_loss, first_non_finite(tensors.items())) if bad is not None]
        self._raised = True
        try:
            saved = f"was saved to {self._save()}"
        except OSError as error:
            saved = f"could not be saved ({error})"
        raise ValueError(
            f"{' and '.join(f'{value} in {name}' for name, value in found)} at step {self.num_timesteps}: training has ended, "
            f"the model as it is now {saved}."
        )

    def _save(self) -> Path:
        # Without either, SB3's log is in a temporary folder.
        has_log = self.model._custom_logger or self.model.tensorboard_log is not None
        folder = Path(self.folder or (has_log and self.logger.get_dir()) or ".").resolve()
        stem = f"non_finite_{self.num_timesteps}_steps"
        path = folder / f"{stem}.zip"
        number = 1
        while path.exists():
            number += 1
            path = folder / f"{stem}_{number}.zip"
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save(path)
        return path


def named_tensors(model: BaseAlgorithm) -> Iterator[tuple[str, th.Tensor]]:
    """
    :param model: Any algorithm
    :return: The parameters and buffers that it saves, by name: those of the policy by their names in it. A buffer that has
        -inf in it is a mask, such as attention's, and has 0 there.
    """
    names, variables = model._get_torch_save_params()
    for name in names:
        module = recursive_getattr(model, name)
        if isinstance(module, nn.Module):
            buffers = {key for key, _ in module.named_buffers()}
            for key, tensor in module.state_dict().items():
                if isinstance(tensor, th.Tensor) and tensor.is_floating_point():  # get_extra_state() may give anything
                    tensor = tensor.masked_fill(tensor == -math.inf, 0) if key in buffers else tensor
                    yield key if name == "policy" else f"{name}.{key}", tensor
    for name in variables:
        yield name, recursive_getattr(model, name)
