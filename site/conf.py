"""How Sphinx builds the site out of the pages that tools/build_site.py gathers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import bygroups
from pygments.token import Operator, Text
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

project = "Rank by Rank"
author = "the authors of Rank by Rank"
project_copyright = ""
language = "en"  # British spelling is in the text; Sphinx knows one English
html_title = "Rank by Rank"
html_show_copyright = False
html_show_sphinx = False

extensions = [
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx.ext.napoleon",
    "api_reference",
]
exclude_patterns = ["**/.ipynb_checkpoints"]

# Lessons are shown as they were executed.
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_text_lexer = "none"
nb_render_error_lexer = "ipythontb"

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
# "asis:deck.html" links to a file that is copied to the site as it is.
myst_url_schemes = {
    "http": None,
    "https": None,
    "mailto": None,
    "asis": {"url": "{{path}}", "classes": ["internal"]},
}

# Formulas: MathJax and its font come with the site.
mathjax_path = "mathjax/tex-chtml.js"
mathjax4_config = {
    "loader": {"paths": {"fonts": "[mathjax]/fonts"}},
    "output": {"fontPath": "[fonts]/%%FONT%%-font", "displayOverflow": "linebreak"},
}

# The reference is read from the sources.
api_folders = [*map(str, ROOT.glob("packages/*/src")), str(ROOT)]
napoleon_google_docstring = True
napoleon_numpy_docstring = False
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": False, "top_of_page_buttons": []}
copybutton_exclude = ".linenos, .gp, .go"
copybutton_selector = "div.cell_input pre, div.highlight-python pre, div.highlight-default pre"


class CellLexer(IPython3Lexer):
    """Colours what stands below ``%%px`` as Python; IPython's own takes it for plain text."""

    name = "cell of a lesson"
    aliases = ()
    tokens = {  # noqa: RUF012
        **IPython3Lexer.tokens,
        "root": [(r"(%%px)(.*\n)", bygroups(Operator, Text)), *IPython3Lexer.tokens["root"]],
    }


def add_levels(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Give the side's captions, which Sphinx calls headings, the level that headings need."""
    side = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = side.replace(
        'role="heading"', 'role="heading" aria-level="2"'
    )


def setup(app: Sphinx) -> None:
    """Add the lexer, and run ``add_levels`` after the theme has made the side."""
    app.add_lexer("ipython3", CellLexer)
    app.connect("html-page-context", add_levels, priority=900)
