"""What the programs of this room know about the network that they train."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import clu.metrics
import jax

from depthmup_flax.data import Dataset
from depthmup_flax.engine.multi_step import Periods
from depthmup_flax.engine.step import TrainState, TrainStep
from depthmup_flax.rule.annotations import AxisNames
from depthmup_flax.util.types import Batch, Scalar

# Hyperparameters by name that replace a task's own: numbers or traced scalars.
Values = Mapping[str, Scalar]


@dataclasses.dataclass(frozen=True)
class Task:
    """A network, its data and its optimizer, as pure functions of hyperparameters; and how long to train it.

    Random keys are folded from the seed, which is one of the hyperparameters, and the step.
    """

    dataset: Dataset
    batch_size: int
    eval_batch_size: int  # examples evaluated at a time
    periods: Periods  # of a single run
    hyperparameters: Mapping[str, float]  # names that `Values` may have -> own values; integers stay integers
    cost: float  # work of a run, in a unit that the tasks of a sweep share
    init: Callable[[Values], TrainState]
    shapes: TrainState  # of what `init` returns
    axes: Mapping[str, AxisNames]  # path of a parameter -> its logical axes, by which it is sharded
    prepare: Callable[[jax.Array | None, Batch], Any]  # key (None: evaluation) and batch -> what the step reads
    step: Callable[..., TrainStep]  # values and row_major=False (see `row_major_gradients`) -> step of a prepared batch
    evaluate: Callable[[Values], Callable[[TrainState, Batch], clu.metrics.Collection]]  # -> masked batch's EvalMetrics
    convolves: bool = False  # a loop over steps would be slow on a CPU
    gradient_dtype: str = ""  # see `depthmup_flax.parallel.sharding.activations_on`
    measures: bool = False  # the step returns metrics, which a single run logs
    stall_timeout_s: float = 600.0  # until streamed data that do not arrive end the run
