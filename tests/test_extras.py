"""What errors say where something is missing: an extra, a renderer, a Python that fits."""

import configparser
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from sb3_cir import envs, extras
from sb3_cir.envs import dm_control

ROOT = Path(__file__).parent.parent


def test_the_hint_names_packages_that_pip_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not ``sb3-cir[dmc]``, which pip would look for on an index."""
    requires = ["torch>=2.10", 'shimmy<3,>=2.0; extra == "dmc"', "mujoco<4,>=3.3; extra == 'dmc'", 'ray; extra == "dmc-not"']
    monkeypatch.setattr(metadata, "requires", lambda name: requires)
    monkeypatch.setattr(sys, "version_info", (3, 12))
    assert extras.install_hint("dmc") == "pip install 'shimmy<3,>=2.0' 'mujoco<4,>=3.3'"
    monkeypatch.setattr(sys, "version_info", (3, 13))
    assert "3.11 or 3.12" in extras.install_hint("dmc")


def test_the_hint_in_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert extras.install_hint("odrl") == f"pip install -e '{ROOT}[odrl]'"


def test_every_extra_that_an_error_names_exists() -> None:
    """As the installed metadata has it: an error must not send anybody to an extra that is not there."""
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg", encoding="utf-8")  # which setuptools lays out anew in an sdist
    sources = [
        path.read_text(encoding="utf-8") for folder in ("sb3_cir", "benchmarks") for path in (ROOT / folder).rglob("*.py")
    ]
    named = set(re.findall(r"install_hint\(['\"]([\w-]+)['\"]\)", "".join(sources)))
    assert {"dmc", "humanoid-bench", "benchmarks"} <= named <= set(declared["options.extras_require"])


def bare_checkout(folder: Path) -> Path:
    """What make needs to begin with."""
    (folder / "Makefile").write_text((ROOT / "Makefile").read_text(encoding="utf-8"))
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "constraints.txt", "sb3_cir/zoo_hook.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    return folder


def test_make_without_a_python_that_fits(tmp_path: Path) -> None:
    """One sentence, and nothing made."""
    bare_checkout(tmp_path)
    done = subprocess.run(["make", "install", "TRIED=no-such-python"], cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode != 0
    assert "No Python 3.11 or 3.12" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_make_takes_the_first_python_that_fits(tmp_path: Path) -> None:
    name = Path(sys.executable).resolve()
    command = ["make", "-n", "install", f"TRIED=no-such-python {name}"]
    done = subprocess.run(command, cwd=bare_checkout(tmp_path), text=True, capture_output=True).stdout
    assert f"{name} -m venv .venv" in done


@pytest.mark.parametrize("backend", ["disabled", "glfw"])
def test_dm_control_says_what_to_do_where_it_cannot_draw(backend: str) -> None:
    """Each backend has an error of its own, and none says what to install."""
    pytest.importorskip("dm_control", reason="needs the extra dmc")
    program = """
from sb3_cir import envs
env = envs.make("dm_control/cartpole-balance-v0", render_mode="rgb_array")
env.reset()
try:
    env.render()
except RuntimeError as error:
    print(error)
"""
    env = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**env, "MUJOCO_GL": backend}, text=True, capture_output=True, check=True
    )
    assert f"MuJoCo can open no renderer (MUJOCO_GL is {backend})" in done.stdout
    assert "MUJOCO_GL=egl" in done.stdout


def test_dm_control_says_what_is_wrong_with_a_picture() -> None:
    pytest.importorskip("dm_control", reason="needs the extra dmc")
    with pytest.raises(ValueError, match=r"render_mode='ascii' must be None or one of \["):
        envs.make("dm_control/cartpole-balance-v0", render_mode="ascii")
    env = envs.make("dm_control/cartpole-balance-v0", render_mode="rgb_array")

    def refuses() -> None:
        raise ValueError("Image width 1280 > framebuffer width 640.")

    with pytest.raises(ValueError, match="Image width 1280"):
        dm_control._rendering(refuses)()
    env.close()
