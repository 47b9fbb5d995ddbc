"""Log messages of the library, below ``depthmup_flax``. Commands show them.

The library configures no logger: ``logging.basicConfig(level=logging.INFO)`` shows its progress.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

RESULT = {"result": True}  # ``extra`` of a message that --quiet shows, too

PACKAGE = logging.getLogger("depthmup_flax")


class _Lines(logging.StreamHandler[TextIO]):
    """Writes messages as lines to the current standard output, which a notebook replaces."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(message)s"))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """The current one."""
        return sys.stdout


def show_lines() -> None:
    """Shows progress as plain lines in a script or notebook, unless a handler of the program's own does.

    A handler that `logging` has made by itself, at the first ``logging.warning`` of any library, is none of its own:
    it would write ``INFO:depthmup_flax.search...:`` before each line.
    """
    PACKAGE.setLevel(logging.INFO)
    implicit = [handler for handler in logging.root.handlers if _is_implicit(handler)]
    own = [handler for handler in logging.root.handlers if handler not in implicit]
    if own or any(isinstance(handler, _Lines) for handler in PACKAGE.handlers):
        return
    for handler in implicit:
        handler.addFilter(_is_of_others)
    PACKAGE.addHandler(_Lines())


def _is_implicit(handler: logging.Handler) -> bool:
    text = getattr(handler.formatter, "_fmt", None)
    return type(handler) is logging.StreamHandler and text == logging.BASIC_FORMAT


def _is_of_others(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] != PACKAGE.name


def next_step(command: str) -> None:
    """Logs the command that usually follows this one."""
    PACKAGE.info("next: %s", command)


def rewrites_lines() -> bool:
    """Whether progress may rewrite its line: in a command, on a terminal, without ``--quiet``."""
    return any(getattr(handler, "rewrites_lines", False) for handler in PACKAGE.handlers) and sys.stdout.isatty()
