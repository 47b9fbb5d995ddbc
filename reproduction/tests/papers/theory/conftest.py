"""Slow tests compute for longer than they compile; the others do not."""

import pytest


@pytest.fixture(autouse=True)
def slow_ones_optimized(request):
    import jax

    jax.config.update("jax_disable_most_optimizations", not request.node.get_closest_marker("slow"))
    yield
    jax.config.update("jax_disable_most_optimizations", True)
