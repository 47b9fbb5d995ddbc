"""Weighted means of metrics, over training steps or over the examples of an evaluation."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import jax
import jax.numpy as jnp
from flax import struct


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
