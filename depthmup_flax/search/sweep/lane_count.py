"""Chooses the number of lanes by a short benchmark.

Small matrix products gain most from ``vmap``, convolutions on a CPU lose; memory bounds both.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Hashable, Sequence

import jax

from depthmup_flax.devices.parallel import sharding
from depthmup_flax.search.sweep.grid import Run
from depthmup_flax.search.sweep.program_group import GroupPrograms
from depthmup_flax.trainer.engine.lane_program import LaneProgram
from depthmup_flax.util.errors import InputError

# Another number of lanes is tried while the runs are expected to take this many times the last compilation. On a CPU,
# two and four lanes of SimpleResNet 32x6 took 1.8 and 2.1 times as long per run as one; other convolutions may differ.
_WORTH, _WORTH_OF_CONVOLUTIONS_ON_CPU = 8.0, 100.0
# On an H200, 27 lanes of ResMLP 128x8 took .06 times as long per run as one: fewer lanes seldom pay.
_WORTH_ON_ACCELERATOR = 30.0
_GAIN = 0.95  # a smaller share of the time per step counts as a gain
_RATIO = 4  # between numbers of lanes that are tried
MEMORY_SHARE = 0.8


def parse_lanes(text: str) -> int | None:
    """The flag ``--lanes``: ``auto`` is ``None``, ``all`` is 0, else a number of lanes per device."""
    if text in ("auto", "all"):
        return None if text == "auto" else 0
    if text.isdigit() and int(text) > 0:
        return int(text)
    raise InputError(f"--lanes is {text}: use auto (benchmark), all (vectorize), 1 (one after another) or a number.")


def candidates(runs: int, devices: int) -> list[int]:
    """Numbers of lanes per device to try, ascending, each with few empty lanes in the last cohort."""
    largest = math.ceil(runs / devices)
    return sorted({math.ceil(largest / _RATIO**i) for i in range(largest.bit_length() + 1)})


@dataclasses.dataclass
class Chosen:
    """Numbers of lanes that were chosen for earlier groups of a sweep."""

    last: int = 1
    by_shape: dict[Hashable, int] = dataclasses.field(default_factory=dict)  # see `_shape`


def choose_program(
    programs: GroupPrograms, runs: Sequence[Run], lanes: int | None, chosen: Chosen
) -> tuple[LaneProgram, float]:
    """The fastest program for ``runs`` that fits into memory, and its measured seconds per run and step.

    ``lanes``: the most per device; 0: all runs at once; ``None``: measure, unless ``chosen`` has a group of this shape.
    The choice is added to ``chosen``.
    """
    program = first_program(programs, runs, lanes, chosen)
    seconds = program.seconds_per_run_step(runs)
    if lanes is None and (shape := _shape(programs, runs)) not in chosen.by_shape:
        program, seconds = _faster(programs, runs, program, seconds)
        chosen.by_shape[shape] = program.per_device
    chosen.last = program.per_device
    return program, seconds


def first_program(programs: GroupPrograms, runs: Sequence[Run], lanes: int | None, chosen: Chosen) -> LaneProgram:
    """The program with which `choose_program` begins, which fits into memory; it is compiled, and nothing is run."""
    options = candidates(len(runs), programs.mesh.size)
    if lanes == 0:
        return _largest_that_fits(programs, runs, options[-1])
    if lanes is not None:
        # Of the whole group: the runs that are left after an interruption must train in the same program, because
        # another one rounds differently.
        return _largest_that_fits(programs, runs, min(lanes, math.ceil(len(programs.group.runs) / programs.mesh.size)))
    # On an accelerator lanes cost little until they fill it; a trial may only lower their number.
    similar = max(option for option in options if option <= max(chosen.last, 1))
    start = similar if _on_cpu(programs) else options[-1]
    return _largest_that_fits(programs, runs, chosen.by_shape.get(_shape(programs, runs), start))


def _shape(programs: GroupPrograms, runs: Sequence[Run]) -> Hashable:
    """Of the arrays of a step, and the numbers of runs and steps: what decides the best number of lanes."""
    workload = programs.workload
    leaves, structure = jax.tree.flatten(workload.shapes)
    arrays = tuple((x.shape, str(x.dtype)) for x in leaves)
    return len(runs), workload.periods.total, workload.batch_size, workload.convolves, structure, arrays


def _on_cpu(programs: GroupPrograms) -> bool:
    return sharding.platform(programs.mesh) == "cpu"


def _faster(
    programs: GroupPrograms, runs: Sequence[Run], first: LaneProgram, seconds: float
) -> tuple[LaneProgram, float]:
    """The best of programs with more lanes, or else with fewer, as long as each is faster than the one before."""
    options, program = candidates(len(runs), programs.mesh.size), first
    more = [option for option in options if option > first.per_device]
    fewer = [option for option in reversed(options) if option < first.per_device]
    for others in (more, fewer):
        for option in others:
            better = _better(programs, runs, option, program, seconds)
            if better is None:
                break
            program, seconds = better
        if program is not first:  # more lanes were faster, so fewer need no trial
            break
    return program, seconds


def memory_limit() -> float:
    """Bytes that a program may take on each device."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return MEMORY_SHARE * stats["bytes_limit"]
    # Host devices share the machine's memory with other programs.
    return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / jax.local_device_count()


def _better(
    programs: GroupPrograms, runs: Sequence[Run], option: int, program: LaneProgram, seconds: float
) -> tuple[LaneProgram, float] | None:
    """The program with another number of lanes, if it is worth a compilation, fits and is faster."""
    left = len(runs) * program.workload.periods.total * seconds
    worth = _WORTH_ON_ACCELERATOR
    if _on_cpu(programs):
        worth = _WORTH_OF_CONVOLUTIONS_ON_CPU if program.workload.convolves else _WORTH
    if left < worth * program.compile_s:
        return None
    other = _compiled(programs, runs, option)
    if other is None or not _fits(other):
        return None
    measured = other.seconds_per_run_step(runs)
    return (other, measured) if measured < _GAIN * seconds else None


def fewer_lanes(lanes: int, runs: int, share: float) -> int:
    """The next number to try if memory holds only a ``share`` of what ``lanes`` take; ``runs``: of one device.

    Memory grows nearly as lanes do. The last cohort has few empty lanes.
    """
    most = max(1, min(lanes - 1, int(lanes * share)))
    return math.ceil(runs / math.ceil(runs / most))


def _largest_that_fits(programs: GroupPrograms, runs: Sequence[Run], lanes: int) -> LaneProgram:
    on_device = math.ceil(len(runs) / programs.mesh.size)
    while True:
        program = _compiled(programs, runs, lanes)
        if program is not None and _fits(program):
            return program
        if lanes == 1:
            raise InputError(
                f"train.batch_size is {runs[0].config.train.batch_size}: a single run does not fit into a device's "
                "memory. Lower it, or set train.accumulate or model.remat."
            )
        lanes = fewer_lanes(lanes, on_device, 0.5 if program is None else memory_limit() / program.bytes_per_device)


def _compiled(programs: GroupPrograms, runs: Sequence[Run], lanes: int) -> LaneProgram | None:
    """The program with ``lanes`` on each device; ``None`` if the compiler refuses it for lack of memory."""
    try:
        return programs.for_runs(runs, lanes)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):  # XLA:TPU refuses to compile what does not fit
            return None
        raise


def _fits(program: LaneProgram) -> bool:
    """Whether there is memory for it; a single lane is tried in any case."""
    return program.per_device == 1 or program.bytes_per_device <= memory_limit()
