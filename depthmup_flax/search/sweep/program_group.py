"""Structural groups of a sweep: runs that share compiled programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from jax.sharding import Mesh
from ml_collections import ConfigDict

from depthmup_flax.config.fields import make_parametrization
from depthmup_flax.data import Dataset
from depthmup_flax.rule.optimizer import warmup_schedule
from depthmup_flax.search.sweep.grid import Run, shard_of, structural_groups, sweep_info
from depthmup_flax.storage.records.table import SEED
from depthmup_flax.trainer.engine.experiment import RULE, Experiment, StepExperiment
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.engine.lane_layout import LaneRun, cohorts, one_seed_fits
from depthmup_flax.trainer.engine.lane_program import LaneProgram
from depthmup_flax.trainer.engine.optimizers import require_optimizer
from depthmup_flax.trainer.engine.user_checks import require_read
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Batch


@dataclasses.dataclass
class Group:
    """Runs that differ only in `depthmup_flax.trainer.engine.experiment.hyperparameters`."""

    experiment: Experiment  # of the first run
    runs: list[Run]  # those of this shard
    label: str  # the other values, for people


def plan(config: ConfigDict, runs: Sequence[Run], load: Callable[[ConfigDict], Dataset]) -> list[Group]:
    """Builds the experiment of every group, so that bad input is reported before any run trains.

    Raises:
      InputError: from `depthmup_flax.trainer.engine.from_config.build`, with the group's values.
    """
    structural = [path for path, values in sweep_info(config).axes.items() if len(values) > 1]
    groups = []
    for group_runs in structural_groups(runs):
        first = group_runs[0]
        varying = {path for path in structural if any(run.point[path] != first.point[path] for run in group_runs)}
        values = {path: first.point[path] for path in structural if path not in varying and path != SEED}
        label = ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in values.items()) or "all runs"
        try:
            shared = first.config.copy_and_resolve_references()
            shared.train.log_norms = False  # records have no norms
            experiment = build(shared, load=load)
            if isinstance(experiment, StepExperiment):
                require_read(shared, experiment.user.read, varying - {SEED})
            for run in group_runs:
                optimizer = run.config.optimizer
                warmup_schedule(optimizer.schedule, optimizer.warmup_steps, experiment.total_steps)
            for one in {_optimizer(run): run.config for run in group_runs}.values():
                require_optimizer(one, make_parametrization(one))
        except InputError as error:
            if not values:
                raise
            raise InputError(f"in the runs with {label}: {error}") from error
        groups.append(Group(experiment, group_runs, label))
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


class GroupPrograms:
    """Compiles programs for a group, each once. They depend on the whole group: a restart compiles the same ones.

    For ``mesh`` and ``data`` see `LaneProgram`; ``compiled`` holds the programs by the arguments of `get`.
    """

    def __init__(self, group: Group, mesh: Mesh, data: Batch | None) -> None:
        self.group, self.workload, self.mesh, self._data = group, group.experiment.workload, mesh, data
        self.compiled: dict[tuple[int, bool], LaneProgram] = {}

    def get(self, per_device: int, one_seed: bool) -> LaneProgram:
        """The program with ``per_device`` lanes on each device, all of one seed or of any."""
        key = per_device, one_seed
        if key not in self.compiled:
            self.compiled[key] = LaneProgram(self.workload, self.group.runs, self.mesh, *key, self._data)
        return self.compiled[key]

    def for_runs(self, runs: Sequence[LaneRun], per_device: int) -> LaneProgram:
        """The program that trains all of ``runs``, cohort after cohort, and the whole group."""
        devices = self.mesh.size
        fits = lambda runs: all(one_seed_fits(part, per_device, devices) for part in cohorts(runs, per_device, devices))
        return self.get(per_device, fits(self.group.runs) and fits(runs))
