"""Replay buffers for what SB3's own cannot hold."""

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common import buffers


def has_scalar_entries(space: spaces.Space[Any]) -> bool:
    """
    :param space: Any observation space
    :return: Whether it is a Dict with a 0-d Box in it, as dm_control's are (walker's ``height``).
    """
    return isinstance(space, spaces.Dict) and any(
        isinstance(entry, spaces.Box) and entry.shape == () for entry in space.spaces.values()
    )


def _as_vector(space: spaces.Space[Any]) -> spaces.Space[Any]:
    if isinstance(space, spaces.Box) and space.shape == ():
        return spaces.Box(space.low.reshape(1), space.high.reshape(1), dtype=space.dtype.type)
    return space


class ScalarDictReplayBuffer(buffers.DictReplayBuffer):
    """
    SB3's ``DictReplayBuffer`` for Dict spaces with 0-d entries, which it cannot index: each is kept as a vector of one.

    Takes the same arguments. Samples have such an entry as ``(batch, 1)``.
    """

    def __init__(self, buffer_size: int, observation_space: spaces.Dict, *args: Any, **kwargs: Any):
        vectors = spaces.Dict({key: _as_vector(entry) for key, entry in observation_space.spaces.items()})
        super().__init__(buffer_size, vectors, *args, **kwargs)

    def add(  # type: ignore[override]
        self,
        obs: dict[str, np.ndarray],
        next_obs: dict[str, np.ndarray],
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        super().add(self._with_axis(obs), self._with_axis(next_obs), action, reward, done, infos)

    def _with_axis(self, obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert isinstance(self.obs_shape, dict)
        return {key: np.reshape(value, (self.n_envs, *self.obs_shape[key])) for key, value in obs.items()}
