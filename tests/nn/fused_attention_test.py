"""The attention kernel, run by Pallas's interpreter, and where programs for TPUs have it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthmup_flax as dm
from depthmup_flax.devices import sharding
from depthmup_flax.nn import attention as attention_module
from depthmup_flax.nn import fused_attention


def operands(tokens, features, dtype=jnp.float32):
    return [jax.random.normal(key, (2, tokens, features), dtype) for key in jax.random.split(jax.random.key(0), 4)]


def value_and_gradients(function, q, k, v, g):
    value, pull = jax.vjp(function, q, k, v)
    return value, *pull(g)


def by_xla(q, k, v, *, head_dim, scale, causal):
    q, k, v = (x.reshape(*x.shape[:2], -1, head_dim) for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, scale=scale, is_causal=causal).reshape(*q.shape[:2], -1)


@pytest.mark.parametrize(
    ("tokens", "features", "head_dim", "causal"),
    [
        (150, 128, 32, False),  # four heads in a block, two blocks of rows
        (150, 256, 64, True),  # two blocks of heads, as in ViT-S; the first rows see a part of the keys
        (129, 128, 64, True),  # one row more than a block has
        (129, 128, 64, False),
        (17, 256, 256, False),  # a head wider than a register
        (17, 192, 64, True),  # three heads in a block
        (17, 384, 96, False),  # heads that fill no register
    ],
)
def test_the_kernel_is_softmax_attention_and_so_are_its_gradients(tokens, features, head_dim, causal, monkeypatch):
    monkeypatch.setattr(fused_attention, "_LOGITS", 128 * 128)
    form = {"head_dim": head_dim, "scale": head_dim**-0.5, "causal": causal}

    @jax.jit
    def both(*arrays):
        fused = lambda q, k, v: fused_attention.fused_attention(q, k, v, fused_attention.Form(**form, interpret=True))
        return [value_and_gradients(f, *arrays) for f in (fused, functools.partial(by_xla, **form))]

    for mine, expected in zip(*both(*operands(tokens, features)), strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-5)


@pytest.mark.slow
def test_in_bfloat16_the_kernel_is_as_near_to_the_exact_values_as_xla_is():
    """Both round the softmax's weights, and the gradients of the logits, to bfloat16 for their products."""
    arrays, form = operands(197, 128, jnp.bfloat16), {"head_dim": 64, "scale": 0.125, "causal": False}
    exact = value_and_gradients(functools.partial(by_xla, **form), *(x.astype(jnp.float32) for x in arrays))
    fused = value_and_gradients(
        lambda q, k, v: fused_attention.fused_attention(q, k, v, fused_attention.Form(**form, interpret=True)), *arrays
    )
    theirs = value_and_gradients(functools.partial(by_xla, **form), *arrays)
    for mine, other, truth in zip(fused, theirs, exact, strict=True):
        off = [float(jnp.sqrt(jnp.mean((x.astype(jnp.float32) - truth) ** 2))) for x in (mine, other)]
        assert off[0] <= 1.05 * off[1]
        assert off[0] > 0


@pytest.mark.parametrize(
    ("tokens", "features", "head_dim", "dtype", "expected"),
    [
        (197, 384, 64, "bfloat16", True),
        (1024, 768, 64, "bfloat16", True),
        (1024, 512, 256, "bfloat16", True),
        (197, 192, 64, "bfloat16", True),  # ViT-Ti; or six heads on two devices
        (197, 384, 96, "bfloat16", True),
        (197, 384, 48, "bfloat16", False),  # eight heads in a block
        (2048, 384, 64, "bfloat16", True),
        (2049, 384, 64, "bfloat16", False),  # does not fit
        (197, 1280, 80, "bfloat16", False),  # sixteen heads in a block would contract mostly zeros
        (197, 384, 64, "float32", False),  # products of a TPU's matrix unit are in bfloat16
    ],
)
def test_sizes_that_have_a_kernel(tokens, features, head_dim, dtype, expected):
    assert fused_attention.fuses(tokens, features, head_dim, jnp.dtype(dtype)) is expected


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("platform", "attention"), [("tpu", "auto"), ("tpu", "xla"), ("cpu", "auto")])
def test_programs_for_tpus_have_the_kernel_unless_told_otherwise(platform, attention, causal, monkeypatch):
    monkeypatch.setattr(attention_module, "traced_platform", lambda: platform)
    fields = {"width": 128, "depth": 1, "num_heads": 2, "dtype": "bfloat16", "attention": attention}
    model, x = dm.ViT(7, patch_size=8, **fields), jnp.zeros((2, 16, 16, 3))
    if causal:
        model, x = dm.GPT(7, **fields), jnp.zeros((2, 12), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), x)["params"]
    gradient = jax.jit(jax.grad(lambda params, x: model.apply({"params": params}, x).sum()))
    text = gradient.trace(params, x).lower(lowering_platforms=(platform,)).as_text()
    # Remat keeps attention's output, so that the backward pass does not run the forward kernel again.
    assert text.count("@tpu_custom_call") == (2 if (platform, attention) == ("tpu", "auto") else 0)


def test_programs_know_the_platform_of_their_mesh_whatever_its_size():
    seen = []
    mesh = sharding.make_mesh(devices=jax.devices()[:1])

    @jax.jit
    def program(x):
        with sharding.activations_on(mesh):
            seen.append(sharding.traced_platform())
            return sharding.stream(x)

    np.testing.assert_array_equal(program(jnp.ones((2, 3))), 1.0)
    assert seen == [jax.devices()[0].platform]
    assert sharding.traced_platform() is None
