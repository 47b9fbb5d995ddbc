"""Deep linear networks of infinite width against closed formulas, the lazy limit and finite networks."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup_flax as dm
from depthmup_flax.auditing.config_audit import audited_model
from depthmup_flax.util.errors import InputError
from reproduction.theory import gram, lazy_kernels, linear_training, one_step_kernel

pytestmark = pytest.mark.usefixtures("float64")
unoptimized = pytest.mark.usefixtures("unoptimized")


def power(sizes, errors):
    return np.polyfit(np.log(sizes), np.log(errors), 1)[0]


def steps_of(shape, seed=3):
    keys = jax.random.split(jax.random.key(seed))
    return jax.random.normal(keys[0], shape), jax.random.normal(keys[1], shape[:2])


@pytest.mark.parametrize("norm", [1.0, 1.6])
def test_one_step_of_a_linear_network_approaches_the_corrected_formula_as_one_over_depth(norm):
    """And not the printed one, which is 20.0 at layer time 1 where this is 15.03."""
    x, y = jnp.full((2, 1, 1), norm), jnp.ones((2, 1))
    depths, errors = (32, 128), []
    for depth in depths:
        found = np.asarray(linear_training(x, y, depth=depth, learning_rate=0.8).features)[:, 1, 1]
        exact = one_step_kernel(np.linspace(0, 1, depth + 1), 0.8, start=norm**2)
        errors.append(float(np.abs(found - exact).max()))
    assert abs(power(depths, errors) + 1) < 0.1, errors
    np.testing.assert_allclose(one_step_kernel(1.0, 1.0), np.e + 2 * np.e**2 * (5 / 6), rtol=1e-12)


def test_the_formula_after_one_step_solves_its_equation():
    """dH/dtau = H + 2 scale^2 e^tau (tau + 1) int_0^tau G_0(tau) e^u (u + 1) du with G_0 = e^(1 - tau) (Eq. 96, 97)."""
    slope = jax.jit(jax.vmap(jax.grad(lambda tau: one_step_kernel(tau, 0.7))))
    tau = np.linspace(0, 1, 11)
    source = 2 * 0.7**2 * np.exp(tau) * (tau + 1) * np.exp(1 - tau) * tau * np.exp(tau)
    np.testing.assert_allclose(slope(tau), one_step_kernel(tau, 0.7) + source, rtol=1e-10)


@pytest.mark.slow
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
            rule=rule,
        )  # fmt: skip
        info = audited_model(model, x[0]).info
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


def test_without_feature_learning_linear_training_is_descent_with_the_lazy_kernel():
    (x, y), depth, rate, steps = steps_of((1, 3, 4)), 6, 0.3, 8
    x, y = map(np.asarray, (x, y))
    data = [np.repeat(values, steps, axis=0) for values in (x, y)]
    kernel = np.asarray(lazy_kernels(gram(x[0]), "linear", depth=depth).blocks)
    lazy = [np.zeros(3)]
    for _ in range(steps - 1):
        lazy.append(lazy[-1] - rate / 3 * kernel @ (lazy[-1] - y[0]))
    found = linear_training(*data, depth=depth, learning_rate=rate, gamma0=1e-4)
    np.testing.assert_allclose(found.outputs, np.stack(lazy), atol=1e-6)
    moving = linear_training(*data, depth=depth, learning_rate=rate, gamma0=1.0)
    assert np.abs(np.asarray(moving.outputs) - found.outputs).max() > 0.01


@unoptimized
@pytest.mark.slow
def test_linear_training_converges_in_depth_as_one_over_depth():
    data = steps_of((5, 1, 2))
    depths = (16, 32, 64)
    outputs = [linear_training(*data, depth=depth).outputs for depth in depths]
    between = [float(jnp.abs(a - b).max()) for a, b in itertools.pairwise(outputs)]
    assert abs(power(depths[:-1], between) + 1) < 0.2, between


def test_an_example_twice_in_a_step_is_that_example_once():
    x, y = map(np.asarray, steps_of((2, 1, 2)))
    once = linear_training(x, y, depth=3)
    twice = linear_training(np.repeat(x, 2, axis=1), np.repeat(y, 2, axis=1), depth=3)
    np.testing.assert_allclose(twice.outputs, np.repeat(once.outputs, 2, axis=1), atol=1e-10)
    np.testing.assert_allclose(np.asarray(twice.features)[:, ::2, ::2], once.features, atol=1e-10)


def half_loss(outputs, targets):
    return (outputs - targets) ** 2 / 4


def test_half_the_loss_at_twice_the_rate_is_the_same_training():
    x, y = steps_of((2, 1, 2))
    square = linear_training(x, y, depth=3)
    halved = linear_training(x, y, depth=3, learning_rate=2.0, loss=half_loss)
    np.testing.assert_allclose(halved.outputs, square.outputs, atol=1e-10)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: linear_training(jnp.ones((2, 3)), jnp.ones(2), depth=4), r"inputs has shape \(2, 3\)"),
        (
            lambda: linear_training(jnp.ones((2, 1, 3)), jnp.ones(2), depth=4),
            r"targets has shape \(2,\): give \(2, 1\)",
        ),
        (lambda: linear_training(jnp.zeros((2, 1, 3)), jnp.ones((2, 1)), depth=4), "norm zero in row 0"),
        (lambda: linear_training(jnp.ones((2, 1, 3)), jnp.ones((2, 1)), depth=0), "depth is 0"),
        (lambda: linear_training(jnp.ones((2, 1, 3)), jnp.ones((2, 1)), depth=4, gamma0=0.0), "gamma0 is 0"),
        (
            lambda: linear_training(*steps_of((4, 3, 2)), depth=4, loss=lambda f, y: ((f - y) ** 2).mean()),
            r"loss gives shape \(\) for \(4, 3\)",
        ),
        (
            lambda: linear_training(*steps_of((2, 1, 2)), depth=3, learning_rate=1e8),
            r"learning_rate is 100000000\.0: training diverges, .* use a smaller one",
        ),
    ],
)
def test_bad_input_is_one_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()
