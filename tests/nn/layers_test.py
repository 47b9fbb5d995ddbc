"""Maxima over windows as programs for GPUs have them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from depthmup_flax.nn import layers


@pytest.mark.parametrize("shape", [(2, 8, 6, 3), (1, 7, 1, 2)])
def test_shifted_maxima_are_those_of_windows_and_so_are_their_gradients_at_ties(shape, monkeypatch, float64):
    x = jax.random.randint(jax.random.key(0), shape, -2, 3).astype(float)  # most windows have ties
    by_xla = functools.partial(nn.max_pool, window_shape=(3, 3), strides=(2, 2), padding="SAME")
    monkeypatch.setattr(layers, "target_platform", lambda: "gpu")

    def values(pool):
        y, pull = jax.vjp(pool, x)
        return y, *pull(jnp.arange(1.0, y.size + 1).reshape(y.shape))

    found, expected = values(functools.partial(layers.max_pool, dtype=x.dtype)), values(by_xla)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_program_for_a_gpu_pools_in_the_dtype_that_has_all_values(monkeypatch):
    monkeypatch.setattr(layers, "target_platform", lambda: "gpu")
    x = jax.random.normal(jax.random.key(0), (1, 4, 4, 2), jnp.bfloat16).astype(jnp.float32)
    pool = functools.partial(layers.max_pool, dtype="bfloat16")
    np.testing.assert_array_equal(pool(x), nn.max_pool(x, (3, 3), (2, 2), "SAME"))
    assert "bf16[1,2,2,2]" in str(jax.make_jaxpr(pool)(x))
    assert pool(x).dtype == jnp.float32
