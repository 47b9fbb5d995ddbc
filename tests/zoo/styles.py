"""The models of the zoo, and what a user says about each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import depthmup_flax as dm
from depthmup_flax.auditing.parameter_trees import Globs

from . import image_models, language_models, mlps
from .edits import LOOPED_RULE, RULE, Edits
from .mistakes import Mistake, extra_depth, extra_width, wrong_axes, wrong_globs

Overrides = Mapping[str, dm.Axes]


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """What a model reads, and its integer labels."""

    x: jax.Array
    labels: jax.Array


def _tokens(seed: int) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), (4, language_models.LENGTH), 0, language_models.VOCABULARY)


TEXT = Batch(_tokens(0), _tokens(1))
VECTORS = Batch(jax.random.normal(jax.random.key(2), (6, mlps.FEATURES)), jnp.arange(6) % mlps.CLASSES)
IMAGES = Batch(jax.random.normal(jax.random.key(3), (4, 8, 8, 3)), jnp.arange(4) % image_models.CLASSES)


@dataclasses.dataclass(frozen=True)
class Style:
    """A model of any width and depth, a batch, the right arguments of ``infer_info``, and mistakes.

    ``mistakes`` has names of `mistakes.GENERAL`, and mistakes of this model alone.
    """

    make: Callable[[int, int, Edits], Any]  # a Linen module, or what ``kind`` says
    mistakes: tuple[str, ...]
    in_branch: Globs = ()
    readout: Globs = "head"
    stacked: Globs = ()
    overrides: Overrides = dataclasses.field(default_factory=dict)
    own_mistakes: Mapping[str, Mistake] = dataclasses.field(default_factory=dict)
    batch: Batch = VECTORS
    kind: str = "linen"  # or "nnx": ``rngs -> module``; or "function": (function, init)
    rule: dm.Parametrization = RULE
    output: Any = None  # which output the loss takes, of several
    grows_with_depth: bool = True
    # The smallest sizes that decide.
    width: int = 64  # of networks whose depth varies
    depth: int = 2  # of networks whose width varies
    widths: tuple[int, ...] = (32, 64, 128, 256)
    depths: tuple[int, ...] = (4, 8, 16)
    seeds: int = 3


def language(make: Callable[[int, int, Edits], Any], mistakes: tuple[str, ...], **fields: Any) -> Style:
    """A model of tokens."""
    return Style(make, mistakes, batch=TEXT, **fields)


def images(make: Callable[[int, int, Edits], Any], mistakes: tuple[str, ...], **fields: Any) -> Style:
    """A model of images."""
    fields = {"widths": (16, 32, 64, 128), "width": 32, **fields}
    return Style(make, mistakes, batch=IMAGES, **fields)


_REDUCE = "trunk/se/reduce/kernel"
_ADAPTERS = {f"blocks/{name}_lora_a": dm.Axes(("layers", "width_in", "width_out")) for name in ("first", "second")}

STYLES: Mapping[str, Style] = {
    "plain_mlp": Style(
        mlps.plain_mlp, ("no_readout", "fixed_std", "plain_adam"), readout="w2", kind="function",
        own_mistakes={"slow_hidden": extra_width("w1")}, grows_with_depth=False,
    ),
    "mlp": Style(
        mlps.ResidualMLP, ("novograd", "no_gamma", "depth_init"), in_branch="blocks", stacked="blocks", depth=4,
        own_mistakes={"slow_down": extra_width("blocks/down/kernel")},
    ),
    "mlp_post_norm": Style(
        lambda width, depth, edits: mlps.ResidualMLP(width, depth, edits, post_norm=True),
        ("before_norm", "no_multiplier", "plain_adam"), in_branch="blocks", stacked="blocks",
        own_mistakes={"slow_in_depth": extra_depth("blocks/down/kernel")},
    ),
    "mlp_projection": Style(
        mlps.ProjectionMLP, ("shortcut", "decay_inside"), in_branch=("block_*_dense", "block_*_norm"),
        own_mistakes={
            "glob": wrong_globs("shortcut_in_branch", "block_*"),
            "norms_only": wrong_globs("in_branch_incomplete", "block_*_norm"),
        },
    ),
    "boxed": Style(
        mlps.BoxedMLP, ("no_multiplier", "fixed_std", "depth_init", "update_norm"), in_branch="layer_*",
    ),
    "lora": Style(
        mlps.LoraMLP, ("no_multiplier", "no_readout", "lamb", "random_narrow"), in_branch="blocks", stacked="blocks",
        overrides=_ADAPTERS,
        own_mistakes={"adapters_as_readouts": wrong_axes("blocks/*_lora_a", "layers", "width_in", "fixed_out")},
    ),
    "gpt_setup": language(
        language_models.SetupGPT, ("no_multiplier", "no_readout", "falling_input", "root_heads"),
        in_branch="blocks_*", readout="embed",
    ),
    "gpt_rotary": language(
        language_models.RotaryGPT, ("depth_init", "double_readout", "root_embedding"), in_branch="block_*",
        own_mistakes={
            "half_of_globs": wrong_globs(
                "in_branch_incomplete", *(f"block_*_{name}" for name in ("norm", "query", "key", "value", "out"))
            )
        },
    ),
    "lm1b": language(
        language_models.SineDecoder, ("kept_readout", "root_readout", "second_branch", "root_heads"),
        in_branch="decoderblock_*", readout="shared_embedding",
    ),
    "gemma": language(
        lambda width, depth, edits: lambda rngs: language_models.Gemma(width, depth, edits, rngs),
        ("root_embedding", "no_readout", "fixed_std", "second_branch"), kind="nnx",
        in_branch="layers", readout="embedder",
        overrides={
            "layers/*/q_einsum/w": dm.Axes(("width_out", "width_in", None)),
            "layers/*/kv_einsum/w": dm.Axes((None, "width_out", "width_in", None)),
        },
    ),
    "llama": language(
        language_models.ScannedLlama, ("root_heads", "root_embedding", "second_branch", "decay_inside"),
        in_branch="layers", readout="lm_head", stacked="layers",
    ),
    "qk_norm": language(
        language_models.QKNormGPT, ("root_heads", "double_readout", "no_gamma", "no_multiplier"),
        in_branch="blocks", stacked="blocks",
    ),
    "moe": language(
        language_models.MoE, ("no_multiplier", "no_readout", "update_norm"), in_branch="layers", stacked="layers",
        readout="unembed",
        overrides={"layers/moe/router/kernel": dm.Axes(("layers", "width_in", "width_out"))},
        own_mistakes={
            "router_as_readout": wrong_axes("layers/moe/router/kernel", "layers", "width_in", "fixed_out")
        },
    ),
    "looped": language(
        language_models.Looped, ("root_rule", "no_readout", "falling_input", "sgd_on_repeated"),
        in_branch="block", rule=LOOPED_RULE,
    ),
    "resnet": images(
        image_models.BatchNormResNet, ("before_norm", "no_readout", "shortcut"),
        in_branch=("ResNetBlock_*/Conv_*", "ResNetBlock_*/BatchNorm_*"), readout="Dense_0",
        own_mistakes={"glob": wrong_globs("shortcut_in_branch", "ResNetBlock_*")},
        seeds=4,  # averages over a batch of a few images are noisy
    ),
    "convnext": images(
        image_models.ConvNeXt, ("no_multiplier", "double_readout"), in_branch="stages_[0-9]*",
        own_mistakes={
            "glob": wrong_globs("shortcut_in_branch", "stages_*"),
            "depthwise_as_dense": wrong_axes("stages_[0-9]*/dwconv/kernel", None, None, "width_in", "width_out"),
        },
    ),
    "squeeze_excite": images(
        image_models.SENet, ("no_multiplier", "no_readout", "novograd"), in_branch="trunk", stacked="trunk",
        overrides={_REDUCE: dm.Axes(("layers", "width_in", "width_out"))},
        own_mistakes={"reduce_as_readout": wrong_axes(_REDUCE, "layers", "width_in", "fixed_out")},
    ),
    "map_vit": images(
        image_models.MapViT, ("root_heads", "second_branch", "kept_readout", "falling_input"), output=0,
        in_branch="encoderblock", stacked="encoderblock", widths=(32, 64, 128, 256), width=64,
    ),
    "mixer": images(
        image_models.Mixer, ("no_multiplier", "second_branch", "depth_init", "no_gamma"),
        in_branch="blocks", stacked="blocks", widths=(32, 64, 128, 256), width=64,
    ),
}  # fmt: skip
