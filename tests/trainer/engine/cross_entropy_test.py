"""The cross-entropy in parts of a sequence is that of whole logits, and needs no argmax for the accuracy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from depthmup_flax.trainer.engine import losses as loss_functions


def test_a_label_is_right_where_the_first_of_the_largest_logits_is_its_own():
    logits = jax.random.randint(jax.random.key(0), (1000, 4), -1, 2).astype(jnp.float32)  # most rows have ties
    logits = logits.at[:10].set(0.0).at[10:20].set(-jnp.inf)
    labels = jax.random.randint(jax.random.key(1), (1000,), 0, 4)
    losses, right = jax.jit(loss_functions.cross_entropy)(logits, labels)
    np.testing.assert_array_equal(right, logits.argmax(-1) == labels)
    assert 0 < right.sum() < right.size
    np.testing.assert_allclose(losses, optax.softmax_cross_entropy_with_integer_labels(logits, labels), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32"])
def test_labels_of_few_bits_are_those_of_many_classes(dtype):
    logits, labels = jax.random.normal(jax.random.key(0), (4, 600)), jnp.array([5, 1, 44, 2])
    losses, _ = loss_functions.cross_entropy(logits, labels.astype(dtype))
    np.testing.assert_allclose(losses, optax.softmax_cross_entropy_with_integer_labels(logits, labels), rtol=1e-6)


def test_a_label_is_wrong_where_a_logit_is_not_a_number():
    logits = jnp.array([[jnp.nan, 1.0], [1.0, jnp.nan], [jnp.nan, jnp.nan], [1.0, 0.0]])
    _, right = loss_functions.cross_entropy(logits, jnp.zeros(4, jnp.int32))
    assert right.tolist() == [False, False, False, True]


def test_the_gradient_is_the_softmax_less_the_label_without_a_scatter(float64):
    logits = jax.random.normal(jax.random.key(0), (5, 7)).at[1, 3].set(-jnp.inf).at[2].mul(400)
    labels = jnp.arange(5)
    gradient = jax.grad(lambda logits: loss_functions.cross_entropy(logits, labels)[0].sum())
    expected = np.asarray(jax.nn.softmax(logits)) - np.eye(7)[:5]
    np.testing.assert_allclose(gradient(logits), expected, rtol=1e-12, atol=1e-15)
    # A scatter would be one more pass over the largest arrays of a program.
    assert not re.findall("scatter|gather", str(jax.make_jaxpr(gradient)(logits)))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothed_and_soft_labels_have_the_loss_of_optax_in_training_and_plain_labels_in_evaluation(smoothing):
    logits, labels = jax.random.normal(jax.random.key(0), (6, 5)), jnp.array([0, 1, 2, 3, 4, 0])
    soft = jax.nn.softmax(jax.random.normal(jax.random.key(1), (6, 5)))
    loss = loss_functions.named_loss("cross_entropy", smoothing)
    for targets, of in ((labels, jax.nn.one_hot(labels, 5)), (soft, soft)):
        value, grads = jax.value_and_grad(lambda logits: loss.in_training(logits, targets)["loss"])(logits)  # noqa: B023
        expected = lambda logits: optax.softmax_cross_entropy(logits, optax.smooth_labels(of, smoothing)).mean()  # noqa: B023
        np.testing.assert_allclose(value, expected(logits), rtol=1e-6)
        np.testing.assert_allclose(grads, jax.grad(expected)(logits), atol=1e-7)
    plain = loss.evaluate(logits, labels, jnp.ones(6)).means()["loss"]
    assert plain == pytest.approx(optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean().item())
