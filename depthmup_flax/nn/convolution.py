"""Convolutions with gradients that XLA:CPU optimizes inside a scan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from depthmup_flax.util.precision import product_precision

_Function: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]
_Transpose: TypeAlias = Callable[[jax.Array, jax.Array, tuple[int, ...]], jax.Array]
_Tangents: TypeAlias = tuple[jax.Array | SymbolicZero, jax.Array | SymbolicZero]


def convolve(
    x_BxHxWxC: jax.Array,
    kernel_HWIO: jax.Array,
    padding: str | Sequence[tuple[int, int]] = "SAME",
    strides: tuple[int, int] = (1, 1),
) -> jax.Array:
    """JAX's own convolution, NHWC x HWIO -> NHWC."""
    layout, precision = ("NHWC", "HWIO", "NHWC"), product_precision(x_BxHxWxC.dtype)
    return jax.lax.conv_general_dilated(
        x_BxHxWxC, kernel_HWIO, strides, padding, dimension_numbers=layout, precision=precision
    )


def conv_same(x_BxHxWxC: jax.Array, kernel_HWIO: jax.Array) -> jax.Array:
    """`convolve` with stride 1.

    On a CPU, the gradients of a window with odd sides are two ordinary convolutions. XLA:CPU does not optimize the form
    that JAX derives inside ``lax.scan``, which is 10 to 20 times slower.
    """
    odd = all(side % 2 for side in kernel_HWIO.shape[:2])
    return (_conv_odd if odd else convolve)(x_BxHxWxC, kernel_HWIO)


@jax.custom_jvp
def _conv_odd(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return convolve(x, kernel)


def _conv_odd_jvp(primals: tuple[jax.Array, jax.Array], tangents: _Tangents) -> tuple[jax.Array, jax.Array]:
    (x, kernel), (x_tangent, kernel_tangent) = primals, tangents
    terms = []
    if not isinstance(x_tangent, SymbolicZero):
        terms.append(_linear(_convolve_with, _x_gradient, kernel, x_tangent))
    if not isinstance(kernel_tangent, SymbolicZero):
        terms.append(_linear(convolve, _kernel_gradient, x, kernel_tangent))
    return _conv_odd(x, kernel), sum(terms[1:], terms[0])


_convolve_with: _Function = lambda kernel, x: convolve(x, kernel)


def _x_gradient(kernel: jax.Array, g: jax.Array, _: tuple[int, ...]) -> jax.Array:
    return convolve(g, jnp.flip(kernel, (0, 1)).swapaxes(2, 3))


def _kernel_gradient(x: jax.Array, g: jax.Array, kernel_shape: tuple[int, ...]) -> jax.Array:
    # The correlation of x with g: channels take the place of the batch.
    padding = [(side // 2, side // 2) for side in kernel_shape[:2]]
    return convolve(x.transpose(3, 1, 2, 0), g.transpose(1, 2, 0, 3), padding).transpose(1, 2, 0, 3)


_conv_odd.defjvp(_conv_odd_jvp, symbolic_zeros=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)  # traced once for equal shapes
def _linear(function: _Function, cpu_transpose: _Transpose, fixed: jax.Array, tangent: jax.Array) -> jax.Array:
    """``function(fixed, tangent)``, linear in ``tangent``, with ``cpu_transpose`` as its transpose on a CPU.

    ``cpu_transpose`` maps ``fixed``, the cotangent and the tangent's shape to the cotangent of the tangent. The result
    is the second part of the solution ``(u, y)`` of ``u = tangent, y - function(fixed, u) = 0``: a linear solve is the
    only operation of JAX with a given transpose that can be mapped and differentiated again.
    """
    if _typed_as_split(fixed) or _typed_as_split(tangent):
        return function(fixed, tangent)
    output = jax.eval_shape(function, fixed, tangent)

    def zero(x: jax.Array) -> jax.Array:
        """A 0 that is a linear function of ``x`` to JAX, as the right-hand side must be. XLA removes it."""
        total = jax.lax.reduce_sum(x, tuple(range(x.ndim)))
        return jax.lax.select(False, total, jax.lax.full_like(total, 0))

    def default_transpose(fixed: jax.Array, g: jax.Array) -> jax.Array:
        return jax.linear_transpose(lambda t: function(fixed, t), tangent)(g)[0]

    def transpose_solve(_: object, b: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        u, g = b
        on_cpu = lambda fixed, g: cpu_transpose(fixed, g, tangent.shape)
        return u + jax.lax.platform_dependent(fixed, g, cpu=on_cpu, default=default_transpose), g

    u, y = jax.lax.custom_linear_solve(
        lambda v: (v[0], v[1] - function(fixed, v[0])),
        (tangent, jax.lax.broadcast(zero(tangent), output.shape)),
        solve=lambda _, b: (b[0], b[1] + function(fixed, b[0])),
        transpose_solve=transpose_solve,
    )
    return y + zero(u)  # reverse mode over forward mode fails unless the whole solution is used


@_linear.defjvp
def _linear_jvp(
    function: _Function,
    cpu_transpose: _Transpose,
    primals: tuple[jax.Array, jax.Array],
    tangents: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    (fixed, tangent), (fixed_dot, tangent_dot) = primals, tangents
    value = _linear(function, cpu_transpose, fixed, tangent)
    return value, function(fixed_dot, tangent) + _linear(function, cpu_transpose, fixed, tangent_dot)


def _typed_as_split(x: jax.Array) -> bool:
    """Whether the type of ``x`` says how it is split: with ``check_vma`` of ``shard_map``, with explicit axes."""
    kind: Any = jax.typeof(x)
    return bool(kind.manual_axis_type.varying) or any(axis is not None for axis in kind.sharding.spec)
