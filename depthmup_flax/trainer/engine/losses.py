"""Losses: of examples by name, or a user's function of a whole batch; of large logits, for some positions at a time."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.devices.sharding import rows, shards_of_logits
from depthmup_flax.models.base import LanguageModel
from depthmup_flax.networks.calls import calling, shapes_of
from depthmup_flax.networks.import_paths import is_import_path, resolve
from depthmup_flax.nn.layers import LogitFactors
from depthmup_flax.trainer.engine.workload import Means, Metrics
from depthmup_flax.util.errors import InputError, closest
from depthmup_flax.util.types import ArrayTree

# Most bytes of float32 logits on a device. Smaller parts add more often to the gradient of the readout's kernel: with
# 1/4 GiB the head of a GPT (width 768, 50304 tokens) takes 1.18 times as long, by the TPU compiler's estimate.
MOST_BYTES = 2**30


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``[..., V]`` and ``[...] -> [...]``: losses, and ``argmax(logits) == label`` (false if a logit is NaN).

    An argmax would take as long as a product. If V is split over devices, they only exchange reductions ``[...]``.
    """
    label = labels[..., None]
    position = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    largest = jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    # Sums of numbers of one type share a pass over the logits, also in the gradient; a gather's would be a scatter.
    own = jnp.where(position == label, logits, 0).sum(-1)
    total = jnp.exp(logits - largest).sum(-1)
    ties = jax.lax.stop_gradient((logits == largest) & (position < label)).astype(logits.dtype).sum(-1)
    losses = jnp.log(total) + largest[..., 0] - own
    return losses, (own == largest[..., 0]) & (ties == 0)


def parts_of_loss(model: nn.Module, labels: jax.Array) -> int:
    """The number of parts in which to compute the loss of labels ``[B, T]``; 1 for models other than language models.

    It is the lowest power of two for which a part has at most `MOST_BYTES` of logits on a device. Each of several runs
    under `jax.vmap` counts by itself.
    """
    if not isinstance(model, LanguageModel):
        return 1
    size = 4 * labels.size * model.vocab_size / shards_of_logits(model.vocab_size)
    return min(2 ** max(0, math.ceil(math.log2(size / MOST_BYTES))), labels.shape[1])


def in_parts(factors: LogitFactors, labels_BxT: jax.Array, parts: int) -> tuple[jax.Array, jax.Array]:
    """`cross_entropy` ``[B, T]`` of the product of ``factors``, one part of T after another."""

    def of_part(_: None, part: Any) -> tuple[None, Any]:
        x, labels = part
        return None, cross_entropy(dataclasses.replace(factors, x=x).product(), labels)

    values = jax.lax.scan(of_part, None, _split((factors.x, labels_BxT), parts))[1]
    return _joined(values, labels_BxT.shape[1])


def gradient_in_parts(
    factors: LogitFactors, labels_BxT: jax.Array, parts: int
) -> tuple[tuple[jax.Array, jax.Array], LogitFactors]:
    """`in_parts`, and the gradient of the mean loss with respect to ``factors``.

    The gradient of a part is computed right after its logits, which are then freed (Hsu et al., arXiv:2410.10989).
    """
    like = functools.partial(LogitFactors, precision=factors.precision)
    weights_BxT = jnp.full(labels_BxT.shape, 1 / labels_BxT.size, factors.x.dtype)

    def of_part(total: tuple[Any, Any], part: Any) -> tuple[tuple[Any, Any], Any]:
        # Rows in one axis: with two, the kernel's gradient takes 1.6 times as long on a TPU, as its compiler estimates.
        x, labels, weights = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), part)
        unflattened = lambda rows: rows.reshape(*part[1].shape, *rows.shape[1:])

        def mean_loss(*arrays: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            losses, right = cross_entropy(like(*arrays).product(), labels)
            return (losses * weights).sum(), (losses, right)

        gradient = jax.grad(mean_loss, argnums=(0, 1, 2), has_aux=True)
        (x_grad, *grads), values = gradient(x, factors.kernel, factors.bias)
        return jax.tree.map(jnp.add, total, tuple(grads)), jax.tree.map(unflattened, (x_grad, values))

    zeros = jax.tree.map(jnp.zeros_like, (factors.kernel, factors.bias))
    grads, by_part = jax.lax.scan(of_part, zeros, _split((factors.x, labels_BxT, weights_BxT), parts))
    x_grad, values = _joined(by_part, labels_BxT.shape[1])
    return values, like(x_grad, *grads)


def _split(tree: Any, parts: int) -> Any:
    """``[B, T, ...] -> [parts, B, T / parts, ...]``, with zeros at the end where ``parts`` does not divide T."""

    def split(x: jax.Array) -> jax.Array:
        batch, length, *rest = x.shape
        size = -(-length // parts)
        x = jnp.pad(rows(x), [(0, 0), (0, parts * size - length), *[(0, 0)] * len(rest)])
        return x.reshape(batch, parts, size, *rest).swapaxes(0, 1)

    return jax.tree.map(split, tree)


def _joined(tree: Any, length: int) -> Any:
    """``[parts, B, T / parts, ...] -> [B, length, ...]``."""

    def join(x: jax.Array) -> jax.Array:
        parts, batch, size, *rest = x.shape
        return x.swapaxes(0, 1).reshape(batch, parts * size, *rest)[:, :length]

    return jax.tree.map(join, tree)


# Parameters -> outputs and updated collections.
Apply = Callable[..., tuple[Any, ArrayTree]]


class Loss:
    """The loss of a network's outputs.

    Args:
      metrics: ``(outputs, targets) -> {"loss": [B, ...], ...}``, or means over the batch.
      averaged: their names.
      masked: the metrics are of examples; see `depthmup_flax.trainer.engine.workload.Task`.
    """

    def __init__(
        self, metrics: Callable[[Any, Any], Mapping[str, jax.Array]], averaged: tuple[str, ...], *, masked: bool = True
    ) -> None:
        self._metrics, self.averaged, self.masked = metrics, averaged, masked

    def gradient(self, apply: Apply, params: ArrayTree, targets: Any) -> tuple[ArrayTree, Metrics, ArrayTree]:
        """The gradient of the mean loss, the metrics, and the updated collections."""

        def loss(params: ArrayTree) -> tuple[jax.Array, tuple[Metrics, ArrayTree]]:
            outputs, collections = apply(params)
            metrics = {name: x.mean() for name, x in self._metrics(outputs, targets).items()}
            return metrics["loss"], (metrics, collections)

        grads, (metrics, collections) = jax.grad(loss, has_aux=True)(params)
        return grads, metrics, collections

    def evaluate(self, outputs: Callable[..., Any], targets: Any, mask: Any = None) -> Metrics | Means:
        """The metrics of a test batch."""
        metrics = self._metrics(outputs(), targets)
        return Means.of_examples(metrics, mask) if self.masked else dict(metrics)

    def mean(self, outputs: Any, targets: Any) -> jax.Array:
        """The loss of a batch, a scalar."""
        return jnp.mean(self._metrics(outputs, targets)["loss"])


class CrossEntropy(Loss):
    """The cross-entropy of logits, which have one axis more than the labels; and the accuracy.

    A `LanguageModel` whose logits are large returns `LogitFactors` of them.
    """

    averaged = ("loss", "accuracy")

    def __init__(self, model: Any) -> None:
        super().__init__(_loss_and_accuracy, self.averaged)
        self._model = model

    def gradient(self, apply: Apply, params: ArrayTree, targets: Any) -> tuple[ArrayTree, Metrics, ArrayTree]:
        """See `Loss`."""
        if (parts := parts_of_loss(self._model, targets)) == 1:
            return super().gradient(apply, params, targets)
        factors, backward, collections = jax.vjp(functools.partial(apply, factors=True), params, has_aux=True)
        (losses, right), factors_grad = gradient_in_parts(factors, targets, parts)
        return backward(factors_grad)[0], {"loss": losses.mean(), "accuracy": right.mean()}, collections

    def evaluate(self, outputs: Callable[..., Any], targets: Any, mask: Any = None) -> Metrics | Means:
        """See `Loss`."""
        if (parts := parts_of_loss(self._model, targets)) == 1:
            return super().evaluate(outputs, targets, mask)
        losses, right = in_parts(outputs(factors=True), targets, parts)
        return Means.of_examples({"loss": losses, "accuracy": right}, mask)


def named_loss(name: str, model: Any) -> Loss:
    """The loss of ``config.loss`` for outputs of ``model``."""
    if name == "cross_entropy":
        return CrossEntropy(model)
    if name == "squared_error":
        return Loss(_squared_errors, ("loss",))
    if is_import_path(name):
        return Loss(functools.partial(_of_batch, resolve(name, "loss"), name), ("loss",), masked=False)
    meant = closest(name, ("cross_entropy", "squared_error"))
    raise InputError(
        f"loss is {name!r}: {f'did you mean {meant!r}? Or ' if meant else ''}use cross_entropy, squared_error, or "
        "the import path of a function of outputs and targets, such as my_package.losses:contrastive; dm.Study "
        "takes the function, too."
    )


def _loss_and_accuracy(logits: jax.Array, labels: jax.Array) -> Metrics:
    fits = hasattr(logits, "shape") and jnp.issubdtype(labels.dtype, jnp.integer)
    if not fits or logits.shape[:-1] != labels.shape:
        raise InputError(
            f"loss is 'cross_entropy': the outputs are {shapes_of(logits)} and the targets {shapes_of(labels)}. "
            "Targets must be integers, of the shape of the outputs without the last axis. Otherwise use "
            "loss='squared_error', or a loss of your own."
        )
    losses, right = cross_entropy(logits, labels)
    return {"loss": losses, "accuracy": right}


def _squared_errors(outputs: jax.Array, targets: jax.Array) -> Metrics:
    if getattr(outputs, "shape", None) != jnp.shape(targets):  # else they would be broadcast
        raise InputError(
            f"loss is 'squared_error': the outputs are {shapes_of(outputs)} and the targets {shapes_of(targets)}. Give "
            "both the same shape, or use a loss of your own."
        )
    return {"loss": jnp.square(outputs.astype(jnp.float32) - targets)}


def _of_batch(function: Callable[[Any, Any], jax.Array], name: str, outputs: Any, targets: Any) -> Metrics:
    """The loss of a user's ``function``, a scalar."""
    with calling(name, outputs, targets):
        value = function(outputs, targets)
    array = isinstance(value, (jax.Array, np.ndarray, np.generic, float, int)) and jnp.asarray(value)
    if array is False or array.shape != () or not jnp.issubdtype(array.dtype, jnp.floating):
        returns = f"a {type(value).__name__}" if array is False else f"{array.dtype}{list(array.shape)}"
        raise InputError(
            f"loss is {name!r}: it returns {returns}. Return one floating-point number, such as "
            "the mean over the batch."
        )
    return {"loss": array}
