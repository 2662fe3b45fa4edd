"""How long a run will take: said once, as soon as it can be known, for any off-policy algorithm of Stable-Baselines3."""

import math
import time
import warnings
from statistics import median

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import MaybeCallback, TrainFreq, TrainFrequencyUnit

MEASURED_UPDATES = 100


class ExpectedTime(BaseCallback):
    """
    Prints one line with the time that the rest of the run will take, once ``updates`` updates have been measured.

    The first round of updates does not count, because a compiled update takes a minute the first time. The middle one of the
    measured rounds is taken, so that an evaluation among them does not count either: evaluations come on top.

    :param updates: How many updates to measure
    """

    state = ()  # a resumed run measures anew

    def __init__(self, updates: int = MEASURED_UPDATES):
        super().__init__()
        self.updates = updates

    def _on_training_start(self) -> None:
        self._updates_before = self._n_updates
        self._last: tuple[float, int, int] | None = None  # time, updates, steps when this round began
        self._seconds_per_step: list[float] = []
        self._measured_updates = 0
        self._said = False

    @property
    def _n_updates(self) -> int:
        assert isinstance(self.model, OffPolicyAlgorithm)
        return self.model._n_updates

    def _on_rollout_start(self) -> None:
        # One round of learn() goes from here to the next call: the environments' steps, then the updates.
        if self._said or self._n_updates == self._updates_before:
            return
        now, n_updates, steps = time.perf_counter(), self._n_updates, self.model.num_timesteps
        if self._last is not None and steps > self._last[2]:
            self._seconds_per_step.append((now - self._last[0]) / (steps - self._last[2]))
            self._measured_updates += n_updates - self._last[1]
        self._last = now, n_updates, steps
        if self._measured_updates >= self.updates:
            self._say()

    def _say(self) -> None:
        self._said = True
        seconds_per_step = median(self._seconds_per_step)
        milliseconds = f"{1000 * seconds_per_step:{'.3g' if seconds_per_step < 0.1 else ',.0f'}}"
        left = self.model._total_timesteps - self.model.num_timesteps
        if left > 0:
            print(
                f"Expected time: {duration(left * seconds_per_step)} for the {left:,} steps that are left, evaluations not "
                f"counted ({milliseconds} ms a step, measured over {self._measured_updates} updates).",
                flush=True,
            )

    def _on_step(self) -> bool:
        return True


def with_expected_time(model: OffPolicyAlgorithm, callback: MaybeCallback) -> MaybeCallback:
    """
    What ``learn()`` does with its callback before it is set up: where ``verbose`` is 1 or more, :class:`ExpectedTime` is
    added. A run that ends before learning starts gets a warning, since it would end without a word and without an update.

    :param model: A model whose ``_total_timesteps`` is set, as it is when ``_init_callback`` is called
    :param callback: The callback that ``learn()`` was given
    :return: The callback to use in its place
    """
    if _last_step(model) <= model.learning_starts:
        # Nobody knows how long an episode is.
        unless = ", unless the last episode ends later" if _by_episode(model) else ""
        warnings.warn(
            f"No update will be made{unless}: this run ends at step {model._total_timesteps:,}, and the first "
            f"{model.learning_starts:,} steps are random actions (learning_starts={model.learning_starts}).",
            stacklevel=4,
        )
    if model.verbose < 1:
        return callback
    callbacks = callback if isinstance(callback, list) else [callback]
    # Ours goes first, so that its clock is read before the others do their work.
    return CallbackList([ExpectedTime(), *(c if isinstance(c, BaseCallback) else ConvertCallback(c) for c in callbacks)])


def duration(seconds: float) -> str:
    """
    :param seconds: A length of time
    :return: The same in the two units that matter, e.g. ``11 h 20 min``
    """
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    if minutes < 10:
        return f"{round(seconds) // 60} min {round(seconds) % 60} s"
    if minutes < 60:
        return f"{minutes} min"
    if hours < 48:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def _last_step(model: OffPolicyAlgorithm) -> int:
    """At which a run ends: after a whole rollout, of several environments together."""
    assert isinstance(model.train_freq, TrainFreq)
    if _by_episode(model):
        return model._total_timesteps
    rollout = model.train_freq.frequency * model.n_envs
    left = model._total_timesteps - model.num_timesteps
    return model.num_timesteps + rollout * math.ceil(left / rollout)


def _by_episode(model: OffPolicyAlgorithm) -> bool:
    assert isinstance(model.train_freq, TrainFreq)
    return model.train_freq.unit == TrainFrequencyUnit.EPISODE
