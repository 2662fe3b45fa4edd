"""dm_control's suite, imported when an environment is made and not before."""

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from sb3_cir.envs.renderer import no_renderer
from sb3_cir.extras import install_hint


def load(domain: str, task: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """
    Make a task of the suite as shimmy does: Dict observations, the time limit as truncation.

    :param domain: E.g. ``walker``
    :param task: E.g. ``walk``
    :param kwargs: ``task_kwargs``, ``environment_kwargs``, ``visualize_reward``; others go to shimmy (``render_mode`` ...)
    :return: The environment
    :raises ImportError: If dm_control or shimmy is missing; the message has the pip command.
    :raises RuntimeError: If ``MUJOCO_GL`` names a backend that cannot be opened
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
    except ModuleNotFoundError as error:
        raise ImportError(f"dm_control tasks need the extra dmc: {install_hint('dmc')}. ({error})") from error
    except Exception as error:  # dm_control opens the backend that MUJOCO_GL names, and each fails in a way of its own.
        raise RuntimeError(no_renderer(error)) from error
    modes = DmControlCompatibilityV0.metadata["render_modes"]
    if kwargs.get("render_mode") not in (None, *modes):
        raise ValueError(f"render_mode={kwargs['render_mode']!r} must be None or one of {modes}")
    env: gym.Env[Any, Any] = DmControlCompatibilityV0(suite.load(domain, task, **suite_kwargs), **kwargs)
    if kwargs.get("render_mode") is not None:
        env.render = _rendering(env.render)  # type: ignore[method-assign]
    # shimmy has milliseconds per step here; a video made with that runs at a tenth of real time or slower.
    env.metadata = {**env.metadata, "render_fps": round(1 / env.get_wrapper_attr("dt"))}
    return env


def _rendering(render: Callable[[], Any]) -> Callable[[], Any]:
    """``render()`` that says what to do where the first picture shows that there is no renderer."""

    def checked() -> Any:
        try:
            return render()
        except (AssertionError, TypeError, ValueError):  # of what was asked for, such as a picture that is too large
            raise
        except Exception as error:
            raise RuntimeError(no_renderer(error)) from error

    return checked
