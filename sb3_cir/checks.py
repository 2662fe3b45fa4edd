"""Bad data and failing environments end learning with an error that says where they are from."""

from typing import Any

import numpy as np
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from typing_extensions import Self

from sb3_cir.runs.watch import BadDataError, FailedEnvError, checked_action, watch

__all__ = ["BadDataError", "CheckedRollouts", "FailedEnvError"]


class CheckedRollouts(OffPolicyAlgorithm):
    """
    For an off-policy algorithm, to stand before it: ``class CIR(CheckedRollouts, SAC)``.

    While it learns, NaN or inf in an observation, reward or action, an observation of another shape or kind than its space
    has, a reward that is no number, an environment that raises and a worker process that dies end it with an error that
    names the environment and the step. Nothing of that step is stored; the next ``learn()`` starts with a reset.
    """

    def learn(self, *args: Any, **kwargs: Any) -> Self:
        """
        Learn; all arguments are the algorithm's.

        :raises BadDataError: If an environment gives what cannot be learned from (a ``ValueError``).
        :raises FailedEnvError: If an environment raises, or if its process ends (a ``RuntimeError``).
        :raises ValueError: If the actor's output is not finite.
        """
        buffer = getattr(self.replay_buffer, "source", self.replay_buffer)
        with watch(self.env, self, *(() if buffer is None else (buffer,))):
            return super().learn(*args, **kwargs)

    def _sample_action(self, *args: Any, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
        return checked_action(self, super()._sample_action, *args, **kwargs)
