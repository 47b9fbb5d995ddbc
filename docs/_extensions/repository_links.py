"""Links of a page to files that are no pages, such as ``../configs``, lead to the repository. Targets must exist."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_FENCED = re.compile(r"^(```+|~~~+).*?^\1`*~*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)(\[[^\]]*\])\(([^()\s#]+)(#[^()\s]*)?\)")
_ADDRESS = re.compile(r"[a-z]+:")


def rewritten(
    text: str, page: pathlib.Path, docs: pathlib.Path, url: str, is_page: Callable[[pathlib.Path], bool]
) -> tuple[str, list[str]]:
    """The text of a page with such links replaced, and the targets that do not exist.

    ``is_page``: whether a path is one of the site's own pages.
    """
    missing: list[str] = []
    root = docs.parent

    def replaced(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        if _ADDRESS.match(target):
            return match[0]
        path = (page.parent / target).resolve()
        if not path.exists() or not path.is_relative_to(root):
            missing.append(target)
            return match[0]
        if is_page(path):
            return match[0]
        return f"{words}({url}/{path.relative_to(root).as_posix()}{anchor})"

    parts, end = [], 0
    for fenced in _FENCED.finditer(text):
        parts += [_LINK.sub(replaced, text[end : fenced.start()]), fenced[0]]
        end = fenced.end()
    return "".join([*parts, _LINK.sub(replaced, text[end:])]), missing


def _on_source(app: Sphinx, docname: str, source: list[str]) -> None:
    from sphinx.util import logging

    page = pathlib.Path(app.env.doc2path(docname))
    if page.suffix not in (".md", ".ipynb"):
        return
    docs = pathlib.Path(app.srcdir)

    def is_page(path: pathlib.Path) -> bool:
        return path.is_relative_to(docs) and app.env.path2doc(path) in app.env.found_docs

    source[0], missing = rewritten(source[0], page, docs, app.config.repository_url, is_page)
    for target in missing:
        message = "link to %s: there is no such file in the repository"
        logging.getLogger(__name__).warning(message, target, location=docname)


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.add_config_value("repository_url", "", "env")
    app.connect("source-read", _on_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
