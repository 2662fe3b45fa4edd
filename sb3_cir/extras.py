"""What to install for a part of this package that needs more than its base: the one place that knows the command."""

import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent


def install_hint(extra: str) -> str:
    """
    A command that installs what an extra needs. It names the packages themselves, not ``sb3-cir[extra]``, so that it works
    however this package was installed: from a checkout, from a wheel or by git.

    :param extra: One of the extras in ``setup.cfg``, e.g. ``dmc``
    :return: The command, e.g. ``pip install 'dm_control>=1.0.30' 'mujoco<4,>=3.3' 'shimmy<3,>=2.0'``
    """
    requirements = _requirements(extra)
    if requirements:
        command = shlex.join(["pip", "install", *requirements])
    else:  # Not installed, or from before this extra: then it is a checkout.
        command = f"pip install -e {shlex.quote(f'{CHECKOUT}[{extra}]')}"
    return command + _without_wheels(extra)


def _requirements(extra: str) -> list[str]:
    """What the installed package's metadata says that the extra needs."""
    try:
        lines = metadata.requires("sb3-cir") or []
    except metadata.PackageNotFoundError:
        return []
    asks = re.compile(rf"""extra\s*==\s*["']{re.escape(extra)}["']""")
    return [line.split(";")[0].strip() for line in lines if asks.search(line)]


def _without_wheels(extra: str) -> str:
    if extra in ("dmc", "humanoid-bench") and sys.version_info >= (3, 13):
        return " (on Python 3.11 or 3.12: labmaze, which dm_control needs, has no wheel for later ones)"
    return ""
