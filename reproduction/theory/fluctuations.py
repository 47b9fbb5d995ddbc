"""How much the tangent kernel of a finite network varies over its initial weights: N times its variance, N large.

B24 is Bordelon et al. (arXiv:2309.16620), App. H, before training; the network is that of
`reproduction.theory.lazy`. Features and gradients of a layer are averages over N neurons,

    Phi^l = <phi(h^l) phi(h^l)> + e^l / sqrt(N),    G^l = <g^l g^l> + d^l / sqrt(N),

whose errors e and d have the covariance kappa of one neuron's products between all layers (Eq. 102-106). The averages
depend on the kernels of other layers (D / L), so that errors are carried on: the kernels have the covariance
``(1 - D / L)^-1 kappa (1 - D / L)^-T / N`` (Eq. 107, 109), and the tangent kernel that of Eq. 111. No matrix is built
here: the derivative of the lazy recursion by e and d, times one neuron's products, is that neuron's influence on the
tangent kernel, whose variance over neurons is the result.

The responses A and B add nothing at this order. Before training they vanish on average by the symmetry of the readout,
and G is even in them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from depthmup_flax.util.precision import products_in
from depthmup_flax.util.types import Scalar
from reproduction.theory.argument_checks import require_layers, require_number, require_whole
from reproduction.theory.gaussian_averages import get_activation
from reproduction.theory.input_kernel import checked_kernel
from reproduction.theory.lazy import averages


@products_in("float32")
def tangent_variance(
    start: jax.Array,
    activation: str,
    *,
    depth: int,
    branch_multiplier: float = 1.0,
    trained: Sequence[str] = ("blocks",),
    samples: int = 2**14,
    key: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """N times the variance of a network's tangent kernel before training, for N to infinity (App. H).

    It approaches its limit of infinite depth as 1/L. InputError as for `lazy_kernels`.

    Args:
      start: (P, P) H at layer time 0, from `gram`.
      activation: relu, abs, erf, linear, gelu or tanh.
      depth: L.
      branch_multiplier: a.
      trained: some of stem, blocks and readout, whose tangent kernel is taken.
      samples: number of neurons drawn, at least 2.
      key: random key of the neurons; default ``jax.random.key(0)``.

    Returns:
      (P, P) ``N Var(K)`` and its standard error, of Monte Carlo over neurons.
    """
    get_activation(activation)
    start = checked_kernel(start)
    require_number("branch_multiplier", branch_multiplier)
    require_whole("depth", depth)
    require_whole("samples", samples, 2)
    require_layers(trained)
    key = jax.random.key(0) if key is None else key
    return _variance(start, branch_multiplier, key, activation, depth, tuple(trained), samples)


_Noise = tuple[jax.Array, jax.Array]  # of Phi and of G


class _Kernels(NamedTuple):
    """Of all layers, (L + 1, P, P)."""

    H: jax.Array
    Phi: jax.Array
    G: jax.Array


def _kernels(
    activation: str, trained: tuple[str, ...], start: jax.Array, a: Scalar, noise: _Noise
) -> tuple[jax.Array, _Kernels]:
    """The tangent kernel and the lazy recursion, with errors added to Phi and G of every layer."""
    (e, d), share = noise, a**2 / (len(noise[0]) - 1)

    def up(H: jax.Array, e: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        Phi, slopes = averages(activation, H)
        return H + share * (Phi + e), (H, Phi + e, slopes)

    def down(above: _Noise, layer: _Noise) -> tuple[_Noise, jax.Array]:
        """Weights send down G with its error, the stream the mean alone."""
        (mean, G), (slope, error) = above, layer
        mean = mean + share * slope * G
        return (mean, mean + error), mean + error

    _, (H, Phi, slopes) = jax.lax.scan(up, start, e)
    top = slopes[-1] + d[-1]
    _, lower = jax.lax.scan(down, (slopes[-1], top), (slopes[:-1], d[:-1]), reverse=True)
    G = jnp.concatenate([lower, top[None]])
    parts = {"stem": G[0] * start, "blocks": share * (G[1:] * Phi[:-1]).sum(0), "readout": Phi[-1]}
    return sum((parts[name] for name in trained), jnp.zeros_like(start)), _Kernels(H, Phi, G)


@functools.partial(jax.jit, static_argnums=(3, 4, 5, 6))
def _variance(
    start: jax.Array, a: Scalar, key: jax.Array, activation: str, depth: int, trained: tuple[str, ...], samples: int
) -> tuple[jax.Array, jax.Array]:
    none = jnp.zeros((depth + 1, *start.shape), start.dtype)
    by_noise, kernels = jax.jacrev(functools.partial(_kernels, activation, trained, start, a), has_aux=True)(
        (none, none)
    )

    def influence(key: jax.Array) -> jax.Array:
        neuron = _neuron(activation, a, kernels, key)
        products = [x[:, :, None] * x[:, None, :] for x in neuron]
        errors = zip(by_noise, products, (kernels.Phi, kernels.G), strict=True)
        return sum((jnp.tensordot(by, product - mean, 3) for by, product, mean in errors), jnp.zeros_like(start))

    squares = jax.lax.map(influence, jax.random.split(key, samples), batch_size=min(samples, 256)) ** 2
    return squares.mean(0), squares.std(0) / samples**0.5


def _neuron(activation: str, a: Scalar, kernels: _Kernels, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(L + 1, P) phi(h) and g of a neuron of infinite width, by layer: h and g are sums of independent Gaussians."""
    phi, size = get_activation(activation), a * (len(kernels.H) - 1) ** -0.5
    keys = jax.random.split(key, 4)

    def draw(key: jax.Array, covariance: jax.Array) -> jax.Array:
        values, vectors = jnp.linalg.eigh(covariance)
        white = jax.random.normal(key, covariance.shape[:-1], covariance.dtype)
        return jnp.einsum("...ij,...j->...i", vectors * jnp.sqrt(jnp.maximum(values, 0))[..., None, :], white)

    first, u = draw(keys[0], kernels.H[0]), draw(keys[1], kernels.Phi[:-1])
    h = jnp.concatenate([first[None], first + size * jnp.cumsum(u, 0)])
    slopes = phi.slope(h)
    top = slopes[-1] * jax.random.normal(keys[2], (), h.dtype)
    r = size * slopes[:-1] * draw(keys[3], kernels.G[1:])
    g = jnp.concatenate([top + jnp.cumsum(r[::-1], 0)[::-1], top[None]])
    return phi.function(h), g
