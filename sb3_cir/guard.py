"""A callback that ends a run which has gone wrong, before it goes on for days."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.save_util import recursive_getattr
from torch import nn

from sb3_cir.cir import CIR
from sb3_cir.runs.watch import first_non_finite


class NonFiniteGuard(BaseCallback):
    """
    Ends training with an error as soon as a loss or a parameter is NaN or inf, and saves the model as it is then. For any
    algorithm of Stable-Baselines3: ``model.learn(1e6, callback=NonFiniteGuard())``, or ``callback:
    sb3_cir.guard.NonFiniteGuard`` in RL Zoo's yaml.

    After each rollout it looks at what the algorithm has logged under ``train/``, and now and then at all parameters.

    :param folder: Where to save the model, as ``non_finite_<steps>_steps.zip``. Nothing that is there is written over.
        Default: the log's folder (``tensorboard_log``, or that of ``set_logger()``) if there is one, else the current one.
    :param check_freq: Rollouts (train calls) from one look at all parameters to the next. A bad one shows in the losses of
        the next train call, so this need not be often.
    :raises ValueError: From ``learn()``: what is not finite, at which step, and where the model was saved.
    """

    def __init__(self, folder: str | Path | None = None, check_freq: int = 1_000):
        super().__init__()
        if check_freq < 1:
            raise ValueError(f"check_freq={check_freq}: it must be at least 1.")
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

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        # RL Zoo ends the training of a run which has failed, too.
        if not self._raised:
            self._check(self._bad_loss())

    def _bad_loss(self) -> tuple[str, float] | None:
        if isinstance(self.model, CIR):
            self.model.record_scalars()  # on a GPU they wait for the log
        for name, value in self.logger.name_to_value.items():
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
        if bad_loss is None and nn.utils.get_total_norm(list(tensors.values()), math.inf, foreach=True).isfinite():
            return
        found = [bad for bad in (bad_loss, first_non_finite(tensors.items())) if bad is not None]
        path = self._save()
        self._raised = True
        raise ValueError(
            f"{' and '.join(f'{value} in {name}' for name, value in found)} at step {self.num_timesteps}: training has ended, "
            f"the model as it is now was saved to {path}."
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
    :return: The parameters and buffers that it saves, by name: those of the policy by their names in it
    """
    names, variables = model._get_torch_save_params()
    for name in names:
        module = recursive_getattr(model, name)
        if isinstance(module, nn.Module):
            for key, tensor in module.state_dict().items():
                if tensor.is_floating_point():
                    yield key if name == "policy" else f"{name}.{key}", tensor
    for name in variables:
        yield name, recursive_getattr(model, name)
