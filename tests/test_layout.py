"""Who imports whom: a file of the package imports what stands before it in CONTRIBUTING.md's table."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
if not CONTRIBUTING.is_file():
    pytest.skip("needs a checkout", allow_module_level=True)


def places() -> list[str]:
    """The table's files and folders within the package, in its order."""
    rows = re.findall(r"^\| (`sb3_cir/[^|]*) \|", CONTRIBUTING.read_text(), re.MULTILINE)
    return [name.removeprefix("sb3_cir/") for row in rows for name in re.findall(r"`([^`]+)`", row)]


PLACES = places()


def place(parts: tuple[str, ...]) -> int:
    """Where a module stands in the table, by its own line or by its folder's."""
    own = parts[0] + ".py"
    return PLACES.index(own if own in PLACES else parts[0] + "/")


def imports(file: Path) -> set[tuple[str, ...]]:
    """Modules of the package that a module imports when it is imported itself."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sb3_cir"):
            module = tuple((node.module or "").split(".")[1:])
            found |= {module or (alias.name,) for alias in node.names}
    return found


FILES = [file.relative_to(ROOT / "sb3_cir") for file in sorted((ROOT / "sb3_cir").rglob("*.py"))]
# The public names, and what 0.1 called two modules, which stand for others.
FREE = {"__init__.py", "guard.py", "checks.py"}


@pytest.mark.parametrize("file", [file for file in FILES if str(file) not in FREE], ids=str)
def test_imports_what_stands_before_it(file: Path) -> None:
    here = place(file.with_suffix("").parts)
    later = [module for module in imports(ROOT / "sb3_cir" / file) if module != ("__version__",) and place(module) > here]
    assert later == []
