"""The cross-entropy of logits; of large logits, for some positions of the sequences at a time."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup_flax.devices.parallel.sharding import rows, shards_of_logits
from depthmup_flax.models.base import LanguageModel
from depthmup_flax.nn.layers import LogitFactors

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
