"""Losses: of examples by name, or a user's function of a whole batch."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.networks.calls import calling, shapes_of
from depthmup_flax.networks.named import is_import_path, resolve
from depthmup_flax.trainer.engine.cross_entropy import cross_entropy, gradient_in_parts, in_parts, parts_of_loss
from depthmup_flax.trainer.engine.means import Means
from depthmup_flax.trainer.engine.task import Metrics
from depthmup_flax.util.errors import InputError, closest
from depthmup_flax.util.types import ArrayTree

# Parameters -> outputs and updated collections.
Apply = Callable[..., tuple[Any, ArrayTree]]


class Loss(abc.ABC):
    """The loss of a network's outputs."""

    masked: bool  # see `depthmup_flax.trainer.engine.task.Task`
    averaged: tuple[str, ...]  # names of the metrics

    @abc.abstractmethod
    def gradient(self, apply: Apply, params: ArrayTree, targets: Any) -> tuple[ArrayTree, Metrics, ArrayTree]:
        """The gradient of the mean loss, the metrics, and the updated collections."""

    @abc.abstractmethod
    def evaluate(self, outputs: Callable[..., Any], targets: Any, mask: Any = None) -> Metrics | Means:
        """The metrics of a test batch."""

    @abc.abstractmethod
    def mean(self, outputs: Any, targets: Any) -> jax.Array:
        """The loss of a batch, a scalar."""


class OfExamples(Loss):
    """A loss of each example.

    Args:
      metrics: ``(outputs, targets) -> {"loss": [B, ...], ...}``.
      averaged: their names.
    """

    masked = True

    def __init__(self, metrics: Callable[[Any, Any], Mapping[str, jax.Array]], averaged: tuple[str, ...]) -> None:
        self._metrics, self.averaged = metrics, averaged

    def gradient(self, apply: Apply, params: ArrayTree, targets: Any) -> tuple[ArrayTree, Metrics, ArrayTree]:
        """See `Loss`."""

        def loss(params: ArrayTree) -> tuple[jax.Array, tuple[Metrics, ArrayTree]]:
            outputs, collections = apply(params)
            metrics = {name: x.mean() for name, x in self._metrics(outputs, targets).items()}
            return metrics["loss"], (metrics, collections)

        grads, (metrics, collections) = jax.grad(loss, has_aux=True)(params)
        return grads, metrics, collections

    def evaluate(self, outputs: Callable[..., Any], targets: Any, mask: Any = None) -> Means:
        """See `Loss`."""
        return Means.of_examples(self._metrics(outputs(), targets), mask)

    def mean(self, outputs: Any, targets: Any) -> jax.Array:
        """See `Loss`."""
        return jnp.mean(self._metrics(outputs, targets)["loss"])


class CrossEntropy(OfExamples):
    """The cross-entropy of logits, which have one axis more than the labels; and the accuracy.

    A `LanguageModel` whose logits are large returns `LogitFactors` of them.
    """

    averaged = ("loss", "accuracy")

    def __init__(self, model: Any) -> None:
        self._model = model
        super().__init__(_loss_and_accuracy, self.averaged)

    def gradient(self, apply: Apply, params: ArrayTree, targets: Any) -> tuple[ArrayTree, Metrics, ArrayTree]:
        """See `Loss`."""
        if (parts := parts_of_loss(self._model, targets)) == 1:
            return super().gradient(apply, params, targets)
        factors, backward, collections = jax.vjp(functools.partial(apply, factors=True), params, has_aux=True)
        (losses, right), factors_grad = gradient_in_parts(factors, targets, parts)
        return backward(factors_grad)[0], {"loss": losses.mean(), "accuracy": right.mean()}, collections

    def evaluate(self, outputs: Callable[..., Any], targets: Any, mask: Any = None) -> Means:
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
        return OfExamples(squared_errors, ("loss",))
    if not is_import_path(name):
        meant = closest(name, ("cross_entropy", "squared_error"))
        raise InputError(
            f"loss is {name!r}: {f'did you mean {meant!r}? Or ' if meant else ''}use cross_entropy, squared_error, or "
            "the import path of a function of outputs and targets, such as my_package.losses:contrastive; dm.Study "
            "takes the function, too."
        )
    return OfBatch(resolve(name, "loss"), name)


def _require_array(loss: str, outputs: Any) -> None:
    if not hasattr(outputs, "shape"):
        returns = f"a {type(outputs).__name__} of {shapes_of(outputs)}"
        raise InputError(
            f"loss is {loss!r}: the network returns {returns}. Return one array, or use a loss of your own."
        )


def _loss_and_accuracy(logits: jax.Array, labels: jax.Array) -> Metrics:
    _require_array("cross_entropy", logits)
    if not jnp.issubdtype(labels.dtype, jnp.integer) or jnp.shape(logits)[:-1] != labels.shape:
        raise InputError(
            f"loss is 'cross_entropy': the outputs are {shapes_of(logits)} and the targets {shapes_of(labels)}. "
            "Targets must be integers, of the shape of the outputs without the last axis. Otherwise use "
            "loss='squared_error', or a loss of your own."
        )
    losses, right = cross_entropy(logits, labels)
    return {"loss": losses, "accuracy": right}


def squared_errors(outputs: jax.Array, targets: jax.Array) -> Metrics:
    """``(output - target)^2``."""
    _require_array("squared_error", outputs)
    if jnp.shape(outputs) != jnp.shape(targets):
        raise InputError(
            f"loss is 'squared_error': the outputs are {shapes_of(outputs)} and the targets {shapes_of(targets)}. Give "
            "both the same shape."
        )
    return {"loss": jnp.square(outputs.astype(jnp.float32) - targets)}


class OfBatch(Loss):
    """A user's loss ``(outputs, targets) -> scalar`` of a batch; ``name`` is for messages."""

    masked = False
    averaged = ("loss",)

    def __init__(self, function: Callable[[Any, Any], jax.Array], name: str) -> None:
        self._function, self._name = function, name

    def gradient(self, apply: Apply, params: ArrayTree, targets: Any) -> tuple[ArrayTree, Metrics, ArrayTree]:
        """See `Loss`."""

        def loss(params: ArrayTree) -> tuple[jax.Array, ArrayTree]:
            outputs, collections = apply(params)
            return self.mean(outputs, targets), collections

        (value, collections), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return grads, {"loss": value}, collections

    def evaluate(self, outputs: Callable[..., Any], targets: Any, mask: Any = None) -> Metrics:
        """See `Loss`."""
        return {"loss": self.mean(outputs(), targets)}

    def mean(self, outputs: Any, targets: Any) -> jax.Array:
        """See `Loss`."""
        with calling(self._name, outputs, targets):
            value = self._function(outputs, targets)
        if not isinstance(value, (jax.Array, np.ndarray, np.generic, float, int)):
            raise InputError(f"loss is {self._name!r}: it returns a {type(value).__name__}. Return one number.")
        value = jnp.asarray(value)
        if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise InputError(
                f"loss is {self._name!r}: it returns {value.dtype}{list(value.shape)}. Return one floating-point "
                "number, such as the mean over the batch."
            )
        return value
