"""Gaussian averages of activations against integrals by another method, and against each other."""

import jax
import numpy as np
import pytest

from depthmup_flax.nn.layers import NONLINEARITIES
from reproduction.theory import ACTIVATIONS, get_activation

pytestmark = pytest.mark.usefixtures("float64")
# gelu and tanh share the sum over points, which compiles slowly.
EACH_ACTIVATION = [pytest.param(name, marks=pytest.mark.slow) if name == "gelu" else name for name in ACTIVATIONS]


@pytest.mark.parametrize("name", EACH_ACTIVATION)
def test_averages_are_integrals_over_two_gaussians(name):
    p, q, c = 0.8, 1.7, -0.6
    phi = NONLINEARITIES[name]
    slope = jax.vmap(jax.grad(phi))

    def average(function):
        function = jax.jit(function)
        # In polar coordinates, where relu and abs have kinks along rays only: exact radially, fine in the angle.
        angles = np.linspace(0, 2 * np.pi, 4001)[:-1] + 1e-4
        radii, weights = np.polynomial.laguerre.laggauss(60)  # of r^2 / 2
        r = np.sqrt(2 * radii)[:, None]
        u, rest = np.sqrt(p) * r * np.cos(angles), r * np.sin(angles)
        v = c / np.sqrt(p) * r * np.cos(angles) + np.sqrt(q - c**2 / p) * rest
        values = np.asarray(function(u.ravel())) * np.asarray(function(v.ravel()))
        return weights @ values.reshape(u.shape).mean(1)

    activation = get_activation(name)
    arguments = [np.array(value) for value in (p, q, c)]
    np.testing.assert_allclose(jax.jit(activation.values)(*arguments), average(phi), rtol=1e-3)
    np.testing.assert_allclose(jax.jit(activation.slopes)(*arguments), average(slope), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", EACH_ACTIVATION)
def test_the_average_of_slopes_is_the_derivative_by_the_covariance(name):
    """Price's theorem."""
    activation = get_activation(name)
    p, q, c = (np.array(value) for value in (0.8, 1.7, 0.5))
    derivative = jax.jit(jax.grad(lambda c: activation.values(p, q, c)))
    np.testing.assert_allclose(derivative(c), jax.jit(activation.slopes)(p, q, c), rtol=1e-6)


@pytest.mark.parametrize("variance", [10.0, 100.0])
@pytest.mark.parametrize("name", [pytest.param("gelu", marks=pytest.mark.slow), "tanh"])
def test_sums_for_smooth_activations_stay_exact_at_large_variance(name, variance):
    """Against a fine sum in one direction, for an input with itself."""
    z = np.linspace(-9, 9, 40001)
    weights = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    activation, p = get_activation(name), np.asarray(variance)
    at = np.sqrt(p) * z
    for average, function in ((activation.values, activation.function), (activation.slopes, activation.slope)):
        exact = weights @ np.square(jax.jit(function)(at))
        np.testing.assert_allclose(jax.jit(average)(p, p, p), exact, rtol=1e-6 if variance == 10 else 0.03)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_activation_is_that_of_the_networks(activation):
    x = np.linspace(-2.0, 2.0, 8)
    np.testing.assert_allclose(ACTIVATIONS[activation].function(x), NONLINEARITIES[activation](x), rtol=1e-12)
