"""Limits against independent forms: closed formulas, integrals by another method, finite networks, and each other."""

import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import integrate

import depthmup_flax as dm
from depthmup_flax.errors import InputError
from depthmup_flax.nn.layers import NONLINEARITIES
from depthmup_flax.theory import (
    ACTIVATIONS,
    get_activation,
    gram,
    lazy_kernels,
    linear_training,
    one_step_kernel,
    predict,
)

pytestmark = pytest.mark.usefixtures("float64")
haste = pytest.mark.usefixtures("compiled_in_haste")

# A power has two ends; a size between them would hardly move it.
DEPTHS = (32, 128)
WIDTHS = (96, 384)


def inputs(examples=3, size=5):
    return jax.random.normal(jax.random.key(0), (examples, size))


def power(sizes, errors):
    return np.polyfit(np.log(sizes), np.log(errors), 1)[0]


# -- Gaussian averages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_averages_are_integrals_over_two_gaussians(name):
    p, q, c = 0.8, 1.7, -0.6
    phi = NONLINEARITIES[name]
    slope = jax.vmap(jax.grad(phi))

    def average(function):
        # In polar coordinates, where relu and abs have kinks along rays only: exact radially, fine in the angle.
        angles = np.linspace(0, 2 * np.pi, 4001)[:-1] + 1e-4
        radii, weights = np.polynomial.laguerre.laggauss(60)  # of r^2 / 2
        r = np.sqrt(2 * radii)[:, None]
        u, rest = np.sqrt(p) * r * np.cos(angles), r * np.sin(angles)
        v = c / np.sqrt(p) * r * np.cos(angles) + np.sqrt(q - c**2 / p) * rest
        values = np.asarray(function(jnp.asarray(u.ravel()))) * np.asarray(function(jnp.asarray(v.ravel())))
        return weights @ values.reshape(u.shape).mean(1)

    found = get_activation(name)
    arguments = [jnp.array(value) for value in (p, q, c)]
    np.testing.assert_allclose(found.values(*arguments), average(phi), rtol=1e-3)
    np.testing.assert_allclose(found.slopes(*arguments), average(slope), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_average_of_slopes_is_the_derivative_by_the_covariance(name):
    """Price's theorem."""
    found = get_activation(name)
    p, q, c = (jnp.array(value) for value in (0.8, 1.7, 0.5))
    np.testing.assert_allclose(jax.grad(lambda c: found.values(p, q, c))(c), found.slopes(p, q, c), rtol=1e-6)


# -- the limit -------------------------------------------------------------------------------------------------------


def test_linear_kernels_are_exponentials():
    start, a = gram(inputs()), 0.7
    kernels = lazy_kernels(start, "linear", branch_multiplier=a)
    grown = jnp.exp(a**2 * kernels.layer_time)[:, None, None]
    np.testing.assert_allclose(kernels.H, grown * start, rtol=1e-8)
    np.testing.assert_allclose(kernels.G, jnp.exp(a**2) / grown * jnp.ones_like(start), rtol=1e-8)
    np.testing.assert_allclose(kernels.blocks, a**2 * np.exp(a**2) * start, rtol=1e-8)
    np.testing.assert_allclose(kernels.tangent(), a**2 * np.exp(a**2) * start, rtol=1e-8)
    np.testing.assert_allclose(
        kernels.tangent(["stem", "blocks", "readout"]), (2 + a**2) * np.exp(a**2) * start, rtol=1e-8
    )


def test_relu_kernels_of_an_input_with_itself_are_exponentials():
    start = gram(inputs())
    kernels = lazy_kernels(start, "relu")
    time = kernels.layer_time[:, None]
    np.testing.assert_allclose(
        jnp.diagonal(kernels.H, axis1=1, axis2=2), jnp.exp(time / 2) * jnp.diag(start), rtol=1e-8
    )
    np.testing.assert_allclose(jnp.diagonal(kernels.blocks), np.exp(0.5) / 4 * jnp.diag(start), rtol=1e-8)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_ode_solver_finds_the_same_kernels(name):
    """SciPy's adaptive solver, forwards and then backwards."""
    start, found = gram(inputs()), get_activation(name)
    n = len(start)

    @jax.jit
    def averages(H):
        variance = jnp.diag(H)
        arguments = (*jnp.broadcast_arrays(variance[:, None], variance[None]), H)
        return found.values(*arguments), found.slopes(*arguments)

    forward = integrate.solve_ivp(
        lambda _, H: averages(H.reshape(n, n))[0].ravel(),
        (0, 1),
        start.ravel(),
        rtol=1e-9,
        atol=1e-9,
        dense_output=True,
    )

    def backward(tau, state):
        values, slopes = averages(forward.sol(tau).reshape(n, n))
        G = state[: n * n].reshape(n, n)
        return np.concatenate([-(slopes * G).ravel(), -(G * values).ravel()])

    end = np.concatenate([averages(forward.y[:, -1].reshape(n, n))[1].ravel(), np.zeros(n * n)])
    solved = integrate.solve_ivp(backward, (1, 0), end, rtol=1e-9, atol=1e-9).y[:, -1]
    kernels = lazy_kernels(start, name)
    np.testing.assert_allclose(kernels.H[-1].ravel(), forward.y[:, -1], rtol=1e-6)
    np.testing.assert_allclose(kernels.G[0].ravel(), solved[: n * n], rtol=1e-6)
    np.testing.assert_allclose(kernels.blocks.ravel(), solved[n * n :], rtol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_finite_depth_converges_with_a_square_error_of_depth_to_the_minus_two(name):
    start = gram(inputs())
    limit = lazy_kernels(start, name).tangent()
    errors = [jnp.mean((lazy_kernels(start, name, depth=depth).tangent() - limit) ** 2) for depth in DEPTHS]
    assert abs(power(DEPTHS, errors) + 2) < 0.1


@pytest.mark.parametrize("name", ["erf", "tanh", "relu"])
def test_the_integration_is_of_fourth_order_and_states_its_error(name):
    start, steps = gram(inputs()), (4, 16)
    exact = lazy_kernels(start, name, steps=32)
    coarse = [lazy_kernels(start, name, steps=n) for n in steps]
    errors = [jnp.abs(kernels.blocks - exact.blocks).max() for kernels in coarse]
    assert abs(power(steps, errors) + 4) < 0.3
    for error, kernels in zip(errors, coarse, strict=True):
        assert error < kernels.error < 1e-2


# Of the limit's integration, with an activation in closed form and a sum.
@haste
@pytest.mark.parametrize(("name", "depth"), [("relu", None), ("tanh", None), *((name, 4) for name in ACTIVATIONS)])
def test_kernels_are_differentiable_by_inputs_and_multiplier(name, depth):
    """An input and itself, where angles have no slope, included."""
    x = inputs(2)

    @jax.jit
    def entry(x, a):
        kernel = lazy_kernels(gram(x), name, depth=depth, branch_multiplier=a, steps=8).tangent()
        return kernel[0, 1] + 0.3 * kernel[1, 1]

    step, direction = 1e-5, jnp.ones_like(x)
    by_x, by_a = jax.jit(jax.grad(entry, argnums=(0, 1)))(x, 0.7)
    finite = (entry(x + step * direction, 0.7) - entry(x - step * direction, 0.7)) / (2 * step)
    np.testing.assert_allclose((by_x * direction).sum(), finite, rtol=1e-4)
    np.testing.assert_allclose(by_a, (entry(x, 0.7 + step) - entry(x, 0.7 - step)) / (2 * step), rtol=1e-4)


def test_pixels_in_bytes_are_numbers():
    pixels = np.array([[200, 100], [255, 4]], np.uint8)
    np.testing.assert_allclose(gram(pixels), gram(pixels.astype(float)))
    np.testing.assert_allclose(gram(pixels)[0, 0], 25000.0)
    listed = lazy_kernels([[1.0, 0.2], [0.2, 1.0]], "relu").blocks
    np.testing.assert_allclose(listed, lazy_kernels(jnp.array([[1.0, 0.2], [0.2, 1.0]]), "relu").blocks)


@pytest.mark.parametrize("variance", [10.0, 100.0])
@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_sums_for_smooth_activations_stay_exact_at_large_variance(name, variance):
    """Against a fine sum in one direction, for an input with itself."""
    z = np.linspace(-9, 9, 40001)
    weights = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    found, p = get_activation(name), jnp.asarray(variance)
    at = jnp.sqrt(p) * jnp.asarray(z)
    for average, exact in ((found.values, found.function(at) ** 2), (found.slopes, found.slope(at) ** 2)):
        np.testing.assert_allclose(average(p, p, p), weights @ exact, rtol=1e-6 if variance == 10 else 0.03)


@haste
def test_kernels_are_differentiable_and_map_over_batches():
    batch = jnp.stack([gram(inputs()), 2 * gram(inputs())])
    mapped = jax.jit(jax.vmap(lambda start: lazy_kernels(start, "tanh", depth=8).tangent()))(batch)
    np.testing.assert_allclose(mapped[1], lazy_kernels(batch[1], "tanh", depth=8).tangent(), rtol=1e-12)
    slope = jax.grad(lambda a: lazy_kernels(batch[0], "linear", branch_multiplier=a).blocks[0, 0])(0.7)
    exact = jax.grad(lambda a: a**2 * jnp.exp(a**2) * batch[0][0, 0])(0.7)
    np.testing.assert_allclose(slope, exact, rtol=1e-6)


# -- against finite networks -----------------------------------------------------------------------------------------


def network(name, depth, a):
    rule = dm.get_parametrization("depth_mup", branch_multiplier=a)
    fields = {"depth": depth, "base_depth": 1, "base_width": 1, "nonlinearity": name, "parametrization": rule}
    return lambda width: dm.ResMLP(1, width=width, pre_nonlin=True, mean_subtraction=False, **fields)


def in_group(group, path):
    return path[0].key == group


@functools.cache
def empirical_errors(name, depth=4, a=0.7, seeds=64):
    """group -> width -> mean square difference of the network's tangent kernel to the theory's at that depth."""
    x = inputs()
    kernels = lazy_kernels(gram(x), name, depth=depth, branch_multiplier=a)
    # Learning rates of SGD at width ratio N; the stem's inputs are not divided by sqrt(D) in the forward pass.
    factors = {"stem": lambda n: n / x.shape[1], "blocks": lambda n: 1.0, "readout": lambda n: n}
    found = {group: [] for group in factors}
    for width in WIDTHS:
        model = network(name, depth, a)(width)

        def kernel(key, model=model):
            params = nn.unbox(model.init(key, x))["params"]
            jacobian = jax.jacrev(lambda p: model.apply({"params": p}, x)[:, 0])(params)
            flat = jax.tree_util.tree_leaves_with_path(jacobian)
            return {
                group: sum(
                    leaf.reshape(len(x), -1) @ leaf.reshape(len(x), -1).T
                    for path, leaf in flat
                    if in_group(group, path)
                )
                for group in factors
            }

        measured = jax.jit(lambda keys: jax.lax.map(kernel, keys))(jax.random.split(jax.random.key(1), seeds))
        for group, factor in factors.items():
            theory = kernels.tangent([group])
            found[group].append(float(jnp.mean((factor(width) * measured[group] - theory) ** 2)))
    return found


@pytest.mark.parametrize("group", ["stem", "blocks", "readout"])
@pytest.mark.parametrize("name", ["relu", "erf"])
def test_tangent_kernels_of_networks_approach_the_limit_as_one_over_width(name, group):
    errors = empirical_errors(name)[group]
    assert abs(power(WIDTHS, errors) + 1) < 0.3, errors
    assert errors[-1] < 0.01


def test_training_of_a_wide_lazy_network_follows_the_prediction():
    """Full-batch descent in small steps; gamma0 small. The error falls with width."""
    x, depth, rate, steps = inputs(4), 4, 0.1, 50
    y = jnp.array([1.0, -1.0, 0.5, 0.0])
    kernels = lazy_kernels(gram(x), "relu", depth=depth)
    times = rate * jnp.arange(1, steps + 1)
    predicted = predict(kernels.tangent(["blocks"])[:3, :3], y[:3], times, cross=kernels.tangent(["blocks"])[3:, :3])
    errors = []
    for width in (64, 512):
        model, gamma0 = network("relu", depth, 1.0)(width), 1e-3

        def run(key, model=model, gamma0=gamma0):
            params = nn.unbox(model.init(key, x))["params"]
            start = model.apply({"params": params}, x)[:, 0]

            def outputs(blocks):
                return (model.apply({"params": {**params, "blocks": blocks}}, x)[:, 0] - start) / gamma0

            def step(blocks, _):
                grads = jax.grad(lambda b: jnp.mean((outputs(b)[:3] - y[:3]) ** 2) / 2)(blocks)
                blocks = optax.apply_updates(blocks, jax.tree.map(lambda g: -rate * gamma0**2 * g, grads))
                return blocks, outputs(blocks)

            return jax.lax.scan(step, params["blocks"], None, length=steps)[1]

        found = jax.jit(lambda keys, run=run: jax.lax.map(run, keys))(jax.random.split(jax.random.key(2), 8))
        errors.append(float(jnp.mean((found - jnp.concatenate(predicted, axis=1)) ** 2)))
    assert errors[1] < 0.25 * errors[0], errors
    assert errors[1] < 2e-3, errors


# -- predictions -----------------------------------------------------------------------------------------------------


@haste
def test_predictions_are_the_exponential_of_the_kernel_and_at_last_its_regression():
    kernel, y = lazy_kernels(gram(inputs(6)), "relu").tangent(), jnp.array([[1.0, 0], [0, 1], [1, 1], [2, 0]])
    train, test = predict(kernel[:4, :4], y, jnp.array([0.0, 1.5, 1e6]), cross=kernel[4:, :4])
    exact = y - jax.scipy.linalg.expm(-1.5 * kernel[:4, :4] / 4) @ y
    np.testing.assert_allclose(train[0], 0.0, atol=1e-12)
    np.testing.assert_allclose(train[1], exact, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(test[1], kernel[4:, :4] @ jnp.linalg.solve(kernel[:4, :4], exact), rtol=1e-6)
    np.testing.assert_allclose(test[2], kernel[4:, :4] @ jnp.linalg.solve(kernel[:4, :4], y), rtol=1e-6)


def test_directions_without_kernel_do_not_move():
    kernel = jnp.ones((2, 2))  # the same input twice
    train, test = predict(kernel, jnp.array([1.0, -1.0]), jnp.array([3.0]), cross=jnp.ones((1, 2)))
    np.testing.assert_allclose(train, 0.0, atol=1e-12)
    np.testing.assert_allclose(test, 0.0, atol=1e-12)


# -- deep linear networks --------------------------------------------------------------------------------------------


def steps_of(shape, seed=3):
    keys = jax.random.split(jax.random.key(seed))
    return jax.random.normal(keys[0], shape), jax.random.normal(keys[1], shape[:2])


@haste
@pytest.mark.parametrize("norm", [1.0, 1.6])
def test_one_step_of_a_linear_network_approaches_the_corrected_formula_as_one_over_depth(norm):
    """And not the printed one, which is 20.0 at layer time 1 where this is 15.03."""
    x, y = jnp.full((2, 1, 1), norm), jnp.ones((2, 1))
    depths, errors = (32, 128), []
    for depth in depths:
        found = jnp.diagonal(linear_training(x, y, depth=depth, learning_rate=0.8).features, axis1=1, axis2=2)[:, 1]
        exact = one_step_kernel(jnp.linspace(0, 1, depth + 1), 0.8, start=norm**2)
        errors.append(float(jnp.abs(found - exact).max()))
    assert abs(power(depths, errors) + 1) < 0.1, errors
    np.testing.assert_allclose(one_step_kernel(1.0, 1.0), np.e + 2 * np.e**2 * (5 / 6), rtol=1e-12)


def test_the_formula_after_one_step_solves_its_equation():
    """dH/dtau = H + 2 scale^2 e^tau (tau + 1) int_0^tau G_0(tau) e^u (u + 1) du with G_0 = e^(1 - tau) (Eq. 96, 97)."""
    slope = jax.vmap(jax.grad(lambda tau: one_step_kernel(tau, 0.7)))
    tau = jnp.linspace(0, 1, 11)
    source = 2 * 0.7**2 * jnp.exp(tau) * (tau + 1) * jnp.exp(1 - tau) * tau * jnp.exp(tau)
    np.testing.assert_allclose(slope(tau), one_step_kernel(tau, 0.7) + source, rtol=1e-10)


def test_linear_networks_in_training_approach_the_recursion_as_one_over_width():
    """Our network and our optimizer, several examples a step: outputs and root mean squares of layers."""
    (x, y), depth, rate, gamma0, a = steps_of((4, 2, 3)), 4, 0.6, 0.7, 0.8
    theory = linear_training(x, y, depth=depth, learning_rate=rate, gamma0=gamma0, branch_multiplier=a)
    rule = dm.get_parametrization("depth_mup", branch_multiplier=a, gamma0=gamma0)
    expected = jnp.diagonal(theory.features, axis1=1, axis2=2).reshape(depth + 1, *y.shape)
    widths, errors, biases = (64, 256), [], []
    for width in widths:
        model = dm.ResMLP(
            1, width=width, depth=depth, base_width=1, base_depth=1, nonlinearity="linear", mean_subtraction=False,
            parametrization=rule,
        )  # fmt: skip
        info = dm.param_info(model, model.base(), x[0])
        optimizer = dm.freeze(dm.sgd(rate, info, rule), info, ("stem", "readout"))

        def run(key, model=model, optimizer=optimizer):
            params = nn.unbox(model.init(key, x[0]))["params"]

            def forward(params, x):
                out, recorded = model.apply({"params": params}, x, mutable=["intermediates"])
                return out[:, 0], jnp.mean(recorded["intermediates"]["blocks"]["stream"][0] ** 2, axis=-1)

            def step(carry, data):
                params, state = carry
                loss = lambda p: (jnp.mean((forward(p, data[0])[0] - data[1]) ** 2) / 2, forward(p, data[0]))
                grads, found = jax.grad(loss, has_aux=True)(params)
                updates, state = optimizer.update(grads, state, params)
                return (optax.apply_updates(params, updates), state), found

            return jax.lax.scan(step, (params, optimizer.init(params)), (x, y))[1]

        outputs, squares = jax.jit(lambda keys, run=run: jax.lax.map(run, keys))(
            jax.random.split(jax.random.key(4), 128)
        )
        difference = outputs - theory.outputs
        errors.append(float(jnp.mean(difference**2)))
        biases.append(float(jnp.abs(jnp.mean(squares, 0).swapaxes(0, 1) / expected[1:] - 1).max()))
    assert abs(power(widths, errors) + 1) < 0.2, errors
    assert biases[-1] < 0.05, biases


@haste
def test_without_feature_learning_linear_training_is_descent_with_the_lazy_kernel():
    (x, y), depth, rate, steps = steps_of((1, 3, 4)), 6, 0.3, 8
    data = [jnp.repeat(values, steps, axis=0) for values in (x, y)]
    kernel = lazy_kernels(gram(x[0]), "linear", depth=depth).blocks
    lazy = [jnp.zeros(3)]
    for _ in range(steps - 1):
        lazy.append(lazy[-1] - rate / 3 * kernel @ (lazy[-1] - y[0]))
    found = linear_training(*data, depth=depth, learning_rate=rate, gamma0=1e-4)
    np.testing.assert_allclose(found.outputs, jnp.stack(lazy), atol=1e-6)
    moving = linear_training(*data, depth=depth, learning_rate=rate, gamma0=1.0)
    assert jnp.abs(moving.outputs - found.outputs).max() > 0.01


@haste
def test_linear_training_converges_in_depth_as_one_over_depth():
    data = steps_of((5, 1, 2))
    depths = (16, 32, 64)
    outputs = [linear_training(*data, depth=depth).outputs for depth in depths]
    between = [float(jnp.abs(a - b).max()) for a, b in itertools.pairwise(outputs)]
    assert abs(power(depths[:-1], between) + 1) < 0.2, between


@haste
def test_an_example_twice_in_a_step_is_that_example_once():
    x, y = steps_of((3, 1, 2))
    once = linear_training(x, y, depth=5)
    twice = linear_training(jnp.repeat(x, 2, axis=1), jnp.repeat(y, 2, axis=1), depth=5)
    np.testing.assert_allclose(twice.outputs, jnp.repeat(once.outputs, 2, axis=1), atol=1e-10)
    np.testing.assert_allclose(twice.features[:, ::2, ::2], once.features, atol=1e-10)


@haste
def test_half_the_loss_at_twice_the_rate_is_the_same_training():
    x, y = steps_of((2, 1, 2))
    square = linear_training(x, y, depth=3)
    halved = linear_training(x, y, depth=3, learning_rate=2.0, loss=_half_loss)
    np.testing.assert_allclose(halved.outputs, square.outputs, atol=1e-10)


def _half_loss(outputs, targets):
    return (outputs - targets) ** 2 / 4


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: gram(jnp.zeros((2, 3)).at[0].set(1.0)), "norm zero in row 1"),
        (lambda: gram(jnp.ones(3)), r"x has shape \(3,\)"),
        (lambda: lazy_kernels(jnp.ones((2, 3)), "relu"), "square"),
        (lambda: lazy_kernels(jnp.array([[1.0, 0.5], [0.0, 1.0]]), "relu"), "not symmetric"),
        (lambda: lazy_kernels(jnp.diag(jnp.array([1.0, 0.0])), "relu"), "row 1: leave out inputs of norm zero"),
        (lambda: lazy_kernels(jnp.array([[jnp.nan]]), "relu"), "not finite"),
        (lambda: lazy_kernels(jnp.array([[1.0, 5], [5, 1]]), "relu"), "has 5 at row 0, column 1, more than"),
        (lambda: lazy_kernels(jnp.eye(2), "swish"), "activation is 'swish'"),
        (lambda: lazy_kernels(jnp.eye(2), "relu", depth=0), "depth is 0"),
        (lambda: lazy_kernels(jnp.eye(2), "relu", steps=10), "multiple of 4"),
        (lambda: lazy_kernels(jnp.eye(2), "relu").tangent(["block"]), "use a list of some of stem, blocks, readout"),
        (lambda: lazy_kernels(jnp.eye(2), "relu").tangent(["stem", "stem"]), r"trained is \['stem', 'stem'\]"),
        (
            lambda: lazy_kernels(jnp.eye(2), "relu", depth=2.5),
            "depth is 2.5: use a whole number of at least 1, or None",
        ),
        (lambda: lazy_kernels(jnp.eye(2), "relu", branch_multiplier=jnp.nan), "branch_multiplier is nan"),
        (lambda: lazy_kernels(jnp.eye(2), ["relu"]), r"activation is \['relu'\]"),
        (lambda: gram(jnp.ones((0, 3))), r"x has shape \(0, 3\)"),
        (lambda: predict(jnp.eye(2), jnp.ones(2), 1.0), r"times has shape \(\): give a list"),
        (lambda: predict(jnp.eye(2), jnp.ones((2, 1, 1)), jnp.ones(1)), r"give \(2,\) or \(2, outputs\)"),
        (lambda: linear_training(jnp.ones((2, 3)), jnp.ones(2), depth=4), r"inputs has shape \(2, 3\)"),
        (
            lambda: linear_training(jnp.ones((2, 1, 3)), jnp.ones(2), depth=4),
            r"targets has shape \(2,\): give \(2, 1\)",
        ),
        (lambda: linear_training(jnp.zeros((2, 1, 3)), jnp.ones((2, 1)), depth=4), "norm zero in row 0"),
        (lambda: linear_training(jnp.ones((2, 1, 3)), jnp.ones((2, 1)), depth=0), "depth is 0"),
        (lambda: linear_training(jnp.ones((2, 1, 3)), jnp.ones((2, 1)), depth=4, gamma0=0.0), "gamma0 is 0"),
        (lambda: predict(jnp.eye(2), jnp.ones(3), jnp.ones(1)), "targets has shape"),
        (lambda: predict(jnp.eye(2), jnp.ones(2), jnp.ones(1), cross=jnp.ones((2, 3))), "cross has shape"),
    ],
)
def test_bad_input_is_one_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()
