"""Python's garbage collector, which takes a part of a start: it visits all objects, and a start makes millions."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_THRESHOLD = 50_000  # objects between two collections; Python's default is 700 or 2000


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Collects seldom, for imports and traces: hardly any of their objects is garbage."""
    before = gc.get_threshold()
    if 0 < before[0] < _THRESHOLD:
        gc.set_threshold(_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
