"""Loss-adjusted prioritised replay (LAP, https://arxiv.org/abs/2007.06049), as TD7 has it."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize


class LAPReplayBuffer(ReplayBuffer):
    """
    SB3's ``ReplayBuffer`` that draws each transition in proportion to its priority. A new one has the largest priority so far.

    Takes ``ReplayBuffer``'s arguments, for observations that are vectors and one environment. What it draws comes from numpy's
    generator.

    :raises ValueError: If observations are no vectors, if there are several environments, or if memory usage is optimised.
    """

    # A row's priority changes whenever it is drawn, not only when the row is written.
    volatile = ("priorities",)

    def __init__(self, buffer_size: int, observation_space: spaces.Space[Any], *args: Any, **kwargs: Any):
        if not isinstance(observation_space, spaces.Box) or len(observation_space.shape) != 1:
            raise ValueError(f"LAPReplayBuffer holds observations that are vectors, not {observation_space}.")
        super().__init__(buffer_size, observation_space, *args, **kwargs)
        if self.n_envs != 1:
            raise ValueError(f"n_envs={self.n_envs}: LAPReplayBuffer takes the transitions of 1 environment.")
        if self.optimize_memory_usage:
            raise ValueError("optimize_memory_usage=True: LAPReplayBuffer keeps both observations of a transition.")
        self.priorities = np.zeros((self.buffer_size, self.n_envs), dtype=np.float32)
        self.max_priority = 1.0

    def reset(self) -> None:
        """Remove all transitions."""
        super().reset()
        self.priorities[:] = 0
        self.max_priority = 1.0

    def add(self, *args: Any, **kwargs: Any) -> None:
        """As SB3's."""
        self.priorities[self.pos] = self.max_priority
        super().add(*args, **kwargs)

    def draw(self, batch_size: int) -> np.ndarray:
        """
        :param batch_size: Transitions to draw
        :return: Their rows, ``(batch_size,)``; the same row may be drawn more than once.
        """
        # float32 could not tell the last of a million rows from its neighbours.
        bounds = np.cumsum(self.priorities[: self.size(), 0], dtype=np.float64)
        drawn = np.searchsorted(bounds, np.random.rand(batch_size) * bounds[-1], side="right")
        rows: np.ndarray = np.minimum(drawn, self.size() - 1)
        return rows

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """
        :param batch_size: Transitions to draw
        :param env: To normalise them with, if given
        :return: On the device
        """
        return self._get_samples(self.draw(batch_size), env)

    def update_priorities(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """
        :param rows: From :meth:`draw`
        :param priorities: Their new priorities, ``(batch_size,)``
        """
        self.priorities[rows, 0] = priorities
        self.max_priority = max(self.max_priority, float(priorities.max()))

    def forget_max_priority(self) -> None:
        """Take the largest priority of the transitions that are there for the largest so far."""
        self.max_priority = float(self.priorities[: self.size()].max())


def lap_huber(td_error: th.Tensor, threshold: float) -> th.Tensor:
    """
    LAP's Huber loss: squared below the threshold, and linear above, where priorities make up for it.

    :param td_error: Absolute errors, ``(batch, n_critics)``
    :param threshold: The least priority
    :return: Sum over critics of the mean over the batch
    """
    loss = th.where(td_error < threshold, 0.5 * td_error.square(), threshold * td_error)
    return loss.sum(dim=1).mean()
