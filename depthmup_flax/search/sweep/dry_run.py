"""The size of a sweep, without training it; with ``--measure`` also its speed, memory and time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.data.blank import BlankSplit, PlannedData, Sizes
from depthmup_flax.search.sweep.grid import expand, sweep_info
from depthmup_flax.search.sweep.groups import Chosen, Group, GroupPrograms, choose_program, groups_of_shard, plan
from depthmup_flax.trainer.engine.device_batches import put_train_data
from depthmup_flax.trainer.engine.lanes import Cohort, cohorts, lane_mesh
from depthmup_flax.util import progress
from depthmup_flax.util.table import Table, cell_text


@dataclasses.dataclass(frozen=True)
class Speed:
    """What a group was measured to take."""

    cost: float  # `Experiment.cost` of a run
    run_s: float  # seconds of a run, with its evaluation and its share of empty lanes
    once_s: float  # seconds of compilations and trials
    text: str = ""  # for people


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
    text = (
        f"{1e3 * step_s:.3g} ms per run and step, {program.per_device} at a time on {mesh.size} device(s), "
        f"{program.bytes_per_device / 2**20:,.0f} MiB on each"
    )
    return Speed(experiment.cost, cohort_s * len(parts) / len(group.runs), compiled - started, text)


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


_UNMEASURED = "Time, and memory for activations, are measured by --measure: it compiles two of the groups."


def describe(
    config: ConfigDict, lanes: int | None = None, shard: tuple[int, int] = (0, 1), *, measure: bool = False
) -> str:
    """The output of ``--dry_run``: axes, runs, parameters, steps. Published data sets may be absent.

    With ``measure``, also speed, memory and time, estimated from the cheapest and the most expensive group.
    """
    groups = groups_of_shard(config, plan(config, expand(config), PlannedData(Sizes())), shard)
    groups.sort(key=lambda group: group.experiment.cost)
    info = sweep_info(config)
    lines = [f"{info.figure} ({info.scale}): {info.title}", ""]
    axes = [(path, ", ".join(map(cell_text, values))) for path, values in info.axes.items()]
    lines += Table(("axis", "values"), axes, "<<").lines
    part = f" in shard {shard[0]}/{shard[1]}" if shard[1] > 1 else ""
    lines += ["", f"{sum(len(group.runs) for group in groups)} runs in {len(groups)} compiled groups{part}:"]
    if not groups:
        return "\n".join(lines)
    lines += Table(("runs", "steps", "parameters", "MiB", "group"), list(map(_cells, groups)), ">>>><").lines
    return "\n".join(lines + _total(groups) + (_measured(groups, lanes) if measure else [_UNMEASURED]))


def _cells(group: Group) -> tuple[str, ...]:
    """Runs, and of each the steps, the parameters and the memory of weights and optimizer state."""
    experiment = group.experiment
    leaves = jax.tree.leaves(experiment.state_shapes().carry)
    mib = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) / 2**20
    numbers = (len(group.runs), experiment.total_steps, experiment.parameters)
    return (*(f"{number:,}" for number in numbers), f"{mib:,.2f}", group.label)


def _total(groups: Sequence[Group]) -> list[str]:
    """Steps and examples of all, and the data sets that are absent."""
    steps, units, absent = 0, 0, set()
    for group in groups:
        config, dataset = group.experiment.config, group.experiment.dataset
        of_group = len(group.runs) * group.experiment.total_steps
        steps += of_group
        units += of_group * config.train.batch_size * dataset.units_per_example
        if isinstance(dataset.train, BlankSplit):
            absent.add(f"The data are not here: prepare {dataset.name} before the sweep.")
    return [f"{steps:,} steps, {units:,} {groups[0].experiment.dataset.unit} in all", *sorted(absent)]


def _measured(groups: Sequence[Group], lanes: int | None) -> list[str]:
    """Speed and memory of the cheapest and the most expensive of ``groups``, ascending; and the time of all."""
    lines, speeds = [], []
    for group in [groups[0], *groups[1:][-1:]]:
        speeds.append(measure(group, lanes))
        lines.append(f"measured: {group.label}: {speeds[-1].text}")
    total = estimate_s(speeds, [group.experiment.cost for group in groups], [len(group.runs) for group in groups])
    return [*lines, f"about {progress.clock(total)}, with compilation and evaluation"]
