"""Attention with grouped queries, a norm of queries and keys, and rotary positions."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn

import depthmup_flax as dm
from depthmup_flax.nn import attention as attention_module
from depthmup_flax.nn.fused_attention import fused_attention
from depthmup_flax.nn.positions import rotary_angles
from depthmup_flax.rule.info_trees import flatten_info

TOKENS = jax.random.randint(jax.random.key(1), (3, 12), 0, 7)
IMAGES = jax.random.normal(jax.random.key(1), (3, 8, 8, 3))
LLAMA = {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "qk_norm": True, "num_kv_heads": 2}


def rms_norm(x, p):
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * p["rms"]["scale"]


def turned(x, angles):
    half = x.shape[-1] // 2
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag], -1)


def llama(h, p, *, heads, kv_heads, scale, multiplier, angles, causal):
    """The blocks of Touvron et al. (arXiv:2302.13971) with a norm of queries and keys, head by head in NumPy."""
    d, group = h.shape[-1] // heads, heads // kv_heads
    for i in range(p["mlp_norm"]["rms"]["scale"].shape[0]):
        layer = jax.tree.map(lambda a, i=i: a[i], p)
        part = layer["attention"]
        x = rms_norm(h, layer["attention_norm"])
        q, k, v = (x @ part[name]["kernel"] for name in ("query", "key", "value"))
        mixed = []
        for head in range(heads):
            own, shared = (slice(n * d, (n + 1) * d) for n in (head, head // group))
            query = turned(rms_norm(q[..., own], part["query_norm"]), angles)
            key = turned(rms_norm(k[..., shared], part["key_norm"]), angles)
            logits = np.einsum("btd,bsd->bts", query, key) * scale
            if causal:
                logits = np.where(np.tri(h.shape[1], dtype=bool), logits, -np.inf)
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v[..., shared])
        h = h + multiplier * np.concatenate(mixed, -1) @ part["out"]["kernel"]
        x, mlp = rms_norm(h, layer["mlp_norm"]), layer["mlp"]
        gate = x @ mlp["gate"]["kernel"]
        h = h + multiplier * (gate / (1 + np.exp(-gate)) * (x @ mlp["up"]["kernel"])) @ mlp["down"]["kernel"]
    return h


def shaken(model, x):
    """Parameters off their initial values, also in float64."""
    params = drawn(model, x)
    return params, jax.tree.map(lambda a: np.asarray(a, np.float64), params)


@pytest.mark.slow
def test_gpt_with_every_part_is_todays_block_with_our_scales():
    model = dm.GPT(7, width=32, depth=2, base_width=16, base_depth=4, num_heads=4, mlp_features=20, **LLAMA)
    params, p = shaken(model, TOKENS)
    assert p["transformer"]["blocks"]["attention"]["key"]["kernel"].shape == (2, 32, 16)
    assert p["transformer"]["blocks"]["mlp"]["gate"]["kernel"].shape == (2, 32, 40)
    assert "positions" not in p
    h = p["stem"]["embedding"][np.asarray(TOKENS)]
    form = {"heads": 4, "kv_heads": 2, "scale": math.sqrt(4) / 8, "multiplier": 2**0.5, "causal": True}
    h = llama(h, p["transformer"]["blocks"], angles=rotary_angles((12,), 8), **form)
    expected = rms_norm(h, p["transformer"]["norm"]) @ p["readout"]["kernel"] / 2
    np.testing.assert_allclose(jax.jit(model.apply)({"params": params}, TOKENS), expected, rtol=1e-4, atol=1e-5)


def test_vit_takes_the_same_blocks_with_positions_in_two_dimensions():
    model = dm.ViT(5, width=32, depth=2, patch_size=4, num_heads=4, mlp_features=20, **LLAMA)
    params, p = shaken(model, IMAGES)
    cells = np.asarray(IMAGES, np.float64).reshape(3, 2, 4, 2, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(3, 4, 48)
    h = np.concatenate([np.broadcast_to(p["class_token"], (3, 1, 32)), cells @ p["stem"]["kernel"]], 1)
    angles = np.concatenate([np.zeros((1, 4)), rotary_angles((2, 2), 8)])
    form = {"heads": 4, "kv_heads": 2, "scale": 8**-0.5, "multiplier": 1.0, "causal": False}
    h = llama(h, p["transformer"]["blocks"], angles=angles, **form)
    expected = rms_norm(h[:, 0], p["transformer"]["norm"]) @ p["readout"]["kernel"]
    np.testing.assert_allclose(jax.jit(model.apply)({"params": params}, IMAGES), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_rotary_gpt_takes_longer_sequences_than_it_was_made_for():
    model = dm.GPT(7, width=16, depth=1, **LLAMA)
    params, _ = shaken(model, TOKENS)
    apply = jax.jit(model.apply)
    whole, twice = (apply({"params": params}, tokens) for tokens in (TOKENS, jnp.concatenate([TOKENS, TOKENS], 1)))
    np.testing.assert_allclose(whole, twice[:, :12], atol=1e-5)
    assert float(jnp.abs(twice[:, 12:] - whole).max()) > 0.01


@pytest.mark.parametrize(
    ("fields", "kv_shape", "scale_ratio"),
    [
        ({"num_heads": 4, "num_kv_heads": 2}, (64, 32), 4),  # the dimension of a head grows
        ({"head_dim": 4, "num_kv_heads": 2}, (64, 32), 1),  # the number of heads does, in groups of two
        ({"num_heads": 4, "num_kv_heads": 1}, (64, 16), 4),  # one head of keys
    ],
)
def test_keys_grow_as_the_width_and_their_norms_scale_as_the_head(fields, kv_shape, scale_ratio):
    model = dm.GPT(7, width=64, base_width=16, depth=1, qk_norm=True, **fields)
    leaves = dm.param_info(model, model.base(), TOKENS)["transformer"]["blocks"]["attention"]
    for name in ("key", "value"):
        leaf = leaves[name]["kernel"]
        assert (leaf.shape[1:], leaf.role, leaf.width_in, leaf.width_out) == (kv_shape, dm.Role.HIDDEN, 4, 4)
    scale = leaves["key_norm"]["rms"]["scale"]
    assert (scale.role, scale.width_out, scale.decay) == (dm.Role.VECTOR, scale_ratio, False)
    assert scale.shape == leaves["query_norm"]["rms"]["scale"].shape == (1, 4 * scale_ratio)


@pytest.mark.parametrize(("qk_norm", "query_std"), [(False, 0.0), (True, 0.25)])
def test_normalized_queries_start_at_random_and_others_at_zero(qk_norm, query_std):
    model = dm.GPT(7, width=16, depth=1, qk_norm=qk_norm)
    leaves = dm.param_info(model, model.base(), TOKENS)["transformer"]["blocks"]["attention"]
    assert leaves["query"]["kernel"].init_std == query_std
    assert leaves["key"]["kernel"].init_std == 0.25


@pytest.mark.slow
def test_the_kernel_for_tpus_takes_grouped_queries(monkeypatch):
    interpreted = functools.partial(fused_attention, interpret=True)
    monkeypatch.setattr(attention_module, "traced_platform", lambda: "tpu")
    monkeypatch.setattr(attention_module, "fused_attention", interpreted)
    q, k, v = (
        jax.random.normal(jax.random.key(i), (2, 9, size), jnp.bfloat16) for i, size in enumerate((256, 128, 128))
    )
    form = {"head_dim": 64, "scale": 0.125, "causal": True}

    def values(fused, q, k, v):
        out, pull = jax.vjp(functools.partial(attention_module.attention, fused=fused, **form), q, k, v)
        return out, *pull(jnp.ones_like(out))

    fused, by_xla = (jax.jit(functools.partial(values, fused))(q, k, v) for fused in (True, False))
    for mine, theirs in zip(fused, by_xla, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine.astype(jnp.float32), theirs.astype(jnp.float32), rtol=0.05, atol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("experts", [0, 4])
def test_the_audit_which_reads_no_annotations_finds_the_same_roles_and_nothing_missing(experts):
    model = dm.GPT(7, width=32, depth=4, base_width=16, base_depth=2, mlp_features=40, experts=experts, **LLAMA)
    audit = dm.audit(model, model.base().clone(depth=2), TOKENS)
    assert "Nothing is missing." in str(audit)
    found, annotated = (flatten_info(info) for info in (audit.info, dm.param_info(model, model.base(), TOKENS)))
    for path, leaf in annotated.items():
        assert (found[path].role, found[path].width_in, found[path].width_out, found[path].depth_ratio) == (
            leaf.role, leaf.width_in, leaf.width_out, leaf.depth_ratio
        ), path  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [8, 9])
def test_attention_on_a_gpu_is_that_on_a_cpu_for_odd_numbers_of_tokens_too(tokens, causal, monkeypatch):
    """cuDNN's kernel is replaced by XLA's; what is tested is what surrounds it."""
    kernel, used = jax.nn.dot_product_attention, []

    def by_xla(*arrays, implementation=None, **options):
        if implementation == "cudnn":
            used.append(arrays[0].shape[1])
        return kernel(*arrays, **options)

    q, k, v = (jax.random.normal(jax.random.key(i), (2, tokens, size)) for i, size in enumerate((64, 32, 32)))
    form = {"head_dim": 16, "scale": 0.25, "causal": causal}

    def values(q, k, v):
        out, pull = jax.vjp(functools.partial(attention_module.attention, **form), q, k, v)
        return out, *pull(jnp.cos(out))

    expected = jax.jit(values)(q, k, v)
    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    monkeypatch.setattr(attention_module, "traced_platform", lambda: "gpu")
    monkeypatch.setattr(attention_module, "_cudnn_fuses", lambda head_dim, dtype: True)
    for found, wanted in zip(jax.jit(lambda *qkv: values(*qkv))(q, k, v), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert set(used) == {tokens + tokens % 2}  # cuDNN's gradient needs an even number


@pytest.mark.parametrize(
    ("head_dim", "dtype", "fuses"),
    [
        (64, "bfloat16", True),
        (128, "float16", True),
        (64, "float32", False),
        (20, "bfloat16", False),
        (256, "bfloat16", False),
    ],
)
def test_cudnn_is_used_for_what_it_has(head_dim, dtype, fuses):
    assert attention_module._cudnn_fuses(head_dim, jnp.dtype(dtype)) == fuses
