"""The pure part of training: state, train step, eval step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import clu.metrics
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from depthmup_flax.engine.cross_entropy import cross_entropy, gradient_in_parts, in_parts, parts_of_loss
from depthmup_flax.util.types import ArrayTree, Batch

# A key (None: no augmentation) and a batch -> inputs [B, ...] and labels [B, ...].
Prepare = Callable[[jax.Array | None, Batch], tuple[jax.Array, jax.Array]]
# Gradients, loss and accuracy of a batch, or of a part of one.
Means = tuple[ArrayTree, jax.Array, jax.Array]

# Folded into the seed in place of a step, which is below 2^31, so that dropout and augmentation have different keys.
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
        """The sums with one more step; of this step alone if ``restart``."""
        before = jax.tree.map(lambda total: jnp.where(restart, jnp.zeros_like(total), total), self)
        return Running(before.loss + loss, before.accuracy + accuracy, before.count + 1)

    def means(self) -> tuple[float, float]:
        """Mean loss and accuracy; waits for the device."""
        count = max(int(self.count), 1)
        return float(self.loss) / count, float(self.accuracy) / count


@struct.dataclass
class TrainState:
    """Everything that a training step reads and writes, and that a checkpoint holds."""

    step: jax.Array  # int32, steps taken
    params: ArrayTree  # without annotations
    batch_stats: ArrayTree  # BatchNorm's running averages, biases of experts; else empty
    opt_state: ArrayTree
    last_loss: jax.Array  # float32, of the last batch
    nonfinite_step: jax.Array  # int32, the first step whose loss was not finite, or -1
    recent: Running  # since the last multiple of log_every
    final: Running  # over the last average_steps steps of the run


@jax.jit
def is_finite(state: TrainState) -> jax.Array:
    """Whether parameters and BatchNorm's averages are finite, and no number of the optimizer's state is NaN.

    An optimizer may hold infinities on purpose, such as for the best loss so far. Running sums are left out.
    """
    numbers = jax.tree.leaves((state.params, state.batch_stats))
    checks = [jnp.isfinite(x).all() for x in numbers] + [~jnp.isnan(x).any() for x in jax.tree.leaves(state.opt_state)]
    return functools.reduce(jnp.logical_and, checks, jnp.array(True))


# Mean loss and accuracy over the examples whose mask is set.
EvalMetrics = clu.metrics.Collection.create(
    loss=clu.metrics.Average.from_output("loss"), accuracy=clu.metrics.Average.from_output("accuracy")
)


def init_state(
    model: nn.Module, optimizer: optax.GradientTransformation, seed: jax.Array | int, input_spec: jax.ShapeDtypeStruct
) -> TrainState:
    """A fresh state; a pure function, to be jitted with shardings, mapped over seeds, or evaluated for shapes alone."""
    variables = model.init(jax.random.key(seed), jnp.zeros(input_spec.shape, input_spec.dtype))
    return state_of(variables, optimizer)


def state_of(variables: Mapping[str, ArrayTree], optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step; ``variables`` are those of ``model.init``."""
    variables = nn.unbox(variables)
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
    """The training step ``(state, batch) -> state``: a pure function whose random keys are folded from (seed, step).

    Args:
      model: called as ``model.apply(variables, inputs, train=True, rngs={"dropout": key})``; returns logits, which
        have one axis more than the labels. A `LanguageModel` whose logits are large returns `LogitFactors` of them.
      optimizer: whole optax transformation, with the learning rate.
      prepare: ``(key, batch) -> (inputs, labels)``, such as ``functools.partial(dataset.prepare, "cifar")`` of a
        `depthmup_flax.data.Dataset`. Labels are int32; the loss and accuracy are means over all of them.
      seed: of augmentation and dropout.
      log_every: `TrainState.recent` restarts after each multiple.
      average_from: `TrainState.final` sums the steps after this one.
      accumulate: number of parts of the batch whose gradients are computed one after another, to save memory. The mean
        is the same; BatchNorm normalizes each part by itself, and each part has its own dropout masks.
    """

    def train_step(state: TrainState, batch: Batch) -> TrainState:
        root = jax.random.key(seed)
        inputs, labels = prepare(jax.random.fold_in(root, state.step), batch)
        dropout = jax.random.fold_in(jax.random.fold_in(root, _DROPOUT), state.step)

        def gradient(stats: ArrayTree, inputs: jax.Array, labels: jax.Array, key: jax.Array) -> tuple[ArrayTree, Means]:
            def apply(params: ArrayTree, **flags: Any) -> tuple[Any, ArrayTree]:
                variables, rngs = {"params": params, "batch_stats": stats}, {"dropout": key}
                outputs, updated = model.apply(
                    variables, inputs, train=True, mutable=["batch_stats"], rngs=rngs, **flags
                )
                return outputs, updated.get("batch_stats", {})

            def loss_fn(params: ArrayTree) -> tuple[jax.Array, tuple[jax.Array, ArrayTree]]:
                logits, new_stats = apply(params)
                losses, right = cross_entropy(logits, labels)
                return losses.mean(), (right, new_stats)

            parts = parts_of_loss(model, labels)
            if parts == 1:
                (loss, (right, new_stats)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
            else:
                apply_factored = functools.partial(apply, factors=True)
                factors, backward, new_stats = jax.vjp(apply_factored, state.params, has_aux=True)
                (losses, right), factors_grad = gradient_in_parts(factors, labels, parts)
                loss, (grads,) = losses.mean(), backward(factors_grad)
            return new_stats, (grads, loss.astype(jnp.float32), right.mean())

        if accumulate == 1:
            batch_stats, means = gradient(state.batch_stats, inputs, labels, dropout)
        else:
            # Part i has every accumulate-th example, so that examples stay on their device.
            split = lambda x: x.reshape(-1, accumulate, *x.shape[1:]).swapaxes(0, 1)
            parts = (split(inputs), split(labels), jax.random.split(dropout, accumulate))
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


def make_eval_step(
    model: nn.Module, *, prepare: Prepare
) -> Callable[[ArrayTree, ArrayTree, Batch], clu.metrics.Collection]:
    """The evaluation ``(params, batch_stats, batch) -> EvalMetrics`` of a batch with a ``mask`` [B].

    ``prepare`` is as in `make_train_step`, but gets no key. Loss and accuracy of an example are means over its labels.
    """

    def eval_step(params: ArrayTree, batch_stats: ArrayTree, batch: Batch) -> clu.metrics.Collection:
        inputs, labels = prepare(None, batch)
        variables = {"params": params, "batch_stats": batch_stats}
        apply: Callable[..., Any] = functools.partial(model.apply, variables, inputs, train=False)
        parts = parts_of_loss(model, labels)
        if parts == 1:
            losses, right = cross_entropy(apply(), labels)
        else:
            losses, right = in_parts(apply(factors=True), labels, parts)
        loss, accuracy = (x.reshape(len(x), -1).mean(-1) for x in (losses, right.astype(jnp.float32)))
        return EvalMetrics.single_from_model_output(loss=loss, accuracy=accuracy, mask=batch["mask"] > 0)

    return eval_step


def evaluate(eval_step: Callable[[Batch], clu.metrics.Collection], batches: Iterable[Batch]) -> clu.metrics.Collection:
    """The `EvalMetrics` of all ``batches``."""
    return functools.reduce(lambda total, new: total.merge(new), map(eval_step, batches))


def _mean_over_parts(
    gradient: Callable[..., tuple[ArrayTree, Means]], batch_stats: ArrayTree, parts: tuple[jax.Array, ...]
) -> tuple[ArrayTree, Means]:
    """BatchNorm's averages after all parts, and the mean over parts of gradients, loss and accuracy."""

    def add(carry: tuple[ArrayTree, Means], part: Any) -> tuple[tuple[ArrayTree, Means], None]:
        stats, values = gradient(carry[0], *part)
        return (stats, jax.tree.map(jnp.add, carry[1], values)), None

    first, *_ = jax.tree.leaves(parts)
    shapes = jax.eval_shape(lambda parts: gradient(batch_stats, *jax.tree.map(lambda x: x[0], parts))[1], parts)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    (batch_stats, totals), _ = jax.lax.scan(add, (batch_stats, zeros), parts)
    return batch_stats, jax.tree.map(lambda x: x / len(first), totals)
