"""HumanoidBench's tasks on today's MuJoCo and Gymnasium; HumanoidBench is imported when one is made and not before."""

import sys
from typing import Any

import gymnasium as gym

from sb3_cir.envs.renderer import no_renderer
from sb3_cir.extras import install_hint

# The newest commit when this was written. Only an editable install has the models: upstream's setup.py leaves them, and
# the packages without an __init__.py, out of a wheel.
COMMIT = "791405f5eacf879adbc99105adb3fee73f5a49fc"
UPSTREAM = f"git+https://github.com/carlosferrazza/humanoid-bench.git@{COMMIT}#egg=humanoid_bench"


def install() -> str:
    """:return: How to install HumanoidBench"""
    return (
        f"HumanoidBench tasks need two installs: {install_hint('humanoid-bench')} and pip install --no-deps -e '{UPSTREAM}'."
    )


def load(robot: str, task: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """
    Make a task of HumanoidBench.

    :param robot: ``h1`` or ``h1hand``
    :param task: E.g. ``walk``
    :param kwargs: Passed on to HumanoidBench (``render_mode``, ``width``, ``height``, ``randomness`` ...)
    :return: The environment, without a time limit
    :raises ImportError: If HumanoidBench or a package that it imports is missing; the message has the pip commands.
    :raises RuntimeError: If ``MUJOCO_GL`` names a backend that cannot be opened
    """
    try:
        import mujoco  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(f"{install()} ({error})") from error
    except Exception as error:  # MuJoCo opens the backend that MUJOCO_GL names, and each fails in a way of its own.
        raise RuntimeError(no_renderer(error)) from error
    try:
        from sb3_cir.envs.humanoid_env import HumanoidEnv
    except ImportError as error:
        raise ImportError(f"{install()} ({error})") from error
    repair_imported()
    return HumanoidEnv(robot=robot, control="pos", task=task, **kwargs)


def repair_imported() -> None:
    """Repair the HumanoidBench that this process has imported; older ones without the table need none."""
    table = sys.modules.get("humanoid_bench.dmc_deps.dmc_sizes")
    if table is not None:
        drop_unknown_fields(table.array_sizes)


def drop_unknown_fields(array_sizes: dict[str, dict[str, Any]]) -> None:
    """
    Take the fields that the installed MuJoCo does not have out of HumanoidBench's table of fields.

    Every environment reads all fields of the table, which was generated for MuJoCo 3.1.6; MuJoCo has since removed some
    (3.17: 7 of the model's, 14 of the data's). No task uses those.

    :param array_sizes: ``humanoid_bench.dmc_deps.dmc_sizes.array_sizes``, changed in place: field names by ``mjmodel``
        and ``mjdata``
    """
    import mujoco

    for struct, known in (("mjmodel", mujoco.MjModel), ("mjdata", mujoco.MjData)):
        for field in [field for field in array_sizes[struct] if not hasattr(known, field)]:
            del array_sizes[struct][field]
