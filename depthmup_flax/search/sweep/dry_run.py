"""The size of a sweep, without training it; with ``--measure`` also its speed, memory and time."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from ml_collections import ConfigDict
from tqdm import tqdm

from depthmup_flax.data import Dataset, LoadOnce
from depthmup_flax.data.sources.blank import BlankSplit, PlannedData, Sizes
from depthmup_flax.search.sweep.estimated_time import estimate_s, measure
from depthmup_flax.search.sweep.grid import expand, sweep_info
from depthmup_flax.search.sweep.program_group import Group, groups_of_shard, plan
from depthmup_flax.util.errors import InputError

_UNMEASURED = "Time, and memory for activations, are measured by --measure: it compiles two of the groups."


def describe(
    config: ConfigDict, lanes: int | None = None, shard: tuple[int, int] = (0, 1), *, measure: bool = False
) -> str:
    """The output of ``--dry_run``: axes, runs, parameters, steps. Published data sets may be absent.

    With ``measure``, also speed, memory and time, estimated from the cheapest and the most expensive group.
    """
    groups = groups_of_shard(config, plan(config, expand(config), _DataOrBlank()), shard)
    groups.sort(key=lambda group: group.experiment.cost)
    info = sweep_info(config)
    lines = [f"{info.figure} ({info.scale}): {info.title}", ""]
    short = lambda value: f"{value:.4g}" if isinstance(value, float) else str(value)
    lines += [f"  {path:<36} {', '.join(map(short, values))}" for path, values in info.axes.items()]
    part = f" in shard {shard[0]}/{shard[1]}" if shard[1] > 1 else ""
    lines += ["", f"{sum(len(group.runs) for group in groups)} runs in {len(groups)} compiled groups{part}:"]
    lines += [f"  {len(group.runs):>5} x {_size(group)}: {group.label}" for group in groups]
    if not groups:
        return "\n".join(lines)
    lines += [_total(groups), *_absent(groups)]
    return "\n".join(lines + (_measured(groups, lanes) if measure else [_UNMEASURED]))


class _DataOrBlank:
    """Loads data sets, each once; blank ones of the same shape for published sets that are absent."""

    def __init__(self) -> None:
        self._planned, self._real = PlannedData(Sizes()), LoadOnce()

    def __call__(self, config: ConfigDict) -> Dataset:
        try:
            return self._planned(config)
        except InputError:
            return self._real(config)  # whose error names the remedy


def _size(group: Group) -> str:
    """Steps, parameters, and the memory of a run's weights and optimizer state."""
    experiment = group.experiment
    leaves = jax.tree.leaves(experiment.state_shapes().carry)
    mib = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) / 2**20
    return f"{experiment.total_steps} steps, {experiment.parameters:>13,} parameters, {mib:>9,.2f} MiB with optimizer"


def _total(groups: Sequence[Group]) -> str:
    steps, units = 0, 0
    for group in groups:
        experiment = group.experiment
        of_group = len(group.runs) * experiment.total_steps
        steps += of_group
        units += of_group * experiment.config.train.batch_size * experiment.dataset.units_per_example
    return f"{steps:,} steps, {units:,} {groups[0].experiment.dataset.unit} in all"


def _absent(groups: Sequence[Group]) -> list[str]:
    sets = {group.experiment.dataset.name for group in groups if isinstance(group.experiment.dataset.train, BlankSplit)}
    return [f"The data are not here: prepare {name} before the sweep." for name in sorted(sets)]


def _measured(groups: Sequence[Group], lanes: int | None) -> list[str]:
    """Speed and memory of the cheapest and the most expensive of ``groups``, ascending; and the time of all."""
    lines, speeds = [], []
    for group in [groups[0], *groups[1:][-1:]]:
        speeds.append(speed := measure(group, lanes))
        lines.append(
            f"measured: {group.label}: {1e3 * speed.step_s:.3g} ms per run and step, {speed.lanes} at a time on "
            f"{speed.devices} device(s), {speed.bytes_per_device / 2**20:,.0f} MiB on each"
        )
    total = estimate_s(speeds, [group.experiment.cost for group in groups], [len(group.runs) for group in groups])
    return [*lines, f"about {tqdm.format_interval(total)}, with compilation and evaluation"]
