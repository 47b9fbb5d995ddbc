"""Models of public packages, as published, are ok without an edit. Each is skipped where its package is absent."""

import importlib

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import depthmup_flax as dm

pytestmark = pytest.mark.slow
LENGTH = 16
TOKENS, PLACES = jnp.zeros((2, LENGTH), jnp.int32), jnp.broadcast_to(jnp.arange(LENGTH), (2, LENGTH))
MASK = jnp.broadcast_to(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), (2, LENGTH, LENGTH))


def tunix(name, make, vocabulary="vocab_size", **fields):
    """A language model of google-tunix with heads of 16."""

    def of(width, depth):
        code = importlib.import_module(f"tunix.models.{name}.model")
        sizes = {"num_layers": depth, vocabulary: 50, "embed_dim": width, "hidden_dim": 2 * width, "head_dim": 16}
        heads = {"num_heads": width // 16, "num_kv_heads": width // 16}
        more = {key: value(code, depth) if callable(value) else value for key, value in fields.items()}
        return getattr(code, make)(code.ModelConfig(**sizes, **heads, **more), rngs=nnx.Rngs(0))

    return of, (TOKENS, PLACES, None, MASK), {"output": 0}


def griffin(width, depth):
    common, code = (importlib.import_module(f"recurrentgemma.{name}") for name in ("common", "jax.griffin"))
    recurrent, attention = common.TemporalBlockType.RECURRENT, common.TemporalBlockType.ATTENTION
    config = common.GriffinConfig(
        vocab_size=50,
        width=width,
        mlp_expanded_width=3 * width,
        num_heads=4,
        block_types=(recurrent, recurrent, attention) * (depth // 2),
        embeddings_scale_by_sqrt_dim=True,
        attention_window_size=8,
        logits_soft_cap=30.0,
        scan_type=common.ScanType.LINEAR_NATIVE,
    )
    return code.Griffin(config)


def equimo(path, make):
    def of(width, depth):
        equinox, code = importlib.import_module("equinox"), importlib.import_module(f"equimo.models.{path}")
        params, rest = equinox.partition(make(code, width, depth), equinox.is_inexact_array)
        one = lambda params, image: equinox.combine(params, rest)(image, jax.random.key(0))
        return lambda params, x: jax.vmap(lambda image: one(params, image))(x), params

    return of


def vit(code, width, depth, **fields):
    sizes = {"img_size": 32, "in_channels": 3, "dim": width, "patch_size": 8, "num_heads": width // 16}
    return code.VisionTransformer(**sizes, depths=[depth], num_classes=10, key=jax.random.key(0), **fields)


def convnext(code, width, depth):
    dims = [width, 2 * width, 4 * width, 8 * width]
    return code.ConvNeXt(3, depths=[depth] * 4, dims=dims, num_classes=10, key=jax.random.key(0))


LLAMA = {"rope_theta": 10_000, "norm_eps": 1e-5}
GEMMA = {"final_logit_softcap": 30.0, "attn_logits_soft_cap": 50.0, "use_post_attn_norm": True}
IMAGES = jnp.zeros((2, 3, 32, 32))
MODELS = {
    "llama3": ("tunix", *tunix("llama3", "Llama3", **LLAMA)),
    "llama3_tied": ("tunix", *tunix("llama3", "Llama3", **LLAMA, weight_tying=True)),
    "qwen3_tied": ("tunix", *tunix("qwen3", "Qwen3", **LLAMA, use_tied_embedding=True)),
    "qwen3_experts": ("tunix", *tunix("qwen3", "Qwen3", **LLAMA, num_experts=4, num_experts_per_tok=2)),
    "gemma2": (
        "tunix",
        *tunix(
            "gemma",
            "Gemma",
            "num_embed",
            **GEMMA,
            use_post_ffw_norm=True,
            attention_types=lambda code, depth: [code.AttentionType.GLOBAL] * depth,
        ),
    ),
    "gemma3": (
        "tunix",
        *tunix("gemma3", "Gemma3", "num_embed", sliding_window_size=8, param_dtype=lambda *_: jnp.float32),
    ),
    "griffin": ("recurrentgemma", griffin, (TOKENS, PLACES), {"output": 0, "return_cache": False}),
    "vit": ("equimo", equimo("vit", vit), IMAGES, {}),
    "vit_layer_scale": ("equimo", equimo("vit", lambda *of: vit(*of, init_values=1e-5)), IMAGES, {}),
    "convnext": ("equimo", equimo("convnext", convnext), IMAGES, {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_is_ok_without_an_edit_and_trains_from_its_info(name):
    package, make, x, arguments = MODELS[name]
    pytest.importorskip(package)
    audit = dm.audit(make(64, 6), make(32, 2), x, **arguments)
    assert audit.ok, str(audit)
    carried = {row.carried for row in audit.rows}
    assert any(abs(c - 3**-0.5) < 1e-4 for c in carried), carried  # the branches' r^-1/2
    dm.adamw(1e-3, audit.info, dm.get_parametrization("depth_mup"))
