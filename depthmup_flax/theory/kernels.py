"""Kernel matrices that theories start from, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.errors import InputError


def gram(x: jax.Array) -> jax.Array:
    """(P, P): ``x . x' / D`` of P inputs, which are flattened; H at layer time 0.

    Raises:
      InputError: an input of norm zero.
    """
    x = jnp.asarray(x)
    if x.ndim < 2 or not x.size:
        raise InputError(f"x has shape {x.shape}: give inputs as [examples, ...].")
    flat = x.reshape(x.shape[0], -1).astype(jnp.result_type(float, x))  # pixels in bytes would overflow
    if not isinstance(flat, jax.core.Tracer):
        zero = np.flatnonzero(~np.asarray(flat).any(1))
        if len(zero):
            raise InputError(f"x has norm zero in row {zero[0]}: leave it out, its kernel stays zero.")
    return flat @ flat.T / flat.shape[1]


def checked_kernel(kernel: jax.Array) -> jax.Array:
    """``kernel`` as an array of floating point numbers.

    Raises:
      InputError: it is not square, symmetric and finite, not positive on its diagonal, or larger elsewhere than the
        diagonal allows (unless it is traced).
    """
    kernel = jnp.asarray(kernel)
    kernel = kernel.astype(jnp.result_type(float, kernel))
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1] or not kernel.size:
        raise InputError(f"the kernel has shape {kernel.shape}: give a square matrix, such as gram(x).")
    if isinstance(kernel, jax.core.Tracer):
        return kernel
    found = np.asarray(kernel)
    scale = np.abs(found).max(initial=0.0)
    if not np.isfinite(found).all():
        raise InputError("the kernel has entries that are not finite: look for NaN in the inputs.")
    if np.abs(found - found.T).max(initial=0.0) > 1e-4 * scale:
        raise InputError("the kernel is not symmetric: give K of the same inputs on both sides, such as gram(x).")
    zero = np.flatnonzero(np.diag(found) <= 0)
    if len(zero):
        raise InputError(
            f"the kernel's diagonal is {found[zero[0], zero[0]]:g} at row {zero[0]}: leave out inputs of norm zero."
        )
    bound = np.sqrt(np.outer(np.diag(found), np.diag(found)))
    if (np.abs(found) > bound * (1 + 1e-3)).any():
        i, j = np.argwhere(np.abs(found) > bound * (1 + 1e-3))[0]
        raise InputError(
            f"the kernel has {found[i, j]:g} at row {i}, column {j}, more than the root of the diagonal's product "
            f"{bound[i, j]:g}: no inputs have such a kernel; give one such as gram(x)."
        )
    return kernel


def require_number(name: str, value: Any, *, at_least: float = -math.inf, above: float = -math.inf) -> None:
    """InputError unless ``value`` is a finite number (a traced one passes) in this range."""
    if isinstance(value, jax.core.Tracer):
        return
    number = isinstance(value, (int, float, np.generic, np.ndarray, jax.Array)) and np.ndim(value) == 0
    if not number or not math.isfinite(value) or not (value >= at_least and value > above):
        bound = (
            f" above {above:g}" if above > -math.inf else f" of at least {at_least:g}" if at_least > -math.inf else ""
        )
        raise InputError(f"{name} is {value!r}: use a finite number{bound}.")


def require_whole(name: str, value: Any, at_least: int = 1, *, also: str = "") -> None:
    """InputError unless ``value`` is a whole number in this range; ``also`` says what else may be given."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < at_least:
        raise InputError(f"{name} is {value!r}: use a whole number of at least {at_least}{also}.")


def require_finite(name: str, values: jax.Array) -> None:
    """InputError if an array (not a traced one) has entries that are not finite."""
    if not isinstance(values, jax.core.Tracer) and not np.isfinite(np.asarray(values)).all():
        raise InputError(f"{name} has entries that are not finite: look for NaN in the data.")
