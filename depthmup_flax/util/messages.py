"""What the library says to whoever listens: log messages below ``depthmup_flax``; the commands show them.

The library leaves every logger as it is: who uses it hears of progress by ``logging.basicConfig(level=logging.INFO)``.
"""

from __future__ import annotations

import logging
import sys

RESULT = {"result": True}  # ``extra`` of a message that is the outcome of a command: --quiet shows it, too

PACKAGE = logging.getLogger("depthmup_flax")


def next_step(command: str) -> None:
    """Says which command a user most likely wants after this one."""
    PACKAGE.info("next: %s", command)


def rewrites_lines() -> bool:
    """Whether progress is shown as a line that is rewritten: a command line, on a terminal, not ``--quiet``."""
    return any(getattr(handler, "rewrites_lines", False) for handler in PACKAGE.handlers) and sys.stdout.isatty()
