"""`attention_fn`: Flax's attention modules, Linen's and NNX's, with the rule's scale of the logits."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import depthmup_flax as dm
from depthmup_flax.util.errors import InputError

RULE, HEADS, D, BASE_D = dm.get_parametrization("depth_mup"), 2, 16, 4
X = jax.random.normal(jax.random.key(0), (3, 5, HEADS * D))


def linen(**options):
    return nn.MultiHeadDotProductAttention(HEADS, **options)


def by_hand(params, x, scale, mask):
    """Softmax attention in NumPy, in float64; kernels [n, H, d] and [H, d, n], no biases."""
    x, kernel = np.asarray(x, np.float64), lambda name: np.asarray(params[name]["kernel"], np.float64)
    q, k, v = (np.einsum("btn,nhd->bhtd", x, kernel(name)) for name in ("query", "key", "value"))
    logits = np.where(mask, scale * q @ k.swapaxes(-1, -2), -np.inf)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum("bhtd,hdn->btn", p / p.sum(-1, keepdims=True) @ v, kernel("out"))


@pytest.mark.parametrize("causal", [False, True])
def test_logits_of_linens_attention_have_the_scale_of_the_rule(causal):
    module = linen(attention_fn=dm.attention_fn(RULE, D, BASE_D), use_bias=False)
    mask = nn.make_causal_mask(jnp.ones((3, 5))) if causal else None
    y, variables = module.init_with_output(jax.random.key(1), X, mask=mask)
    below = np.tril(np.ones((5, 5), bool)) if causal else np.ones((5, 5), bool)
    expected = lambda scale: by_hand(variables["params"], X, scale, below)
    np.testing.assert_allclose(y, expected(BASE_D**0.5 / D), rtol=1e-4, atol=1e-5)
    assert np.abs(y - expected(D**-0.5)).max() > 0.01


def test_nnx_attention_has_the_scale_of_the_rule():
    attend = dm.attention_fn(RULE, D, BASE_D, nnx.dot_product_attention)
    options = {"use_bias": False, "decode": False, "rngs": nnx.Rngs(0)}
    module = nnx.MultiHeadAttention(HEADS, HEADS * D, attention_fn=attend, **options)
    params = {name: {"kernel": getattr(module, name).kernel[...]} for name in ("query", "key", "value", "out")}
    mask = np.tril(np.ones((5, 5), bool))
    expected = by_hand(params, X, BASE_D**0.5 / D, mask)
    np.testing.assert_allclose(module(X, mask=mask[None, None]), expected, rtol=1e-4, atol=1e-5)


def test_the_audit_misses_nothing_with_it_and_the_scale_without_it():
    class Net(nn.Module):
        width: int
        scaled: bool

        @nn.compact
        def __call__(self, x):
            d = self.width // HEADS
            options = {"attention_fn": dm.attention_fn(RULE, d, BASE_D)} if self.scaled else {}
            h = nn.Dense(self.width)(x)
            h = h + RULE.residual_multiplier(1) * linen(**options)(h, h)
            return dm.Readout(3, RULE, d / BASE_D)(h)

    x = jax.ShapeDtypeStruct((3, 5, 7), jnp.float32)
    verdict = lambda scaled: dm.audit(Net(32, scaled), Net(8, scaled), x, axes="width", carry=False).verdict
    assert (verdict(True), verdict(False)) == ("ok", "missing")


def test_without_growing_heads_and_under_sp_it_is_flaxs_own():
    own = jax.jit(linen().init_with_output)(jax.random.key(1), X)[0]
    for fn in (dm.attention_fn(RULE, D, D), dm.attention_fn(dm.PRESETS["sp"], D, BASE_D)):
        ours = jax.jit(linen(attention_fn=fn).init_with_output)(jax.random.key(1), X)[0]
        np.testing.assert_allclose(ours, own, rtol=1e-5, atol=1e-6)


def test_queries_keep_their_dtype():
    q = jnp.ones((1, 2, HEADS, D), jnp.bfloat16)
    assert dm.attention_fn(RULE, D, BASE_D)(q, q, q).dtype == jnp.bfloat16


def test_another_head_dimension_than_that_of_the_queries_is_an_error():
    with pytest.raises(InputError, match=rf"head_dim is {HEADS * D}, but the queries have {D} "):
        linen(attention_fn=dm.attention_fn(RULE, HEADS * D, BASE_D)).init(jax.random.key(0), X)
