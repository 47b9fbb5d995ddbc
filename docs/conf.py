"""The documentation site: ``python -m sphinx -W --keep-going -b html docs docs/_build/html``. Needs no network."""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_extensions")]
import jax.typing  # noqa: E402
import numpy.typing  # noqa: E402

for module in (jax.typing, numpy.typing):  # signatures name these unions instead of spelling them out
    module.ArrayLike = type("ArrayLike", (), {"__module__": module.__name__})  # type: ignore[misc, attr-defined]

project = "depthmup-flax"
author = "The depthmup-flax authors"
project_copyright = author
repository = "https://github.com/depthmup/depthmup-flax"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "field_sections",
    "references",
    "repository_links",
    "typography",
]
exclude_patterns = ["_build", "_extensions", "README.md", "**/.ipynb_checkpoints"]

highlight_language = "none"  # code blocks that name no language are output

# Pages. Anchors of headings are those of the repository's own view.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "off"  # notebooks are committed with their outputs; tests execute them
repository_url = f"{repository}/blob/main"
suppress_warnings = ["myst.header"]  # a page may start with "###" after a table

# API reference. Docstrings are Google style, with names of the package in single backquotes.
default_role = "py:obj"
nitpicky = True
# Names that signatures have from imports for type checkers alone; the docstrings say what they are.
_UNDOCUMENTED = (
    "ConfigDict",
    "OnRecord",
    "Output",
    "CheckReport",
    "Point",
    "Evaluated",
    "np.ndarray",
    "Carried",
    "DecayMask",
    "ParamTable",
)
nitpick_ignore = [("py:class", name) for name in _UNDOCUMENTED]
napoleon_numpy_docstring = False
napoleon_use_param = False  # "a, b: text" describes two arguments
napoleon_custom_sections = [("Fields", "params_style"), ("Values", "params_style")]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

html_theme = "sphinx_book_theme"
html_title = "depthmup-flax"
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system
html_show_sphinx = False
html_last_updated_fmt = None
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_sidebars = {"**": ["navbar-logo.html", "sbt-sidebar-nav.html"]}  # the search field is above
html_theme_options = {
    "repository_url": repository,
    "repository_branch": "main",
    "path_to_docs": "docs",
    "use_repository_button": True,
    "use_issues_button": True,
    "show_navbar_depth": 1,
    "show_toc_level": 2,
}
