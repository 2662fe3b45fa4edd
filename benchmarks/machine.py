"""What a result was made by: versions, commit and processor; and what a process of this machine takes."""

import contextlib
import importlib.metadata
import platform
import resource
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_VERSIONS_OF = ("torch", "stable-baselines3", "sb3-contrib", "rl-zoo3", "gymnasium", "mujoco", "dm-control", "numpy", "ray")


def versions() -> dict[str, str]:
    """:return: Of the packages that a result may depend on"""
    found = {}
    for name in _VERSIONS_OF:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def checkout() -> dict[str, Any]:
    """:return: ``git_commit``, None where this is no checkout, and ``git_clean``, whether it is as that commit has it"""
    return {"git_commit": _git("rev-parse", "HEAD"), "git_clean": not _git("status", "--porcelain", "--untracked-files=no")}


def git_commit() -> str | None:
    """:return: This checkout's commit; None where it has changes, or where this is no checkout"""
    here = checkout()
    return here["git_commit"] if here["git_clean"] else None


def _git(*arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:  # There is no such program.
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def processor() -> str:
    """:return: Name of this machine's CPU"""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def resident(pid: int | None) -> int:
    """
    :param pid: A process
    :return: Its memory in bytes; 0 if it is gone
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0
