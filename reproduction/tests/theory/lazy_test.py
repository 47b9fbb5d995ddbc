"""The lazy limit against closed formulas, an ODE solver and finite networks."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import integrate, linalg

import depthmup_flax as dm
from depthmup_flax.util.errors import InputError
from reproduction import theory
from reproduction.theory import ACTIVATIONS, get_activation, gram, lazy_kernels, predict

pytestmark = pytest.mark.usefixtures("float64")
unoptimized = pytest.mark.usefixtures("unoptimized")

# A power has two ends; a size between them would hardly move it.
DEPTHS = (32, 128)
WIDTHS = (96, 384)
# Sums over points compile slowly.
EACH_ACTIVATION = [
    pytest.param(name, marks=pytest.mark.slow) if name in ("gelu", "tanh") else name for name in ACTIVATIONS
]


def inputs(examples=3, size=5):
    return jax.random.normal(jax.random.key(0), (examples, size))


def power(sizes, errors):
    return np.polyfit(np.log(sizes), np.log(errors), 1)[0]


@pytest.mark.parametrize("pre_nonlin", [True, False])
def test_linear_kernels_are_exponentials(pre_nonlin):
    start, a = np.asarray(gram(inputs())), 0.7
    kernels = lazy_kernels(start, "linear", branch_multiplier=a, pre_nonlin=pre_nonlin)
    grown = np.exp(a**2 * np.asarray(kernels.layer_time))[:, None, None]
    np.testing.assert_allclose(kernels.H, grown * start, rtol=1e-8)
    np.testing.assert_allclose(kernels.G, np.exp(a**2) / grown * np.ones_like(start), rtol=1e-8)
    np.testing.assert_allclose(kernels.blocks, a**2 * np.exp(a**2) * start, rtol=1e-8)
    np.testing.assert_allclose(kernels.tangent(), a**2 * np.exp(a**2) * start, rtol=1e-8)
    np.testing.assert_allclose(
        kernels.tangent(["stem", "blocks", "readout"]), (2 + a**2) * np.exp(a**2) * start, rtol=1e-8
    )


def test_relu_kernels_of_an_input_with_itself_are_exponentials():
    start = np.asarray(gram(inputs()))
    kernels = lazy_kernels(start, "relu")
    time = np.asarray(kernels.layer_time)[:, None]
    np.testing.assert_allclose(np.diagonal(kernels.H, axis1=1, axis2=2), np.exp(time / 2) * np.diag(start), rtol=1e-8)
    np.testing.assert_allclose(np.diagonal(kernels.blocks), np.exp(0.5) / 4 * np.diag(start), rtol=1e-8)


@pytest.mark.parametrize("name", EACH_ACTIVATION)
def test_an_ode_solver_finds_the_same_kernels(name):
    """SciPy's adaptive solver, forward and then backward."""
    start, activation = gram(inputs()), get_activation(name)
    n = len(start)

    @jax.jit
    def averages(H):
        variance = jnp.diag(H)
        arguments = (*jnp.broadcast_arrays(variance[:, None], variance[None]), H)
        return activation.values(*arguments), activation.slopes(*arguments)

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


def power_over_depth(name, **form):
    """The power of depth in the square error of the tangent kernel."""
    kernel = lambda depth: np.asarray(lazy_kernels(gram(inputs()), name, depth=depth, **form).tangent())
    limit = kernel(None)
    return power(DEPTHS, [np.mean((kernel(depth) - limit) ** 2) for depth in DEPTHS])


@pytest.mark.parametrize("name", EACH_ACTIVATION)
def test_finite_depth_converges_with_a_square_error_of_depth_to_the_minus_two(name):
    assert abs(power_over_depth(name) + 2) < 0.1


@pytest.mark.slow
def test_with_the_nonlinearity_last_it_converges_too():
    assert abs(power_over_depth("relu", pre_nonlin=False) + 2) < 0.1


@pytest.mark.parametrize(
    "name", ["erf", pytest.param("tanh", marks=pytest.mark.slow), pytest.param("relu", marks=pytest.mark.slow)]
)
def test_the_integration_is_of_fourth_order_and_states_its_error(name):
    start, steps = gram(inputs()), (4, 16)
    exact = lazy_kernels(start, name)  # 64 steps
    coarse = [lazy_kernels(start, name, steps=n) for n in steps]
    errors = [np.abs(np.asarray(kernels.blocks) - exact.blocks).max() for kernels in coarse]
    assert abs(power(steps, errors) + 4) < 0.3
    for error, kernels in zip(errors, coarse, strict=True):
        assert error < kernels.error < 1e-2


# The limit's integration (no depth) with an activation in closed form and a sum.
@unoptimized
@pytest.mark.parametrize(
    ("name", "depth"),
    [
        *(pytest.param(name, None, marks=pytest.mark.slow) for name in ("relu", "tanh")),
        *((name, 4) for name in ("linear", "relu", "abs", "erf")),
        *(pytest.param(name, 4, marks=pytest.mark.slow) for name in ("tanh", "gelu")),
    ],
)
def test_kernels_are_differentiable_by_inputs_and_multiplier(name, depth):
    """An input and itself, where angles have no slope, included."""
    x = inputs(2)

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1))  # one program gives both
    def entry(x, a):
        kernel = lazy_kernels(gram(x), name, depth=depth, branch_multiplier=a, steps=8).tangent()
        return kernel[0, 1] + 0.3 * kernel[1, 1]

    step = 1e-5
    _, (by_x, by_a) = entry(x, 0.7)
    difference = lambda up, down: (entry(*up)[0] - entry(*down)[0]) / (2 * step)
    np.testing.assert_allclose(by_x.sum(), difference((x + step, 0.7), (x - step, 0.7)), rtol=1e-4)
    np.testing.assert_allclose(by_a, difference((x, 0.7 + step), (x, 0.7 - step)), rtol=1e-4)


def test_kernels_are_differentiable_and_map_over_batches():
    batch = jnp.stack([gram(inputs()), 2 * gram(inputs())])
    mapped = jax.jit(jax.vmap(lambda start: lazy_kernels(start, "tanh", depth=8).tangent()))(batch)
    np.testing.assert_allclose(mapped[1], lazy_kernels(batch[1], "tanh", depth=8).tangent(), rtol=1e-12)
    slope = jax.jit(jax.grad(lambda a: lazy_kernels(batch[0], "linear", branch_multiplier=a).blocks[0, 0]))(0.7)
    exact = 2 * 0.7 * (1 + 0.7**2) * np.exp(0.7**2) * batch[0][0, 0]  # the derivative of a^2 exp(a^2) H_0
    np.testing.assert_allclose(slope, exact, rtol=1e-6)


def test_pixels_in_bytes_are_numbers():
    pixels = np.array([[200, 100], [255, 4]], np.uint8)
    np.testing.assert_allclose(gram(pixels), gram(pixels.astype(float)))
    np.testing.assert_allclose(gram(pixels)[0, 0], 25000.0)
    listed = lazy_kernels([[1.0, 0.2], [0.2, 1.0]], "relu", depth=2).blocks
    np.testing.assert_allclose(listed, lazy_kernels(jnp.array([[1.0, 0.2], [0.2, 1.0]]), "relu", depth=2).blocks)


def network(name, depth, a):
    rule = dm.get_parametrization("depth_mup", branch_multiplier=a)
    fields = {"depth": depth, "base_depth": 1, "base_width": 1, "nonlinearity": name, "rule": rule}
    return lambda width: dm.ResMLP(1, width=width, pre_nonlin=True, mean_subtraction=False, **fields)


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
                    leaf.reshape(len(x), -1) @ leaf.reshape(len(x), -1).T for path, leaf in flat if path[0].key == group
                )
                for group in factors
            }

        measured = jax.jit(lambda keys: jax.lax.map(kernel, keys))(jax.random.split(jax.random.key(1), seeds))
        for group, factor in factors.items():
            theory = kernels.tangent([group])
            found[group].append(float(jnp.mean((factor(width) * measured[group] - theory) ** 2)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relu", "erf"])
def test_tangent_kernels_of_networks_approach_the_limit_as_one_over_width(name):
    jax.config.update("jax_disable_most_optimizations", False)  # it computes for longer than it compiles
    for group, errors in empirical_errors(name).items():
        assert abs(power(WIDTHS, errors) + 1) < 0.3, (group, errors)
        assert errors[-1] < 0.01, group


@pytest.mark.slow
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


def test_predictions_are_the_exponential_of_the_kernel_and_in_the_end_its_regression():
    kernel, y = (
        np.asarray(lazy_kernels(gram(inputs(6)), "relu", depth=4).tangent()),
        np.array([[1.0, 0], [0, 1], [1, 1], [2, 0]]),
    )
    train, test = map(np.asarray, predict(kernel[:4, :4], y, np.array([0.0, 1.5, 1e6]), cross=kernel[4:, :4]))
    exact = y - linalg.expm(-1.5 * kernel[:4, :4] / 4) @ y
    np.testing.assert_allclose(train[0], 0.0, atol=1e-12)
    np.testing.assert_allclose(train[1], exact, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(test[1], kernel[4:, :4] @ np.linalg.solve(kernel[:4, :4], exact), rtol=1e-6)
    np.testing.assert_allclose(test[2], kernel[4:, :4] @ np.linalg.solve(kernel[:4, :4], y), rtol=1e-6)


def test_directions_without_kernel_do_not_move():
    kernel = np.ones((2, 2))  # the same input twice
    train, test = predict(kernel, np.array([1.0, -1.0]), np.array([3.0]), cross=np.ones((1, 2)))
    np.testing.assert_allclose(train, 0.0, atol=1e-12)
    np.testing.assert_allclose(test, 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: gram(jnp.zeros((2, 3)).at[0].set(1.0)), "norm zero in row 1: remove it"),
        (lambda: gram(jnp.ones(3)), r"x has shape \(3,\)"),
        (lambda: lazy_kernels(jnp.ones((2, 3)), "relu"), "square"),
        (lambda: lazy_kernels(jnp.array([[1.0, 0.5], [0.0, 1.0]]), "relu"), "not symmetric"),
        (lambda: lazy_kernels(jnp.diag(jnp.array([1.0, 0.0])), "relu"), "row 1: remove inputs of norm zero"),
        (lambda: lazy_kernels(jnp.array([[jnp.nan]]), "relu"), "not finite"),
        (lambda: lazy_kernels(jnp.array([[1.0, 5], [5, 1]]), "relu"), "has 5 at row 0, column 1, more than"),
        (lambda: lazy_kernels(jnp.eye(2), "swish"), "activation is 'swish'"),
        (lambda: lazy_kernels(jnp.eye(2), "relu", depth=0), "depth is 0"),
        (lambda: lazy_kernels(jnp.eye(2), "relu", steps=10), "multiple of 4"),
        (
            lambda: lazy_kernels(jnp.eye(2), "relu", depth=2).tangent(["block"]),
            "use a list of some of stem, blocks, readout",
        ),
        (lambda: lazy_kernels(jnp.eye(2), "relu", depth=2).tangent(["stem", "stem"]), r"trained is \['stem', 'stem'\]"),
        (
            lambda: lazy_kernels(jnp.eye(2), "relu", depth=2.5),
            "depth is 2.5: use a whole number of at least 1, or None",
        ),
        (lambda: lazy_kernels(jnp.eye(2), "relu", branch_multiplier=jnp.nan), "branch_multiplier is nan"),
        (lambda: lazy_kernels(jnp.eye(2), ["relu"]), r"activation is \['relu'\]"),
        (lambda: gram(jnp.ones((0, 3))), r"x has shape \(0, 3\)"),
        (lambda: predict(jnp.eye(2), jnp.ones(2), 1.0), r"times has shape \(\): give a list"),
        (lambda: predict(jnp.eye(2), jnp.ones((2, 1, 1)), jnp.ones(1)), r"give \(2,\) or \(2, outputs\)"),
        (lambda: predict(jnp.eye(2), jnp.ones(3), jnp.ones(1)), "targets has shape"),
        (lambda: predict(jnp.eye(2), jnp.ones(2), jnp.ones(1), cross=jnp.ones((2, 3))), "cross has shape"),
    ],
)
def test_bad_input_is_one_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


def test_products_are_computed_in_full():
    """The precision of every product of a program for a TPU."""
    kernel, targets, times = jnp.eye(3) + 1, jnp.ones(3), jnp.arange(4.0)
    programs = {
        "gram": (theory.gram, jnp.ones((2, 1, 3))),
        "lazy": (lambda kernel: theory.lazy_kernels(kernel, "gelu", depth=2).blocks, kernel),
        "predict": (lambda *args: theory.predict(*args, cross=kernel), kernel, targets, times),
    }
    for name, (program, *args) in programs.items():
        text = jax.jit(program).trace(*args).lower(lowering_platforms=("tpu",)).as_text()
        products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
        assert products, name
        assert all("HIGHEST" in line for line in products), name
