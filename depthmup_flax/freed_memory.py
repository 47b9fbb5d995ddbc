"""Memory that the commands keep for the next training step instead of returning it to the system."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping

# glibc's mallopt(3): parameter -> value.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 2**31 - 1  # the largest value
_VARIABLES = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")


def can_keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `keep_freed_memory` has an effect: the C library is glibc, and the user has set none of its variables."""
    return not any(environment.get(name) for name in _VARIABLES) and _mallopt() is not None


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Makes the process keep up to 2 GiB of freed memory where `can_keep_freed_memory`; returns whether it does.

    XLA:CPU allocates the temporary memory of every step anew. By default glibc asks the system for it, page by page,
    and returns it after the step: 8 to 13 % of the step of a ViT or a ResNet. Larger allocations are returned as
    before. Call before threads start.
    """
    set_option = _mallopt()
    if set_option is None or not can_keep_freed_memory(environment):
        return False
    # Threads would have arenas of their own, which map whatever is larger than 32 MB.
    options = {_ARENA_MAX: 1, _MMAP_THRESHOLD: _KEPT_BYTES, _TRIM_THRESHOLD: _KEPT_BYTES}
    return all([set_option(name, value) for name, value in options.items()])


def _mallopt() -> Callable[[int, int], int] | None:
    try:
        function: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return None
    return function
