"""The documentation as a site, `make docs`: the pages as they stand in the repository, and what docstrings say.

The source folder is the repository itself, so that links between pages lead here where they lead there. A link to a
file that is no page gives the file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_site")]
os.environ["KESTREL_PURE"] = "1"  # compiled methods do not say what they are called with

from kestrel import __version__  # noqa: E402

project = "kestrel"
release = version = __version__
project_copyright = "the authors of kestrel"
extensions = ["myst_parser", "sphinx.ext.autodoc", "docstrings", "interfaces", "signatures"]

root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "docs/**.rst", "examples/*/README.md", "kestrel/admin/pages/uplot/README.md"]
exclude_patterns = [".*", "build", "dist", "var", "tests", "benchmarks", "**/__pycache__"]
nitpicky = True
# Types are not links: most are those of other packages.
nitpick_ignore_regex = [("py:.*", ".*")]
suppress_warnings = ["ref.python"]

myst_heading_anchors = 5

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"kestrel {__version__}"
html_theme_options: dict[str, Any] = {"navigation_with_keys": True}
html_static_path = ["_site/static"]
html_css_files = ["kestrel.css"]
templates_path = ["_site/templates"]
html_additional_pages = {"index": "to_the_landing_page.html"}
html_copy_source = False
html_show_sphinx = False


def setup(app: Sphinx) -> None:
    """Languages of code blocks that are our own: conversations, which tests play."""
    from pygments.lexers.special import TextLexer

    for language in ("conversation", "thrift"):
        app.add_lexer(language, TextLexer)
