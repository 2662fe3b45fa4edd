"""HumanoidBench's environment class, seeded and rendered as Gymnasium 1 does. Importing this imports HumanoidBench."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import logger
from humanoid_bench.env import HumanoidEnv as UpstreamEnv

from sb3_cir.envs.renderer import no_renderer


class HumanoidEnv(UpstreamEnv):  # type: ignore[misc]
    """
    HumanoidBench's environment, with a renderer that is opened by the first ``render`` and resets that follow the seed.

    :param render_mode: One of ``human``, ``rgb_array`` and ``depth_array``, or None
    :param kwargs: HumanoidBench's other arguments
    :raises ValueError: If there is no such render mode
    """

    def __init__(self, render_mode: str | None = None, **kwargs: Any):
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode={render_mode!r} must be None or one of {self.metadata['render_modes']}")
        # Told of a mode, upstream opens a renderer at once; and SB3 asks for "rgb_array" wherever it makes environments.
        super().__init__(render_mode=None, **kwargs)
        # Upstream tells it no more than the metadata, which makes no copy.
        gym.utils.EzPickle.__init__(self, render_mode, **kwargs)
        self.render_mode = render_mode
        if kwargs.get("task", "").startswith("highbar"):
            self.randomness = 0  # Upstream sets it in its first reset, after the robot was moved.

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        # Upstream compares NumPy numbers. Gymnasium asks for Python's own bool, as SB3's check_env does.
        return observation, reward, bool(terminated), bool(truncated), info

    def reset_model(self) -> np.ndarray:
        # Reach and sit_hard draw from NumPy's global generator, which reset(seed=...) does not seed.
        outside = np.random.get_state()
        np.random.seed(self.np_random.integers(2**32))
        try:
            return np.asarray(super().reset_model())
        finally:
            np.random.set_state(outside)

    def render(self) -> Any:
        """
        Draw the scene.

        Upstream's own ``render`` passes the camera to Gymnasium's, which takes it at construction since 1.0.

        :return: An image of shape (height, width, 3), of (height, width) for ``depth_array``, or None
        :raises RuntimeError: If no renderer can be opened
        """
        if self.render_mode is None:
            logger.warn("render() needs a render_mode: gymnasium.make(..., render_mode='rgb_array')")
            return None
        try:
            viewer = self.mujoco_renderer._get_viewer(self.render_mode)
        except Exception as error:  # every backend fails in a way of its own
            raise RuntimeError(no_renderer(error)) from error
        goal = getattr(self.task.unwrapped, "goal", None)
        if goal is not None:
            viewer.add_marker(pos=goal, size=np.full(3, 0.05), rgba=np.array([0.8, 0.3, 0.3, 1.0]))
        return self.mujoco_renderer.render(self.render_mode)
