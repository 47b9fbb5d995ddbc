"""Compiles the training step of a run, or of the largest group of a sweep, for devices that may be absent."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Sequence

import jax
from jax.sharding import Mesh, NamedSharding
from ml_collections import ConfigDict

from depthmup_flax.data import Dataset
from depthmup_flax.devices import sharding
from depthmup_flax.search.sweep import lane_choice
from depthmup_flax.search.sweep.grid import expand
from depthmup_flax.search.sweep.groups import plan
from depthmup_flax.search.sweep.lane_choice import OutOfMemory, unless_out_of_memory
from depthmup_flax.trainer.engine.device_batches import abstract_train_data
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.engine.lanes import LANES, LaneProgram, lane_mesh
from depthmup_flax.trainer.engine.program import ShardedProgram
from depthmup_flax.trainer.engine.task import TrainState
from depthmup_flax.util.flops import count_flops
from depthmup_flax.util.surroundings import own_surroundings

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LanesOfGroup:
    """The part of a sweep that a program trains."""

    label: str  # of the structural group
    runs: int  # in the group
    per_device: int  # runs trained together on each device


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """A compiled training step."""

    experiment: Experiment  # the run, or any run of the group
    mesh: Mesh  # the devices
    state: TrainState  # shapes and shardings
    data: dict[str, jax.ShapeDtypeStruct] | None  # shapes of the examples on the devices; ``None`` if they are streamed
    compiled: jax.stages.Compiled | OutOfMemory  # the program, or the compiler's refusal
    flops: int  # FLOP of the matrix products of one step, on all devices; 0 if not known
    compile_s: float  # seconds of tracing and compilation
    lanes: LanesOfGroup | None = None  # ``None`` for a run


@own_surroundings()
def compile_run(
    config: ConfigDict, devices: Sequence[jax.Device], load: Callable[[ConfigDict], Dataset]
) -> PlannedStep:
    """The step of ``depthmup train`` with ``config``; `InputError` if it cannot run on this number of devices."""
    experiment = build(config, load=load)
    mesh = sharding.make_mesh(config.mesh, devices)
    sharding.require_divisible(config.train.batch_size, config.train.accumulate, mesh)
    data = abstract_train_data(experiment.dataset, mesh)
    _announce(devices)
    started = time.perf_counter()
    program = ShardedProgram(experiment, mesh, data)
    traced = program.traced()
    compiled = unless_out_of_memory(traced.lower().compile)
    seconds = time.perf_counter() - started
    return PlannedStep(experiment, mesh, program.abstract_state, data, compiled, count_flops(traced.jaxpr), seconds)


@own_surroundings()
def compile_sweep(
    config: ConfigDict,
    devices: Sequence[jax.Device],
    load: Callable[[ConfigDict], Dataset],
    lanes: int | None,
    memory: float | None,
) -> PlannedStep:
    """The step of the most expensive structural group of a sweep; each device trains lanes of its own.

    Args:
      config, devices, load: see `compile_run`.
      lanes: on each device; 0: one for each run; ``None``: the largest number that a sweep would try and that fits.
      memory: bytes of a device; ``None`` if not known.
    """
    group = max(plan(config, expand(config), load), key=lambda group: group.experiment.cost)
    mesh = lane_mesh(devices)
    data = abstract_train_data(group.experiment.dataset, mesh)
    _announce(devices)
    programs = lane_choice.GroupPrograms(group, mesh, data)
    most = math.ceil(len(group.runs) / mesh.size)
    started = time.perf_counter()
    if lanes is None:
        # A sweep leaves some memory free, unless it trains one run at a time.
        limit = math.inf if memory is None else lane_choice.MEMORY_SHARE * memory
        per_device, program = lane_choice.largest_that_fits(programs, group.runs, most, limit)
    else:
        per_device = min(lanes or most, most)
        program = unless_out_of_memory(functools.partial(programs.for_runs, group.runs, per_device))
    seconds = time.perf_counter() - started
    place = NamedSharding(mesh, LANES)
    lanes_of = lambda x: jax.ShapeDtypeStruct((per_device * mesh.size, *x.shape), x.dtype, sharding=place)
    state = jax.tree.map(lanes_of, group.experiment.state_shapes())
    flops = count_flops(program.traced().jaxpr) if isinstance(program, LaneProgram) else 0
    compiled = program.compiled if isinstance(program, LaneProgram) else program
    part = LanesOfGroup(group.label, len(group.runs), per_device)
    return PlannedStep(group.experiment, mesh, state, data, compiled, flops, seconds, part)


def _announce(devices: Sequence[jax.Device]) -> None:
    """Says what takes so long."""
    log.info("compiling for %d x %s, which may take minutes", len(devices), devices[0].device_kind)
