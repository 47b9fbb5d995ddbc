"""The pure part of training: state, train step, eval step. No files, no devices, no loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import clu.metrics
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

Batch = Mapping[str, jax.Array]
# A key (None: no augmentation) and a batch -> inputs [B, ...] and labels [B, ...].
Prepare = Callable[[jax.Array | None, Batch], tuple[jax.Array, jax.Array]]

# Folded into the seed in place of a step, which is below 2^31, so that dropout's keys are not augmentation's.
_DROPOUT = np.uint32(2**32 - 1)


@struct.dataclass
class Running:
    """Sums over training steps, for averages."""

    loss: jax.Array
    accuracy: jax.Array
    count: jax.Array

    @classmethod
    def empty(cls) -> Running:
        """No step yet."""
        # Three arrays, not one three times: a donated buffer may appear only once.
        return cls(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))

    def add(self, loss: jax.Array, accuracy: jax.Array, restart: jax.Array) -> Running:
        """With one more step; alone, if ``restart``."""
        kept = jax.tree.map(lambda total: jnp.where(restart, jnp.zeros_like(total), total), self)
        return Running(kept.loss + loss, kept.accuracy + accuracy, kept.count + 1)

    def means(self) -> tuple[float, float]:
        """Mean loss and accuracy; waits for the device."""
        count = max(int(self.count), 1)
        return float(self.loss) / count, float(self.accuracy) / count


@struct.dataclass
class TrainState:
    """Everything a training step reads and writes; a checkpoint is this.

    Attributes:
      step: int32, steps taken.
      params: parameters, without annotations.
      batch_stats: BatchNorm's running averages; empty without BatchNorm.
      opt_state: optax's.
      last_loss: float32, of the last batch.
      nonfinite_step: int32, the first step whose loss was not finite; -1 while there is none.
      recent: since the last line of metrics.
      final: over the run's last ``average_steps`` steps.
    """

    step: jax.Array
    params: Any
    batch_stats: Any
    opt_state: Any
    last_loss: jax.Array
    nonfinite_step: jax.Array
    recent: Running
    final: Running


# Mean loss and accuracy over the examples whose mask is set.
EvalMetrics = clu.metrics.Collection.create(
    loss=clu.metrics.Average.from_output("loss"), accuracy=clu.metrics.Average.from_output("accuracy")
)


def init_state(
    model: nn.Module, optimizer: optax.GradientTransformation, seed: jax.Array | int, input_spec: jax.ShapeDtypeStruct
) -> TrainState:
    """A fresh state; pure, so that it can be jitted with shardings, mapped over seeds, or only its shapes asked for."""
    variables = nn.unbox(model.init(jax.random.key(seed), jnp.zeros(input_spec.shape, input_spec.dtype)))
    params = variables["params"]
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        batch_stats=variables.get("batch_stats", {}),
        opt_state=optimizer.init(params),
        last_loss=jnp.zeros((), jnp.float32),
        nonfinite_step=jnp.full((), -1, jnp.int32),
        recent=Running.empty(),
        final=Running.empty(),
    )


def make_train_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    *,
    prepare: Prepare,
    seed: jax.Array | int,
    log_every: int,
    average_from: int,
    accumulate: int = 1,
) -> Callable[[TrainState, Batch], TrainState]:
    """The training step ``(state, batch) -> state``, pure; its randomness is folded from (seed, step).

    Args:
      model: called as ``model.apply(variables, inputs, train=True, rngs={"dropout": key})``; returns logits, one
        axis more than the labels have.
      optimizer: finished optax transformation.
      prepare: ``(key, batch) -> (inputs, labels)``, such as ``functools.partial(dataset.prepare, "cifar")`` of a
        `depthmup_flax.data.Dataset`. Labels are int32; the loss and accuracy are means over all of them.
      seed: of augmentation and dropout.
      log_every: `TrainState.recent` restarts after each multiple.
      average_from: `TrainState.final` holds the steps after this many.
      accumulate: computes the gradient in so many parts of the batch after one another, for less memory. The mean is
        the same; BatchNorm sees each part by itself, and dropout draws anew.

    Returns:
      A function of a state and a batch that ``prepare`` takes.
    """

    def train_step(state: TrainState, batch: Batch) -> TrainState:
        root = jax.random.key(seed)
        inputs, labels = prepare(jax.random.fold_in(root, state.step), batch)
        dropout = jax.random.fold_in(jax.random.fold_in(root, _DROPOUT), state.step)

        def gradient(batch_stats: Any, inputs: jax.Array, labels: jax.Array, dropout: jax.Array) -> tuple[Any, Any]:
            """Running averages, and what is to be averaged over parts: gradients, loss, accuracy."""

            def loss_fn(params: Any) -> tuple[jax.Array, tuple[jax.Array, Any]]:
                variables = {"params": params, "batch_stats": batch_stats}
                logits, updated = model.apply(
                    variables, inputs, train=True, mutable=["batch_stats"], rngs={"dropout": dropout}
                )
                losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
                return losses.mean(), (logits, updated.get("batch_stats", {}))

            (loss, (logits, stats)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
            return stats, (grads, loss.astype(jnp.float32), (logits.argmax(-1) == labels).mean())

        if accumulate == 1:
            batch_stats, means = gradient(state.batch_stats, inputs, labels, dropout)
        else:
            parts = (*(_parts(x, accumulate) for x in (inputs, labels)), jax.random.split(dropout, accumulate))
            batch_stats, means = _mean_over_parts(gradient, state.batch_stats, parts)
        grads, loss, accuracy = means
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        first_nonfinite = (state.nonfinite_step < 0) & ~jnp.isfinite(loss)
        return dataclasses.replace(
            state,
            step=state.step + 1,
            params=optax.apply_updates(state.params, updates),
            batch_stats=batch_stats,
            opt_state=opt_state,
            last_loss=loss,
            nonfinite_step=jnp.where(first_nonfinite, state.step + 1, state.nonfinite_step),
            recent=state.recent.add(loss, accuracy, state.step % log_every == 0),
            final=state.final.add(loss, accuracy, state.step <= average_from),
        )

    return train_step


def make_eval_step(model: nn.Module, *, prepare: Prepare) -> Callable[[Any, Any, Batch], clu.metrics.Collection]:
    """``(params, batch_stats, batch) -> EvalMetrics``, mergeable sums over the examples of a batch with a ``mask`` [B].

    ``prepare`` is as in `make_train_step`, and is called without a key. Loss and accuracy of an example are means over
    its labels.
    """

    def eval_step(params: Any, batch_stats: Any, batch: Batch) -> clu.metrics.Collection:
        inputs, labels = prepare(None, batch)
        logits: Any = model.apply({"params": params, "batch_stats": batch_stats}, inputs, train=False)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        correct = (logits.argmax(-1) == labels).astype(jnp.float32)
        return EvalMetrics.single_from_model_output(
            loss=_mean_per_example(losses), accuracy=_mean_per_example(correct), mask=batch["mask"] > 0
        )

    return eval_step


def _parts(x: jax.Array, count: int) -> jax.Array:
    """``[B, ...] -> [count, B / count, ...]``; part i has every count-th example, so each device keeps its own."""
    return x.reshape(len(x) // count, count, *x.shape[1:]).swapaxes(0, 1)


def _mean_over_parts(gradient: Callable[..., tuple[Any, Any]], batch_stats: Any, parts: Any) -> tuple[Any, Any]:
    """The running averages after all parts, and the mean of what ``gradient`` gives for each."""

    def add(carry: tuple[Any, Any], part: Any) -> tuple[tuple[Any, Any], None]:
        stats, values = gradient(carry[0], *part)
        return (stats, jax.tree.map(jnp.add, carry[1], values)), None

    first, *_ = jax.tree.leaves(parts)
    shapes = jax.eval_shape(lambda parts: gradient(batch_stats, *jax.tree.map(lambda x: x[0], parts))[1], parts)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    (batch_stats, totals), _ = jax.lax.scan(add, (batch_stats, zeros), parts)
    return batch_stats, jax.tree.map(lambda x: x / len(first), totals)


def _mean_per_example(values: jax.Array) -> jax.Array:
    return values.reshape(len(values), -1).mean(-1)
