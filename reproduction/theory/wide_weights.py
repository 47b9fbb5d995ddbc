"""Products with weights of infinite width, on samples of neurons instead of neurons.

At infinite width the neurons of a layer are independent draws from one law. Weights W from N(0, 1/N) that were applied
to ``x_1, x_2, ...`` forward and to ``y_1, y_2, ...`` backward are to S samples of the law of both sides the matrix

    W = (E_y Q_x^T + Q_y E_x^T) / S

where ``Q_x`` and ``Q_y`` are orthonormal directions of these vectors, ``sum over samples = S``, and E white noise. Its
first term is the Gaussian part of ``W x``. Its second is the response to earlier products ``W^T y``:
``Q_y <E_x x>`` is ``sum_s y_s <d x / d (W^T y_s)>`` by Stein's lemma (A and B of Bordelon et al., arXiv:2309.16620,
App. D.3), so nothing is differentiated: relu's second derivative is a delta function.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Dtype, Scalar
from reproduction.theory.argument_checks import require_whole

_SAMPLES_PER_VARIABLE = 3


class Seen(NamedTuple):
    """What weights were applied to in one direction, in all M passes so far; zero for later passes."""

    values_SxM: jax.Array  # x, or y
    directions_SxM: jax.Array  # their orthonormal directions; sum over samples = S


def unseen(shape: tuple[int, ...], dtype: Dtype) -> Seen:
    """Of weights that were not applied yet: ``shape`` is (..., S, M)."""
    return Seen(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def initial_product(
    column: jax.Array | int, now_SxP: jax.Array, seen: tuple[Seen, Seen], noises: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, Seen]:
    """``W x`` or ``W^T y`` of some passes, (S, P), and what was seen with them.

    Args:
      column: the number of earlier passes; P passes at a time.
      now_SxP: x, or y.
      seen: in this direction, and in the other.
      noises: (S, M) white noise of the product's side, and of the side of ``now_SxP``.
    """
    (mine, other), (S, P) = seen, now_SxP.shape
    values = jax.lax.dynamic_update_slice(mine.values_SxM, now_SxP, (0, column))
    directions, along = _orthonormal(mine.directions_SxM, now_SxP, column)
    # The first passes' values have no response; the samples' estimate of it would be noise.
    response = noises[1].T @ (now_SxP - values[:, :P]) / S
    return noises[0] @ along + other.directions_SxM @ response, Seen(values, directions)


def trained_product(
    column: jax.Array | int,
    size: Scalar,
    remaining: Scalar,
    learned_M: jax.Array,
    now_SxP: jax.Array,
    seen: tuple[Seen, Seen],
    noises: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, Seen]:
    """``W_t x`` or ``W_t^T y`` of weights trained by SGD in a branch, and what was seen with them.

    Args:
      column, now_SxP, seen, noises: as of `initial_product`.
      size: a / sqrt(L), the branch's multiplier.
      remaining: c_t, what decay leaves of the initial weights.
      learned_M: ``-eta_0 gamma0 k_ts chi_s`` of all passes; 0 of those not seen yet.
    """
    mine, other = seen
    random, now_seen = initial_product(column, now_SxP, seen, noises)
    moved = other.values_SxM @ (learned_M[:, None] * (mine.values_SxM.T @ now_SxP / len(now_SxP)))
    return remaining * random + size * moved, now_seen


def checked_samples(samples: int | None, variables: int, least: int) -> int:
    """S for this number of Gaussian variables; by default a power of two from ``least`` up.

    Half of the samples are mirror images; the other half must clearly outnumber the variables that are made orthogonal.
    """
    needed = _SAMPLES_PER_VARIABLE * variables
    if samples is None:
        return max(least, 1 << (needed - 1).bit_length())
    require_whole("samples", samples)
    if samples < needed or samples % 2:
        raise InputError(
            f"samples is {samples}: use an even number of at least {needed}, {_SAMPLES_PER_VARIABLE} for each of "
            f"{variables} Gaussian variables."
        )
    return samples


def correlated(noise: jax.Array, covariance: jax.Array) -> jax.Array:
    """(..., P) Gaussian variables of covariance (P, P), which may be singular, from white ``noise``."""
    values, vectors = jnp.linalg.eigh(covariance)
    return noise @ (vectors * jnp.sqrt(jnp.maximum(values, 0))).T


def layer_kernels(xs: Seen, top_x_SxM: jax.Array, bottom_g_SxM: jax.Array, ys: Seen) -> tuple[jax.Array, jax.Array]:
    """``features`` and ``gradients`` of a `Training`, (L + 1, M, M) each, from samples of all layers."""
    kernel = lambda x: x.mT @ x / len(top_x_SxM)
    features = jnp.concatenate([kernel(xs.values_SxM), kernel(top_x_SxM)[None]])
    return features, jnp.concatenate([kernel(bottom_g_SxM)[None], kernel(ys.values_SxM)])


def white_noise(key: jax.Array, samples: int, count: int, dtype: Dtype) -> jax.Array:
    """(S, count) standard Gaussian samples, exactly uncorrelated and of variance 1.

    Each sample has a mirror image: relu's averages over a pair are nearly those of |h|, with a tenth of the variance.
    """
    drawn = jax.random.normal(key, (samples // 2, count), dtype)
    triangle = jnp.linalg.cholesky(drawn.T @ drawn / (samples // 2))
    half = jax.scipy.linalg.solve_triangular(triangle, drawn.T, lower=True).T
    return jnp.concatenate([half, -half])


def _orthonormal(directions_SxM: jax.Array, new_SxP: jax.Array, column: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    """Adds the directions of ``new`` from ``column`` on (Gram-Schmidt); also returns the (M, P) components of ``new``.

    A vector that the directions span, up to rounding, adds none.
    """
    S, P = new_SxP.shape
    least_P = 1e3 * jnp.finfo(new_SxP.dtype).eps * jnp.sqrt((new_SxP**2).mean(0))

    def without(directions: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The part of x that the directions do not span, and the components of x; twice is enough (Kahan)."""
        along = directions.T @ x / S
        rest = x - directions @ along
        again = directions.T @ rest / S
        return rest - directions @ again, along + again

    rest_SxP, along_MxP = without(directions_SxM, new_SxP)

    def one(own_SxP: jax.Array, p: jax.Array) -> tuple[jax.Array, jax.Array]:
        rest, along = without(own_SxP, rest_SxP[:, p])
        length = jnp.sqrt(rest @ rest / S)
        length = jnp.where(length > least_P[p], length, 0.0)
        unit = jnp.where(length > 0, rest / jnp.where(length > 0, length, 1.0), 0.0)
        return own_SxP.at[:, p].set(unit), along.at[p].set(length)

    own_SxP, own_along_PxP = jax.lax.scan(one, jnp.zeros_like(new_SxP), jnp.arange(P))
    directions = jax.lax.dynamic_update_slice(directions_SxM, own_SxP, (0, column))
    return directions, jax.lax.dynamic_update_slice(along_MxP, own_along_PxP.T, (column, 0))
