"""What the transformers of the zoo share: the sums of attention, rotary positions, the root-mean-square norm."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def attend(q_BTHd: jax.Array, k_BSKd: jax.Array, v_BSKd: jax.Array, scale: float, causal: bool = True) -> jax.Array:
    """Softmax attention ``[B, T, H, d]``; H is a multiple of K, the number of heads of keys and values."""
    groups = q_BTHd.shape[2] // k_BSKd.shape[2]
    k, v = (jnp.repeat(x, groups, axis=2) for x in (k_BSKd, v_BSKd))
    logits = jnp.einsum("bthd,bshd->bhts", q_BTHd, k) * scale
    if causal:
        logits = jnp.where(jnp.tril(jnp.ones(logits.shape[-2:], bool)), logits, -1e9)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(logits), v)


def rotate(x_BTHd: jax.Array) -> jax.Array:
    """Rotary positions: pairs of entries turn by an angle that grows with the position."""
    length, d = x_BTHd.shape[1], x_BTHd.shape[-1]
    angles_Te = jnp.arange(length)[:, None] * 100.0 ** (-jnp.arange(d // 2) / (d // 2))
    cos, sin = jnp.cos(angles_Te)[:, None], jnp.sin(angles_Te)[:, None]
    first, second = jnp.split(x_BTHd, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def unit_rms(x: jax.Array) -> jax.Array:
    """``x`` with a root mean square of 1 over the last axis."""
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def sines(length: int, width: int) -> jax.Array:
    """Fixed positions ``[T, D]``."""
    angles = jnp.arange(length)[:, None] * 100.0 ** (-jnp.arange(width // 2) / (width // 2))
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
