"""Networks of infinite width in training against the other theories, and against plain networks that grow wide."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax.nn.layers import NONLINEARITIES
from depthmup_flax.util.errors import InputError
from reproduction.limits import finite_networks as networks
from reproduction.theory import gram, lazy_kernels, linear_training, nonlinear_training

pytestmark = pytest.mark.usefixtures("float64")

X = np.random.default_rng(0).normal(size=(3, 5))
Y = np.array([1.0, -1.0, 0.5])
EVERY_LAYER = ("stem", "blocks", "readout")
QUANTITIES = ("outputs", "features", "gradients")
WIDTHS = (64, 256)


def training(activation="relu", *, steps=4, depth=4, learning_rate=0.4, **kwargs):
    return nonlinear_training(
        X, Y, activation=activation, steps=steps, depth=depth, learning_rate=learning_rate, **kwargs
    )


def largest_of(training):
    return {name: float(np.abs(getattr(training, name)).max()) for name in QUANTITIES}


@pytest.mark.parametrize(
    ("depth", "pre_nonlin", "alpha"),
    [pytest.param(1, True, 0.5, marks=pytest.mark.slow), pytest.param(4, False, 0.5, marks=pytest.mark.slow),
     (5, True, 0.7)],
)  # fmt: skip
def test_without_a_nonlinearity_monte_carlo_is_the_recursion_of_linear_networks_to_rounding(depth, pre_nonlin, alpha):
    fields = {"depth": depth, "gamma0": 0.7, "branch_multiplier": 0.8, "alpha": alpha}
    monte_carlo = training("linear", samples=1024, populations=2, pre_nonlin=pre_nonlin, **fields)
    batches = [np.repeat(values[None], 4, axis=0) for values in (X, Y)]
    exact = linear_training(*batches, learning_rate=0.4, **fields)
    for name, scale in largest_of(exact).items():
        np.testing.assert_allclose(getattr(monte_carlo.mean, name), getattr(exact, name), atol=1e-12 * scale)
    np.testing.assert_allclose(monte_carlo.mean.losses, exact.losses, atol=1e-12)
    assert largest_of(monte_carlo.error)["features"] < 1e-12
    features = np.asarray(exact.features)
    assert np.abs(features[:, -1, -1] - features[:, 2, 2]).max() > 0.005  # they moved


@pytest.mark.parametrize(
    ("activation", "pre_nonlin"),
    [
        pytest.param("relu", True, marks=pytest.mark.slow),
        pytest.param("abs", False, marks=pytest.mark.slow),
        ("erf", True),
    ],
)
def test_without_feature_learning_monte_carlo_is_descent_with_the_lazy_kernel(activation, pre_nonlin):
    rate, steps, depth = 0.2, 4, 3
    found = training(
        activation, steps=steps, depth=depth, learning_rate=rate, gamma0=1e-3, trained=EVERY_LAYER, populations=16,
        samples=1024, pre_nonlin=pre_nonlin,
    )  # fmt: skip
    kernels = lazy_kernels(gram(X), activation, depth=depth, pre_nonlin=pre_nonlin)
    kernel, lazy = np.asarray(kernels.tangent(EVERY_LAYER)), [np.zeros(3)]
    for _ in range(steps - 1):
        lazy.append(lazy[-1] - rate / 3 * kernel @ (lazy[-1] - Y))
    within(found.mean.outputs[1:], np.stack(lazy[1:]), found.error.outputs[1:])
    for first in (slice(0, 3), slice(-3, None)):  # the first step's passes and the last's
        for name, exact in (("features", kernels.Phi), ("gradients", kernels.G))[: 1 + pre_nonlin]:
            mean, error = (np.asarray(getattr(part, name))[:, first, first] for part in (found.mean, found.error))
            within(mean, exact, error)
    assert float(found.error.outputs.max()) < 0.01


def within(found, exact, error):
    """Root mean square of the difference in units of its error; 1 is right, and errors are correlated."""
    found, exact, error = map(np.asarray, (found, exact, error))
    sizes = np.abs(found - exact) / (error + 1e-6)
    assert np.sqrt(np.mean(sizes**2)) < 2.0, sizes


def plain_network(activation, width, depth, pre_nonlin, *, steps, rate, gamma0, a, momentum, decay, shares, key):
    """B24 Eq. 1, or TP6's form, in mean-field form, without this package: outputs (T, P), and kernels of all passes."""
    phi = NONLINEARITIES[activation]
    before = phi if pre_nonlin else lambda h: h
    after = (lambda z: z) if pre_nonlin else lambda z: phi(z) - phi(z).mean(1, keepdims=True)
    keys = jax.random.split(key, 3)
    weights = {
        "stem": jax.random.normal(keys[0], (width, X.shape[1])),
        "blocks": jax.random.normal(keys[1], (depth, width, width)),
        "readout": jax.random.normal(keys[2], (width,)),
    }

    def forward(weights, shifts_LxPxN):
        """Also of what is added to the products with the stem's and the blocks' weights, whose gradients are y."""
        h = jnp.asarray(X) @ weights["stem"].T / X.shape[1] ** 0.5 + shifts_LxPxN[0]
        features = []
        for layer in range(depth):
            features.append(before(h))
            z = before(h) @ weights["blocks"][layer].T / width**0.5
            h = h + a / depth**0.5 * after(z + shifts_LxPxN[layer + 1] * depth**0.5 / a)
        features.append(before(h))
        return before(h) @ weights["readout"] / (gamma0 * width), jnp.stack(features)

    zeros = jnp.zeros((depth + 1, len(X), width))

    def step(carry, share):
        weights, velocity = carry
        outputs, features = forward(weights, zeros)
        gradients = jax.grad(lambda s: forward(weights, s)[0].sum())(zeros) * width * gamma0
        slope = jax.grad(lambda w: share @ (forward(w, zeros)[0] - jnp.asarray(Y)) ** 2 / 2)(weights)
        velocity = jax.tree.map(lambda v, s: momentum * v + s, velocity, slope)
        moved = jax.tree.map(lambda w, v: (1 - rate * decay) * w - rate * gamma0**2 * width * v, weights, velocity)
        return (moved, velocity), (outputs, features, gradients)

    start = (weights, jax.tree.map(jnp.zeros_like, weights))
    _, (outputs, features, gradients) = jax.lax.scan(step, start, shares)
    passes = lambda x: x.swapaxes(0, 1).reshape(depth + 1, -1, width)
    kernel = lambda x: passes(x) @ passes(x).mT / width
    return outputs, kernel(features), kernel(gradients)


def power(errors):
    """The power of size between the errors of two sizes."""
    (small, first), (large, last) = errors.items()
    return np.log(last / first) / np.log(large / small)


def networks_and_theory(activation, momentum, decay, pre_nonlin):
    """name -> width -> square error of single networks, root mean square error of their mean; the scale of theory's."""
    steps, depth, rate, gamma0, a = 4, 3, 0.5, 1.2, 0.9
    shares = jnp.array([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]] * (steps // 2))  # batches differ; the third is predicted
    theory = nonlinear_training(
        X, Y, activation=activation, steps=steps, depth=depth, learning_rate=rate, gamma0=gamma0, branch_multiplier=a,
        momentum=momentum, weight_decay=decay, shares=shares, trained=EVERY_LAYER, populations=64, samples=1024,
        pre_nonlin=pre_nonlin,
    )  # fmt: skip
    single, mean = ({name: {} for name in QUANTITIES} for _ in range(2))
    for width in WIDTHS:
        run = functools.partial(
            plain_network, activation, width, depth, pre_nonlin, steps=steps, rate=rate, gamma0=gamma0, a=a,
            momentum=momentum, decay=decay, shares=shares,
        )  # fmt: skip
        keys = jax.random.split(jax.random.key(width), 2**15 // width)
        networks = jax.jit(lambda keys, run=run: jax.lax.map(lambda key: run(key=key), keys, batch_size=64))(keys)
        for name, measured in zip(QUANTITIES, networks, strict=True):
            exact = getattr(theory.mean, name)
            single[name][width] = float(jnp.mean((measured - exact) ** 2))
            mean[name][width] = float(jnp.sqrt(jnp.mean((measured.mean(0) - exact) ** 2)))
    scale = {name: float(jnp.sqrt(jnp.mean(getattr(theory.mean, name) ** 2))) for name in QUANTITIES}
    return single, mean, scale


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "momentum", "decay", "pre_nonlin"),
    [("relu", 0.0, 0.0, False), ("tanh", 0.6, 0.3, True)],
)
def test_networks_approach_monte_carlo_as_one_over_width(activation, momentum, decay, pre_nonlin):
    """All layers trained, batches that differ from step to step; kernels of all layers and pairs of passes."""
    single, mean, scale = networks_and_theory(activation, momentum, decay, pre_nonlin)
    for quantity in QUANTITIES:
        assert abs(power(single[quantity]) + 1) < 0.2, single
        assert mean[quantity][WIDTHS[-1]] < 0.02 * scale[quantity], (mean, scale)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["abs", "gelu"])
def test_the_stated_error_is_that_of_repetitions_and_falls_with_samples(activation):
    few = [training(activation, samples=512, key=jax.random.key(seed)) for seed in range(8)]
    many = training(activation, samples=8192)
    spread = jnp.stack([estimate.mean.outputs[-1] for estimate in few]).std(0, ddof=1)
    stated = jnp.stack([estimate.error.outputs[-1] for estimate in few]).mean(0)
    assert 0.5 < float((spread / stated).mean()) < 1.8, (spread, stated)
    assert 0.1 < float((many.error.outputs[-1] / stated).mean()) < 0.5  # a quarter
    mean = jnp.stack([estimate.mean.outputs[-1] for estimate in few]).mean(0)
    within(mean, many.mean.outputs[-1], jnp.sqrt(stated**2 / 8 + many.error.outputs[-1] ** 2))


@pytest.mark.slow
def test_single_precision_gives_the_same_within_the_error():
    double = training("relu")
    with jax.enable_x64(False):
        single = training("relu", key=jax.random.key(1))
        assert single.mean.outputs.dtype == jnp.float32
    error = np.hypot(double.error.outputs[1:], single.error.outputs[1:])
    within(np.asarray(single.mean.outputs[1:]), double.mean.outputs[1:], error)


@pytest.mark.slow
def test_an_example_twice_is_that_example_with_both_shares():
    """Their kernel is singular, and directions that are already spanned add nothing."""
    twice = nonlinear_training(
        X[[0, 0, 1]], Y[[0, 0, 1]], activation="tanh", steps=3, depth=2, learning_rate=0.5, populations=32
    )
    once = nonlinear_training(
        X[:2], Y[:2], activation="tanh", steps=3, depth=2, learning_rate=0.5, populations=32,
        shares=jnp.array([2 / 3, 1 / 3]),
    )  # fmt: skip
    np.testing.assert_allclose(twice.mean.outputs[:, 0], twice.mean.outputs[:, 1], atol=1e-10)
    within(
        twice.mean.outputs[1:, 1:], once.mean.outputs[1:], np.hypot(twice.error.outputs[1:, 1:], once.error.outputs[1:])
    )


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: training(samples=50), "samples is 50: use an even number of at least 300"),
        (lambda: training(samples=4097), "samples is 4097"),
        (lambda: training(populations=1), "populations is 1"),
        (lambda: training(steps=0), "steps is 0"),
        (lambda: training(depth=0), "depth is 0"),
        (lambda: training("swish"), "activation is 'swish'"),
        (lambda: training(gamma0=0.0), "gamma0 is 0.0: use a positive number; the limit of 0 is lazy_kernels"),
        (lambda: training(trained="blocks"), "trained is 'blocks': use a list of some of stem, blocks, readout"),
        (lambda: training(trained=["block"]), "trained is"),
        (lambda: training(shares=jnp.ones(2)), r"shares has shape \(2,\): give \(3,\) or \(4, 3\)"),
        (lambda: training(learning_rate=-1.0), "learning_rate is -1.0"),
        (lambda: training(depth=2.0), "depth is 2.0: use a whole number"),
        (lambda: training(steps=2.5), "steps is 2.5: use a whole number"),
        (lambda: training(samples=1024.0), "samples is 1024.0: use a whole number"),
        (lambda: training(momentum=jnp.nan), "momentum is nan: use a finite number"),
        (lambda: training(weight_decay=jnp.inf), "weight_decay is inf"),
        (lambda: training(branch_multiplier=jnp.nan), "branch_multiplier is nan"),
        (lambda: training(gamma0=jnp.inf), "gamma0 is inf"),
        (lambda: training(shares=jnp.array([jnp.nan, 1.0, 0.0])), "shares has entries that are not finite"),
        (lambda: nonlinear_training(X, Y * np.nan, activation="relu", steps=2, depth=2), "targets has entries"),
        (lambda: training(loss=lambda f, y: ((f - y) ** 2).mean()), r"loss gives shape \(\) for \(3,\)"),
        (lambda: nonlinear_training(X, Y[:2], activation="relu", steps=2, depth=2), r"targets has shape \(2,\)"),
        (lambda: nonlinear_training(0 * X, Y, activation="relu", steps=2, depth=2), "norm zero in row 0"),
    ],
)
def test_bad_input_is_one_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


@pytest.mark.slow
def test_a_rate_that_diverges_is_refused_with_one_that_does_not():
    small = {"samples": 1024, "populations": 2}
    with pytest.raises(InputError, match=r"learning_rate is 200\.0: training diverges") as refused:
        training(learning_rate=200.0, steps=8, **small)
    stable = float(str(refused.value).split("use less than ")[1].split(",")[0])
    losses = training(learning_rate=0.9 * stable, steps=8, **small).mean.losses
    assert losses[-1] < losses[0]


def test_targets_that_move_features_too_far_are_named_where_the_rate_would_be_stable():
    with pytest.raises(InputError, match=r"diverges.*or smaller targets \(up to 1000 here\) or gamma0"):
        nonlinear_training(
            X, 1000 * Y, activation="relu", steps=8, depth=4, learning_rate=0.5, samples=1024, populations=2
        )


@pytest.mark.slow
def test_our_network_and_optimizer_approach_monte_carlo_of_their_form_alone_as_one_over_width():
    """`ResMLP`'s default form and `sgd`, all layers, momentum and decay, as the figures of the limits train them."""
    fields = {"steps": 5, "trained": EVERY_LAYER, "momentum": 0.6, "weight_decay": 0.2, "samples": 1024}
    own, other = (training("relu", populations=n, pre_nonlin=form, **fields) for n, form in ((64, False), (2, True)))
    batches = [jnp.repeat(jnp.asarray(values)[None], 5, axis=0) for values in (X, Y)]
    errors, to_other = {}, {}
    for width in (64, 256):
        model = networks.network("relu", width, 4, pre_nonlin=False, mean_subtraction=True)
        optimizer = networks.mean_field_sgd(
            model, jnp.asarray(X), 0.4, trained=EVERY_LAYER, momentum=0.6, weight_decay=0.2
        )
        outputs = networks.trajectories(
            model, optimizer, *batches, lambda p, model=model: networks.forward(model, p, jnp.asarray(X))[0],
            jax.random.split(jax.random.key(width), 2**14 // width), lanes=64,
        )  # fmt: skip
        errors[width] = float(jnp.mean((outputs - own.mean.outputs) ** 2))
        to_other[width] = float(jnp.mean((outputs.mean(0) - other.mean.outputs) ** 2))
    assert abs(power(errors) + 1) < 0.2, errors
    assert power(to_other) > -0.3, to_other
