"""Gradients in float32 of layers that compute in bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax.nn.cpu import conv_same, convolve, dense_product
from depthmup_flax.nn.layers import Conv, Dense
from depthmup_flax.nn.own_gradient import with_gradient_of
from depthmup_flax.parallel import sharding


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


LAYERS = [
    pytest.param(Dense(24, dtype="bfloat16"), (64, 48), id="Dense"),
    pytest.param(Conv(8, dtype="bfloat16"), (8, 6, 6, 4), id="Conv"),
    pytest.param(Conv(8, strides=(2, 2), dtype="bfloat16"), (8, 6, 6, 4), id="strided Conv"),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_a_gradient_in_float32_has_the_rounding_of_its_factors_alone(layer, shape):
    x, mesh = normal(0, *shape), sharding.make_mesh(devices=jax.devices()[:1])
    params = jax.tree.map(lambda p: p.value, layer.init(jax.random.key(1), x), is_leaf=lambda p: hasattr(p, "value"))
    towards = normal(2, *layer.apply(params, x).shape)

    def gradient(dtype):
        def loss(params):
            with sharding.activations_on(mesh, dtype):
                y = layer.apply(params, x)
            return (y * towards.astype(y.dtype)).astype(jnp.float32).sum()

        value, grads = jax.value_and_grad(loss)(params)
        return float(value), np.asarray(grads["params"]["kernel"])

    (value, rounded), (same, ours) = gradient(""), gradient("float32")
    exact_layer, bf16 = layer.clone(dtype="float32"), lambda a: a.astype(jnp.bfloat16).astype(jnp.float32)
    linear = lambda params: (exact_layer.apply(params, bf16(x)) * bf16(towards)).sum()
    exact = np.asarray(jax.grad(linear)(params)["params"]["kernel"])
    assert value == same  # the layer computes the same
    np.testing.assert_allclose(ours, exact, rtol=2e-5, atol=2e-5)
    error = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert 2**-11 < error < 2**-7  # bfloat16 has 8 bits


@pytest.mark.parametrize(
    ("product", "x_shape", "kernel_shape"),
    [
        pytest.param(dense_product, (2, 4, 5), (5, 3), id="dense"),
        pytest.param(conv_same, (2, 5, 4, 3), (3, 3, 3, 4), id="conv"),
        pytest.param(lambda x, k: convolve(x, k, strides=(2, 2)), (2, 4, 4, 3), (3, 3, 3, 2), id="strided"),
    ],
)
def test_every_derivative_is_that_of_the_product(product, x_shape, kernel_shape, float64):
    x, kernel, towards = normal(0, *x_shape), normal(1, *kernel_shape), normal(2, *kernel_shape)

    @jax.jit
    def derivatives(x, kernel):
        def of(function):
            loss = lambda x, k: jnp.tanh(function(x, k)).sum()
            return [
                jax.grad(loss, (0, 1))(x, kernel),
                jax.jvp(loss, (x, kernel), (2 * x, towards)),
                jax.jvp(lambda k: jax.grad(loss, (0, 1))(x, k), (kernel,), (towards,)),
                jax.grad(lambda k: (jax.grad(loss, 0)(x, k) ** 2).sum())(kernel),
                jax.vmap(jax.grad(loss, 1), (None, 0))(x, jnp.stack([kernel, towards])),
                jax.grad(jax.checkpoint(loss), (0, 1))(x, kernel),
            ]

        return of(lambda x, k: with_gradient_of(k, product, x, k)), of(product)

    ours, plain = derivatives(x, kernel)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13), ours, plain)
