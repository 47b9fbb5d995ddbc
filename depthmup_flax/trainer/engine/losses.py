"""Losses: of examples by name, or a user's function of a whole batch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from depthmup_flax.networks.import_paths import is_import_path, resolve
from depthmup_flax.networks.user_code import calling, shapes_of
from depthmup_flax.trainer.engine.task import Means, Metrics
from depthmup_flax.util.errors import InputError, closest


def cross_entropy(
    logits: jax.Array, labels: jax.Array, smoothing: float = 0.0, probabilities: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """``[..., V]`` and ``[...] -> [...]``: losses, and ``argmax(logits) == label`` (false if a logit is NaN).

    ``probabilities`` ``[..., V]`` replace the labels in the loss, of which ``smoothing`` is spread over all classes
    (arXiv:1512.00567). If they do not sum to 1, the loss is that of `optax.softmax_cross_entropy`: minus the sum of
    probabilities times log-probabilities, at least 0. An argmax would take as long as a product. If V is split over
    devices, they only exchange reductions ``[...]``.
    """
    label = labels.astype(jnp.int32)[..., None]  # positions of many classes do not fit into 8 bits
    position = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    largest = jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    # Sums of numbers of one type share a pass over the logits, also in the gradient; a gather's would be a scatter.
    own = jnp.where(position == label, logits, 0).sum(-1)
    total = jnp.exp(logits - largest).sum(-1)
    ties = jax.lax.stop_gradient((logits == largest) & (position < label)).astype(logits.dtype).sum(-1)
    expected = own if probabilities is None else (probabilities * logits).sum(-1)
    weight = 1.0 if probabilities is None else probabilities.sum(-1)
    if smoothing:
        expected = (1 - smoothing) * expected + smoothing * logits.mean(-1)
        weight = (1 - smoothing) * weight + smoothing
    losses = weight * (jnp.log(total) + largest[..., 0]) - expected
    return losses, (own == largest[..., 0]) & (ties == 0)


@dataclasses.dataclass(frozen=True)
class Loss:
    """The loss of a network's outputs."""

    # ``(outputs, targets) -> {"loss": [B, ...], ...}``, or means over the batch
    metrics: Callable[[Any, Any], Mapping[str, jax.Array]]
    averaged: tuple[str, ...] = ("loss",)  # their names
    masked: bool = True  # the metrics are of examples; see `depthmup_flax.trainer.engine.task.Task`
    training: Callable[[Any, Any], Mapping[str, jax.Array]] | None = None  # in place of ``metrics`` in training
    ignored: int | None = None  # the label of what counts in no mean

    def in_training(self, outputs: Any, targets: Any) -> Metrics:
        """The mean metrics of a training batch."""
        metrics = (self.training or self.metrics)(outputs, targets)
        if self.ignored is None:
            return {name: x.mean() for name, x in metrics.items()}
        counted = self._counted(targets)
        number = jnp.maximum(counted.sum(), 1)
        return {name: jnp.where(counted, x, 0).sum() / number for name, x in metrics.items()}

    def evaluate(self, outputs: Any, targets: Any, mask: Any = None) -> Metrics | Means:
        """The metrics of a test batch."""
        metrics = self.metrics(outputs, targets)
        counted = None if self.ignored is None else self._counted(targets)
        return Means.of_examples(metrics, mask, counted) if self.masked else dict(metrics)

    def _counted(self, labels: jax.Array) -> Any:
        """Which of integer labels are not ignored; of one that does not fit into their type, all."""
        if not jnp.issubdtype(labels.dtype, jnp.integer):
            raise InputError(
                f"data.ignore_label is {self.ignored}: the targets are probabilities, {shapes_of(labels)}. Leave it "
                "out, as None, and give what has no label an empty row."
            )
        return labels.astype(jnp.int32) != self.ignored


def named_loss(name: str, label_smoothing: float = 0.0, ignored: int | None = None) -> Loss:
    """The loss of ``config.loss``; labels are smoothed in training alone, and those ``ignored`` count nowhere."""
    if name == "cross_entropy":
        smoothed = functools.partial(_loss_and_accuracy, smoothing=label_smoothing) if label_smoothing else None
        return dataclasses.replace(CROSS_ENTROPY, training=smoothed, ignored=ignored)
    if name in _LOSSES:
        return _LOSSES[name]
    if is_import_path(name):
        return Loss(functools.partial(_of_batch, resolve(name, "loss"), name), masked=False)
    meant = closest(name, _LOSSES)
    raise InputError(
        f"loss is {name!r}: {f'did you mean {meant!r}? Or ' if meant else ''}use cross_entropy, squared_error, or "
        "the import path of a function of outputs and targets, such as my_package.losses:contrastive; dm.Study "
        "takes the function, too."
    )


def _loss_and_accuracy(logits: jax.Array, labels: jax.Array, smoothing: float = 0.0) -> Metrics:
    of = getattr(logits, "shape", None)
    if of and labels.shape == of and jnp.issubdtype(labels.dtype, jnp.floating):
        losses, right = cross_entropy(logits, labels.argmax(-1), smoothing, labels)
        return {"loss": losses, "accuracy": right}
    if not of or not jnp.issubdtype(labels.dtype, jnp.integer) or of[:-1] != labels.shape:
        raise InputError(
            f"loss is 'cross_entropy': the outputs are {shapes_of(logits)} and the targets {shapes_of(labels)}. "
            "Targets must be integers, of the shape of the outputs without the last axis, or probabilities of the "
            "outputs' shape, as floating-point numbers. Otherwise use "
            "loss='squared_error', or a loss of your own."
        )
    losses, right = cross_entropy(logits, labels, smoothing)
    return {"loss": losses, "accuracy": right}


def _squared_errors(outputs: jax.Array, targets: jax.Array) -> Metrics:
    if getattr(outputs, "shape", None) != jnp.shape(targets):  # else they would be broadcast
        raise InputError(f"loss is 'squared_error' of {shapes_of(outputs)} and {shapes_of(targets)}: use one shape.")
    return {"loss": jnp.square(outputs.astype(jnp.float32) - targets)}


def _of_batch(function: Callable[[Any, Any], jax.Array], name: str, outputs: Any, targets: Any) -> Metrics:
    """The loss of a user's ``function``: a number, or several, of which the mean is taken."""
    with calling(name, outputs, targets):
        return {"loss": jnp.mean(function(outputs, targets))}


# Of logits, which have one axis more than the labels; and the accuracy.
CROSS_ENTROPY = Loss(_loss_and_accuracy, ("loss", "accuracy"))
_LOSSES = {"cross_entropy": CROSS_ENTROPY, "squared_error": Loss(_squared_errors)}
