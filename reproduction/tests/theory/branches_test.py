"""Residual branches of several layers, convolutions, another alpha, and last weights of zero (B24 App. K.1, K.2, M)."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax.util.errors import InputError
from reproduction.theory import gram, lazy_kernels, nonlinear_training, tangent_variance

pytestmark = pytest.mark.usefixtures("float64")

IMAGES = np.random.default_rng(0).normal(size=(2, 3, 4))  # examples, positions, size
X = IMAGES.reshape(2, 12)
Y = np.array([1.0, -0.7])
EVERY_LAYER = ("stem", "blocks", "readout")
A, GAMMA0, RATE, STEPS = 0.8, 1.1, 0.4, 3
PHI = {"relu": jax.nn.relu, "tanh": jnp.tanh}


def initial(key, width, depth, *, layers, positions, size, zero):
    """Weights from N(0, 1) of the network of App. K; one matrix for each of three shifts if there are positions."""
    keys, shifts = jax.random.split(key, 3), 3 if positions > 1 else 1
    weights = {
        "stem": jax.random.normal(keys[0], (width, size)),
        "blocks": jax.random.normal(keys[1], (depth, layers, shifts, width, width)),
        "readout": jax.random.normal(keys[2], (positions, width)),
    }
    return {**weights, "blocks": weights["blocks"].at[:, -1].set(0.0)} if zero else weights


def outputs_of(weights, x_PxAxD, activation, alpha):
    """B24 Eq. 118, 120 and 141, without this package."""
    phi, blocks = PHI[activation], weights["blocks"]
    (depth, layers, shifts, width, _), positions = blocks.shape, x_PxAxD.shape[1]
    h = x_PxAxD @ weights["stem"].T / x_PxAxD.shape[2] ** 0.5
    for layer in range(depth):
        z = h
        for k in range(layers):
            p = jnp.pad(phi(z), ((0, 0), (shifts // 2, shifts // 2), (0, 0)))
            products = [p[:, b : b + positions] @ blocks[layer, k, b].T for b in range(shifts)]
            z = sum(products) / width**0.5
        h = h + A * depth**-alpha * z
    return jnp.einsum("pan,an->p", phi(h), weights["readout"]) / (GAMMA0 * width * positions**0.5)


def trained(x_PxAxD, activation, alpha, weights):
    """(T, P) outputs under SGD, with the branches' rate times L^(2 alpha - 1) (App. M)."""
    depth, width = weights["blocks"].shape[0], weights["readout"].shape[1]
    rates = {"stem": 1.0, "blocks": depth ** (2 * alpha - 1), "readout": 1.0}
    outputs = functools.partial(outputs_of, x_PxAxD=x_PxAxD, activation=activation, alpha=alpha)
    found = []
    for _ in range(STEPS):
        found.append(outputs(weights))
        slope = jax.grad(lambda w: jnp.mean((outputs(w) - Y) ** 2 / 2))(weights)
        weights = {name: w - RATE * GAMMA0**2 * width * rates[name] * slope[name] for name, w in weights.items()}
    return jnp.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "alpha", "layers", "zero", "kernel_size"),
    [("tanh", 0.5, 2, False, 0), ("relu", 1.0, 2, True, 0), ("relu", 0.75, 1, False, 3), ("tanh", 0.5, 2, False, 3)],
)
def test_networks_approach_theory_as_one_over_width(activation, alpha, layers, zero, kernel_size):
    depth, inputs = 2, IMAGES if kernel_size else X
    theory = nonlinear_training(
        inputs, Y, activation=activation, steps=STEPS, depth=depth, learning_rate=RATE, gamma0=GAMMA0,
        branch_multiplier=A, alpha=alpha, block_depth=layers, zero_init_branch=zero, kernel_size=kernel_size,
        trained=EVERY_LAYER, samples=2048, populations=8,
    )  # fmt: skip
    x = jnp.asarray(inputs.reshape(2, -1, inputs.shape[-1]))
    of = {"layers": layers, "positions": x.shape[1], "size": x.shape[2], "zero": zero}
    errors = {}
    for width in (32, 128):
        run = lambda key, width=width: trained(x, activation, alpha, initial(key, width, depth, **of))
        keys = jax.random.split(jax.random.key(width), 2**13 // width)
        outputs = np.asarray(jax.jit(lambda keys, run=run: jax.lax.map(run, keys, batch_size=32))(keys))
        errors[width] = np.mean((outputs - theory.mean.outputs) ** 2)
    assert abs(math.log(errors[128] / errors[32], 4) + 1) < 0.3, errors
    off = np.abs(outputs.mean(0) - theory.mean.outputs)[1:]
    assert (off < 0.02 + 4 * outputs.std(0)[1:] / len(keys) ** 0.5).all(), off
    assert np.abs(theory.mean.outputs[-1]).min() > 0.15  # they learned


@pytest.mark.slow
def test_with_one_layer_that_starts_at_zero_alpha_does_not_matter():
    """What a step adds is of order a^2 / L for every alpha, and nothing else is added."""
    of = {"steps": 3, "depth": 4, "learning_rate": 0.4, "zero_init_branch": True, "samples": 512, "populations": 2}
    half, one = (nonlinear_training(X, Y, activation="tanh", alpha=alpha, **of).mean.outputs for alpha in (0.5, 1.0))
    np.testing.assert_allclose(half, one, rtol=1e-10)
    assert np.abs(half[-1]).min() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "zero"), [(0.5, False), (1.0, True)])
def test_without_feature_learning_theory_is_descent_with_the_lazy_kernel(alpha, zero):
    of = {"alpha": alpha, "block_depth": 2, "zero_init_branch": zero, "depth": 3}
    found = nonlinear_training(
        X, Y, activation="tanh", steps=3, learning_rate=RATE, gamma0=1e-3, samples=2048, populations=8, **of
    )
    kernel, f = np.asarray(lazy_kernels(gram(X), "tanh", **of).tangent()), [np.zeros(2)]
    for _ in range(2):
        f.append(f[-1] - RATE / 2 * kernel @ (f[-1] - Y))
    np.testing.assert_allclose(found.mean.outputs, f, atol=4 * float(found.error.outputs.max()) + 1e-4)


def test_lazy_kernels_of_linear_branches_are_exponentials_whatever_their_layers():
    """H grows by its branches' share a^2 dtau, G likewise downward; each of K weights adds a^2 G H."""
    H, a = np.array([[1.3, 0.4], [0.4, 0.9]]), 0.7
    for layers in (1, 3):
        limit = lazy_kernels(jnp.asarray(H), "linear", branch_multiplier=a, block_depth=layers)
        np.testing.assert_allclose(limit.H[-1], np.exp(a**2) * H, rtol=1e-8)
        np.testing.assert_allclose(limit.blocks, layers * a**2 * np.exp(a**2) * H, rtol=1e-8)
        for fields in ({"alpha": 1.0}, {"zero_init_branch": True}):
            still = lazy_kernels(jnp.asarray(H), "linear", branch_multiplier=a, block_depth=layers, **fields)
            np.testing.assert_allclose(still.H[-1], H, rtol=1e-8)
            parts = 1 if "zero_init_branch" in fields else layers
            np.testing.assert_allclose(still.blocks, parts * a**2 * H, rtol=1e-8)


def test_at_alpha_one_finite_depth_approaches_the_limit_as_one_over_depth():
    kernel = lambda depth: np.asarray(lazy_kernels(gram(X), "relu", depth=depth, alpha=1.0, block_depth=2).blocks)
    limit = lazy_kernels(gram(X), "relu", alpha=1.0, block_depth=2).blocks
    errors = [np.abs(kernel(depth) - limit).max() for depth in (32, 64)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("activation", ["linear", "relu"])
def test_the_variance_of_the_tangent_kernel_of_one_layer_is_that_of_averages_over_neurons(activation):
    """K = a^2 <phi(h)^2> <g^2> with h of variance H and g = phi'(h + a u) w; relu's h and h + a u are correlated."""
    H, a = 1.3, 0.8
    found, error = tangent_variance(jnp.array([[H]]), activation, depth=1, branch_multiplier=a)
    if activation == "linear":
        exact = 4 * a**4 * H**2
    else:
        angle = math.acos((1 + a**2 / 2) ** -0.5)
        both = H * (math.pi - angle + math.sin(angle) * math.cos(angle)) / (2 * math.pi) - H / 4  # their covariance
        exact = a**4 * (2 * H**2 * 5 / 16 + H / 2 * both)
    assert abs(found[0, 0] - exact) < 4 * error[0, 0] < 0.15 * exact


def tangent_kernels(width, depth, layers, count):
    """(E, K, P, P) parts of each of the K layers of branches, by automatic differentiation of finite networks."""
    x = jnp.asarray(X.reshape(2, 1, 12))

    def kernel(key):
        weights = initial(key, width, depth, layers=layers, positions=1, size=12, zero=False)
        outputs = lambda blocks: outputs_of({**weights, "blocks": blocks}, x, "tanh", 0.5)
        jacobian = jnp.moveaxis(jax.jacrev(outputs)(weights["blocks"]), 2, 0).reshape(layers, 2, -1)
        return GAMMA0**2 * width * jacobian @ jacobian.mT

    return jax.jit(lambda keys: jax.lax.map(kernel, keys, batch_size=16))(jax.random.split(jax.random.key(0), count))


@pytest.mark.slow
def test_inner_weights_have_a_part_of_the_tangent_kernel_that_does_not_vanish_with_depth():
    """Against B24 Eq. 125, which has the last layer's part alone."""
    found = tangent_kernels(width=64, depth=8, layers=2, count=64)
    theory = lazy_kernels(gram(X), "tanh", depth=8, branch_multiplier=A, block_depth=2)
    np.testing.assert_allclose(found.sum(1).mean(0), theory.blocks, rtol=0.1, atol=0.02)
    limit = lazy_kernels(gram(X), "tanh", branch_multiplier=A, block_depth=2)
    np.testing.assert_allclose(theory.blocks, limit.blocks, rtol=0.1)
    inner, last = jnp.trace(found.mean(0), axis1=1, axis2=2)
    assert 0.5 < inner / last < 2


@pytest.mark.slow
def test_the_variance_of_the_tangent_kernel_is_that_of_wide_networks_and_settles_with_depth():
    depth, width = 4, 128
    kernels = tangent_kernels(width, depth, 1, count=512)[:, 0]
    found, error = tangent_variance(gram(X), "tanh", depth=depth, branch_multiplier=A)
    np.testing.assert_allclose(width * kernels.var(0), found, rtol=0.25, atol=4 * float(error.max()))
    deep = [tangent_variance(gram(X), "relu", depth=depth, branch_multiplier=A)[0][0, 0] for depth in (8, 32, 128)]
    assert abs(deep[2] / deep[1] - 1) < 0.1 < deep[1] / deep[0] - 1


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"alpha": 0.4}, "alpha is 0.4: use a finite number of at least 0.5"),
        ({"block_depth": 0}, "block_depth is 0"),
        ({"kernel_size": 2}, "kernel_size is 2 for 0 axes of positions: use an odd number"),
        ({"kernel_size": -1}, "kernel_size is -1"),
        ({"zero_init_branch": True, "pre_nonlin": False}, "zero_init_branch is True"),
    ],
)
def test_bad_input_is_one_sentence(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        nonlinear_training(X, Y, activation="relu", steps=2, depth=2, **fields)
