"""Averages of an activation over two jointly Gaussian preactivations.

For ``(u, v)`` with mean zero, variances ``p, q`` and covariance ``c``:

* ``values``: ``<phi(u) phi(v)>``,
* ``slopes``: ``<phi'(u) phi'(v)>``.

relu and abs are the arc-cosine kernels of Cho & Saul (2009), section 2; erf is Williams (1997), eq. 11, for an erf
without the factor 1/sqrt(2), and its slopes are by Price's theorem, ``<phi' phi'> = d<phi phi>/dc``. gelu and tanh are
sums over equally spaced points, which converge exponentially for smooth functions: errors are 1e-7 for variances up to
10, and 1e-2 at 100, where tanh is nearly a step.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.util.errors import InputError, did_you_mean
from depthmup_flax.util.precision import products_in

Elementwise = Callable[[jax.Array], jax.Array]
Average = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

_NODES, _SPAN = 128, 6.5  # points of a sum in each direction, and where they end, in standard deviations


@dataclasses.dataclass(frozen=True)
class Activation:
    """An elementwise function and its averages, which map ``(p, q, c)`` to the shape to which they broadcast."""

    function: Elementwise
    values: Average
    slopes: Average

    def slope(self, x: jax.Array) -> jax.Array:
        """The derivative, elementwise."""
        return jax.grad(lambda x: self.function(x).sum())(x)


def get_activation(name: str) -> Activation:
    """The activation of a name; InputError for one that is not in ``ACTIVATIONS``."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise InputError(
            f"activation is {name!r}, whose Gaussian averages are not known: {did_you_mean(str(name), ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def _angle(p: jax.Array, q: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``sqrt(p q)``, the angle between u and v, and its sine.

    An input and itself stay at angle 0 for every p: there the angle's slope is 0, where that of arccos is infinite.
    """
    size = jnp.sqrt(p * q)
    cosine = c / size
    parallel = jnp.abs(cosine) > 1.0 - 4 * jnp.finfo(cosine.dtype).eps
    inside = jnp.where(parallel, 0.0, cosine)
    angle = jnp.where(parallel, jnp.where(cosine > 0, 0.0, math.pi), jnp.arccos(inside))
    return size, angle, jnp.where(parallel, 0.0, jnp.sqrt(1.0 - inside**2))


def _relu_values(p: jax.Array, q: jax.Array, c: jax.Array) -> jax.Array:
    size, theta, sine = _angle(p, q, c)
    return size * (sine + (math.pi - theta) * jnp.cos(theta)) / (2 * math.pi)


def _abs_values(p: jax.Array, q: jax.Array, c: jax.Array) -> jax.Array:
    size, theta, sine = _angle(p, q, c)
    return size * (sine + (math.pi / 2 - theta) * jnp.cos(theta)) * (2 / math.pi)


@products_in("float32")
def _quadrature(function: Elementwise, p: jax.Array, q: jax.Array, c: jax.Array) -> jax.Array:
    """``<function(u) function(v)>`` by the trapezoidal rule."""
    nodes = np.linspace(-_SPAN, _SPAN, _NODES)
    weights = np.exp(-(nodes**2) / 2)
    weights = weights / weights.sum()
    p, q, c = (x[..., None] for x in jnp.broadcast_arrays(p, q, c))
    slope = c / jnp.sqrt(p)
    variance = q - slope**2  # of v, given u; 0 for an input and itself, for every p
    positive = variance > 4 * jnp.finfo(variance.dtype).eps * q
    deviation = jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)
    at_v = jax.vmap(lambda node: function(slope * nodes + deviation * node), out_axes=-1)(jnp.asarray(nodes, p.dtype))
    at_u = function(jnp.sqrt(p) * nodes)
    return jnp.einsum("...u,...uv,u,v->...", at_u, at_v, weights, weights).astype(p.dtype)


def _by_quadrature(function: Elementwise) -> Activation:
    slope = jax.grad(lambda x: function(x).sum())
    return Activation(function, functools.partial(_quadrature, function), functools.partial(_quadrature, slope))


ACTIVATIONS: dict[str, Activation] = {
    "linear": Activation(lambda x: x, lambda p, q, c: c, lambda p, q, c: jnp.ones_like(c)),
    "relu": Activation(jax.nn.relu, _relu_values, lambda p, q, c: (math.pi - _angle(p, q, c)[1]) / (2 * math.pi)),
    "abs": Activation(jnp.abs, _abs_values, lambda p, q, c: 1.0 - 2 * _angle(p, q, c)[1] / math.pi),
    "erf": Activation(
        jax.scipy.special.erf,
        lambda p, q, c: 2 / math.pi * jnp.arcsin(2 * c / jnp.sqrt((1 + 2 * p) * (1 + 2 * q))),
        lambda p, q, c: 4 / math.pi / jnp.sqrt((1 + 2 * p) * (1 + 2 * q) - 4 * c**2),
    ),
    "gelu": _by_quadrature(jax.nn.gelu),
    "tanh": _by_quadrature(jnp.tanh),
}
