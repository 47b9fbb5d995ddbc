"""Infinite depth by extrapolation against closed formulas and larger depths; and the example of pages/theory.md."""

import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax.util.errors import InputError
from reproduction.theory import (
    gram,
    infinite_depth,
    lazy_kernels,
    linear_training,
    nonlinear_training,
    one_step_kernel,
)

pytestmark = pytest.mark.usefixtures("float64")
unoptimized = pytest.mark.usefixtures("unoptimized")

X = np.random.default_rng(0).normal(size=(3, 5))
Y = np.array([1.0, -1.0, 0.5])


def power(errors):
    """The power of size between the errors of two sizes."""
    (small, first), (large, last) = errors.items()
    return np.log(last / first) / np.log(large / small)


def linear(steps=4, **kwargs):
    repeated = [jnp.repeat(values[None], steps, axis=0) for values in (X, Y)]
    return linear_training(*repeated, **{"depth": 4, "learning_rate": 0.4, **kwargs})


def test_infinite_depth_is_the_closed_form_of_one_step_and_its_error_falls_as_depth_to_the_minus_two():
    x, y = jnp.ones((2, 1, 1)), jnp.ones((2, 1))
    errors = {}
    for depth in (16, 32):
        limit = infinite_depth(lambda depth: linear_training(x, y, depth=depth, learning_rate=0.8), depth)
        exact = one_step_kernel(np.linspace(0, 1, depth // 2 + 1), 0.8)
        difference = np.abs(np.asarray(limit.mean.features)[:, 1, 1] - exact)
        assert 0.5 * difference.max() < np.asarray(limit.error.features)[:, 1, 1].max() < 8 * difference.max()
        errors[depth] = float(difference.max())
    assert abs(power(errors) + 2) < 0.2, errors


@unoptimized
@pytest.mark.slow
def test_infinite_depth_of_linear_training_converges_and_states_its_error():
    """Prop. 4.4 for several steps and examples, against three times the depth."""
    limit = lambda depth: infinite_depth(lambda n: linear(depth=n), depth)
    exact = limit(48).mean.outputs
    for depth in (8, 16):
        found = limit(depth)
        difference = jnp.abs(found.mean.outputs - exact)
        assert 0.5 * difference.max() < found.error.outputs.max() < 8 * difference.max()
        assert float(difference.max()) < 0.2 * float(jnp.abs(linear(depth=2 * depth).outputs - exact).max())


@unoptimized
@pytest.mark.slow
def test_infinite_depth_of_monte_carlo_is_that_of_the_recursion():
    fields = {"steps": 4, "learning_rate": 0.4, "samples": 2048, "populations": 2}
    found = infinite_depth(lambda depth: nonlinear_training(X, Y, activation="linear", depth=depth, **fields), 8)
    exact = infinite_depth(lambda depth: linear(depth=depth), 8)
    np.testing.assert_allclose(found.mean.gradients, exact.mean.gradients, atol=1e-10)
    np.testing.assert_allclose(found.error.outputs, exact.error.outputs, atol=1e-10)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: infinite_depth(lambda depth: lazy_kernels(gram(X), "relu", depth=depth), 4), "compute gives a LazyK"),
        (lambda: infinite_depth(lambda depth: linear(depth=depth), 4.0), "depth is 4.0"),
        (lambda: infinite_depth(lambda depth: linear(depth=depth), 5), "depth is 5"),
    ],
)
def test_bad_input_is_one_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


@pytest.mark.slow
def test_the_exact_recursion_of_the_page_is_near_its_infinite_depth():
    page = (pathlib.Path(__file__).parents[3] / "docs" / "theory.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    (code,) = (block for block in blocks if "infinite_depth" in block)
    names: dict = {}
    exec(code, names)
    assert names["training"].mean.features.shape == (17, 40, 40)
    np.testing.assert_allclose(names["exact"].losses, names["limit"].mean.losses, atol=0.01)
