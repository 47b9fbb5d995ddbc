"""The kernel matrix of the inputs, from which theories start."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.precision import products_in


@products_in("float32")
def gram(x: jax.Array) -> jax.Array:
    """(P, P): ``x . x' / D`` of P inputs, which are flattened; H at layer time 0. InputError for one of norm zero."""
    x = jnp.asarray(x)
    if x.ndim < 2 or not x.size:
        raise InputError(f"x has shape {x.shape}: give inputs as [examples, ...].")
    if not isinstance(x, jax.core.Tracer):
        zero = np.flatnonzero(~np.asarray(x).reshape(len(x), -1).any(1))
        if len(zero):
            raise InputError(f"x has norm zero in row {zero[0]}: remove it, its kernel stays zero.")
    return _gram(x)


@jax.jit
def _gram(x: jax.Array) -> jax.Array:
    flat = x.reshape(x.shape[0], -1).astype(jnp.result_type(float, x))  # pixels in bytes would overflow
    return flat @ flat.T / flat.shape[1]


def checked_kernel(kernel: jax.Array) -> jax.Array:
    """``kernel`` in floating point; InputError unless inputs can have it. Only the shape of a traced one is checked."""
    kernel = jnp.asarray(kernel)
    kernel = kernel.astype(jnp.result_type(float, kernel))
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1] or not kernel.size:
        raise InputError(f"the kernel has shape {kernel.shape}: give a square matrix, such as gram(x).")
    if isinstance(kernel, jax.core.Tracer):
        return kernel
    values = np.asarray(kernel)
    if not np.isfinite(values).all():
        raise InputError("the kernel has entries that are not finite: look for NaN in the inputs.")
    if np.abs(values - values.T).max() > 1e-4 * np.abs(values).max():
        raise InputError("the kernel is not symmetric: give K of the same inputs on both sides, such as gram(x).")
    diagonal = np.diag(values)
    zero = np.flatnonzero(diagonal <= 0)
    if len(zero):
        at = f"{diagonal[zero[0]]:g} at row {zero[0]}"
        raise InputError(f"the kernel's diagonal is {at}: remove inputs of norm zero.")
    bound = np.sqrt(np.outer(diagonal, diagonal))
    for i, j in np.argwhere(np.abs(values) > bound * (1 + 1e-3)):
        raise InputError(
            f"the kernel has {values[i, j]:g} at row {i}, column {j}, more than the root of the diagonal's product "
            f"{bound[i, j]:g}: no inputs have such a kernel; give one such as gram(x)."
        )
    return kernel
