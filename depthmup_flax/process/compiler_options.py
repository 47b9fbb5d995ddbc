"""Options of XLA for the programs of this package that need them."""

from __future__ import annotations

import os

import jax

_LEVEL = "xla_backend_optimization_level"


def drawing_options(platform: str) -> dict[str, str] | None:
    """``compiler_options`` of `jax.jit` for a program that draws parameters, on a platform such as ``cpu``.

    At its default level of optimization XLA:CPU compiles random numbers for seconds: 5.4 s instead of 1.0 s for those
    of SimpleResNet 32x6 on jax 0.10.2, and 4.8 instead of 0.8 on 0.12.0.1. The numbers are equal, and drawing 60
    million of them takes less than 0.1 s more. A level in ``XLA_FLAGS`` or JAX's ``jax_disable_most_optimizations``
    stays.
    """
    chosen = _LEVEL in os.environ.get("XLA_FLAGS", "") or jax.config.values["jax_disable_most_optimizations"]
    return {_LEVEL: "2"} if platform == "cpu" and not chosen else None
