"""
The documentation: its code runs, every method and module has its place, Sphinx builds it without a warning.

Blocks run as they are printed, in a folder of their own and each page's in order, with fewer steps. Commands are slow, most
Python is not. Not run are commands that install, which ``.ci/wheel`` and CI do, and ``console`` blocks, which need files that
a test does not have.
"""

import importlib.util
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

import sb3_cir
from sb3_cir import zoo

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NOT_RUN = ("pip", "make")
# The last of an option is the one that counts, but for -params, which a command may have already.
FEWER = {"rl_zoo3.train": ["-n", "30"], "rl_zoo3.enjoy": ["-n", "10"], "rl_zoo3.record_video": ["-n", "10"]}
PAGES = [path for path in sorted(ROOT.glob("docs/**/*.md")) if "_build" not in path.parts]
PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def skip_without_packages(text: str) -> None:
    """Skip a block that uses an extra that is not installed."""
    if "dm_control/" in text:
        pytest.importorskip("dm_control", reason="needs the extra dmc")
    if "tensorboard_log" in text:
        pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    if "benchmarks" in text:
        pytest.importorskip("ray", reason="needs the extra benchmarks")


def environment() -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}


def run(command: list[str], cwd: Path, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, env={**environment(), **(env or {})}, text=True, capture_output=True)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"


def with_blocks(language: str, slow: set[str]) -> list[object]:
    return [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in slow else [])
        for page in PAGES
        if blocks(page, language)
    ]


@pytest.mark.parametrize("page", with_blocks("python", slow={"long_runs", "quickstart", "simba"}))
def test_python_blocks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "\n".join(blocks(page, "python"))
    skip_without_packages(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(OffPolicyAlgorithm, "learn", learn_a_little)
    exec(compile(program, page.name, "exec"), {"__name__": "__main__"})


learn = OffPolicyAlgorithm.learn


def learn_a_little(model: OffPolicyAlgorithm, total_timesteps: int, *args: object, **kwargs: object) -> OffPolicyAlgorithm:
    """Few steps, and still some updates of networks that are large."""
    model.learning_starts = min(model.learning_starts, 20)
    return learn(model, min(total_timesteps, 25), *args, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("page", with_blocks("sh", slow=set()))
def test_shell_blocks(page: Path, tmp_path: Path) -> None:
    for words, env in commands(page):
        skip_without_packages(" ".join(words))
        if "rl_zoo3.record_video" in words and not (can_draw() and importlib.util.find_spec("moviepy")):
            continue
        module = words[words.index("-m") + 1]
        run([sys.executable, *words[1:], *FEWER.get(module, [])], tmp_path, env)


def commands(page: Path) -> list[tuple[list[str], dict[str, str]]]:
    """The Python commands of a page's shell blocks, each with the variables that stand before it."""
    found = []
    for line in "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        env = {}
        while words and re.match(r"[A-Z_]+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            env[name] = value
        if words and words[0] not in NOT_RUN:
            assert words[0] == "python", f"{page.name}: {line}"
            found.append((words, env))
    return found


def can_draw() -> bool:
    program = "from mujoco.egl import GLContext; GLContext(8, 8).free()"
    return (
        subprocess.run([sys.executable, "-c", program], env={**os.environ, "MUJOCO_GL": "egl"}, capture_output=True).returncode
        == 0
    )


def test_each_language_is_one_that_is_run_or_known_not_to_be() -> None:
    """A block that a typo makes another language would never run."""
    kinds = {kind for page in PAGES for kind, _ in BLOCK.findall(page.read_text(encoding="utf-8"))}
    assert kinds <= {"python", "sh", "console", "text", "bibtex"}


def test_every_method_has_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "modules").glob("*.md"))
    for algo in zoo.ALGOS:
        assert f"`--algo {algo}`" in pages or f"--algo {algo} " in pages, f"{algo} has no page in docs/modules"


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_versions_agree() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)[0] == sb3_cir.__version__


@pytest.mark.slow
def test_sphinx_builds_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_parser", "furo", "sphinx_copybutton"):
        pytest.importorskip(package, reason="needs the extra docs")
    run([sys.executable, "-m", "sphinx", "--quiet", "-W", "--keep-going", "-b", "html", "docs", str(tmp_path)], ROOT)
    assert (tmp_path / "modules" / "cir.html").is_file()
    reference = (tmp_path / "api.html").read_text(encoding="utf-8")
    for name in (info.name for info in pkgutil.walk_packages(sb3_cir.__path__, "sb3_cir.")):
        # The start-up hook, what subclasses HumanoidBench's class, and where version 0.1 had things.
        private = name.removeprefix("sb3_cir.") in ("zoo_hook", "envs.humanoid_env", "guard", "checks")
        assert (f'id="module-{name}"' in reference) != private, name


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs the extra dev")
    nbformat = pytest.importorskip("nbformat", reason="needs the extra dev")
    notebook = nbformat.read(ROOT / "examples" / "first_agent.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=3600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    [shown] = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert shown
