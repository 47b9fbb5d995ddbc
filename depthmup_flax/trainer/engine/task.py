"""A task, pure functions of hyperparameters, and what a run of it keeps from step to step."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from depthmup_flax.util.types import Scalar


@struct.dataclass
class Means:
    """Sums of metrics and of their weights."""

    totals: dict[str, jax.Array]  # float32
    weight: jax.Array  # int32 for steps, float32 for examples

    @classmethod
    def empty(cls, names: Collection[str]) -> Means:
        """No step yet."""
        # An array for each: a donated buffer may appear only once.
        return cls({name: jnp.zeros((), jnp.float32) for name in names}, jnp.zeros((), jnp.int32))

    @classmethod
    def of_examples(cls, metrics: Mapping[str, jax.Array], mask: jax.Array, weights: jax.Array | None = None) -> Means:
        """Sums over the examples whose ``mask`` [B] is set; an example's metrics ``[B, ...]`` are averaged first.

        With ``weights`` [B, ...] of 0 and 1 it is the parts with a 1 that count, each as much as any other.
        """
        if weights is not None:
            each = jnp.where((mask > 0).reshape(-1, *[1] * (weights.ndim - 1)), weights, 0).astype(jnp.float32)
            totals = {name: jnp.where(each > 0, x.astype(jnp.float32), 0.0).sum() for name, x in metrics.items()}
            return cls(totals, each.sum())
        weights, count = (mask > 0).astype(jnp.float32), len(mask)
        by_example = {name: x.astype(jnp.float32).reshape(count, -1).mean(-1) for name, x in metrics.items()}
        # The zeros that fill a batch may give NaN.
        totals = {name: jnp.where(weights > 0, x, 0.0).sum() for name, x in by_example.items()}
        return cls(totals, weights.sum())

    @classmethod
    def of_batch(cls, metrics: Mapping[str, jax.Array], size: int) -> Means:
        """The sums whose means are the scalars ``metrics`` of a batch of ``size`` examples."""
        totals = {name: jnp.asarray(x, jnp.float32) * size for name, x in metrics.items()}
        return cls(totals, jnp.full((), size, jnp.float32))

    def add(self, metrics: Mapping[str, jax.Array], restart: jax.Array) -> Means:
        """The sums with one more step; of this step alone if ``restart``."""
        kept = jax.tree.map(lambda total: jnp.where(restart, jnp.zeros_like(total), total), self)
        totals = {name: total + metrics[name].astype(jnp.float32) for name, total in kept.totals.items()}
        return Means(totals, kept.weight + 1)

    def merge(self, other: Means) -> Means:
        """The sums of both."""
        return jax.tree.map(jnp.add, self, other)

    def means(self, prefix: str = "") -> dict[str, float]:
        """The mean of every metric, named ``prefix`` and its name; waits for the device."""
        weight = max(float(self.weight), 1.0)
        return {f"{prefix}{name}": float(total) / weight for name, total in self.totals.items()}


# Hyperparameters by name: numbers or traced scalars.
Hyper = Mapping[str, Scalar]
# Scalars of a step or of a batch by name, among them "loss".
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Task:
    """Pure functions that initialize, train and evaluate something. Batch statistics, losses, optimizers are theirs.

    Each is traced once and compiled, for one run or, by `jax.vmap`, for many that differ in ``hyper`` and in the key.

    Attributes:
      init: ``(key, hyper) -> state``. The state is a tree; whatever is not an array in it must not change.
      step: ``(state, batch, hyper) -> (state, metrics)``, or with a fourth argument ``key``, another one in every step.
        Metrics are scalars by name, among them ``loss``. A run ends when it is not finite.
      evaluate: ``(state, batch, hyper) -> metrics``, means over the examples of the batch; ``None``: no evaluation.
      finite: ``state -> tree`` of what must be finite before a checkpoint is written; by default only NaN is refused.
      masked: ``batch["mask"]`` [B] says which examples of a test batch count, and ``evaluate`` returns `Means`.
        Otherwise the last batch of the test split has fewer examples.
    """

    init: Callable[..., Any]
    step: Callable[..., tuple[Any, Metrics]]
    evaluate: Callable[..., Metrics | Means] | None = None
    finite: Callable[[Any], Any] = lambda state: ()
    masked: bool = False


# Folded into the seed in place of a step, which is below 2^31, so that a step and its batch have different keys.
_STEP = np.uint32(2**32 - 1)


@dataclasses.dataclass(frozen=True)
class Periods:
    """Steps between two events of a run; a period of 0 is never."""

    total: int  # steps of the run
    log_every: int
    eval_every: int = 0
    checkpoint_every: int = 0  # for checkpoints without an evaluation
    recorded: tuple[int, ...] = ()  # steps of `Course`: calls of their own

    def logs_at(self, step: int) -> bool:
        """Whether a line of metrics follows ``step``."""
        return step % self.log_every == 0 or step == self.total

    def evaluates_at(self, step: int) -> bool:
        """Whether an evaluation follows ``step``."""
        return step == self.total or (bool(self.eval_every) and step % self.eval_every == 0)

    def saves_at(self, step: int) -> bool:
        """Whether a checkpoint without an evaluation follows ``step``."""
        return bool(self.checkpoint_every) and step % self.checkpoint_every == 0

    def steps_to_next(self, step: int) -> int:
        """Steps from ``step`` until the next of these events; a measurement of speed may go beyond ``total``."""
        periods = (self.log_every, self.eval_every, self.checkpoint_every)
        left = [self.total - step] if step < self.total else []
        left += [end - step for at in self.recorded for end in (at - 1, at) if end > step]
        return min([period - step % period for period in periods if period] + left)


@struct.dataclass
class TrainState:
    """The training state, which a checkpoint holds."""

    step: jax.Array  # int32, steps taken
    carry: Any  # the task's state: parameters, optimizer state, ...
    last_loss: jax.Array  # float32, of the last batch
    nonfinite_step: jax.Array  # int32, the first step whose loss was not finite, or -1
    recent: Means  # since the last multiple of log_every
    final: Means  # over the last average_steps steps of the run
    course: tuple[jax.Array, ...]  # of `Course`, if it has names: float32 [names, steps], 0 until a step is taken


@dataclasses.dataclass(frozen=True)
class Course:
    """What is measured after some of a run's steps, counted from 1, to be compared with a run of another size."""

    names: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()

    @classmethod
    def of(cls, names: tuple[str, ...], total_steps: int) -> Course:
        """Powers of two in the first third: steps 1, 2, 4, ..."""
        return cls(names, tuple(2**i for i in range(max(2, total_steps // 3).bit_length())))

    def records(self, step: jax.Array) -> jax.Array:
        """[N]: whether the step after ``step`` is one of them, and which."""
        return step + 1 == np.array(self.steps, np.int32)

    def columns(self, values: Sequence[jax.Array], step: int) -> dict[str, list[Any]]:
        """``step`` and the names -> values, as far as a run has come at ``step``; empty if there are no names."""
        taken = [one for one in self.steps if one <= step]
        digits = lambda value: float(f"{value:.5g}") if math.isfinite(value) else None
        columns = (list(map(digits, row[: len(taken)].tolist())) for rows in values for row in rows)
        return {"step": taken, **dict(zip(self.names, columns, strict=True))} if self.names else {}


NO_COURSE = Course()
Stepped = tuple[TrainState, Any]


def new_state(carry: Any, averaged: Collection[str], course: Course = NO_COURSE) -> TrainState:
    """The state before the first step; ``averaged``: names of the metrics that are averaged."""
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        carry=carry,
        last_loss=jnp.zeros((), jnp.float32),
        nonfinite_step=jnp.full((), -1, jnp.int32),
        recent=Means.empty(averaged),
        final=Means.empty(averaged),
        course=(jnp.zeros((len(course.names), len(course.steps)), jnp.float32),) if course.names else (),
    )


def counted(state: TrainState, carry: Any, metrics: Metrics, log_every: int, average_from: int) -> TrainState:
    """The state after a step; `recent` restarts every ``log_every`` steps, `final` sums after ``average_from``."""
    loss = metrics["loss"].astype(jnp.float32)
    first_nonfinite = (state.nonfinite_step < 0) & ~jnp.isfinite(loss)
    return TrainState(
        step=state.step + 1,
        carry=carry,
        last_loss=loss,
        nonfinite_step=jnp.where(first_nonfinite, state.step + 1, state.nonfinite_step),
        recent=state.recent.add(metrics, state.step % log_every == 0),
        final=state.final.add(metrics, state.step <= average_from),
        course=state.course,
    )


@functools.partial(jax.jit, static_argnums=0)
def is_finite(task: Task, state: TrainState) -> jax.Array:
    """Whether `Task.finite` of the state is finite, and no number of the state is NaN.

    An optimizer may hold infinities on purpose, such as for the best loss so far. Running sums are left out.
    """
    inexact = lambda tree: [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    checks = [jnp.isfinite(x).all() for x in inexact(task.finite(state.carry))]
    checks += [~jnp.isnan(x).any() for x in inexact(state.carry)]
    return functools.reduce(jnp.logical_and, checks, jnp.array(True))


def batch_key(seed: Scalar, step: jax.Array) -> jax.Array:
    """The random key with which the batch of the step after ``step`` is prepared."""
    return jax.random.fold_in(jax.random.key(seed), step)


def step_key(seed: Scalar, step: jax.Array) -> jax.Array:
    """The random key of the step after ``step``, for dropout."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _STEP), step)
