"""Positions of tokens: tables of sines and cosines, and rotations of queries and keys."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

_LONGEST = 10_000.0  # in tokens over 2 pi: the wavelengths grow to it from 1


def sincos_positions(count: int, features: int) -> np.ndarray:
    """``[count, features]``: sines, then cosines, of the position times ``10000^(-i / (features / 2))``.

    Vaswani et al. (arXiv:1706.03762), sec. 3.5, with sines and cosines side by side instead of interleaved.
    """
    half = features // 2
    angles = np.arange(count)[:, None] * _LONGEST ** (-np.arange(half) / half)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def sincos_positions_2d(height: int, width: int, features: int) -> np.ndarray:
    """``[height * width, features]``: `sincos_positions` of the row in one half, of the column in the other."""
    rows, columns = (sincos_positions(size, features // 2) for size in (height, width))
    return np.concatenate([np.repeat(rows, width, axis=0), np.tile(columns, (height, 1))], axis=1)


def rotary_angles(grid: tuple[int, ...], head_dim: int) -> np.ndarray:
    """``[product of grid, head_dim / 2]``: angles by which `rotated` turns the pairs of a head's features.

    The angle of pair ``i`` of ``p`` is the position times ``10000^(-i / p)`` (Su et al., arXiv:2104.09864, Eq. 15), so
    that a product of a query and a key depends on the difference of their positions. A grid with several sides, of
    patches, has ``p = head_dim / 2 / sides`` pairs for the position along each.
    """
    pairs = head_dim // 2 // len(grid)
    frequencies = _LONGEST ** (-np.arange(pairs) / pairs)
    places = np.indices(grid).reshape(len(grid), -1)  # row by row
    return np.concatenate([place[:, None] * frequencies for place in places], axis=1).astype(np.float32)


def rotated(x_BxTxHxD: jax.Array, grid: tuple[int, ...], tokens: int) -> jax.Array:
    """Queries or keys, with features ``i`` and ``i + D / 2`` turned by their token's `rotary_angles`.

    The last of the first ``tokens`` form the grid; earlier ones, such as a class token, are not turned, nor is padding.
    """
    head_dim = x_BxTxHxD.shape[3]
    angles = np.zeros((x_BxTxHxD.shape[1], head_dim // 2), np.float32)
    angles[tokens - math.prod(grid) : tokens] = rotary_angles(grid, head_dim)
    dtype = jnp.promote_types(x_BxTxHxD.dtype, jnp.float32)
    cos, sin = (f(angles)[:, None].astype(dtype) for f in (np.cos, np.sin))
    a, b = jnp.split(x_BxTxHxD.astype(dtype), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x_BxTxHxD.dtype)
