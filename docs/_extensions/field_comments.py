"""Shows the fields of classes with their comments: ``alpha: float = 0.5  # what it means`` is a line of the page."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import io
import itertools
import tokenize
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def field_comments(cls: type) -> dict[str, str]:
    """Name -> comment for the fields in a class's body: the comment lines above a field, and the one beside it."""
    comments: dict[str, str] = {}
    above: list[str] = []
    name = ""
    depth = 0
    try:
        source = inspect.cleandoc("\n" + inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    first_of_line = True
    for token, after in itertools.pairwise(tokens):
        if token.type == tokenize.INDENT:
            depth += 1
        elif token.type == tokenize.DEDENT:
            depth -= 1
        elif token.type == tokenize.COMMENT and depth == 1:
            if first_of_line:
                above.append(_words(token))
            elif name:
                comments[name] = " ".join([comments[name], _words(token)]).strip()
        elif token.type == tokenize.NAME and first_of_line and depth == 1 and after.string in (":", "="):
            name = token.string
            comments[name], above = " ".join(above), []
        elif token.type == tokenize.NEWLINE:
            name = ""
        elif token.type == tokenize.NL and token.line.isspace():
            above = []
        if token.type not in (tokenize.INDENT, tokenize.DEDENT):
            first_of_line = token.type in (tokenize.NEWLINE, tokenize.NL)
    return {field: comment for field, comment in comments.items() if comment}


def _words(token: tokenize.TokenInfo) -> str:
    return token.string.lstrip("#").strip()


def _on_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Writes the section "Fields", which napoleon formats: that of the docstring, or one of the comments."""
    if what != "class":
        return
    lines[:] = ["Fields:" if line == "Attributes:" else line for line in lines]
    is_enum = issubclass(obj, enum.Enum)
    if "Fields:" in lines or not (dataclasses.is_dataclass(obj) or is_enum):
        return
    comments = field_comments(obj)
    if comments:
        section = "Values:" if is_enum else "Fields:"
        lines += ["", section, *(f"  {field}: {text}" for field, text in comments.items()), ""]


_PLAIN: dict[str, list[str]] = {}


def _save(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Napoleon would read the words before a colon in a property's docstring as its type."""
    if what in ("attribute", "property"):
        _PLAIN[name] = list(lines)


def _restore(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if name in _PLAIN:
        lines[:] = _PLAIN.pop(name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension; napoleon's priority is 500."""
    app.connect("autodoc-process-docstring", _on_docstring, priority=400)
    app.connect("autodoc-process-docstring", _save, priority=400)
    app.connect("autodoc-process-docstring", _restore, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
