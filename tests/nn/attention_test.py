"""Attention with grouped queries, a norm of queries and keys, and rotary positions, against complex numbers."""

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
from depthmup_flax.nn.attention import SelfAttention, rotary_angles, rotated
from depthmup_flax.nn.blocks import TransformerConfig
from depthmup_flax.nn.fused_attention import fused_attention
from depthmup_flax.rule.info_trees import flatten_info

TOKENS = jax.random.randint(jax.random.key(1), (3, 12), 0, 7)
IMAGES = jax.random.normal(jax.random.key(1), (3, 8, 8, 3))
Q, K = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))
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
    leaves = audited_model(model, TOKENS).info["transformer"]["blocks"]["attention"]
    for name in ("key", "value"):
        leaf = leaves[name]["kernel"]
        assert (leaf.shape[1:], leaf.role, leaf.width_in, leaf.width_out) == (kv_shape, dm.Role.HIDDEN, 4, 4)
    scale = leaves["key_norm"]["rms"]["scale"]
    role = dm.Role.VECTOR if scale_ratio > 1 else dm.Role.FIXED
    assert (scale.role, scale.width_out, scale.decay) == (role, scale_ratio, False)
    assert scale.shape == leaves["query_norm"]["rms"]["scale"].shape == (1, 4 * scale_ratio)


@pytest.mark.parametrize(("qk_norm", "query_std"), [(False, 0.0), (True, 1 / 8)])
def test_normalized_queries_start_at_random_and_others_at_zero(qk_norm, query_std):
    model = dm.GPT(7, width=64, depth=1, qk_norm=qk_norm)
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), TOKENS))["params"]
    kernels = params["transformer"]["blocks"]["attention"]
    assert float(kernels["query"]["kernel"].std()) == pytest.approx(query_std, rel=0.1)
    assert float(kernels["key"]["kernel"].std()) == pytest.approx(1 / 8, rel=0.1)


@pytest.mark.slow
def test_the_kernel_for_tpus_takes_grouped_queries(monkeypatch):
    interpreted = lambda q, k, v, form: fused_attention(q, k, v, form._replace(interpret=True))
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
def test_the_audit_under_the_own_rule_finds_the_same_roles_and_nothing_missing():
    sizes = {"width": 32, "depth": 4, "base_width": 16, "base_depth": 2, "mlp_features": 40}
    model = dm.GPT(7, stream_dtype="bfloat16", dtype="bfloat16", **sizes, **LLAMA)
    audit = dm.audit(model, model.base(), TOKENS)
    assert str(audit).startswith("ok: every factor is in the code")
    found, of_any_rule = (flatten_info(info) for info in (audit.info, audited_model(model, TOKENS).info))
    for path, leaf in of_any_rule.items():
        assert (found[path].role, found[path].width_in, found[path].width_out, found[path].depth_ratio) == (
            leaf.role, leaf.width_in, leaf.width_out, leaf.depth_ratio
        ), path  # fmt: skip


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Programs for a GPU with cuDNN's kernel replaced by XLA's: what is tested is what surrounds it."""
    kernel, shapes = jax.nn.dot_product_attention, []

    def by_xla(*arrays, implementation=None, **options):
        if implementation == "cudnn":
            shapes.append(arrays[0].shape[-3:])
        return kernel(*arrays, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    monkeypatch.setattr(attention_module, "target_platform", lambda: "gpu")
    monkeypatch.setattr(attention_module, "CUDNN_DTYPES", (jnp.float64,))
    return shapes


@pytest.mark.parametrize(
    ("tokens", "causal", "head_dim", "fields"),
    [
        (8, False, 16, {}),
        (9, False, 16, {"num_kv_heads": 2}),
        (9, False, 12, {"qk_norm": True, "rotary": (8,)}),
        (9, True, 6, {"rotary": (9,), "use_bias": True}),
    ],
)
def test_attention_on_a_gpu_is_that_on_a_cpu_and_so_are_its_gradients(
    tokens, causal, head_dim, fields, on_a_gpu, float64
):
    form = {"num_heads": 4, "causal": causal, "param_dtype": jnp.float64, "qk_norm": False} | fields
    layers = [SelfAttention(TransformerConfig(attention=name, **form)) for name in ("auto", "xla")]
    x = jax.random.normal(jax.random.key(0), (2, tokens, 4 * head_dim))
    params = drawn(layers[0], x)

    def values(layer, params, x):
        out, pull = jax.vjp(lambda params, x: layer.apply({"params": params}, x), params, x)
        return out, *pull(jnp.cos(out))

    found, expected = (jax.jit(functools.partial(values, layer))(params, x) for layer in layers)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), found, expected)
    # cuDNN wants an even number of tokens, for the gradient, and features in eights.
    assert set(on_a_gpu) == {(tokens + tokens % 2, 4, -(-head_dim // 8) * 8)}


def test_lanes_on_a_gpu_give_cudnn_lanes_of_every_array(on_a_gpu, float64, monkeypatch):
    """Its batching rule flattens lanes and batch, also of lengths."""
    kernel = jax.nn.dot_product_attention

    @jax.custom_batching.custom_vmap
    def with_lanes(q, k, v, lengths):
        return kernel(q, k, v, query_seq_lengths=lengths, key_value_seq_lengths=lengths)

    @with_lanes.def_vmap
    def _(size, have_lanes, *arrays):
        assert all(have_lanes)
        return jax.lax.map(lambda arrays: with_lanes(*arrays), arrays), True

    monkeypatch.setattr(
        jax.nn,
        "dot_product_attention",
        lambda q, k, v, key_value_seq_lengths, **_: with_lanes(q, k, v, key_value_seq_lengths),
    )
    q, k, v = (jax.random.normal(jax.random.key(i), (3, 2, 10, 32)) for i in range(3))
    attend = functools.partial(attention_module.attention, head_dim=8, scale=8**-0.5, causal=False, tokens=9)
    found = jax.jit(jax.vmap(attend))(q, k, v)[:, :, :9]
    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    expected = jax.vmap(functools.partial(attend, fused=False))(q, k, v)[:, :, :9]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("platform", "head_dim", "dtype", "fuses"),
    [
        ("gpu", 64, "bfloat16", True),
        ("gpu", 20, "float16", True),
        ("gpu", 64, "float32", False),
        ("gpu", 256, "bfloat16", False),
        ("tpu", 64, "bfloat16", False),
        (None, 64, "bfloat16", False),
    ],
)
def test_cudnn_is_used_for_what_it_has(platform, head_dim, dtype, fuses, monkeypatch):
    monkeypatch.setattr(attention_module, "target_platform", lambda: platform)
    assert attention_module._takes_cudnn(head_dim, dtype) == fuses


def test_a_rotation_multiplies_pairs_of_features_by_complex_numbers():
    """Su et al. (arXiv:2104.09864): feature i is the real part, feature i + D/2 the imaginary one."""
    x = np.asarray(jax.random.normal(jax.random.key(1), (2, 5, 3, 8)))
    turned = np.asarray(rotated(jnp.asarray(x), (5,), 5))
    for position in range(5):
        for i in range(4):
            angle = position / 10_000 ** (i / 4)
            expected = (x[:, position, :, i] + 1j * x[:, position, :, i + 4]) * np.exp(1j * angle)
            np.testing.assert_allclose(turned[:, position, :, i], expected.real, atol=1e-5)
            np.testing.assert_allclose(turned[:, position, :, i + 4], expected.imag, atol=1e-5)


@pytest.mark.parametrize("grid", [(12,), (3, 4)])
def test_products_of_a_query_and_a_key_depend_on_the_difference_of_their_positions_alone(grid):
    tokens = np.prod(grid) + 1  # one before the grid
    q, k = (np.asarray(rotated(jnp.broadcast_to(x, (1, tokens, 1, 8)), grid, tokens))[0, :, 0] for x in (Q, K))
    products = q @ k.T
    np.testing.assert_allclose(products[0, 0], float(jnp.vdot(Q, K)), rtol=1e-5)  # which is not turned
    places = [tuple(place) for place in np.indices(grid).reshape(len(grid), -1).T]
    of_difference = {}
    for i, a in enumerate(places):
        for j, b in enumerate(places):
            difference = tuple(int(m - n) for m, n in zip(a, b, strict=True))
            of_difference.setdefault(difference, []).append(products[1 + i, 1 + j])
    assert max(np.ptp(values) for values in of_difference.values()) < 1e-4
    assert np.std([values[0] for values in of_difference.values()]) > 0.1


def test_angles_of_a_grid_are_those_of_its_rows_and_columns():
    angles = rotary_angles((3, 5), 16)
    assert angles.shape == (15, 8)
    np.testing.assert_array_equal(angles[7], [*rotary_angles((3,), 8)[1], *rotary_angles((5,), 8)[2]])


def test_bfloat16_queries_are_turned_in_float32():
    x = jnp.broadcast_to(Q, (1, 300, 1, 8)).astype(jnp.bfloat16)
    exact = rotated(x.astype(jnp.float32), (300,), 300)
    turned = rotated(x, (300,), 300)
    assert turned.dtype == jnp.bfloat16
    np.testing.assert_array_equal(turned, exact.astype(jnp.bfloat16))
