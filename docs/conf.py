"""Sphinx: `make docs` builds the pages with warnings as errors."""

import pkgutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent.parent))

import sb3_cir

project = "sb3_cir"
copyright = "the sb3_cir developers"
release = version = sb3_cir.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
# The changelog and the contributing guide lie at the root and are included: their headings begin anew.
suppress_warnings = ["myst.header"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_mock_imports = ["humanoid_bench"]

html_theme = "furo"
html_title = f"sb3_cir {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
copybutton_prompt_text = "$ "

# Not in the reference: the start-up hook, what subclasses HumanoidBench's class, and where version 0.1 had things.
PRIVATE = {"sb3_cir.zoo_hook", "sb3_cir.envs.humanoid_env", "sb3_cir.guard", "sb3_cir.checks"}
MODULE = """
## {name}

```{{eval-rst}}
.. automodule:: {name}
   :members:
   :show-inheritance:
```
"""


def list_modules(app: Sphinx, page: str, text: list[str]) -> None:
    """The reference has every public module, without a list that somebody must remember."""
    if page == "api":
        names = [info.name for info in pkgutil.walk_packages(sb3_cir.__path__, "sb3_cir.")]
        text[0] += "".join(MODULE.format(name=name) for name in names if name not in PRIVATE)


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", list_modules)
