"""Attention, feed-forward, embeddings and the two transformers, against the formulas written out."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn

import depthmup_flax as dm
from depthmup_flax.auditing.config_audit import audited_model
from depthmup_flax.nn import attention as attention_module
from depthmup_flax.nn import blocks as blocks_module
from depthmup_flax.nn import transformer as feed_forward
from depthmup_flax.nn.attention import SelfAttention
from depthmup_flax.nn.blocks import TransformerConfig
from depthmup_flax.nn.transformer import Embed, FeedForward
from depthmup_flax.rule.info_trees import flatten_info

IMAGES = jax.random.normal(jax.random.key(1), (3, 16, 16, 3))
X = jax.random.normal(jax.random.key(1), (2, 5, 8))
TOKENS = jax.random.randint(jax.random.key(1), (3, 12), 0, 7)


def outputs(model, params, x, **kwargs):
    return jax.jit(lambda params, x: model.apply({"params": params}, x, **kwargs))(params, x)


def layer_norm(x, p):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * p["layer"]["scale"] + p["layer"]["bias"]


def blocks(h, p, *, heads, scale, causal, multiplier, depth):
    """Vaswani et al. (arXiv:1706.03762) head by head, with the scale and the branch multiplier given."""
    d = h.shape[-1] // heads
    for i in range(depth):
        layer = jax.tree.map(lambda a, i=i: a[i], p)
        x = layer_norm(h, layer["attention_norm"])
        q, k, v = (x @ layer["attention"][name]["kernel"] for name in ("query", "key", "value"))
        mixed = []
        for head in range(heads):
            part = slice(head * d, (head + 1) * d)
            logits = np.einsum("btd,bsd->bts", q[..., part], k[..., part]) * scale
            if causal:
                logits = np.where(np.tri(h.shape[1], dtype=bool), logits, -np.inf)
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v[..., part])
        h = h + multiplier * np.concatenate(mixed, -1) @ layer["attention"]["out"]["kernel"]
        z = layer_norm(h, layer["mlp_norm"]) @ layer["mlp"]["up"]["kernel"]
        gelu = 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
        h = h + multiplier * gelu @ layer["mlp"]["down"]["kernel"]
    return h


def as_float64(params):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), params)


def test_vit_is_the_papers_network():
    """B24 A.3 in NumPy: scale sqrt(d_base) / d, branches times (3/2)^-1/2, readout over 2."""
    model = dm.ViT(5, width=32, depth=3, base_width=16, base_depth=2, patch_size=4, num_heads=2)
    params = drawn(model, IMAGES)
    p, x = as_float64(params), np.asarray(IMAGES, np.float64)
    cells = np.stack([x[:, r : r + 4, c : c + 4].reshape(3, -1) for r in range(0, 16, 4) for c in range(0, 16, 4)], 1)
    h = cells @ p["stem"]["kernel"] + p["positions"]
    h = np.concatenate([np.broadcast_to(p["class_token"], (3, 1, 32)), h], 1)
    inner = p["transformer"]
    h = blocks(h, inner["blocks"], heads=2, scale=math.sqrt(8) / 16, causal=False, multiplier=1.5**-0.5, depth=3)
    expected = layer_norm(h, inner["norm"])[:, 0] @ p["readout"]["kernel"] / 2
    np.testing.assert_allclose(outputs(model, params, IMAGES), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_gpt_is_the_same_blocks_with_a_causal_mask(tied):
    model = dm.GPT(7, width=32, depth=2, base_width=16, base_depth=4, num_heads=4, tied=tied)
    params = drawn(model, TOKENS)
    p = as_float64(params)
    h = p["stem"]["embedding"][np.asarray(TOKENS)] + p["positions"]
    inner = p["transformer"]
    h = blocks(h, inner["blocks"], heads=4, scale=math.sqrt(4) / 8, causal=True, multiplier=2**0.5, depth=2)
    h = layer_norm(h, inner["norm"])
    # Tied: 1/m and the 1/sqrt(n_base) of an untied readout's initial weights.
    expected = h @ p["stem"]["embedding"].T / 2 / math.sqrt(16) if tied else h @ p["readout"]["kernel"] / 2
    np.testing.assert_allclose(outputs(model, params, TOKENS), expected, rtol=1e-4, atol=1e-5)


def test_gpt_does_not_see_the_future():
    model = dm.GPT(7, width=16, depth=2)
    params = drawn(model, TOKENS)
    changed = TOKENS.at[:, 6:].set(0)
    before, after = outputs(model, params, jnp.stack([TOKENS, changed]).reshape(6, 12)).reshape(2, 3, 12, 7)
    np.testing.assert_allclose(before[:, :6], after[:, :6], atol=1e-5)
    assert float(jnp.abs(before[:, 6:] - after[:, 6:]).max()) > 0.1


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_gpt_takes_shorter_sequences_than_it_was_made_for_and_learned_positions_no_longer_ones(positions):
    model = dm.GPT(7, width=16, depth=2, positions=positions)
    params = drawn(model, TOKENS)
    whole, part = (outputs(model, params, tokens) for tokens in (TOKENS, TOKENS[:, :5]))
    np.testing.assert_allclose(whole[:, :5], part, atol=1e-5)
    longer = jnp.concatenate([TOKENS, TOKENS], 1)
    if positions == "rotary":
        np.testing.assert_allclose(outputs(model, params, longer)[:, :12], whole, atol=1e-5)
    else:
        with pytest.raises(dm.InputError, match="24 tokens: use at most 12"):
            jax.eval_shape(model.apply, {"params": params}, longer)


@pytest.mark.parametrize(
    ("fields", "scale"),
    [
        ({"num_heads": 2}, math.sqrt(8) / 32),  # head dimension 8 at the base, 32 here
        ({"head_dim": 8}, 1 / math.sqrt(8)),  # 2 heads at the base, 8 here
    ],
)
def test_heads_or_their_dimension_grow_and_the_logits_scale_follows(fields, scale, monkeypatch):
    seen = {}
    attend = attention_module.attention

    def spy(q, k, v, *, head_dim, scale, **form):
        seen.update(scale=scale, shape=(*q.shape[:2], q.shape[2] // head_dim, head_dim))
        return attend(q, k, v, head_dim=head_dim, scale=scale, **form)

    monkeypatch.setattr(attention_module, "attention", spy)
    model = dm.ViT(5, width=64, base_width=16, depth=2, patch_size=4, **fields)
    jax.eval_shape(model.init, jax.random.key(0), IMAGES)
    assert seen["scale"] == pytest.approx(scale)
    assert seen["shape"] == ((3, 17, 2, 32) if "num_heads" in fields else (3, 17, 8, 8))


def test_the_standard_rule_has_the_usual_attention_scale():
    assert dm.get_parametrization("sp").attention_scale(64, 16) == pytest.approx(1 / 8)
    assert dm.get_parametrization("depth_mup").attention_scale(64, 16) == pytest.approx(4 / 64)


@pytest.mark.parametrize("width", [32, 512])
def test_under_sp_a_tied_readout_starts_with_the_logits_of_a_flax_embedding_at_every_width(width):
    x = jax.random.normal(jax.random.key(1), (100, width))
    ours = Embed(65, width, dm.get_parametrization("sp"), width / 32)
    logits, theirs = (
        embed.init_with_output(jax.random.key(0), x, method="attend")[0] for embed in (ours, nn.Embed(65, width))
    )
    assert float(jnp.std(logits)) == pytest.approx(float(jnp.std(theirs)), rel=0.1)
    assert float(jnp.std(logits)) == pytest.approx(1, rel=0.1)


def test_queries_start_at_zero_and_learn_at_the_first_step():
    model, x = SelfAttention(TransformerConfig(num_heads=2)), jax.random.normal(jax.random.key(1), (3, 5, 8))
    params = drawn(model, x)
    # The compiler drops what is drawn for the others.
    params["query"] = jax.jit(lambda key: nn.unbox(model.init(key, x))["params"]["query"])(jax.random.key(0))
    assert not jnp.any(params["query"]["kernel"])
    grads = jax.jit(jax.grad(lambda p: jnp.sum(model.apply({"params": p}, x)[..., 0])))(params)
    assert jnp.any(grads["query"]["kernel"] != 0)


def test_positions_and_class_token_are_not_decayed_and_embeddings_do_not_shrink_with_width():
    leaves, stds = {}, {}
    for width in (256, 1024):
        model = dm.ViT(5, width=width, base_width=256, depth=1, patch_size=4)
        leaves[width] = flatten_info(audited_model(model, IMAGES).info)
        params = nn.unbox(jax.jit(model.init)(jax.random.key(0), IMAGES))["params"]
        stds[width] = {name: float(params[name].std()) for name in ("positions", "class_token")}
    for name in ("positions", "class_token"):
        assert not leaves[1024][name].decay
        assert stds[1024][name] == pytest.approx(1 / 16, rel=0.2)
        assert stds[256][name] == pytest.approx(1 / 16, rel=0.2)


def test_dropout_acts_in_training_only_and_differs_between_layers():
    model = dm.GPT(7, width=16, depth=3, dropout=0.5, use_bias=True)
    params = drawn(model, TOKENS)

    @jax.jit
    def train(params, seed):
        rngs = {"dropout": jax.random.key(seed)}
        logits, recorded = model.apply({"params": params}, TOKENS, train=True, rngs=rngs, mutable=["intermediates"])
        return logits, recorded["intermediates"]["transformer"]["blocks"]["stream"][0]

    evaluate = lambda model: jax.jit(lambda p: model.apply({"params": p}, TOKENS, train=False))(params)
    assert float(jnp.abs(train(params, 0)[0] - train(params, 1)[0]).max()) > 0.05
    np.testing.assert_array_equal(evaluate(model), evaluate(model.clone(dropout=0.0)))
    zero = jax.tree.map(jnp.zeros_like, params["transformer"]["blocks"])
    zero["mlp"]["down"]["bias"] = jnp.ones_like(zero["mlp"]["down"]["bias"])
    _, stream = train(params | {"transformer": params["transformer"] | {"blocks": zero}}, 0)
    first, second = stream[1] - stream[0], stream[2] - stream[1]
    np.testing.assert_allclose(sorted(set(np.round(np.asarray(first), 3).ravel())), [0.0, 2.0], atol=1e-3)
    assert float((first != second).mean()) > 0.3


@pytest.mark.parametrize(
    ("platform", "length", "at_a_time"),
    [
        *[("gpu", 12, 12), ("gpu", 64, 64), ("gpu", 65, 16), ("tpu", 12, 12), ("tpu", 13, 1)],
        *[("cpu", 2, 2), ("cpu", 3, 1), (None, 2, 2), (None, 12, 1)],
    ],
)
def test_auto_unrolls_two_blocks_everywhere_and_more_on_accelerators(platform, length, at_a_time, monkeypatch):
    monkeypatch.setattr(blocks_module, "target_platform", lambda: platform)
    assert blocks_module.layers_at_a_time("auto", length) == at_a_time
    assert [blocks_module.layers_at_a_time(scan, length) for scan in (True, 2)] == [1, 2]
    assert blocks_module.layers_at_a_time(False, length) == length


def silu(z):
    return z / (1 + np.exp(-z))


def swiglu(x, p):
    return (silu(x @ p["gate"]["kernel"]) * (x @ p["up"]["kernel"])) @ p["down"]["kernel"]


def of_module(module):
    variables = nn.unbox(jax.jit(module.init)(jax.random.key(0), X))
    return jax.jit(module.apply)(variables, X), jax.tree.map(np.asarray, variables["params"])


@pytest.mark.parametrize(("fields", "hidden"), [({"mlp_ratio": 3}, 24), ({"mlp_features": 20}, 20)])
def test_swiglu_is_shazeers_with_the_hidden_features_that_were_asked_for(fields, hidden):
    y, p = of_module(FeedForward(TransformerConfig(mlp="swiglu", **fields)))
    assert p["gate"]["kernel"].shape == p["up"]["kernel"].shape == (8, hidden)
    np.testing.assert_allclose(y, swiglu(np.asarray(X), p), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
def test_a_program_for_a_gpu_saves_the_arguments_of_an_activation_alone(mlp, monkeypatch):
    module = FeedForward(TransformerConfig(mlp=mlp, mlp_features=11))
    variables = nn.unbox(jax.jit(module.init)(jax.random.key(0), X))

    def saved():
        """Arrays of hidden features that the backward pass reads, and the gradient."""
        _, pull = jax.vjp(lambda variables: jnp.sin(module.apply(variables, X)), variables)
        shapes = [x.shape for x in jax.tree.leaves(pull)]
        return shapes.count((2, 5, 11)), pull(jnp.ones_like(X))

    (all_parts, expected), _ = saved(), monkeypatch.setattr(feed_forward, "target_platform", lambda: "gpu")
    arguments, found = saved()
    assert arguments == {"gelu": 2, "swiglu": 3}[mlp] < all_parts  # and the result, a factor of the next layer
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), found, expected)
