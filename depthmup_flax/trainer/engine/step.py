"""The training state: what a task carries from step to step, and the count of its steps and losses."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from depthmup_flax.trainer.engine.means import Means
from depthmup_flax.trainer.engine.task import Metrics, Task
from depthmup_flax.util.types import Batch, Scalar

# Folded into the seed in place of a step, which is below 2^31, so that a step and its batch have different keys.
_STEP = np.uint32(2**32 - 1)


@struct.dataclass
class TrainState:
    """The training state, which a checkpoint holds."""

    step: jax.Array  # int32, steps taken
    carry: Any  # the task's state: parameters, optimizer state, ...
    last_loss: jax.Array  # float32, of the last batch
    nonfinite_step: jax.Array  # int32, the first step whose loss was not finite, or -1
    recent: Means  # since the last multiple of log_every
    final: Means  # over the last average_steps steps of the run


Stepped = tuple[TrainState, Metrics]
TrainStep = Callable[[TrainState, Any], Stepped]


def new_state(carry: Any, averaged: Collection[str]) -> TrainState:
    """The state before the first step; ``averaged``: names of the metrics that are averaged."""
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        carry=carry,
        last_loss=jnp.zeros((), jnp.float32),
        nonfinite_step=jnp.full((), -1, jnp.int32),
        recent=Means.empty(averaged),
        final=Means.empty(averaged),
    )


def counted(state: TrainState, carry: Any, metrics: Metrics, log_every: int, average_from: int) -> TrainState:
    """The state after a step that gave ``carry`` and ``metrics``.

    ``TrainState.recent`` restarts after each multiple of ``log_every``; ``final`` sums the steps after
    ``average_from``.
    """
    loss = metrics["loss"].astype(jnp.float32)
    first_nonfinite = (state.nonfinite_step < 0) & ~jnp.isfinite(loss)
    return TrainState(
        step=state.step + 1,
        carry=carry,
        last_loss=loss,
        nonfinite_step=jnp.where(first_nonfinite, state.step + 1, state.nonfinite_step),
        recent=state.recent.add(metrics, state.step % log_every == 0),
        final=state.final.add(metrics, state.step <= average_from),
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


def evaluate(eval_step: Callable[[Batch], Means], batches: Iterable[Batch]) -> Means:
    """The means over all ``batches``."""
    return functools.reduce(lambda total, new: total.merge(new), map(eval_step, batches))


def without_carry(state: TrainState) -> TrainState:
    """The numbers of ``state`` without what the task carries."""
    return dataclasses.replace(state, carry=None)
