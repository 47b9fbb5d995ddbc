"""How long groups of a sweep will take, from the speed of a few of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from depthmup_flax.search.sweep.lane_count import Chosen, choose_program
from depthmup_flax.search.sweep.program_group import Group, GroupPrograms
from depthmup_flax.trainer.engine.cohort import Cohort
from depthmup_flax.trainer.engine.device_batches import put_train_data
from depthmup_flax.trainer.engine.lane_layout import cohorts
from depthmup_flax.trainer.engine.lane_program import lane_mesh


@dataclasses.dataclass(frozen=True)
class Speed:
    """What a group was measured to take.

    Attributes:
      lanes: chosen for each device.
      devices: that train them.
      bytes_per_device: of a training step.
      step_s: seconds of a training step divided by the number of lanes of all devices.
      cost: `Experiment.cost` of a run.
      run_s: seconds of a run, with its evaluation and its share of empty lanes.
      once_s: seconds of compilations and trials.
    """

    lanes: int
    devices: int
    bytes_per_device: int
    step_s: float
    cost: float
    run_s: float
    once_s: float


def measure(group: Group, lanes: int | None) -> Speed:
    """Compiles all programs of a group, and takes a few steps and two evaluations of the initial networks."""
    mesh, experiment = lane_mesh(), group.experiment
    started = time.perf_counter()
    programs = GroupPrograms(group, mesh, put_train_data(experiment.dataset, mesh))
    program, step_s = choose_program(programs, group.runs, lanes, Chosen())
    parts = cohorts(group.runs, program.per_device, mesh.size)
    cohort = Cohort.of(program, parts[0])
    program.test(cohort.state, cohort.lanes)  # compiles
    compiled = time.perf_counter()
    program.test(cohort.state, cohort.lanes)
    test_s = time.perf_counter() - compiled
    cohort_s = program.capacity * step_s * experiment.total_steps + test_s
    return Speed(
        lanes=program.per_device,
        devices=mesh.size,
        bytes_per_device=program.bytes_per_device,
        step_s=step_s,
        cost=experiment.cost,
        run_s=cohort_s * len(parts) / len(group.runs),
        once_s=compiled - started,
    )


def estimate_s(measured: Sequence[Speed], costs: Sequence[float], runs: Sequence[int]) -> float:
    """Seconds of groups: power laws of the cost through the measured ones.

    Args:
      measured: speeds; beyond their costs, seconds are those of the nearest.
      costs: of a run of each group, see `Experiment.cost`.
      runs: of each group.
    """
    known = sorted(measured, key=lambda speed: speed.cost)
    at = np.log([speed.cost for speed in known])
    of = lambda seconds: np.exp(np.interp(np.log(costs), at, np.log(seconds)))
    return float(of([speed.run_s for speed in known]) @ np.array(runs) + of([speed.once_s for speed in known]).sum())
