"""The paper's protocol as Gymnasium wrappers."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_cir.tasks import action_repeat
from sb3_cir.valid import check_counts


class ActionRepeat(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """
    Take each action several times and sum the rewards; stop early where the episode ends.

    :param env: The environment to wrap
    :param repeat: Simulator steps for one step of the agent
    :raises ValueError: If that is no whole number of at least 1.
    """

    def __init__(self, env: gym.Env[Any, Any], repeat: int = 2):
        check_counts(repeat=(repeat, 1))
        gym.utils.RecordConstructorArgs.__init__(self, repeat=repeat)
        super().__init__(env)
        self.repeat = int(repeat)
        if env.metadata.get("render_fps"):
            self.metadata = {**env.metadata, "render_fps": env.metadata["render_fps"] / repeat}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.repeat):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class FlatFloat32(gym.ObservationWrapper[Any, Any, Any], gym.utils.RecordConstructorArgs):
    """
    Any observation as one flat float32 vector: float64 would double the replay buffer.

    :param env: The environment to wrap
    :raises ValueError: If its observations have no fixed length.
    """

    def __init__(self, env: gym.Env[Any, Any]):
        gym.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        flat = spaces.flatten_space(env.observation_space)
        if not isinstance(flat, spaces.Box):
            raise ValueError(f"{env.observation_space} has no fixed length: it cannot be made one vector.")
        with np.errstate(over="ignore"):  # float64's largest number as a bound, which is none in float32
            low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        return np.asarray(spaces.flatten(self.env.observation_space, observation), dtype=np.float32)


def paper_protocol(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """
    The paper's protocol: on dm_control and HumanoidBench flat float32 observations and every action taken twice.

    Elsewhere only Dict observations are flattened, but not those with goals, which hindsight replay (HER) needs by name.

    :param env: The environment as ``gymnasium.make`` makes it
    :return: The wrapped environment
    """
    # A copy of one of shimmy's environments has no spec.
    from_shimmy = type(env.unwrapped).__module__.startswith("shimmy.dm_control")
    env_id = env.spec.id if env.spec is not None else "dm_control/" if from_shimmy else ""
    repeat = action_repeat(env_id)
    if repeat > 1:
        return FlatFloat32(ActionRepeat(env, repeat))
    space = env.observation_space
    return FlatFloat32(env) if isinstance(space, spaces.Dict) and "achieved_goal" not in space.spaces else env
