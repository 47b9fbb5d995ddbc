"""What the programs of this room train: a task, its data, and how long."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from depthmup_flax.data import Dataset
from depthmup_flax.rule.annotations import AxisNames
from depthmup_flax.storage.records.table import SEED
from depthmup_flax.trainer.engine.means import Means
from depthmup_flax.trainer.engine.multi_step import Periods
from depthmup_flax.trainer.engine.step import Stepped, TrainState, counted, new_state, step_key
from depthmup_flax.trainer.engine.task import Hyper, Task
from depthmup_flax.util.types import Batch


@dataclasses.dataclass(frozen=True)
class Workload:
    """A task with its data, sizes and hyperparameters. Random keys are folded from the seed, one of them, and the step.

    The methods take the hyperparameters that replace the workload's own.
    """

    task: Task
    dataset: Dataset
    prepare: Callable[[jax.Array | None, Batch], Any]  # key (None: evaluation) and batch -> what the task reads
    batch_size: int
    eval_batch_size: int  # examples evaluated at a time
    periods: Periods  # of a single run
    average_from: int  # `TrainState.final` sums the steps after this one
    averaged: tuple[str, ...]  # the metrics that are averaged over steps
    hyperparameters: Mapping[str, float]  # all of them -> own values; integers stay integers
    cost: float  # work of a run, in a unit that the workloads of a sweep share
    shapes: TrainState  # of what `init` returns
    axes: Mapping[str, AxisNames]  # path of a parameter -> its logical axes, by which it is sharded
    tpu_lanes_task: Task | None = None  # a variant for lanes on a TPU
    convolves: bool = False  # a loop over steps would be slow on a CPU
    gradient_dtype: str = ""  # see `depthmup_flax.devices.parallel.sharding.activations_on`
    measures: bool = False  # the step returns further metrics, which a single run logs
    matmul_precision: str = ""  # of products that name none; "": JAX's default
    stall_timeout_s: float = 600.0  # until streamed data that do not arrive end the run

    @property
    def evaluates(self) -> bool:
        """Whether there is something to evaluate, and data for it."""
        return self.task.evaluate is not None and len(self.dataset.test) > 0

    def init(self, values: Hyper) -> TrainState:
        """A fresh state."""
        hyper = {**self.hyperparameters, **values}
        return new_state(self.task.init(jax.random.key(hyper[SEED]), hyper), self.averaged)

    def step(self, values: Hyper, *, tpu_lanes: bool = False) -> Callable[[TrainState, Any], Stepped]:
        """The training step of a prepared batch."""
        task = (tpu_lanes and self.tpu_lanes_task) or self.task
        hyper = {**self.hyperparameters, **values}

        def step(state: TrainState, batch: Any) -> Stepped:
            with self._precision():
                carry, metrics = task.step(state.carry, batch, hyper, step_key(hyper[SEED], state.step))
            return counted(state, carry, metrics, self.periods.log_every, self.average_from), metrics

        return step

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        """In which products are traced. A network that asks for a precision of its own only does so without this."""
        precision = self.matmul_precision
        return jax.default_matmul_precision(precision) if precision else contextlib.nullcontext()

    def evaluate(self, values: Hyper) -> Callable[[TrainState, Batch], Means]:
        """The metrics of a batch of the test split."""
        hyper, task = {**self.hyperparameters, **values}, self.task

        def evaluate(state: TrainState, batch: Batch) -> Means:
            size = len(jax.tree.leaves(batch)[0])
            mask = batch.get("mask")
            prepared = self.prepare(None, batch)
            assert task.evaluate is not None
            with self._precision():
                metrics = task.evaluate(state.carry, (prepared, mask) if task.masked else prepared, hyper)
            return metrics if isinstance(metrics, Means) else Means.of_batch(metrics, size)

        return evaluate
