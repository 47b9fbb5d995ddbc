"""The result of a theory of training, and its limit of infinite depth."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree
from reproduction.theory.argument_checks import require_whole

Loss = Callable[[jax.Array, jax.Array], jax.Array]


def square_loss(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """``(f - y)^2 / 2`` of every example."""
    return (outputs - targets) ** 2 / 2


def slope_of(loss: Loss) -> Loss:
    """The derivative of an elementwise loss by the outputs."""
    return jax.grad(lambda outputs, targets: loss(outputs, targets).sum())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Training:
    """T steps of B examples each, in a network of L layers: M = T B passes, ordered by step, then by example.

    Features are what weights and the readout read, ``phi(h)`` or, with the nonlinearity last, ``h``, from the stem's
    output to the last layer's. In a linear network the root of their diagonal is the root mean square of a layer's
    entries.
    """

    outputs: jax.Array  # (T, B) f of each step's examples, before that step's update
    losses: jax.Array  # (T,) of each step's batch, before its update
    features: jax.Array  # (L + 1, M, M) Phi: ``<x_i^l x_j^l>`` between passes i and j
    # (L + 1, M, M) G: ``<y_i^l y_j^l>`` of the gradients by the outputs of the stem and of the blocks' weights, ``y = N
    # gamma0 df/dh``; with the nonlinearity last ``phi'(z)`` times that of the block's output, less its mean.
    gradients: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Estimate:
    """A `Training` and the error of each of its numbers: Monte Carlo's standard error, or that of `infinite_depth`."""

    mean: Training
    error: Training


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def over_populations(
    population: Callable[..., Training], plan: Any, populations: int, key: jax.Array | None, *numbers: ArrayTree
) -> Estimate:
    """Mean and standard error over populations of samples, one at a time: each ``population(plan, *numbers, key)``.

    Without a key it is ``jax.random.key(0)``.
    """
    keys = jax.random.split(jax.random.key(0) if key is None else key, populations)
    results = jax.lax.map(functools.partial(population, plan, *numbers), keys)
    error = jax.tree.map(lambda x: x.std(0, ddof=1) / populations**0.5, results)
    return Estimate(jax.tree.map(lambda x: x.mean(0), results), error)


def infinite_depth(compute: Callable[[int], Training | Estimate], depth: int = 32) -> Estimate:
    """The limit of infinite depth, by refinement of layer time.

    The error of depth L is of order 1/L (Bordelon et al., arXiv:2309.16620, App. E.3), that of ``2 f(2L) - f(L)`` of
    order L^-2 (Richardson). The latter is computed for L and for L / 2, from three depths. The stated error is their
    difference, about three times too large where the error is as L^-2, plus that of Monte Carlo, in squares: samples of
    depths must be independent.

    Args:
      compute: depth -> `linear_training` or `nonlinear_training` of that depth; InputError for something else.
      depth: L, even; the depths computed are L / 2, L and 2 L.

    Returns:
      An `Estimate` at ``L / 2 + 1`` layer times.
    """
    require_whole("depth", depth, 2)
    if depth % 2:
        raise InputError(f"depth is {depth}: use an even number.")
    return _extrapolated(*(_estimate(compute(n)) for n in (depth // 2, depth, 2 * depth)))


@jax.jit
def _extrapolated(coarse: Estimate, middle: Estimate, fine: Estimate) -> Estimate:
    """`infinite_depth` from the results of three depths."""
    thin = lambda t, n: dataclasses.replace(t, features=t.features[::n], gradients=t.gradients[::n])
    thinned = lambda e, n: Estimate(thin(e.mean, n), thin(e.error, n))
    middle, fine = thinned(middle, 2), thinned(fine, 4)
    twice = lambda more, less: jax.tree.map(lambda b, a: 2 * b - a, more.mean, less.mean)
    better, worse = twice(fine, middle), twice(middle, coarse)

    def error_of(b: jax.Array, w: jax.Array, f: jax.Array, m: jax.Array, c: jax.Array) -> jax.Array:
        noise = 4 * f**2 + 9 * m**2 + c**2  # of b - w = 2 fine - 3 middle + coarse
        of_depth = jnp.maximum((b - w) ** 2 - noise, 0)
        return jnp.sqrt(of_depth + 4 * f**2 + m**2)

    error = jax.tree.map(error_of, better, worse, fine.error, middle.error, coarse.error)
    return Estimate(better, error)


def _estimate(result: Training | Estimate) -> Estimate:
    """An estimate, of error 0 if the result is exact; InputError for something else."""
    if not isinstance(result, (Training, Estimate)):
        raise InputError(
            f"compute gives a {type(result).__name__}: return the result of linear_training or nonlinear_training; "
            "lazy_kernels has its own limit."
        )
    return (
        result
        if isinstance(result, Estimate)
        else Estimate(result, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), result))
    )
