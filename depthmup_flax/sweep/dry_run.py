"""A sweep's size and estimated time, without training it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from depthmup_flax.data import LoadOnce
from depthmup_flax.sweep.grid import expand, sweep_info
from depthmup_flax.sweep.lane_count import choose_program
from depthmup_flax.sweep.lane_program import sweep_mesh
from depthmup_flax.sweep.program_group import Group, GroupPrograms, groups_of_shard, plan
from depthmup_flax.training.device_batches import put_train_data


def describe(config: ConfigDict, lanes: int | None = None, shard: tuple[int, int] = (0, 1)) -> str:
    """The output of ``--dry_run``: axes, runs, parameters, and a time estimated from the cheapest and dearest group."""
    groups = groups_of_shard(config, plan(config, expand(config), LoadOnce()), shard)
    groups.sort(key=lambda group: group.experiment.cost)
    info = sweep_info(config)
    lines = [f"{info.figure} ({info.scale}): {info.title}", ""]
    short = lambda value: f"{value:.4g}" if isinstance(value, float) else str(value)
    lines += [f"  {path:<36} {', '.join(map(short, values))}" for path, values in info.axes.items()]
    part = f" in shard {shard[0]}/{shard[1]}" if shard[1] > 1 else ""
    lines += ["", f"{sum(len(group.runs) for group in groups)} runs in {len(groups)} compiled groups{part}:"]
    for group in groups:
        size = f"{group.experiment.total_steps} steps, {group.experiment.parameters:>13,} parameters"
        lines.append(f"  {len(group.runs):>5} x {size}: {group.label}")
    return "\n".join(lines + (_measured(groups, lanes) if groups else []))


def _measured(groups: Sequence[Group], lanes: int | None) -> list[str]:
    """Speed and memory of the cheapest and the most expensive of ``groups``, ascending; and the time of all."""
    mesh, lines = sweep_mesh(), []
    measured: list[tuple[float, float]] = []  # cost of a run, its seconds
    for group in [groups[0], *groups[1:][-1:]]:
        programs = GroupPrograms(group, mesh, put_train_data(group.experiment.dataset, mesh))
        program, seconds = choose_program(programs, group.runs, lanes)
        measured.append((group.experiment.cost, seconds * group.experiment.total_steps))
        lines.append(
            f"measured: {group.label}: {1e3 * seconds:.3g} ms per run and step, {program.per_device} at a time on "
            f"{mesh.size} device(s), {program.bytes_per_device / 2**20:,.0f} MiB on each"
        )
    # Seconds of a run: a power law of its cost, through the measured ones.
    costs = np.log([group.experiment.cost for group in groups])
    total = np.exp(np.interp(costs, *np.log(measured).T)) @ [len(group.runs) for group in groups]
    return [*lines, f"about {tqdm.format_interval(total)} without compilation and evaluation"]
