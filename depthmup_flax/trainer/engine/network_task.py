"""A network with a loss and an optimizer as a `Task`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from depthmup_flax.devices.sharding import row_major, target_platform, traced_platform
from depthmup_flax.networks.model_functions import ModelFunctions
from depthmup_flax.trainer.engine.losses import Loss
from depthmup_flax.trainer.engine.task import Hyper, Means, Metrics, Task
from depthmup_flax.util.types import ArrayTree

GRADIENTS = "gradients"  # among the metrics of a step that is given ``sample``: this of its gradients


@struct.dataclass
class NetworkState:
    """The state of a network in training."""

    params: ArrayTree
    collections: ArrayTree  # what the forward pass updates: {"batch_stats": BatchNorm's averages, ...}
    opt_state: ArrayTree
    ema: Any = ()  # optax.EmaState of the parameters, if they are averaged


def network_task(
    network: Callable[[Hyper], tuple[ModelFunctions, optax.GradientTransformation]],
    example: Any,
    loss: Loss,
    *,
    accumulate: int = 1,
    ema_decay: float = 0.0,
) -> Task:
    """Trains a network by the gradient of a loss.

    Batches are pairs: inputs ``[B, ...]`` and targets ``[B, ...]``.

    Args:
      network: hyperparameters -> model, and whole optax optimizer, with the learning rate.
      example: shape and type of inputs with B = 1, with which the model is initialized.
      loss: of the outputs and the targets.
      accumulate: number of parts of the batch, whose gradients are computed in turn to save memory and averaged.
        BatchNorm normalizes each part by itself, and each part has its own dropout masks.
      ema_decay: above 0, an evaluation has the metrics of the parameters' exponential average, too: ``ema_loss``.
    """

    def init(key: jax.Array, hyper: Hyper) -> NetworkState:
        model, optimizer = network(hyper)
        return state_of(*model.init(key, jax.tree.map(jnp.zeros_like, example)), optimizer, ema_decay)

    def step(
        state: NetworkState, batch: Any, hyper: Hyper, key: jax.Array, sample: Callable[[ArrayTree], Any] | None = None
    ) -> tuple[NetworkState, Metrics]:
        (model, optimizer), (inputs, targets) = network(hyper), batch

        def gradient(collections: ArrayTree, inputs: Any, targets: Any, key: jax.Array) -> tuple[ArrayTree, Any]:
            def of_params(params: ArrayTree) -> tuple[jax.Array, tuple[ArrayTree, Metrics]]:
                outputs, new = model.apply(params, collections, inputs, train=True, key=key)
                metrics = loss.in_training(outputs, targets)
                return metrics["loss"], (new, metrics)

            grads, (new, metrics) = jax.grad(of_params, has_aux=True)(state.params)
            return new, (grads, metrics)

        if accumulate == 1:
            collections, (grads, metrics) = gradient(state.collections, inputs, targets, key)
        else:
            # Part i has every accumulate-th example, so that examples stay on their device.
            split = lambda x: x.reshape(-1, accumulate, *x.shape[1:]).swapaxes(0, 1)
            parts = (*jax.tree.map(split, (inputs, targets)), jax.random.split(key, accumulate))
            collections, (grads, metrics) = _mean_over_parts(gradient, state.collections, parts)
        if target_platform() == "tpu" and traced_platform() is None:  # in lanes
            # Else XLA:TPU computes the gradient of a first layer transposed, and in every step copies the layer's
            # parameters and moments into that layout and back: 40 % of the step of 64 lanes of ResMLP, by its estimate.
            grads = jax.tree.map(row_major, grads)
        if sample is not None:
            metrics = {**metrics, GRADIENTS: sample(grads)}
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = optax.ema(ema_decay).update(params, state.ema)[1] if ema_decay else ()
        return NetworkState(params, collections, opt_state, ema), metrics

    def evaluate(state: NetworkState, batch: Any, hyper: Hyper) -> Metrics | Means:
        (inputs, targets), *mask = batch if loss.masked else (batch,)
        of = lambda params: loss.evaluate(
            network(hyper)[0].apply(params, state.collections, inputs, train=False, key=None)[0], targets, *mask
        )
        metrics = of(state.params)
        if not ema_decay:
            return metrics
        # Before the first step there is no average.
        average = jax.tree.map(
            lambda mean, x: jnp.where(state.ema.count == 0, x, mean), averaged(state.ema, ema_decay), state.params
        )
        # The metrics of the parameters, and of their average as ``ema_loss`` and so on.
        raw, mean = (x.totals if isinstance(x, Means) else x for x in (metrics, of(average)))
        both = {**raw, **{f"ema_{name}": x for name, x in mean.items()}}
        return Means(both, metrics.weight) if isinstance(metrics, Means) else both

    finite = lambda state: (state.params, state.collections)
    return Task(init, step, evaluate, finite, masked=loss.masked)


def state_of(
    params: ArrayTree, collections: ArrayTree, optimizer: optax.GradientTransformation, ema_decay: float = 0.0
) -> NetworkState:
    """The state before the first step."""
    ema = optax.ema(ema_decay).init(params) if ema_decay else ()
    return NetworkState(params, collections, optimizer.init(params), ema)


def averaged(ema: Any, decay: float) -> ArrayTree:
    """The average of an ``optax.EmaState``, without the zeros that it started from."""
    return optax.tree.bias_correction(ema.ema, decay, ema.count)


def _mean_over_parts(
    gradient: Callable[..., tuple[ArrayTree, Any]], collections: ArrayTree, parts: tuple[Any, ...]
) -> tuple[ArrayTree, Any]:
    """The collections after all parts, and the mean over parts of gradients and metrics."""

    def add(carry: tuple[ArrayTree, Any], part: Any) -> tuple[tuple[ArrayTree, Any], None]:
        collections, values = gradient(carry[0], *part)
        return (collections, jax.tree.map(jnp.add, carry[1], values)), None

    count = len(jax.tree.leaves(parts)[0])
    shapes = jax.eval_shape(lambda parts: gradient(collections, *jax.tree.map(lambda x: x[0], parts))[1], parts)
    (collections, totals), _ = jax.lax.scan(add, (collections, jax.tree.map(jnp.zeros_like, shapes)), parts)
    return collections, jax.tree.map(lambda x: x / count, totals)
