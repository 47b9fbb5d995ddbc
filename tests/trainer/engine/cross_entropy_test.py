"""The cross-entropy in parts of a sequence is that of whole logits, and needs no argmax for the accuracy."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup_flax as dm
from depthmup_flax.nn.layers import LogitFactors
from depthmup_flax.trainer.engine import losses as loss_functions
from depthmup_flax.trainer.engine.losses import CrossEntropy
from depthmup_flax.trainer.engine.network import make_train_step

TOKENS = np.random.default_rng(1).integers(0, 7, (4, 12), np.int32)
SMALL = {"width": 4, "depth": 1, "base_width": 2, "num_heads": 1, "dropout": 0.2}
MODELS = {
    "untied": dm.GPT(7, use_bias=True, rule=dm.get_parametrization(gamma0=0.7), **SMALL),
    "tied": dm.GPT(7, tied=True, **SMALL),
}


def tokens_and_next(key, batch):
    return batch["tokens"], jnp.roll(batch["tokens"], -1, axis=1)


def test_a_label_is_right_where_the_first_of_the_largest_logits_is_its_own():
    logits = jax.random.randint(jax.random.key(0), (1000, 4), -1, 2).astype(jnp.float32)  # most rows have ties
    logits = logits.at[:10].set(0.0).at[10:20].set(-jnp.inf)
    labels = jax.random.randint(jax.random.key(1), (1000,), 0, 4)
    losses, right = jax.jit(loss_functions.cross_entropy)(logits, labels)
    np.testing.assert_array_equal(right, logits.argmax(-1) == labels)
    assert 0 < right.sum() < right.size
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


@pytest.mark.gpu
def test_the_gradient_in_parts_is_that_of_the_whole(float64):
    length, parts = 7, 4
    keys = jax.random.split(jax.random.key(0), 4)
    factors = LogitFactors(
        jax.random.normal(keys[0], (2, length, 5)), jax.random.normal(keys[1], (5, 6)),
        jax.random.normal(keys[2], (6,)),
    )  # fmt: skip
    labels = jax.random.randint(keys[3], (2, length), 0, 6)

    def mean_loss(factors):
        losses, right = loss_functions.cross_entropy(factors.product(), labels)
        return losses.mean(), (losses, right)

    expected_grads, expected = jax.jit(jax.grad(mean_loss, has_aux=True))(factors)
    values, grads = jax.jit(functools.partial(loss_functions.gradient_in_parts, parts=parts))(factors, labels)
    assert jax.tree.structure(grads) == jax.tree.structure(expected_grads)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14), grads, expected_grads)
    for found in (values, jax.jit(loss_functions.in_parts, static_argnums=2)(factors, labels, parts)):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12), found, expected)


def test_a_part_has_at_most_a_gibibyte_of_logits_and_other_models_have_one_part():
    labels = lambda *shape: jnp.broadcast_to(jnp.int32(0), shape)
    model = dm.GPT(2**16)
    assert loss_functions.parts_of_loss(model, labels(4, 1024)) == 1  # 1 GiB
    assert loss_functions.parts_of_loss(model, labels(5, 1024)) == 2
    assert loss_functions.parts_of_loss(model, labels(16, 1024)) == 4
    assert loss_functions.parts_of_loss(model, labels(16, 1025)) == 8
    assert loss_functions.parts_of_loss(model, labels(2**20, 3)) == 3  # one position each
    assert loss_functions.parts_of_loss(dm.ViT(2**16), labels(2**20)) == 1


def filled(shapes):
    """Parameters that differ; random numbers would take longer to compile than the steps."""
    return jax.tree.map(lambda x: jnp.sin(jnp.arange(1.0, x.size + 1).reshape(x.shape)), shapes)


def trained(model, accumulate=1, learning_rate=0.1):
    """Losses and accuracies of three steps, and the last parameters."""
    optimizer = optax.sgd(learning_rate)
    init, step = make_train_step(model, optimizer, prepare=tokens_and_next, seed=0, accumulate=accumulate)
    shapes = jax.eval_shape(lambda: init(jax.ShapeDtypeStruct((1, 12), jnp.int32)))
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    state = state.replace(carry=state.carry.replace(params=filled(state.carry.params)))

    def take(state, _):
        state, _ = step(state, {"tokens": TOKENS})
        return state, (state.last_loss, state.recent.totals["accuracy"])

    state, values = jax.lax.scan(take, state, None, length=2)
    return jnp.stack(values), state.carry.params


def run(model, accumulate=1):
    """`trained` in double precision, and the types of the logits in its program."""
    model = model.clone(dtype="float64", param_dtype=jnp.float64)
    traced = jax.jit(lambda: trained(model, accumulate)).trace()
    shapes = set(re.findall(r"f64(\[[\d,]+,7\])", str(traced.jaxpr)))
    return traced.lower().compile()(), shapes


@pytest.mark.parametrize(("name", "accumulate"), [pytest.param("untied", 2, marks=pytest.mark.slow), ("tied", 1)])
def test_training_in_parts_is_training_on_whole_logits(name, accumulate, float64, monkeypatch):
    (expected, expected_params), shapes = run(MODELS[name], accumulate)
    size = 4 // accumulate
    assert f"[{size},12,7]" in shapes
    monkeypatch.setattr(loss_functions, "MOST_BYTES", 4 * size * 12 * 7 / 4)
    (found, params), shapes = run(MODELS[name], accumulate)
    assert f"[{size * 3},7]" in shapes
    assert f"[{size},12,7]" not in shapes
    np.testing.assert_allclose(found, expected, rtol=3e-7)  # losses are stored in single precision
    # The softmax of the attention is in single precision, too.
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-7, atol=1e-8), params, expected_params)


@pytest.mark.slow
def test_runs_that_train_together_in_parts_train_as_alone(monkeypatch):
    monkeypatch.setattr(loss_functions, "MOST_BYTES", 4 * TOKENS.size * 7 / 4)
    train = lambda rate: trained(MODELS["untied"], learning_rate=rate)[0]
    together = jax.jit(jax.vmap(train))(jnp.array([0.05, 0.2]))
    np.testing.assert_allclose(together[1], jax.jit(train)(0.2), rtol=1e-5)
    assert together[0, 0, 1] != together[1, 0, 1]


def test_the_test_loss_in_parts_is_that_of_whole_logits(monkeypatch):
    model = MODELS["untied"]
    params = filled(jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), TOKENS)))["params"])
    mask, (inputs, labels) = jnp.array([1, 1, 1, 0]), tokens_and_next(None, {"tokens": TOKENS})

    def values():
        outputs = functools.partial(model.apply, {"params": params}, inputs, train=False)
        return jax.jit(lambda: CrossEntropy(model).evaluate(outputs, labels, mask))().means()

    expected = values()
    monkeypatch.setattr(loss_functions, "MOST_BYTES", 100)
    assert loss_functions.parts_of_loss(model, TOKENS) > 1
    found = values()
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-6)
    assert found["accuracy"] == expected["accuracy"]
