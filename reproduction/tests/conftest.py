"""Fixtures of these tests. Helpers are those of tests/helpers."""

import os

import pytest

# Most programs here compile for longer than they compute; slow tests, and those of limits/, the other way round. Parts
# of a program that threads compile side by side take longer in all.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_parallel_codegen_split_count=1"


@pytest.fixture(autouse=True)
def slow_ones_optimized(request):
    import jax

    optimized = request.node.get_closest_marker("slow") or "limits" in request.path.parts
    jax.config.update("jax_disable_most_optimizations", not optimized)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def unoptimized():
    """One slow test without optimizations."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def float64():
    """Double precision, for comparisons of two forms of the same network."""
    import jax

    with jax.enable_x64(True):
        yield
