"""Convolutions with gradients that XLA:CPU optimizes inside a scan."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from depthmup_flax.util.precision import product_precision


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
    that JAX derives inside ``lax.scan``, which is 10 to 20 times slower. Such windows have no forward-mode derivative.
    """
    even = any(side % 2 == 0 for side in kernel_HWIO.shape[:2])
    return (convolve if even or _typed_as_split(x_BxHxWxC) or _typed_as_split(kernel_HWIO) else _conv_odd)(
        x_BxHxWxC, kernel_HWIO
    )


@jax.custom_vjp
def _conv_odd(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return convolve(x, kernel)


def _conv_odd_fwd(x: Any, kernel: Any) -> tuple[jax.Array, tuple[Any, ...]]:
    # The structure of what is saved says whether x, which may be an image, needs a gradient.
    return convolve(x.value, kernel.value), (x.value, kernel.value, () if x.perturbed else None)


def _conv_odd_bwd(saved: tuple[Any, ...], g: jax.Array) -> tuple[jax.Array | None, jax.Array]:
    x, kernel, perturbed = saved
    return None if perturbed is None else _of_x(x, kernel, g), _of_kernel(x, kernel, g)


@functools.partial(jax.jit, inline=True)  # traced once for equal shapes
def _of_x(x: jax.Array, kernel: jax.Array, g: jax.Array) -> jax.Array:
    on_cpu = lambda kernel, g: convolve(g, jnp.flip(kernel, (0, 1)).swapaxes(2, 3))
    default = lambda kernel, g: jax.linear_transpose(lambda x: convolve(x, kernel), x)(g)[0]
    return jax.lax.platform_dependent(kernel, g, cpu=on_cpu, default=default)


@functools.partial(jax.jit, inline=True)
def _of_kernel(x: jax.Array, kernel: jax.Array, g: jax.Array) -> jax.Array:
    def on_cpu(x: jax.Array, g: jax.Array) -> jax.Array:
        # The correlation of x with g: channels take the place of the batch.
        padding = [(side // 2, side // 2) for side in kernel.shape[:2]]
        return convolve(x.transpose(3, 1, 2, 0), g.transpose(1, 2, 0, 3), padding).transpose(1, 2, 0, 3)

    default = lambda x, g: jax.linear_transpose(lambda kernel: convolve(x, kernel), kernel)(g)[0]
    return jax.lax.platform_dependent(x, g, cpu=on_cpu, default=default)


_conv_odd.defvjp(_conv_odd_fwd, _conv_odd_bwd, symbolic_zeros=True)


def _typed_as_split(x: jax.Array) -> bool:
    """Whether the type of ``x`` says how it is split: with ``check_vma`` of ``shard_map``, with explicit axes."""
    kind: Any = jax.typeof(x)
    varying = kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else kind.vma  # of older JAX
    return bool(varying) or any(axis is not None for axis in kind.sharding.spec)
