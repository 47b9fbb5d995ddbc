"""Branches without weights: functions of the (normalized) stream ``[B, T, D]``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp


def _ffts(y: jax.Array) -> jax.Array:
    return jnp.fft.fft2(y).real / y.shape[-1] ** 0.5  # otherwise it grows with the width


def _blur(y: jax.Array) -> jax.Array:
    n = y.shape[-1]
    kernel = jnp.array([0.25, 0.5, 0.25])[:, None, None] * jnp.ones((1, 1, n))
    return jax.lax.conv_general_dilated(
        y, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=n
    )


def _average(y: jax.Array) -> jax.Array:
    sums = jax.lax.reduce_window(y, 0.0, jax.lax.add, (1, 3, 1), (1, 1, 1), "SAME")
    return sums / 3.0 - y


def _self_similar(y: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.einsum("btn,bsn->bts", y, y) / y.shape[-1]) @ y


def _decayed(y: jax.Array) -> jax.Array:
    step = lambda state, now: (0.9 * state + now, 0.9 * state + now)
    return jnp.swapaxes(jax.lax.scan(step, jnp.zeros_like(y[:, 0]), jnp.swapaxes(y, 0, 1))[1], 0, 1)


WEIGHTLESS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "average_pool": _average,
    "max_pool": lambda y: jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 3, 1), (1, 1, 1), "SAME"),
    "fft": _ffts,
    "shift": lambda y: jnp.roll(y, 1, axis=1),
    "shift_parts": lambda y: jnp.concatenate(
        [jnp.roll(h, s, 1) for s, h in zip((-1, 1), jnp.split(y, 2, -1), strict=True)], -1
    ),
    "reverse": lambda y: y[:, ::-1],
    "cumulative_sum": lambda y: jnp.cumsum(y, axis=1),
    "causal_mean": lambda y: jnp.cumsum(y, axis=1) / (1.0 + jnp.arange(y.shape[1]))[:, None],
    "token_mean": lambda y: jnp.broadcast_to(y.mean(1, keepdims=True), y.shape),
    "blur": _blur,
    "fixed_matrix": lambda y: jnp.einsum("btn,ts->bsn", y, jnp.cos(jnp.arange(36.0)).reshape(6, 6)),
    "self_similar": _self_similar,
    "decayed": _decayed,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "square": jnp.square,
    "sort": lambda y: jnp.sort(y, axis=1),
    "cumulative_max": lambda y: jax.lax.cummax(y, axis=1),
}
