"""What to do where MuJoCo cannot draw: each backend fails in a way of its own, and none says what to install."""

import os


def no_renderer(error: Exception) -> str:
    """
    :param error: What the backend raised
    :return: What to do where no renderer can be opened, and what was raised
    """
    return (
        f"MuJoCo can open no renderer (MUJOCO_GL is {os.environ.get('MUJOCO_GL', 'not set')}): on a machine without a screen "
        "set MUJOCO_GL=egl (Debian packages libegl1 and libgl1-mesa-dri) or MUJOCO_GL=osmesa (libosmesa6) before Python "
        "starts, and draw with render_mode='rgb_array'; training needs no renderer (MUJOCO_GL=disabled). "
        f"({type(error).__name__}: {error})"
    )
