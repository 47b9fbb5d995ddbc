"""What is trained, as pure functions of hyperparameters, and weighted means of its metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
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
    def of_examples(cls, metrics: Mapping[str, jax.Array], mask: jax.Array) -> Means:
        """Sums over the examples whose ``mask`` [B] is set; an example's metrics ``[B, ...]`` are averaged first."""
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
