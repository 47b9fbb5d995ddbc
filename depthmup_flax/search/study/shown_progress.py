"""Progress of a `Study` on standard output, where the session has not configured logging."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def shown_progress() -> Iterator[None]:
    """Shows what the package logs at level INFO, as plain lines, unless that level is enabled already."""
    package = logging.getLogger("depthmup_flax")
    if package.isEnabledFor(logging.INFO):
        yield
        return
    handler, before = logging.StreamHandler(sys.stdout), (package.level, package.propagate)
    handler.setFormatter(logging.Formatter("%(message)s"))
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    package.propagate = False  # handlers of other libraries at the root would show it again
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(before[0])
        package.propagate = before[1]
