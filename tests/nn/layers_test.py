"""Gradients in float32 of layers that compute in bfloat16, and maxima over windows as programs for GPUs have them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from depthmup_flax.devices import sharding
from depthmup_flax.nn import layers
from depthmup_flax.nn.convolution import conv_same
from depthmup_flax.nn.layers import Conv, Dense, with_gradient_of

LAYERS = {
    "Dense": (Dense(24, dtype="bfloat16"), (64, 48)),
    "Conv": (Conv(8, dtype="bfloat16"), (8, 6, 6, 4)),
    "strided Conv": (Conv(8, strides=(2, 2), dtype="bfloat16"), (8, 6, 6, 4)),
}


@pytest.fixture(scope="module")
def computed():
    """Of each layer its output and its kernel's gradient, in bfloat16, with a gradient in float32, and exact."""
    mesh, random = sharding.make_mesh(devices=jax.devices()[:1]), np.random.default_rng(0)
    xs = {name: random.normal(size=shape).astype(np.float32) for name, (_, shape) in LAYERS.items()}

    def of_layer(layer, x):
        variables = nn.unbox(layer.init(jax.random.key(1), x))
        bf16 = lambda a: jax.lax.reduce_precision(a, 8, 7)

        def of(layer, x, towards, dtype):
            with sharding.activations_on(mesh, dtype):
                y, pull = jax.vjp(lambda v: layer.apply(v, x), variables)
                (gradient,) = pull(towards.astype(y.dtype))
            return y, gradient["params"]["kernel"]

        shape = jax.eval_shape(layer.apply, variables, x).shape
        towards = jax.random.normal(jax.random.key(2), shape)
        return {
            "rounded": of(layer, x, towards, ""),
            "ours": of(layer, x, towards, "float32"),
            "exact": of(layer.clone(dtype="float32"), bf16(x), bf16(towards), ""),
        }

    program = jax.jit(lambda xs: {name: of_layer(layer, xs[name]) for name, (layer, _) in LAYERS.items()})
    # Excess precision would leave out what is tested: the rounding of a gradient to bfloat16.
    return jax.device_get(program.lower(xs).compile({"xla_allow_excess_precision": False})(xs))


@pytest.mark.parametrize("name", LAYERS)
def test_a_gradient_in_float32_has_the_rounding_of_its_factors_alone(name, computed):
    (y, rounded), (same, ours), (_, exact) = (computed[name][kind] for kind in ("rounded", "ours", "exact"))
    np.testing.assert_array_equal(y, same)  # the layer computes the same
    np.testing.assert_allclose(ours, exact, rtol=2e-5, atol=2e-5)
    error = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert 2**-11 < error < 2**-7  # bfloat16 has 8 bits


def test_every_derivative_is_that_of_the_product(float64):
    random = np.random.default_rng(0)
    products = {
        "dense": (jnp.matmul, random.normal(size=(2, 4, 5)), *random.normal(size=(2, 5, 3))),
        "conv": (conv_same, random.normal(size=(2, 3, 4, 2)), *random.normal(size=(2, 3, 3, 2, 2))),
    }

    def derivatives(function, x, kernel, towards):
        loss = lambda x, k: jnp.tanh(function(x, k)).sum()
        return [
            jax.grad(loss, (0, 1))(x, kernel),
            jax.jvp(loss, (x, kernel), (2 * x, towards)),
            jax.jvp(lambda k: jax.grad(loss, (0, 1))(x, k), (kernel,), (towards,)),
            jax.grad(lambda k: (jax.grad(loss, 0)(x, k) ** 2).sum())(kernel),
            jax.vmap(jax.grad(loss, 1), (None, 0))(x, jnp.stack([kernel, towards])),
            jax.grad(jax.checkpoint(loss), (0, 1))(x, kernel),
        ]

    @jax.jit
    def of_all(arrays):
        ours = {
            name: derivatives(lambda x, k, product=product: with_gradient_of(k, product, x, k), *arrays[name])
            for name, (product, *_) in products.items()
        }
        return ours, {name: derivatives(product, *arrays[name]) for name, (product, *_) in products.items()}

    ours, plain = of_all({name: arrays for name, (_, *arrays) in products.items()})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13), ours, plain)


@pytest.mark.parametrize("shape", [(2, 8, 6, 3), (1, 7, 4, 2), (1, 1, 2, 1)])
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
