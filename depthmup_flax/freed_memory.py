"""Memory that the commands keep for the next training step instead of returning it to the system."""

from __future__ import annotations

import ctypes
import os
import pathlib
from collections.abc import Mapping

# glibc's mallopt(3): parameter -> value.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 2**31 - 1  # the largest value
_OLDEST = (2, 35)  # glibc: before, thresholds were at most 32 MB
_VARIABLES = (
    "GLIBC_TUNABLES",
    *(f"MALLOC_{name}_" for name in ("TRIM_THRESHOLD", "MMAP_THRESHOLD", "MMAP_MAX", "TOP_PAD")),
    "MALLOC_ARENA_MAX",
)
_ACCELERATORS = ("nvidia[0-9]*", "accel*", "vfio/[0-9]*", "kfd")  # in /dev: GPUs and TPUs


def can_keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `keep_freed_memory` has an effect.

    It needs glibc 2.35, none of glibc's own variables set by the user, and a machine that trains on its CPU.
    """
    return not any(environment.get(name) for name in _VARIABLES) and _glibc() >= _OLDEST and _trains_on_cpu(environment)


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Makes the process keep freed memory where `can_keep_freed_memory`; returns whether it does.

    XLA:CPU allocates the temporary memory of every step anew. By default glibc asks the system for it, page by page,
    and returns it after the step: 8 to 13 % of the step of a ViT or a ResNet. Then the process's memory stays near its
    peak; only allocations of 2 GiB and more are returned. Call before threads start.
    """
    if not can_keep_freed_memory(environment):
        return False
    # Threads would have arenas of their own, which map whatever is larger than 32 MB.
    options = {_MMAP_THRESHOLD: _KEPT_BYTES, _TRIM_THRESHOLD: _KEPT_BYTES, _ARENA_MAX: 1}
    set_option = ctypes.CDLL(None).mallopt
    return all(set_option(name, value) for name, value in options.items())


def _glibc() -> tuple[int, ...]:
    """Version of the C library; empty if it is not glibc."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return tuple(map(int, version.split("."))) if name == "glibc" else ()
    except (AttributeError, OSError, ValueError):  # not known on this system
        return ()


def _trains_on_cpu(environment: Mapping[str, str]) -> bool:
    if platforms := environment.get("JAX_PLATFORMS"):
        return platforms == "cpu"
    return not any(any(pathlib.Path("/dev").glob(pattern)) for pattern in _ACCELERATORS)
