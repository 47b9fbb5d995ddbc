"""Log messages of the library, below ``depthmup_flax``. Commands show them.

The library configures no logger: ``logging.basicConfig(level=logging.INFO)`` shows its progress.
"""

from __future__ import annotations

import logging
import sys

RESULT = {"result": True}  # ``extra`` of a message that --quiet shows, too

PACKAGE = logging.getLogger("depthmup_flax")


def next_step(command: str) -> None:
    """Logs the command that usually follows this one."""
    PACKAGE.info("next: %s", command)


def rewrites_lines() -> bool:
    """Whether progress may rewrite its line: in a command, on a terminal, without ``--quiet``."""
    return any(getattr(handler, "rewrites_lines", False) for handler in PACKAGE.handlers) and sys.stdout.isatty()
