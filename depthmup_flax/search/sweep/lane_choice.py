"""How many runs of a group train together on a device: compiled programs, their memory and their measured speed."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Hashable, Sequence

import jax
from jax.sharding import Mesh

from depthmup_flax.devices import sharding
from depthmup_flax.search.sweep.grid import Run
from depthmup_flax.search.sweep.groups import Group
from depthmup_flax.trainer.engine.lanes import LaneProgram, LaneRun, cohorts, one_seed_fits
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Batch


class GroupPrograms:
    """Compiles programs for a group, each once. They depend on the whole group: a restart compiles the same ones.

    For ``mesh`` and ``data`` see `LaneProgram`; ``compiled`` holds the programs by the arguments of `get`.
    """

    def __init__(self, group: Group, mesh: Mesh, data: Batch | None) -> None:
        self.group, self.experiment, self.mesh, self._data = group, group.experiment, mesh, data
        self.compiled: dict[tuple[int, bool], LaneProgram] = {}

    def get(self, per_device: int, one_seed: bool) -> LaneProgram:
        """The program with ``per_device`` lanes on each device, all of one seed or of any."""
        key = per_device, one_seed
        if key not in self.compiled:
            self.compiled[key] = LaneProgram(self.experiment, self.group.runs, self.mesh, *key, self._data)
        return self.compiled[key]

    def for_runs(self, runs: Sequence[LaneRun], per_device: int) -> LaneProgram:
        """The program that trains all of ``runs``, cohort after cohort, and the whole group."""
        devices = self.mesh.size
        fits = lambda runs: all(one_seed_fits(part, per_device, devices) for part in cohorts(runs, per_device, devices))
        return self.get(per_device, fits(self.group.runs) and fits(runs))


# Another number of lanes is tried while the runs are expected to take this many times the last compilation. On a CPU,
# two and four lanes of SimpleResNet 32x6 took 1.8 and 2.1 times as long per run as one; other convolutions may differ.
_WORTH, _WORTH_OF_CONVOLUTIONS_ON_CPU = 8.0, 100.0
# On an H200, 27 lanes of ResMLP 128x8 took .06 times as long per run as one: fewer lanes seldom pay.
_WORTH_ON_ACCELERATOR = 30.0
_GAIN = 0.95  # a smaller share of the time per step counts as a gain
_RATIO = 4  # between numbers of lanes that are tried
MEMORY_SHARE = 0.8


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
    experiment = programs.experiment
    leaves, structure = jax.tree.flatten(experiment.state_shapes())
    arrays = tuple((x.shape, str(x.dtype)) for x in leaves)
    train = experiment.total_steps, experiment.config.train.batch_size
    return len(runs), *train, experiment.convolves, structure, arrays


def _on_cpu(programs: GroupPrograms) -> bool:
    return sharding.platform(programs.mesh) == "cpu"


def _faster(
    programs: GroupPrograms, runs: Sequence[Run], first: LaneProgram, seconds: float
) -> tuple[LaneProgram, float]:
    """The best of programs with more lanes, or else with fewer, as long as each is faster than the one before."""
    worth = _WORTH_ON_ACCELERATOR
    if _on_cpu(programs):
        worth = _WORTH_OF_CONVOLUTIONS_ON_CPU if programs.experiment.convolves else _WORTH
    options, best = candidates(len(runs), programs.mesh.size), first
    more = [option for option in options if option > first.per_device]
    fewer = [option for option in reversed(options) if option < first.per_device]
    for others in (more, fewer):
        for option in others:
            left = len(runs) * best.experiment.total_steps * seconds
            other = _compiled(programs, runs, option) if left >= worth * best.compile_s else None
            if other is None or not _fits(other) or (measured := other.seconds_per_run_step(runs)) >= _GAIN * seconds:
                break
            best, seconds = other, measured
        if best is not first:  # more lanes were faster, so fewer need no trial
            break
    return best, seconds


def memory_limit() -> float:
    """Bytes that a program may take on each device."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return MEMORY_SHARE * stats["bytes_limit"]
    # Host devices share the machine's memory with other programs.
    return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / jax.local_device_count()


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
