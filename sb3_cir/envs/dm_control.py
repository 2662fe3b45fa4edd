"""dm_control's suite, imported when an environment is made and not before."""

import warnings
from typing import Any

import gymnasium as gym

from sb3_cir.extras import install_hint


def load(domain: str, task: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """
    Make a task of the suite as shimmy does: Dict observations, the time limit as truncation.

    :param domain: E.g. ``walker``
    :param task: E.g. ``walk``
    :param kwargs: ``task_kwargs``, ``environment_kwargs``, ``visualize_reward``; others go to shimmy (``render_mode`` ...)
    :return: The environment
    :raises ImportError: If dm_control or shimmy is missing; the message has the pip command.
    """
    suite_kwargs = {
        name: kwargs.pop(name) for name in ("task_kwargs", "environment_kwargs", "visualize_reward") if name in kwargs
    }
    try:
        with warnings.catch_warnings():
            # On a machine without a screen, importing the renderer warns; making an environment needs none.
            warnings.filterwarnings("ignore", message=".*(DISPLAY|X11)")
            from dm_control import suite
            from shimmy.dm_control_compatibility import DmControlCompatibilityV0
    except ImportError as error:
        raise ImportError(f"dm_control tasks need the extra dmc: {install_hint('dmc')}. ({error})") from error
    env: gym.Env[Any, Any] = DmControlCompatibilityV0(suite.load(domain, task, **suite_kwargs), **kwargs)
    # shimmy has milliseconds per step here; a video made with that runs at a tenth of real time or slower.
    env.metadata = {**env.metadata, "render_fps": round(1 / env.get_wrapper_attr("dt"))}
    return env
