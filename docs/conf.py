"""Sphinx: `make docs` builds the pages with warnings as errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from sb3_cir import __version__

project = "sb3_cir"
copyright = "the sb3_cir developers"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx.ext.mathjax", "sphinx_copybutton"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
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
