"""The settings of JAX under which our programs are traced and run, whatever the caller has set around the call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Mesh


@contextlib.contextmanager
def own_surroundings(*, mesh: bool = True, jit: bool = True) -> Iterator[None]:
    """A context or decorator without the caller's mesh and strictness; a thread that is started inside needs its own.

    A program of ours names its mesh in its shardings, which that of ``jax.set_mesh`` would contradict. Optax and Orbax
    promote types and move arrays, which JAX_NUMPY_DTYPE_PROMOTION=strict and JAX_TRANSFER_GUARD=disallow forbid.

    Args:
      mesh: ``False`` keeps the caller's, for a call that computes with the caller's arrays.
      jit: ``False`` keeps the caller's ``jax.disable_jit``, for the search of a fault in a network that trains.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.numpy_rank_promotion("allow"))
        stack.enter_context(jax.numpy_dtype_promotion("standard"))
        stack.enter_context(jax.transfer_guard("allow"))
        if mesh:
            stack.enter_context(jax.set_mesh(Mesh(np.empty((), object), ())))
        if jit:
            stack.enter_context(jax.disable_jit(False))
        yield
