"""Models of public packages, as published, are ok without an edit. Each is skipped where its package is absent."""

import functools
import importlib
import os
import pathlib
import re
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import depthmup_flax as dm
from depthmup_flax.networks.model_functions import model_functions

pytestmark = pytest.mark.slow
LENGTH, CLASSES = 16, 50
RULE = dm.get_parametrization("depth_mup")
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(0, CLASSES, (4, LENGTH)).astype(np.int32)
PLACES = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), TOKENS.shape)
MASK = np.broadcast_to(np.tril(np.ones((LENGTH, LENGTH), bool)), (4, LENGTH, LENGTH))
CHANNELS_FIRST, CHANNELS_LAST = (
    RANDOM.normal(size=shape).astype(np.float32) for shape in ((4, 3, 32, 32), (4, 32, 32, 3))
)


def tunix(name, make, vocabulary="vocab_size", **fields):
    """A language model of google-tunix with heads of 16."""

    def of(width, depth):
        code = importlib.import_module(f"tunix.models.{name}.model")
        sizes = {"num_layers": depth, vocabulary: CLASSES, "embed_dim": width, "hidden_dim": 2 * width, "head_dim": 16}
        heads = {"num_heads": width // 16, "num_kv_heads": width // 16}
        more = {key: value(code, depth) if callable(value) else value for key, value in fields.items()}
        config = code.ModelConfig(**sizes, **heads, **more)
        return lambda rngs: getattr(code, make)(config, rngs=rngs)

    return of, (TOKENS, PLACES, None, MASK), {"output": 0}


def griffin(width, depth):
    common, code = (importlib.import_module(f"recurrentgemma.{name}") for name in ("common", "jax.griffin"))
    recurrent, attention = common.TemporalBlockType.RECURRENT, common.TemporalBlockType.ATTENTION
    config = common.GriffinConfig(
        vocab_size=CLASSES,
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
    """A model of equimo in inference, which takes one image and a key."""

    def of(width, depth):
        equinox, code = importlib.import_module("equinox"), importlib.import_module(f"equimo.models.{path}")
        new = lambda key: equinox.partition(make(code, width, depth, key), equinox.is_inexact_array)
        rest = new(jax.random.key(0))[1]
        one = lambda params, image: equinox.combine(params, rest)(image, jax.random.key(0))
        return lambda key: new(key)[0], lambda params, x: jax.vmap(lambda image: one(params, image))(x)

    return "equimo", of, CHANNELS_FIRST, {}


def vit(code, width, depth, key, **fields):
    sizes = {"img_size": 32, "in_channels": 3, "dim": width, "patch_size": 8, "num_heads": width // 16}
    return code.VisionTransformer(depths=[depth], num_classes=CLASSES, key=key, **sizes | fields)


def convnext(code, width, depth, key):
    dims = [width, 2 * width, 4 * width, 8 * width]
    return code.ConvNeXt(3, depths=[depth] * 4, dims=dims, num_classes=CLASSES, key=key)


def transformers(name, config, **sizes):
    """A causal language model in Flax of the last release of transformers that has them."""

    def of(width, depth):
        code = importlib.import_module("transformers")
        if not hasattr(code, name):
            pytest.skip(f"transformers {code.__version__} has no {name}")
        own = {key: value(width, depth) if callable(value) else value for key, value in sizes.items()}
        model = getattr(code, name)(getattr(code, config)(vocab_size=CLASSES, **own), _do_init=False)
        apply = lambda params, tokens, key=None: model(tokens, params=params, train=False).logits
        return lambda key: model.init_weights(key, (1, LENGTH)), apply

    return "transformers", of, TOKENS, {}


def keras(make, x, *, package="keras"):
    """A Keras model on JAX as a pair; weights are drawn with the standard deviations of its own initializers."""

    def of(width, depth):
        os.environ.setdefault("KERAS_BACKEND", "jax")
        code = importlib.import_module("keras")
        if code.backend.backend() != "jax":
            pytest.skip("Keras runs on another backend")
        code.utils.clear_session()  # layers are numbered from 0
        code.utils.set_random_seed(0)
        model = make(importlib.import_module(package), width, depth)
        states = [variable.value for variable in model.non_trainable_variables]
        values = {variable.path: np.asarray(variable.value) for variable in model.trainable_variables}

        def init(key):
            keys = jax.random.split(key, len(values))
            drawn = [
                value.std() * jax.random.normal(k, value.shape) if value.ndim > 1 and value.std() else jnp.array(value)
                for k, value in zip(keys, values.values(), strict=True)
            ]
            return dict(zip(values, drawn, strict=True))

        def apply(params, *inputs):
            own = [params[variable.path] for variable in model.trainable_variables]
            return model.stateless_call(own, states, inputs[0] if len(inputs) == 1 else list(inputs))[0]

        return init, apply

    return package, of, x, {}


def keras_vit(keras, width, depth):
    """The transformer of keras.io's examples, of Keras's layers."""
    layers = keras.layers
    x = keras.Input((LENGTH, 12))
    h = layers.Dense(width)(x)
    for _ in range(depth):
        y = layers.LayerNormalization()(h)
        h = layers.Add()([layers.MultiHeadAttention(width // 16, 16)(y, y), h])
        y = layers.Dense(2 * width, activation="gelu")(layers.LayerNormalization()(h))
        h = layers.Add()([layers.Dense(width)(y), h])
    pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(h))
    return keras.Model(x, layers.Dense(CLASSES)(pooled))


def hub_llama(hub, width, depth):
    heads = {"num_query_heads": width // 16, "num_key_value_heads": width // 16}
    sizes = {"vocabulary_size": CLASSES, "num_layers": depth, "hidden_dim": width, "intermediate_dim": 2 * width}
    model = hub.models.LlamaCausalLM(hub.models.LlamaBackbone(**sizes, **heads))
    keras = importlib.import_module("keras")
    tokens = keras.Input((LENGTH,), dtype="int32")
    padding = keras.Input((LENGTH,), dtype="int32")
    return keras.Model([tokens, padding], model({"token_ids": tokens, "padding_mask": padding}))


def haiku_resnet(width, depth, **fields):
    haiku = importlib.import_module("haiku")

    def forward(x, is_training=True):
        sizes = {"blocks_per_group": (depth,) * 4, "channels_per_group": (width, 2 * width, 4 * width, 8 * width)}
        start = {"output_channels": width, "kernel_shape": 3, "stride": 1}
        net = haiku.nets.ResNet(num_classes=CLASSES, initial_conv_config=start, **sizes, **fields)
        return net(x, is_training)

    return haiku.transform_with_state(forward)


LLAMA = {"rope_theta": 10_000, "norm_eps": 1e-5}
GEMMA = {"final_logit_softcap": 30.0, "attn_logits_soft_cap": 50.0, "use_post_attn_norm": True}
GEMMA |= {"use_post_ffw_norm": True, "attention_types": lambda code, depth: [code.AttentionType.GLOBAL] * depth}
FLOAT = lambda *_: jnp.float32
GPT2 = {"n_embd": lambda width, _: width, "n_layer": lambda _, depth: depth, "n_head": lambda width, _: width // 16}
HF = {"hidden_size": lambda width, _: width, "num_hidden_layers": lambda _, depth: depth}
HF |= {"num_attention_heads": lambda width, _: width // 16, "intermediate_size": lambda width, _: 2 * width}
MODELS = {
    "llama3": ("tunix", *tunix("llama3", "Llama3", **LLAMA)),
    "llama3_tied": ("tunix", *tunix("llama3", "Llama3", **LLAMA, weight_tying=True)),
    "qwen3": ("tunix", *tunix("qwen3", "Qwen3", **LLAMA)),
    "qwen3_tied": ("tunix", *tunix("qwen3", "Qwen3", **LLAMA, use_tied_embedding=True)),
    "qwen3_experts": ("tunix", *tunix("qwen3", "Qwen3", **LLAMA, num_experts=4, num_experts_per_tok=2)),
    "gemma2": ("tunix", *tunix("gemma", "Gemma", "num_embed", **GEMMA)),
    "gemma3": ("tunix", *tunix("gemma3", "Gemma3", "num_embed", sliding_window_size=8, param_dtype=FLOAT)),
    "griffin": ("recurrentgemma", griffin, (TOKENS, PLACES), {"output": 0, "return_cache": False}),
    "vit": equimo("vit", vit),
    "vit_growing_heads": equimo("vit", functools.partial(vit, num_heads=2)),
    "vit_layer_scale": equimo("vit", functools.partial(vit, init_values=1e-5)),
    "convnext": equimo("convnext", convnext),
    "gpt2": transformers("FlaxGPT2LMHeadModel", "GPT2Config", n_positions=LENGTH, **GPT2),
    "gpt2_growing_heads": transformers("FlaxGPT2LMHeadModel", "GPT2Config", n_positions=LENGTH, **GPT2 | {"n_head": 2}),
    "gpt_neo": transformers(
        "FlaxGPTNeoForCausalLM",
        "GPTNeoConfig",
        max_position_embeddings=LENGTH,
        hidden_size=HF["hidden_size"],
        num_layers=HF["num_hidden_layers"],
        num_heads=HF["num_attention_heads"],
        attention_types=lambda _, depth: [[["global"], depth]],
    ),
    "llama": transformers("FlaxLlamaForCausalLM", "LlamaConfig", max_position_embeddings=64, **HF),
    "gemma": transformers(
        "FlaxGemmaForCausalLM",
        "GemmaConfig",
        max_position_embeddings=64,
        head_dim=16,
        num_key_value_heads=HF["num_attention_heads"],
        **HF,
    ),
    "keras_vit": keras(keras_vit, RANDOM.normal(size=(4, LENGTH, 12)).astype(np.float32)),
    "keras_hub_llama": keras(hub_llama, (TOKENS, np.ones_like(TOKENS)), package="keras_hub"),
    "haiku_resnet": ("haiku", haiku_resnet, CHANNELS_LAST, {}),
    "haiku_resnet_v2": ("haiku", functools.partial(haiku_resnet, resnet_v2=True, bottleneck=False), CHANNELS_LAST, {}),
}


def audited(name, *sizes):
    package, make, x, arguments = MODELS[name]
    pytest.importorskip(package)
    model, base = (model_functions(make(*size)).adapter for size in sizes)
    return dm.audit(model, base, x, **arguments)


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_is_ok_without_an_edit_and_trains_from_its_info(name):
    audit = audited(name, (64, 6), (32, 2))
    assert audit.ok, str(audit)
    assert any(row.carried.depth == pytest.approx(3) for row in audit.rows)  # the branches' r^-alpha
    dm.adamw(1e-3, audit.info, RULE)


def checked(name, optimizer, **options):
    """The coordinate check from initial values by `rescale_init`."""
    _, make, x, arguments = MODELS[name]

    def build(width, depth):
        info, (model, base) = audited(name, (width, depth), (32, 2)).info, (make(width, depth), make(32, 2))
        network = dm.checked_network(model, x, info=info, optimizer=optimizer(info), **arguments)
        other = dm.checked_network(base, x, info=info, optimizer=optimizer(info), **arguments)
        return network.rescaled(other.init, RULE)

    outputs = jax.eval_shape(lambda key: (network := build(32, 2)).apply(network.init(key))[0], jax.random.key(0))
    labels = RANDOM.integers(0, CLASSES, outputs.shape[:-1])
    return dm.coord_check(build, labels, rule=RULE, width=32, depth=2, widths=(32, 64, 128), **options)


@pytest.mark.parametrize("name", ["llama3", "gpt2"])  # a check takes minutes
def test_the_check_of_a_published_model_passes_with_its_info_and_fails_with_a_plain_optimizer(name):
    pytest.importorskip(MODELS[name][0])
    report = checked(name, lambda info: dm.adamw(2**-8, info, RULE), depths=(2, 4, 8))
    assert report.ok, report.details()
    assert not checked(name, lambda info: optax.adamw(2**-8), seeds=2).ok


def test_the_example_on_llama_3_runs_and_the_large_model_learns():
    pytest.importorskip("tunix")
    path = pathlib.Path(__file__).parents[2] / "examples" / "tunix_llama3.py"
    assert len(path.read_text().splitlines()) < 60
    losses = runpy.run_path(str(path))["losses"]
    text = np.tile(np.frombuffer(path.read_bytes(), np.uint8) % 64, 12)
    for base in ((32, 2), None):
        start, end = (losses(text, (32, 4), base, [2**-7], steps)[0] for steps in (1, 60))
        assert end < 0.9 * start


def diffs_of_docs():
    """Name of a package -> the programs before and after the diff that docs/other_libraries.md shows."""
    page = (
        (pathlib.Path(__file__).parents[2] / "docs" / "other_libraries.md")
        .read_text()
        .partition("<!-- public models -->")[2]
    )
    for diff in re.findall(r"```diff\n(.*?)```", page, re.DOTALL):
        lines = diff.splitlines()
        yield lines[0].split()[1].strip(":"), *("\n".join(x[1:] for x in lines if x[:1] != out) for out in "+-")


def names_of_llama3(importorskip):
    code = importorskip("tunix.models.llama3.model")
    sizes = {"vocab_size": CLASSES, "num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "hidden_dim": 64, **LLAMA}
    configs = [code.ModelConfig(num_layers=d, embed_dim=w, **sizes) for w, d in ((64, 4), (32, 2))]
    return {"Llama3": code.Llama3, "configs": configs, "tokens": TOKENS, "positions": PLACES, "mask": MASK}


def names_of_griffin(importorskip):
    code = importorskip("recurrentgemma.jax.griffin")
    configs = [griffin(*size).config for size in ((64, 4), (32, 2))]
    return {"Griffin": code.Griffin, "configs": configs, "tokens": jnp.array(TOKENS), "positions": jnp.array(PLACES)}


def names_of_gpt2(importorskip):
    code = importorskip("transformers")
    if not hasattr(code, "FlaxGPT2LMHeadModel"):
        pytest.skip("transformers has no Flax")
    configs = [code.GPT2Config(vocab_size=CLASSES, n_head=w // 16, n_embd=w, n_layer=d) for w, d in ((64, 4), (32, 2))]
    names = {"tokens": TOKENS, "positions": PLACES, "mask": np.ones_like(TOKENS)}
    return names | {"FlaxGPT2LMHeadModel": code.FlaxGPT2LMHeadModel, "configs": configs}


def names_of_vit(importorskip):
    code, equinox = importorskip("equimo.models.vit"), importorskip("equinox")
    sizes = {"img_size": 16, "in_channels": 3, "patch_size": 8, "num_classes": CLASSES}
    configs = [{"dim": w, "num_heads": w // 16, "depths": [d], **sizes} for w, d in ((64, 4), (32, 2))]
    names = {"VisionTransformer": code.VisionTransformer, "configs": configs, "eqx": equinox}
    return names | {"images": CHANNELS_FIRST[..., :16, :16]}


def names_of_resnet(importorskip):
    haiku = importorskip("haiku")
    resnet = lambda config, x, is_training: haiku.nets.ResNet(**config)(x, is_training)
    configs = [
        {"blocks_per_group": (d,) * 4, "channels_per_group": (w, w, w, w), "num_classes": CLASSES}
        | {"initial_conv_config": {"output_channels": w}}
        for w, d in ((64, 4), (32, 2))
    ]
    return {"hk": haiku, "functools": functools, "resnet": resnet, "configs": configs, "images": CHANNELS_LAST}


NAMES = {"google-tunix": names_of_llama3, "recurrentgemma": names_of_griffin, "transformers": names_of_gpt2}
NAMES |= {"equimo": names_of_vit, "dm-haiku": names_of_resnet}


@pytest.mark.parametrize(("package", "before", "after"), list(diffs_of_docs()), ids=NAMES)
def test_the_diffs_of_the_page_run_and_change_no_line_of_a_model(package, before, after):
    scope = NAMES[package](pytest.importorskip)
    scope |= {"nnx": nnx, "optax": optax, "dm": dm, "rule": RULE, "key": jax.random.key(0)}
    exec(before, dict(scope))
    exec(after, scope)
    assert scope["audit"].ok, str(scope["audit"])
    assert len(set(after.splitlines()) - set(before.splitlines())) == 3
    if "params" in scope:
        scope["optimizer"].init(scope["params"])
