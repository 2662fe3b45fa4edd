"""Environments: their Gymnasium ids, and the paper's protocol. No simulator is imported before an environment is made."""

from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from sb3_cir.envs import odrl
from sb3_cir.envs.humanoid_bench import repair_imported
from sb3_cir.envs.placeholders import register_placeholders
from sb3_cir.envs.wrappers import ActionRepeat, FlatFloat32, paper_protocol
from sb3_cir.tasks import DMC_OTHER, of_group
from sb3_cir.words import nearest

__all__ = ["ActionRepeat", "FlatFloat32", "make", "paper_protocol", "register"]


def _dmc_spec(task: str) -> EnvSpec:
    domain, name = task.split("-")
    return EnvSpec(
        f"dm_control/{task}-v0", entry_point="sb3_cir.envs.dm_control:load", kwargs={"domain": domain, "task": name}
    )


def _humanoid_bench_spec(env_id: str) -> EnvSpec:
    robot, name, _ = env_id.split("-")
    return EnvSpec(
        env_id,
        entry_point="sb3_cir.envs.humanoid_bench:load",
        max_episode_steps=1000,
        kwargs={"robot": robot, "task": name},
    )


def register() -> None:
    """
    Make the ids known to Gymnasium. They overrule those that shimmy and HumanoidBench register: shimmy's videos run at a tenth
    of real speed, HumanoidBench's environments fail on today's MuJoCo and need a renderer to train.
    """
    of_dmc = [task.name for task in of_group("dmc_easy_medium", "dmc_hard")]
    register_placeholders("shimmy", [_dmc_spec(task) for task in (*of_dmc, *DMC_OTHER)])
    of_humanoid_bench = [task.env_id for task in of_group("humanoid_bench", "humanoid_bench_wider")]
    register_placeholders("humanoid_bench", [_humanoid_bench_spec(env_id) for env_id in of_humanoid_bench], repair_imported)
    gym.registry.update({spec.id: spec for spec in odrl.specs() if spec.id not in gym.registry})


def make(env_id: str, seed: int | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
    """
    Make an environment by the paper's protocol: on dm_control and HumanoidBench a flat float32 observation, action repeat
    2 with summed rewards, and the time limit as truncation. Elsewhere only Dict observations are flattened, except those
    with goals.

    :param env_id: A Gymnasium id, e.g. ``dm_control/walker-walk-v0``
    :param seed: Seed of the environment and its action space
    :param kwargs: Passed on to ``gymnasium.make``
    :return: The environment
    :raises ValueError: If there is no such id; the message has the nearest one.
    :raises ImportError: If the id's package is missing; the message has the pip command.
    """
    if ":" not in env_id and env_id not in gym.registry:
        # A task's own name is a small part of its id: dog-walk, dm_control/dog-walk-v0.
        near = next((known for known in gym.registry if env_id in known), None) or nearest(env_id, gym.registry)
        hint = f"Did you mean {near!r}?" if near else f"Import its package first, or name it: 'package:{env_id}'."
        raise ValueError(f"There is no environment {env_id!r}. {hint}")
    env = paper_protocol(gym.make(env_id, **kwargs))
    if seed is not None:
        env.reset(seed=seed)
        env.action_space.seed(seed)
    return env
