"""How many runs of a group train together on a device: by the work of a step and the memory of compiled programs."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
from jax.sharding import Mesh

from depthmup_flax.devices import sharding
from depthmup_flax.search.sweep.grid import Run
from depthmup_flax.search.sweep.groups import Group
from depthmup_flax.trainer.engine.lanes import LaneProgram, LaneRun, cohorts, one_seed_fits
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Batch

T = TypeVar("T")


class GroupPrograms:
    """Compiles programs for a group, each once. They depend on the whole group: a restart compiles the same ones.

    Groups that are added later may train in them, too (`serves`). For ``mesh`` and ``data`` see `LaneProgram`;
    ``compiled`` holds the programs by the arguments of `get`.
    """

    def __init__(self, group: Group, mesh: Mesh, data: Batch | None) -> None:
        self.group, self.experiment, self.mesh, self._data = group, group.experiment, mesh, data
        self.compiled: dict[tuple[int, bool], LaneProgram] = {}

    def get(self, per_device: int, one_seed: bool) -> LaneProgram:
        """The program with ``per_device`` lanes on each device, all of one seed or of any."""
        key = per_device, one_seed
        if key not in self.compiled:
            group = self.group
            self.compiled[key] = LaneProgram(self.experiment, group.runs, self.mesh, *key, self._data, free=group.free)
        return self.compiled[key]

    def for_runs(self, runs: Sequence[LaneRun], per_device: int) -> LaneProgram:
        """The program that trains all of ``runs``, cohort after cohort, and the whole group."""
        devices = self.mesh.size
        fits = lambda runs: all(one_seed_fits(part, per_device, devices) for part in cohorts(runs, per_device, devices))
        return self.get(per_device, fits(self.group.runs) and fits(runs))


# On a CPU, the most FLOP in the matrix products of a step of all lanes of a device. Smaller steps wait for the host: in
# 4 lanes a run of ResMLP 32x4 (2.2e6) took 0.2 to 0.4 times as long as in one, 128x8 (5.3e7) 1.1 times.
_STEP_FLOPS = 1e7
# The most FLOP in the matrix products of empty lanes, to save a compilation: a few seconds on a core, for networks that
# are tiny enough to have lanes there.
_EMPTY_FLOPS = 5e9
MEMORY_SHARE = 0.8
_REFUSALS = (
    r"required for HLO temporaries \((?P<without_data>[\d.]+\w)\) exceeds available \w+ \((?P<available>[\d.]+\w)\)",
    r"Used (?P<used>[\d.]+\w) of (?P<available>[\d.]+\w)",
)


def choose_program(programs: GroupPrograms, runs: Sequence[Run], lanes: int | None) -> LaneProgram:
    """The program that trains ``runs`` of a group: with as many lanes on each device as pay and fit into memory.

    Another number of lanes rounds differently. So no clock decides, and runs that are left after an interruption train
    in the program of the whole group. On an accelerator lanes cost little until they fill it: on an H200, 27 lanes of
    ResMLP 128x8 took .06 times as long per run as one. On a CPU, two and four lanes of SimpleResNet 32x6 took 1.8 and
    2.1 times as long as one.

    ``lanes``: the most; 0: all runs at once; ``None``: by the work of a step.
    """
    _, program = largest_that_fits(programs, runs, _most_lanes(programs.group, programs.mesh, lanes), memory_limit())
    if isinstance(program, OutOfMemory):
        raise InputError(
            f"train.batch_size is {runs[0].config.train.batch_size}: a single run does not fit into a device's "
            "memory. Lower it, or set train.accumulate or model.remat."
        )
    return program


def _most_lanes(group: Group, mesh: Mesh, lanes: int | None) -> int:
    """On each device, before memory is looked at; ``lanes`` as for `choose_program`."""
    most = math.ceil(len(group.runs) / mesh.size)
    if lanes is None and sharding.platform(mesh) == "cpu":
        pays = 1 if group.experiment.convolves else max(1, int(_STEP_FLOPS / max(group.step_flops, 1)))
        lanes = fewer_lanes(pays + 1, most, 1.0)
    return min(lanes or most, most)


def serves(earlier: Group, group: Group, mesh: Mesh, lanes: int | None) -> bool:
    """Whether ``group`` trains in the programs of an ``earlier`` one, of the same structure, instead of in its own.

    It does unless its runs differ in a constant of those programs, have more seeds, for whose examples there is no
    room, or empty lanes would compute more than a compilation costs. By the groups alone, as in `choose_program`, whose
    ``lanes`` this takes.
    """
    constants = {name: value for name, value in _agreed(earlier.runs).items() if name not in earlier.free}
    if _seeds(group) > _seeds(earlier) or not constants.items() <= _agreed(group.runs).items():
        return False
    at_once = _most_lanes(earlier, mesh, lanes)
    empty = -len(group.runs) % (at_once * mesh.size)
    return at_once == 1 or empty * earlier.step_flops * earlier.experiment.total_steps <= _EMPTY_FLOPS


def _agreed(runs: Sequence[LaneRun]) -> dict[str, float]:
    """The hyperparameters in which no two of ``runs`` differ."""
    first = runs[0].hyperparameters
    return {name: value for name, value in first.items() if all(run.hyperparameters[name] == value for run in runs)}


def _seeds(group: Group) -> int:
    return len({run.seed for run in group.runs})


def memory_limit() -> float:
    """Bytes that a program may take on each device."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return MEMORY_SHARE * stats["bytes_limit"]
    # Host devices share the machine's memory with other programs.
    return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / jax.local_device_count()


def fewer_lanes(lanes: int, runs: int, share: float) -> int:
    """The next number to try if memory holds only a ``share`` of what ``lanes`` take; ``runs``: of one device."""
    most = max(1, min(lanes - 1, int(lanes * share)))
    return math.ceil(runs / math.ceil(runs / most))


@dataclasses.dataclass(frozen=True)
class OutOfMemory:
    """The compiler's refusal: bytes on each device; 0 if it does not say how many there are."""

    available: int = 0
    used: int | None = None  # in all
    # Temporaries and the new state: the compiler counts the new state among them, although it replaces the old one.
    without_data: int | None = None


def unless_out_of_memory(compile_it: Callable[[], T]) -> T | OutOfMemory:
    """The result of ``compile_it``, or the compiler's refusal for lack of memory, as XLA:TPU has it."""
    try:
        return compile_it()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        found = next(filter(None, (re.search(pattern, str(error)) for pattern in _REFUSALS)), None)
        size = lambda text: int(float(text[:-1]) * 1024 ** " KMGTP".index(text[-1]))
        return OutOfMemory(**{name: size(text) for name, text in (found.groupdict() if found else {}).items()})


def largest_that_fits(
    programs: GroupPrograms, runs: Sequence[LaneRun], lanes: int, memory: float
) -> tuple[int, LaneProgram | OutOfMemory]:
    """The program with the most lanes on each device, from ``lanes`` down, that takes at most ``memory``; one in any
    case, which the compiler may refuse.
    """
    on_device = math.ceil(len(programs.group.runs) / programs.mesh.size)
    while True:
        program = unless_out_of_memory(functools.partial(programs.for_runs, runs, lanes))
        if isinstance(program, OutOfMemory):
            share = program.available / program.used if program.used else 0.5
        else:
            share = memory / max(program.bytes_per_device, 1)
        if lanes == 1 or share >= 1:
            return lanes, program
        lanes = fewer_lanes(lanes, on_device, share)
