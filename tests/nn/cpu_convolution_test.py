"""Convolutions with gradients for the CPU: every derivative that they have is JAX's own, on every platform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax.nn.cpu_convolution import conv_same, convolve


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize(
    ("x_shape", "kernel_shape"),
    [((2, 5, 4, 3), (3, 3, 3, 4)), ((1, 4, 3, 2), (5, 1, 2, 2)), ((1, 3, 3, 2), (2, 2, 2, 2))],
    ids=["3x3", "5x1", "even window"],
)
def test_every_derivative_is_that_of_the_plain_convolution(x_shape, kernel_shape, float64):
    random = np.random.default_rng(0)
    x, kernel, towards = (random.normal(size=shape) for shape in (x_shape, kernel_shape, kernel_shape))
    transformations = {
        "gradient": lambda f: jax.grad(f, (0, 1))(x, kernel),
        "forward over reverse": lambda f: jax.jvp(lambda k: jax.grad(f, (0, 1))(x, k), (kernel,), (towards,)),
        "reverse over reverse": lambda f: jax.grad(lambda k: (jax.grad(f, 1)(x, k) ** 2).sum())(kernel),
        "hessian": lambda f: jax.hessian(f, 1)(x, kernel),
        "mapped gradients": lambda f: jax.vmap(jax.grad(f, (0, 1)), (None, 0))(x, jnp.stack([kernel, towards])),
        "gradient of mapped": lambda f: jax.grad(lambda k: jax.vmap(f, (0, None))(jnp.stack([x, -x]), k).sum())(kernel),
        "remat": lambda f: jax.grad(jax.checkpoint(f), (0, 1))(x, kernel),
    }

    @jax.jit
    def derivatives(x, kernel):
        def values(product):
            return {name: t(lambda x, k: jnp.tanh(product(x, k)).sum()) for name, t in transformations.items()}

        return values(conv_same), values(convolve)

    for name, (a, b) in zip(transformations, zip(*map(dict.values, derivatives(x, kernel)), strict=True), strict=True):
        jax.tree.map(
            lambda a, b, name=name: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13, err_msg=name), a, b
        )


def test_the_platform_that_is_lowered_for_decides_and_not_the_host():
    x, kernel = np.ones((2, 5, 5, 3), np.float32), np.ones((3, 3, 3, 4), np.float32)

    def convolutions(conv, platform):
        gradient = jax.jit(jax.grad(lambda kernel, x: conv(x, kernel).sum()))
        lines = gradient.trace(kernel, x).lower(lowering_platforms=(platform,)).as_text().splitlines()
        # Without the names of values, which differ.
        return [line.split("convolution(")[1].split(" ", 2)[-1] for line in lines if "stablehlo.convolution" in line]

    for platform in ("tpu", "cuda"):
        assert convolutions(conv_same, platform) == convolutions(convolve, platform) != []
    assert convolutions(conv_same, "cpu") != convolutions(convolve, "cpu")
