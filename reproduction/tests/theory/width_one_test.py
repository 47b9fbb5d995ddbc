"""Networks of width 1 at infinite depth: against finite ones in float64, and in distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax.util.errors import InputError
from reproduction.limits import finite_networks as networks
from reproduction.theory import width_one_training

STEPS, RATE, START, TARGET = 4, 0.3, 1.2, 2.0


def finite_depth(weights_LxS, optimizer):
    """(T + 1, S) outputs of networks as written in TP6 section 3, one per column, and their (S,) noise."""
    weights, depth = weights_LxS.copy(), len(weights_LxS)
    outputs = []
    for _ in range(STEPS + 1):
        factors = 1 + weights / np.sqrt(depth)
        f = START * factors.prod(0)
        outputs.append(f)
        gradients = (f - TARGET) * f / factors / np.sqrt(depth)
        weights = weights - RATE * (gradients if optimizer == "sgd" else np.sign(gradients) / np.sqrt(depth))
    return np.array(outputs), weights_LxS.sum(0) / np.sqrt(depth)


@pytest.mark.parametrize("optimizer", ["sgd", "sign"])
def test_deep_networks_of_width_one_approach_the_limit_as_the_root_of_depth(optimizer):
    depths, errors = (256, 1024, 4096), []
    for depth in depths:
        outputs, noise = finite_depth(np.random.default_rng(depth).normal(size=(depth, 200)), optimizer)
        with jax.enable_x64(True):
            settings = {"start": START, "learning_rate": RATE, "optimizer": optimizer}
            limit = np.asarray(width_one_training(noise, [TARGET] * STEPS, **settings))
        # Where the sign of f - y is not settled, a finite network may go the other way.
        errors.append(np.median(np.abs(np.log(outputs / limit)), 1))
    powers = np.polyfit(np.log(depths), np.log(errors), 1)[0]
    assert powers == pytest.approx(-0.5, abs=0.15)
    assert np.max(errors[-1]) < 0.02
    # The formula as printed, with + sum W^2 / L: it is off by a factor of exp(3/2).
    assert np.abs(np.log(outputs[0] / (START * np.exp(noise + 1)))).min() > 1.3


def test_the_initial_output_is_log_normal_with_the_mean_of_the_skip_connections():
    noise = np.random.default_rng(0).normal(size=100_000)
    first = np.asarray(width_one_training(noise, np.zeros(0), start=START))[0]
    assert first.mean() == pytest.approx(START, rel=0.02)
    assert np.log(first / START).mean() == pytest.approx(-0.5, abs=0.02)
    assert np.log(first / START).std() == pytest.approx(1.0, abs=0.02)


def test_small_steps_of_sgd_reach_the_target():
    outputs = width_one_training(jnp.array([-1.0, 0.0, 1.0]), jnp.full(400, TARGET), start=START, learning_rate=0.05)
    np.testing.assert_allclose(outputs[-1], TARGET, rtol=1e-4)


@pytest.mark.slow
def test_the_packages_network_of_width_one_follows_the_limit_under_depth_mup():
    model = networks.network("linear", 1, 1024)
    x_BxD, keys = jnp.ones((1, 1)), jax.random.split(jax.random.key(0), 8)
    with jax.enable_x64(True):
        optimizer = networks.mean_field_sgd(model, x_BxD, RATE)
        seen = lambda params: (networks.forward(model, params, x_BxD)[0][0], params)
        repeat = lambda of_step: jnp.broadcast_to(of_step, (STEPS + 1, *of_step.shape))
        outputs, params = networks.trajectories(
            model, optimizer, repeat(x_BxD), jnp.full((STEPS + 1, 1), TARGET), seen, keys, lanes=8
        )
        first = jax.tree.map(lambda leaf: leaf[:, 0], params)
        noise = first["blocks"]["branch"]["dense_0"]["kernel"].sum((1, 2, 3)) / 32
        ends = (first["stem"]["kernel"] * first["readout"]["kernel"])[:, 0, 0]
        limits = [
            width_one_training(z, [TARGET] * STEPS, start=start, learning_rate=RATE)
            for z, start in zip(noise, ends, strict=True)
        ]
    np.testing.assert_allclose(outputs, np.array(limits), rtol=0.15)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"optimizer": "adam"}, "optimizer is 'adam'"),
        ({"targets": [[1.0]]}, "targets has shape"),
        ({"noise": [float("nan")]}, "noise has entries"),
        ({"learning_rate": float("inf")}, "learning_rate is inf"),
    ],
)
def test_a_bad_argument_is_named(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        width_one_training(**{"noise": [0.0], "targets": [1.0], **arguments})
