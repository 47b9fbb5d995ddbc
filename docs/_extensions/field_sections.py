"""Shows the fields of classes with their comments: ``alpha: float = 0.5  # what it means`` is a line of the page."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

from depthmup_flax.config import field_comments

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def _on_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Writes the section "Fields", which napoleon formats: that of the docstring, with the comments."""
    if what != "class":
        return
    lines[:] = ["Fields:" if line == "Attributes:" else line for line in lines]
    is_enum = issubclass(obj, enum.Enum)
    if not (dataclasses.is_dataclass(obj) or is_enum):
        return
    comments = field_comments.of_class(obj)
    if comments:
        while lines and not lines[-1]:
            lines.pop()
        section = [] if "Fields:" in lines else ["", "Values:" if is_enum else "Fields:"]
        lines += [*section, *(f"  {field}: {text}" for field, text in comments.items()), ""]


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
