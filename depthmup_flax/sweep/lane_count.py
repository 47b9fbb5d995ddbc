"""How many lanes a program should have: measured, because it depends on the network and on the machine.

Small matrix products gain most from ``vmap``, convolutions on a CPU lose by it, and memory bounds both.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

import jax

from depthmup_flax.errors import InputError
from depthmup_flax.sweep.grid import Run
from depthmup_flax.sweep.program import Program

# Another number of lanes is tried while the runs are expected to take this many times the last compilation.
_WORTH = 8.0
_GAIN = 0.95  # a smaller share of the time per step counts as a gain
_RATIO = 4  # between numbers of lanes that are tried
_MEMORY_SHARE = 0.8


def parse_lanes(text: str) -> int | None:
    """The flag ``--lanes``: ``auto`` is ``None``, ``all`` is 0, else a number of lanes per device."""
    if text == "auto":
        return None
    if text == "all":
        return 0
    if text.isdigit() and int(text) > 0:
        return int(text)
    raise InputError(f"--lanes={text}: use auto (measure), all (vectorize), 1 (one after another) or a number.")


def candidates(runs: int, devices: int) -> list[int]:
    """Numbers of lanes per device to try, ascending, each with few empty lanes in its last chunk."""
    largest = math.ceil(runs / devices)
    found = {1, largest}
    chunks = _RATIO
    while chunks < largest:
        found.add(math.ceil(largest / chunks))
        chunks *= _RATIO
    return sorted(found)


def choose(
    make: Callable[[int], Program], runs: Sequence[Run], devices: int, lanes: int | None, hint: int = 1
) -> tuple[Program, float]:
    """The fastest program for ``runs`` that fits into memory, and its measured seconds per run and step.

    Args:
      make: lanes per device -> compiled program.
      runs: of one structural group.
      devices: over which lanes are spread.
      lanes: forced number per device, 0 for all runs at once, ``None`` to measure. Memory bounds it in any case.
      hint: where to start measuring; what was best for a similar group.
    """
    options = candidates(len(runs), devices)
    if lanes is not None:
        return _largest_that_fits(make, runs, min(lanes or options[-1], options[-1]))
    nearest = max(option for option in options if option <= max(hint, 1))
    program, seconds = _largest_that_fits(make, runs, nearest)
    first = program
    for ordered in (options, options[::-1]):
        while other := _better(make, runs, _after(ordered, program.per_device), program, seconds):
            program, seconds = other
        if program is not first:  # more lanes were faster, so fewer need no trial
            break
    return program, seconds


def _after(ordered: Sequence[int], lanes: int) -> int | None:
    """The first option beyond ``lanes``, upwards or downwards as ``ordered`` runs."""
    upwards = ordered[0] < ordered[-1]
    return next((option for option in ordered if (option > lanes if upwards else option < lanes)), None)


def _better(
    make: Callable[[int], Program], runs: Sequence[Run], option: int | None, program: Program, seconds: float
) -> tuple[Program, float] | None:
    """The program with another number of lanes, if trying is worth a compilation and it is faster."""
    left = len(runs) * program.experiment.total_steps * seconds
    if option is None or left < _WORTH * program.compile_s:
        return None
    other = make(option)
    if other.bytes_per_device > memory_limit():
        return None
    found = other.seconds_per_run_step(runs)
    return (other, found) if found < _GAIN * seconds else None


def memory_limit() -> float:
    """Bytes that a program may take on each device."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return _MEMORY_SHARE * stats["bytes_limit"]
    # Host devices share the machine's memory with its other programs.
    return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / jax.local_device_count()


def _largest_that_fits(make: Callable[[int], Program], runs: Sequence[Run], lanes: int) -> tuple[Program, float]:
    while (program := make(lanes)).bytes_per_device > memory_limit() and lanes > 1:
        lanes = math.ceil(lanes / 2)
    return program, program.seconds_per_run_step(runs)
