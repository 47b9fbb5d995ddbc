"""Groups of runs that share compiled programs: a sweep's plan, and the table of a dry run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence

import jax
from ml_collections import ConfigDict

from depthmup_flax.config.fields import make_parametrization
from depthmup_flax.config.hyperparameters import RULE
from depthmup_flax.data import Dataset
from depthmup_flax.data.blank import PlannedData
from depthmup_flax.search.sweep.grid import Run, expand, shard_of, structural_groups, sweep_info
from depthmup_flax.storage.sweep_records import SEED
from depthmup_flax.trainer.engine import schedules
from depthmup_flax.trainer.engine.config_optimizer import require_optimizer
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.engine.from_config import build, require_followed, require_read
from depthmup_flax.trainer.engine.user_task import UserTask
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.flops import count_flops
from depthmup_flax.util.table import Table, cell_text


@dataclasses.dataclass
class Group:
    """Runs that differ only in `depthmup_flax.config.hyperparameters`."""

    experiment: Experiment  # of the first run
    runs: list[Run]  # those of this shard
    label: str  # the other values, for people
    # Hyperparameters in which runs that are added may differ: data of a program, also where these runs agree.
    free: Collection[str] = ()

    @functools.cached_property
    def step_flops(self) -> int:
        """Of the matrix products in a training step of one run."""
        arguments = self.experiment.step_shapes()
        return count_flops(jax.make_jaxpr(self.experiment.step({}))(*arguments))


def plan(config: ConfigDict, runs: Sequence[Run], load: Callable[[ConfigDict], Dataset]) -> list[Group]:
    """Builds the experiment of every group, so that bad input is reported, with the group, before any run trains."""
    structural = [path for path, values in sweep_info(config).axes.items() if len(values) > 1]
    groups = []
    for group_runs in structural_groups(runs):
        first = group_runs[0]
        varying = {path for path in structural if any(run.point[path] != first.point[path] for run in group_runs)}
        values = {path: first.point[path] for path in structural if path not in varying and path != SEED}
        label = ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in values.items()) or "all runs"
        try:
            experiment = build(first.config, load=load)
            if isinstance(experiment.work, UserTask):
                require_read(first.config, experiment.work.read, varying - {SEED})
            for run in group_runs:
                schedules.require_schedule(run.config.optimizer)
                schedules.fraction(run.config.optimizer, experiment.total_steps)
            for one in {_optimizer(run): run.config for run in group_runs}.values():
                rule = make_parametrization(one)
                require_optimizer(one, rule)
                if experiment.network is not None:
                    require_followed(experiment.network, rule, one)
        except InputError as error:
            if not values:
                raise
            raise InputError(f"in the runs with {label}: {error}") from error
        groups.append(Group(experiment, group_runs, label, free=tuple(first.point) if config.extend else ()))
    return groups


def _optimizer(run: Run) -> tuple[object, ...]:
    """What `require_optimizer` reads and runs of a group differ in."""
    varying = (x for path, x in run.hyperparameters.items() if path.startswith((RULE, "optimizer.kwargs")))
    return run.config.parametrization.preset, *varying


def groups_of_shard(config: ConfigDict, groups: Sequence[Group], shard: tuple[int, int]) -> list[Group]:
    """Every group with its runs of this shard; groups without any are left out."""
    if shard[1] == 1:
        return list(groups)
    runs = [run for group in groups for run in group.runs]
    cost = {run.hash: group.experiment.cost for group in groups for run in group.runs}
    mine = {run.hash for run in shard_of(runs, config.x, shard, cost)}
    of_shard = [dataclasses.replace(group, runs=[run for run in group.runs if run.hash in mine]) for group in groups]
    return [group for group in of_shard if group.runs]


def dry_run(config: ConfigDict, shard: tuple[int, int] = (0, 1)) -> str:
    """The output of ``--dry_run``: axes, runs, parameters, steps. Published data sets may be absent."""
    groups = groups_of_shard(config, plan(config, expand(config), PlannedData()), shard)
    groups.sort(key=lambda group: group.experiment.cost)
    info = sweep_info(config)
    lines = [f"{info.figure} ({info.scale}): {info.title}", ""]
    axes = [(path, ", ".join(map(cell_text, values))) for path, values in info.axes.items()]
    lines += Table(("axis", "values"), axes, "<<").lines
    part = f" in shard {shard[0]}/{shard[1]}" if shard[1] > 1 else ""
    lines += ["", f"{sum(len(group.runs) for group in groups)} runs in {len(groups)} compiled groups{part}:"]
    numbers = lambda group: (len(group.runs), group.experiment.total_steps, group.experiment.parameters)
    rows = [(*map("{:,}".format, numbers(group)), group.label) for group in groups]
    lines += Table(("runs", "steps", "parameters", "group"), rows, ">>><").lines
    steps = sum(len(group.runs) * group.experiment.total_steps for group in groups)
    return "\n".join([*lines, f"{steps:,} steps in all"])
