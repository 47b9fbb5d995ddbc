"""Models of public packages with the rule's multipliers, which stand behind their products with parameters.

A package that is not installed, or whose directory is not in PYTHONPATH, is skipped.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import json
import math
import os
import pathlib
import time
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax._src.source_info_util import user_context
from jax.extend import core

import depthmup_flax as dm
from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.util import primitives
from depthmup_flax.util.jaxprs import Interpreter

from . import carried, mutations
from .carried import _drawn
from .cases import Kind
from .scales import BASE_WIDTH, Scales

Factors = Mapping[str, float]  # glob of paths of parameters -> what multiplies products with them
Pair = tuple[Callable[..., jax.Array], Any]
_VIEWS = primitives.SAME_PLACE | primitives.MOVES | {"complex"}


class _WithFactors(Interpreter[tuple[Any, float | None]]):
    """Multiplies what reads a parameter; values are arrays, each with the factor of what will read it."""

    def constant(self, array: Any) -> tuple[Any, float | None]:
        return array, None

    def equation(self, eqn: core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[tuple[Any, float | None]]:
        with user_context(eqn.source_info.traceback):  # the line of the package
            if all(factor is None for _, factor in inputs):
                return self.operation(eqn, inputs)
            return super().equation(eqn, inputs)

    def operation(self, eqn: core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[tuple[Any, float | None]]:
        name = eqn.primitive.name
        arrays = [x * factor if name in primitives.SUMS and factor is not None else x for x, factor in inputs]
        results = eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(eqn.params))
        results = results if eqn.primitive.multiple_results else [results]
        factor = next((factor for _, factor in inputs if factor is not None), None)
        if name in _VIEWS:
            return [(result, factor) for result in results]
        if factor is not None and name in primitives.PRODUCTS | {"mul"}:
            results = [result * factor for result in results]
        return [(result, None) for result in results]


def with_factors(function: Callable[..., jax.Array], factors: Factors) -> Callable[..., jax.Array]:
    """A function of parameters and inputs whose products with some parameters are multiplied."""

    def factor_of(path: Any) -> float | None:
        return next((x for glob, x in factors.items() if fnmatch.fnmatchcase(path_name(path), glob)), None)

    def multiplied(params: Any, *inputs: Any) -> jax.Array:
        closed = jax.make_jaxpr(function)(params, *inputs)
        leaves = [(leaf, factor_of(path)) for path, leaf in jax.tree_util.tree_leaves_with_path(params)]
        ((result, _),) = _WithFactors().run(closed, [*leaves, *((x, None) for x in jax.tree.leaves(inputs))])
        return result

    return multiplied


def linen(module: nn.Module, *x: Any, **of_call: Any) -> Pair:
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *_zeros(x), **of_call))
    return lambda params, *inputs: module.apply({"params": params}, *inputs, **of_call), shapes["params"]


def of_nnx(make: Callable[[nnx.Rngs], nnx.Module], read: Callable[..., Any], **of_call: Any) -> Pair:
    """Initial values of what is no parameter, such as tables of positions, are constants."""
    graph, params, rest = nnx.split(make(nnx.Rngs(0)), nnx.Param, ...)
    return lambda params, *inputs: read(nnx.merge(graph, params, rest)(*inputs, **of_call)), _shapes(params)


def equinox(make: Callable[[jax.Array], Any], read: Callable[[Any], Any] = lambda y: y) -> Pair:
    """A module of one example."""
    eqx = importlib.import_module("equinox")
    params, rest = eqx.partition(make(jax.random.key(0)), eqx.is_inexact_array)
    return lambda params, x: jax.vmap(lambda one: read(eqx.combine(params, rest)(one)))(x), _shapes(params)


def _shapes(params: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)


def _zeros(x: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), x)


def _old_names() -> None:
    """Names that JAX no longer has, for packages of 2023 and 2024."""
    for place, name, value in (
        (jnp, "DeviceArray", jax.Array),
        (jax.random, "KeyArray", jax.Array),
        (jax, "tree_map", jax.tree.map),
    ):
        if name not in vars(place):
            setattr(place, name, value)


IMAGES = jax.ShapeDtypeStruct((2, 16, 16, 3), jnp.float32)
CHANNELS_FIRST = jax.ShapeDtypeStruct((2, 3, 16, 16), jnp.float32)
TOKENS = jax.ShapeDtypeStruct((2, 6), jnp.int32)
HEAD = 8  # sizes of heads
CLASSES = 5


def mixer(e: Scales) -> Pair:
    code = importlib.import_module("vit_jax.models_mixer")
    net = code.MlpMixer(
        patches=types.SimpleNamespace(size=(4, 4)), num_classes=CLASSES, num_blocks=e.depth, hidden_dim=e.width,
        tokens_mlp_dim=24, channels_mlp_dim=2 * e.width,
    )  # fmt: skip
    apply, shapes = linen(net, IMAGES, train=True)
    factors = {"*/token_mixing/Dense_1/*": e.branch("tokens"), "*/channel_mixing/Dense_1/*": e.branch("channels")}
    return with_factors(apply, {**factors, "head/kernel": e.readout()}), shapes


_TIMES = jax.ShapeDtypeStruct((2,), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.int32)


def dit(e: Scales) -> Pair:
    code = importlib.import_module("diffusion_transformer")
    code.print = lambda *_: None
    net = code.DiT(
        patch_size=4, hidden_size=e.width, depth=e.depth, num_heads=e.width // HEAD, mlp_ratio=2.0, num_classes=10,
        class_dropout_prob=0.0,
    )  # fmt: skip
    apply, shapes = linen(net, IMAGES, *_TIMES)
    factors = {
        "DiTBlock_*/MultiHeadDotProductAttention_0/out/*": e.branch("attention"),
        "DiTBlock_*/MlpBlock_0/Dense_1/*": e.branch("mlp"),
        "FinalLayer_0/Dense_1/kernel": e.readout(),
    }
    return with_factors(apply, factors), shapes


def s5(e: Scales, activation: str = "full_glu") -> Pair:
    _old_names()
    ssm, model = importlib.import_module("s5.ssm"), importlib.import_module("s5.seq_model")
    states = importlib.import_module("s5.ssm_init").make_DPLR_HiPPO(16)
    eigenvalues, vectors = states[0][:8], states[3][:, :8]
    layer = ssm.init_S5SSM(
        H=e.width, P=8, Lambda_re_init=eigenvalues.real, Lambda_im_init=eigenvalues.imag, V=vectors,
        Vinv=vectors.conj().T, C_init="lecun_normal", discretization="zoh", dt_min=0.001, dt_max=0.1, conj_sym=True,
        clip_eigs=False, bidirectional=False,
    )  # fmt: skip
    net = model.BatchClassificationModel(
        ssm=layer, d_output=CLASSES, d_model=e.width, n_layers=e.depth, padded=False, activation=activation,
        dropout=0.0, prenorm=True,
    )  # fmt: skip
    apply, shapes = linen(
        net, jax.ShapeDtypeStruct((2, 12, 3), jnp.float32), jax.ShapeDtypeStruct((2, 12), jnp.float32)
    )
    return with_factors(apply, {"encoder/layers_*/out1/*": e.branch("ssm"), "decoder/kernel": e.readout()}), shapes


def octo(e: Scales) -> Pair:
    """The transformer on tokens of a state, and the diffusion head."""
    _old_names()
    module = importlib.import_module("octo.model.octo_module")
    heads = importlib.import_module("octo.model.components.diffusion")
    tokens = importlib.import_module("octo.model.components.base").TokenGroup

    class Tokenizer(nn.Module):
        @nn.compact
        def __call__(self, observations: Any, tasks: Any, train: bool) -> Any:
            return tokens.create(observations["state"])

    class Octo(nn.Module):
        @nn.compact
        def __call__(self, state: jax.Array, actions: jax.Array, time: jax.Array) -> jax.Array:
            sizes = {"num_layers": e.depth, "mlp_dim": 2 * e.width, "num_attention_heads": e.width // HEAD}
            sizes |= {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
            transformer = module.OctoTransformer(
                {"state": Tokenizer()}, {}, {"action": 1}, sizes, e.width, 2, False, True, name="transformer",
            )  # fmt: skip
            outputs = transformer({"state": state}, {}, jnp.ones(state.shape[:2], bool))
            score = heads.create_diffusion_model(4, 16, e.depth, 0.0, e.width, True)
            return score(outputs["readout_action"].tokens.mean(-2), actions, time)

    shapes_of_x = [(2, 2, 3, 6), (2, 2, 4), (2, 2, 1)]
    apply, shapes = linen(Octo(), *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes_of_x))
    block = "transformer/BlockTransformer_0/Transformer_0/encoderblock_*"
    factors = {
        f"{block}/MultiHeadDotProductAttention_0/out/*": e.branch("attention"),
        f"{block}/MlpBlock_0/Dense_1/*": e.branch("mlp"),
        "*/MLPResNetBlock_*/Dense_1/*": e.branch("head"),
        "MLPResNet_0/Dense_1/kernel": e.readout(),
    }
    return with_factors(apply, factors), shapes


def rwkv7(e: Scales) -> Pair:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    code, keras = importlib.import_module("src.backbone"), importlib.import_module("keras")
    keras.utils.clear_session()  # layers are numbered from 0
    ranks = dict.fromkeys(("gate_lora", "mv_lora", "aaa_lora", "decay_lora"), 4)
    model = code.RWKV7Backbone(e.width, HEAD, e.depth, CLASSES, 2 * e.width, **ranks)
    states = [variable.value for variable in model.non_trainable_variables]
    names = [variable.path for variable in model.trainable_variables]
    shapes = {v.path: jax.ShapeDtypeStruct(v.shape, jnp.float32) for v in model.trainable_variables}
    apply = lambda params, x: model.stateless_call([params[name] for name in names], states, x)[0]
    factors = {"*/output_layer/kernel": e.branch("time"), "*/dense_v/kernel": e.branch("channels")}
    return with_factors(apply, {**factors, "*head/kernel": e.readout()}), shapes


def fno(e: Scales) -> Pair:
    arch = importlib.import_module("pdequinox.arch")
    new = lambda key: arch.ClassicFNO(1, 2, 3, hidden_channels=e.width, num_modes=4, num_blocks=2, key=key)
    apply, shapes = equinox(new)
    return with_factors(apply, {"projection*weight": e.readout()}), shapes


def mamba(e: Scales) -> Pair:
    code = importlib.import_module("jaxonmodels.models.mamba")
    apply, shapes = equinox(lambda key: code.Mamba(e.width, 40, e.depth, dt_rank=4, key=key))
    return with_factors(apply, {"*out_proj/*": e.branch("mamba"), "shared*": e.readout()}), shapes


def jaxonmodels_vit(e: Scales) -> Pair:
    code = importlib.import_module("jaxonmodels.models.vit")
    new = lambda key: code.VisionTransformer(16, 4, e.width, e.depth, e.width // HEAD, CLASSES, key=key)
    apply, shapes = equinox(new, lambda result: result[0])
    factors = {"*attn*out_proj*": e.branch("attention"), "*c_proj*": e.branch("mlp"), "proj": e.readout()}
    return with_factors(apply, factors), shapes


def brax(e: Scales) -> Pair:
    code = importlib.import_module("brax.training.networks")
    net = code.MLP(layer_sizes=[e.width] * 3 + [CLASSES], layer_norm=True)
    apply, shapes = linen(net, jax.ShapeDtypeStruct((4, 7), jnp.float32))
    return with_factors(apply, {"hidden_3/kernel": e.readout()}), shapes


def attnax(e: Scales, **fields: Any) -> Pair:
    code = importlib.import_module("attnax")
    config = code.VisionTransformerConfig(
        image_size=16, patch_size=4, num_classes=CLASSES, d_model=e.width, num_heads=e.width // HEAD,
        num_layers=e.depth, d_ff=2 * e.width, dropout_rate=0.0, **fields,
    )  # fmt: skip
    apply, shapes = of_nnx(lambda rngs: code.VisionTransformer(rngs, config), lambda y: y, deterministic=True)
    factors = {
        "*/output_proj/*": e.branch("attention"),
        "*/ffn/dense2/*": e.branch("mlp"),
        "head/kernel/value": e.readout(),
    }
    return with_factors(apply, factors), shapes


def dantinox(e: Scales, **fields: Any) -> Pair:
    code = importlib.import_module("dantinox.core.model")
    config = importlib.import_module("dantinox.core.config").ModelConfig(
        dim=e.width, n_heads=e.width // HEAD, head_size=HEAD, num_blocks=e.depth, vocab_size=CLASSES, max_context=6,
        weight_tying=False, **fields,
    )  # fmt: skip
    apply, shapes = of_nnx(lambda rngs: code.Transformer(config, rngs), lambda y: y.logits, deterministic=True)
    factors = {"*/o_proj/*": e.branch("attention"), "*/down_proj/*": e.branch("mlp"), "head/kernel/*": e.readout()}
    return with_factors(apply, factors), shapes


def unet(e: Scales) -> Pair:
    code = importlib.import_module("diffusers.models.unets.unet_2d_condition_flax")
    width = 2 * e.width  # its norms have 32 groups
    net = code.FlaxUNet2DConditionModel(
        sample_size=8, in_channels=3, out_channels=3, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), block_out_channels=(width, 2 * width), layers_per_block=1,
        attention_head_dim=width // HEAD, cross_attention_dim=12,
    )  # fmt: skip
    x = (CHANNELS_FIRST, _TIMES[1], jax.ShapeDtypeStruct((2, 5, 12), jnp.float32))
    apply, shapes = linen(net, *x)
    return with_factors(lambda params, *x: apply(params, *x).sample, {"conv_out/kernel": e.readout()}), shapes


_SAMPLES = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 2, 3, 6), (2, 2, 4), (2, 2, 1)))
_WIDE = functools.partial(Kind, naming=None, size=(4 * BASE_WIDTH, 2), arguments={"axes": "width"})
_BOTH = functools.partial(Kind, naming=None)
_SEQUENCES = jax.ShapeDtypeStruct((2, 12, 3), jnp.float32), jax.ShapeDtypeStruct((2, 12), jnp.float32)
PACKAGES: Mapping[str, Kind] = {
    "MLP-Mixer, google-research/vision_transformer c6de1e5": _BOTH(mixer, IMAGES),
    "DiT, kvfrans/jax-diffusion-transformer 94ea607": _BOTH(dit, (IMAGES, *_TIMES)),
    "S5, lindermanlab/S5 3c18fdb": _BOTH(s5, _SEQUENCES),
    "Octo, octo-models/octo 241fb35": _BOTH(octo, _SAMPLES),
    "FNO, Ceyron/pdequinox 4cc1f53": _WIDE(fno, jax.ShapeDtypeStruct((2, 2, 16), jnp.float32)),
    "Mamba, jaxonmodels 0.2.3": _BOTH(mamba, TOKENS),
    "ViT, jaxonmodels 0.2.3": _BOTH(jaxonmodels_vit, CHANNELS_FIRST),
    "MLP of a policy, brax 0.14.2": _WIDE(brax, jax.ShapeDtypeStruct((4, 7), jnp.float32)),
    "ViT, attnax 0.2.0": _BOTH(attnax, IMAGES),
    "language model, dantinox 0.4.14": _BOTH(dantinox, TOKENS),
    "U-Net, diffusers 0.33.1": _WIDE(unet, (CHANNELS_FIRST, _TIMES[1], jax.ShapeDtypeStruct((2, 5, 12), jnp.float32))),
    "RWKV-7, pass-lin/RWKV7-Keras 2729c1c": _BOTH(rwkv7, TOKENS),
}


# --- what the audit says of each

RECORDS = pathlib.Path(__file__).with_name("packages.jsonl")
MISTAKES = ("none", "squared", "by_width", "no_readout", "double_readout")
STEPS = 10
MOST_SECONDS = 15.0  # of an audit whose products are multiplied in turn, as that takes a hundred audits


def trained(kind: Kind, mistake: str = "") -> np.ndarray:
    """Outputs after `rescale_init` and ten steps of Adam, of the model with a mistake that parameters carry."""
    audit = kind.audit(mistake, carry=True)
    rule = kind.rule.replace(branch_multiplier=1.0)
    (apply, shapes), (_, base) = (
        kind.model(kind.scales(*size, mistake)) for size in (kind.size, (BASE_WIDTH, kind.size[1]))
    )
    rng = np.random.default_rng(0)
    params, base = (jax.tree.map(functools.partial(_initial, rng), tree) for tree in (shapes, base))
    params = dm.rescale_init(params, base, audit.info, rule)
    inputs = jax.tree.map(functools.partial(_drawn, rng, 1.0), kind.x)
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    targets = rng.normal(size=jax.eval_shape(apply, params, *inputs).shape)
    optimizer = dm.adamw(2**-8, audit.info, rule, eps=1e-3)

    def step(state: Any, _: None) -> tuple[Any, None]:
        params, moments = state
        gradients = jax.grad(lambda params: ((apply(params, *inputs) - targets) ** 2).mean())(params)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), None

    (params, _), _ = jax.jit(lambda state: jax.lax.scan(step, state, length=STEPS))((params, optimizer.init(params)))
    return np.asarray(jax.jit(apply)(params, *inputs))


def _initial(rng: np.random.Generator, x: Any) -> jax.Array:
    fan_in = x.size / x.shape[-1] if len(x.shape) > 1 else 4.0
    return jnp.asarray(rng.normal(0, 0.2 * fan_in**-0.5, x.shape), x.dtype)  # a recurrence of S5 stays stable


def row(name: str) -> dict[str, Any]:
    """What the audit says of one package."""
    kind = PACKAGES[name]
    kind.model(kind.scales(*kind.size))  # imports
    start = time.perf_counter()
    right = kind.audit().verdict
    seconds = time.perf_counter() - start
    plain = carried.plain(kind)
    distance = math.nan
    if right == plain == "ok":
        wanted, found = (trained(kind, mistake) for mistake in ("", "+".join(carried.edits(kind))))
        distance = float(np.max(np.abs(wanted - found)) / np.max(np.abs(wanted)))
    tried = [mistake for mistake in kind.mistakes() if mistake in MISTAKES or mistake.startswith("only_")]
    mistakes = {mistake: kind.audit(mistake).verdict for mistake in tried}
    found = mutations.outcomes(kind) if seconds < MOST_SECONDS else ()
    products = {" ".join(map(str, (*product, power))): outcome for product, power, outcome in found}
    return {"name": name, "right": right, "plain": plain, "distance": distance, "seconds": seconds,
            "mistakes": mistakes, "products": products}  # fmt: skip


def run() -> None:
    """Appends the packages that are installed, and not in the records, to these."""
    done = {of_package["name"] for of_package in read()}
    for name, kind in PACKAGES.items():
        try:
            kind.model(kind.scales(*kind.size))
        except ImportError as error:
            print(f"{name} is skipped: {error}")
            continue
        if name not in done:
            with RECORDS.open("a") as file:
                file.write(json.dumps(row(name)) + "\n")


def read() -> list[dict[str, Any]]:
    """The records: one row for each package."""
    lines = RECORDS.read_text().splitlines() if RECORDS.exists() else []
    return [json.loads(line) for line in lines]


def table() -> str:
    """The records as a table of Markdown."""
    columns = (
        "model",
        "with edits",
        "without",
        "apart",
        "mistakes found",
        "products found",
        "of any size",
        "blind",
        "s",
    )
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for of_package in read():
        found = Counter(of_package["products"].values())
        counts = found[mutations.FOUND] + found[mutations.NOT_READ]
        of_any_size = found[mutations.OF_ANY_SIZE] + found[mutations.UNUSED]
        seen = sum(verdict != "ok" for verdict in of_package["mistakes"].values())
        mistakes = f"{seen} of {len(of_package['mistakes'])}" if of_package["right"] == "ok" else "-"
        distance = "-" if math.isnan(of_package["distance"]) else f"{of_package['distance']:.0e}"
        cells = (
            of_package["name"], of_package["right"], of_package["plain"], distance,
            mistakes, f"{counts} of {found.total()}", of_any_size,
            found[mutations.BLIND], f"{of_package['seconds']:.0f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
