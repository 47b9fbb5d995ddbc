"""Models in the styles of public code, in modules of Linen and NNX."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from .branches import attend, rotate, sines, unit_rms
from .cases import Kind
from .scales import BASE_WIDTH, HEADS, Scales

VOCABULARY, CLASSES, HEAD_DIM = 11, 4, 8  # HEAD_DIM where the number of heads grows, HEADS where their dimension does
TEXT = jax.ShapeDtypeStruct((2, 6), jnp.int32)
IMAGES = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)
VECTORS = jax.ShapeDtypeStruct((3, 12), jnp.float32)
Dense = functools.partial(nn.Dense, use_bias=False)


class Module(nn.Module):
    """A part of a network of one size."""

    e: Scales


def scanned(block: type[nn.Module], e: Scales, name: str, **options: Any) -> Any:
    """A stack of ``block``s under ``nn.scan``."""
    options = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, **options}
    return nn.scan(block, length=e.depth, **options)(e, name=name)


def flax_attention(e: Scales, width: int, name: str) -> nn.MultiHeadDotProductAttention:
    """Flax's own module; the head dimension grows, and its 1/sqrt(d) is turned into the scale of ``e``."""

    @functools.wraps(nn.dot_product_attention)  # Flax passes the arguments that it finds in the signature
    def attention_fn(query: jax.Array, *args: jax.Array, **kwargs: jax.Array) -> jax.Array:
        d = query.shape[-1]
        return nn.dot_product_attention(query * e.heads(d) * d**0.5, *args, **kwargs)

    return nn.MultiHeadDotProductAttention(HEADS, use_bias=False, attention_fn=attention_fn, name=name)


class SetupBlock(Module):
    """Pre-norm attention and GELU feed-forward, in ``setup``."""

    def setup(self):
        n = self.e.width
        heads = lambda: nn.DenseGeneral((HEADS, n // HEADS), use_bias=False)
        self.query, self.key, self.value = heads(), heads(), heads()
        self.attn_out = nn.DenseGeneral(n, axis=(-2, -1), use_bias=False)
        self.norm_attn, self.norm_mlp = nn.LayerNorm(use_bias=False), nn.LayerNorm(use_bias=False)
        self.up, self.down = Dense(4 * n), Dense(n)

    def __call__(self, x):
        e, y = self.e, self.norm_attn(x)
        mixed = attend(self.query(y), self.key(y), self.value(y), e.heads(e.width // HEADS))
        x = e.stream() * x + e.branch("attention") * self.attn_out(mixed)
        return x + e.branch("mlp") * self.down(nn.gelu(e.inner() * self.up(self.norm_mlp(x))))


class SetupGPT(Module):
    """nanodo's: everything in ``setup``, learned positions, the embedding is the readout too."""

    def setup(self):
        self.embed = nn.Embed(VOCABULARY, self.e.width)
        self.pos_embed = nn.Embed(6, self.e.width)
        self.blocks = [SetupBlock(self.e) for _ in range(self.e.depth)]
        self.out_norm = nn.LayerNorm(use_bias=False)

    def __call__(self, tokens):
        x = self.e.embedding() * self.embed(tokens) + self.pos_embed(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.e.readout() * self.embed.attend(self.out_norm(x))


class ReluMlp(Module):
    """A feed-forward with biases, in modules that Flax numbers."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.e.width)(nn.relu(self.e.inner() * nn.Dense(2 * self.e.width)(x)))


class SineDecoder(Module):
    """lm1b's: fixed positions, tied logits that had a 1/sqrt(D) of their own."""

    @nn.compact
    def __call__(self, tokens):
        e = self.e
        embed = nn.Embed(VOCABULARY, e.width, name="shared_embedding")
        x = e.embedding() * embed(tokens) + sines(tokens.shape[1], e.width)
        mask = nn.make_causal_mask(tokens)
        for i in range(e.depth):
            y = nn.LayerNorm(name=f"decoderblock_{i}_norm_1")(x)
            x = x + e.branch("attention", i) * flax_attention(e, e.width, f"decoderblock_{i}_attention")(y, mask=mask)
            y = nn.LayerNorm(name=f"decoderblock_{i}_norm_2")(x)
            x = x + e.branch("mlp", i) * ReluMlp(e, name=f"decoderblock_{i}_mlp")(y)
        return e.readout() * BASE_WIDTH**-0.5 * embed.attend(nn.LayerNorm(name="decoder_norm")(x))


class BoxedMLP(Module):
    """Parameters in Flax's boxes, which name the axes of a mesh."""

    @nn.compact
    def __call__(self, x):
        e = self.e
        boxed = lambda *names: nn.with_partitioning(nn.initializers.lecun_normal(), names)
        x = nn.Dense(e.width, kernel_init=boxed(None, "model"), name="stem")(x)
        for i in range(e.depth):
            y = nn.tanh(nn.LayerNorm(name=f"layer_{i}_norm")(x))
            y = nn.Dense(e.width, kernel_init=boxed("data", "model"), name=f"layer_{i}_dense")(y)
            x = e.stream() * x + e.branch("mlp", i) * y
        return nn.Dense(CLASSES, kernel_init=boxed("model", None), name="head")(e.readout() * x)


class ResNetBlock(Module):
    """Two convolutions, each with BatchNorm; a projection in the shortcut where shapes change."""

    features: int = 0
    strides: int = 1

    @nn.compact
    def __call__(self, x, i):
        e, norm = self.e, functools.partial(nn.BatchNorm, use_running_average=False, axis_name="devices")
        conv = functools.partial(nn.Conv, self.features, use_bias=False)
        y = nn.relu(norm()(conv((3, 3), (self.strides, self.strides))(x)))
        y = norm()(e.before() * conv((3, 3))(y))
        if x.shape != y.shape:
            x = norm(name="norm_proj")(conv((1, 1), (self.strides, self.strides), name="conv_proj")(x))
        return nn.relu(e.stream() * x + e.branch("block", i) * y)


class BatchNormResNet(Module):
    """flax's ImageNet ResNet: two stages, modules that Flax numbers, BatchNorm over a named axis of devices."""

    @nn.compact
    def __call__(self, x):
        e, n = self.e, self.e.width
        x = nn.Conv(n, (3, 3), use_bias=False, name="conv_init")(x)
        x = nn.relu(nn.BatchNorm(use_running_average=False, axis_name="devices", name="bn_init")(x))
        for i in range(e.depth):
            second = i >= e.depth // 2
            x = ResNetBlock(e, n * (1 + second), 1 + (i == e.depth // 2))(x, i)
        return nn.Dense(CLASSES)(e.readout() * x.mean((1, 2)))


class EncoderBlock(Module):
    """Pre-norm attention and feed-forward."""

    @nn.compact
    def __call__(self, x, _):
        e, n = self.e, self.e.width
        y = nn.LayerNorm(name="norm_attention")(x)
        x = e.stream() * x + e.branch("attention") * flax_attention(e, n, "attention")(y)
        return x + e.branch("mlp") * ReluMlp(e, name="mlp")(nn.LayerNorm(name="norm_mlp")(x)), None


class MapHead(Module):
    """Attention from one learned probe to all tokens, and a feed-forward around it, in every depth once."""

    @nn.compact
    def __call__(self, x):
        n = self.e.width
        probe = jnp.tile(self.param("probe", nn.initializers.normal(), (1, 1, n)), (x.shape[0], 1, 1))
        x = flax_attention(self.e, n, "attention")(probe, x)
        y = nn.Dense(2 * n, name="up")(nn.LayerNorm(name="norm")(x))
        return (x + nn.Dense(n, name="down")(nn.gelu(y)))[:, 0]


class MapViT(Module):
    """big_vision's ViT: scanned blocks, a head that attends, logits and a dictionary of features as outputs."""

    @nn.compact
    def __call__(self, x):
        e, n = self.e, self.e.width
        x = nn.Conv(n, (4, 4), strides=(4, 4), padding="VALID", name="embedding")(x)
        x = x.reshape(x.shape[0], -1, n)
        x = x + self.param("pos_embedding", nn.initializers.normal(), (1, *x.shape[1:]))
        x, _ = scanned(EncoderBlock, e, "encoderblock")(x, None)
        out = {"encoded": nn.LayerNorm(name="encoder_norm")(x)}
        out["head_input"] = MapHead(e, name="map_head")(out["encoded"])
        return nn.Dense(CLASSES, name="head")(e.readout() * out["head_input"]), out


class GemmaNorm(nnx.Module):
    """Gemma's: the scale is stored minus 1."""

    def __init__(self, width: int):
        self.scale = nnx.Param(jnp.zeros(width))

    def __call__(self, x):
        return unit_rms(x) * (1 + self.scale[...])


class Einsum(nnx.Module):
    """One weight in an einsum."""

    def __init__(self, rngs: nnx.Rngs, *shape: int):
        self.w = nnx.Param(jax.random.normal(rngs.params(), shape))

    def __call__(self, equation, x):
        return jnp.einsum(equation, x, self.w[...])


class GemmaBlock(nnx.Module):
    """Attention with half as many heads of keys and values, and a gated feed-forward."""

    def __init__(self, e: Scales, rngs: nnx.Rngs):
        self.e, n, heads = e, e.width, e.width // HEAD_DIM
        self.pre_attention_norm, self.pre_ffw_norm = GemmaNorm(n), GemmaNorm(n)
        self.q_einsum = Einsum(rngs, heads, n, HEAD_DIM)
        self.kv_einsum = Einsum(rngs, 2, heads // 2, n, HEAD_DIM)
        self.attn_vec_einsum = Einsum(rngs, heads, HEAD_DIM, n)
        self.gating_einsum = Einsum(rngs, 2, n, 2 * n)
        self.linear = Einsum(rngs, 2 * n, n)

    def __call__(self, x, i):
        e, y = self.e, self.pre_attention_norm(x)
        q, (k, v) = self.q_einsum("btd,hde->bthe", y), self.kv_einsum("btd,ckde->cbtke", y)
        y = attend(rotate(q), rotate(k), v, HEAD_DIM**-0.5)
        x = e.stream() * x + e.branch("attention", i) * self.attn_vec_einsum("bthe,hed->btd", y)
        gate, up = e.inner() * self.gating_einsum("btd,cdf->cbtf", self.pre_ffw_norm(x))
        return x + e.branch("mlp", i) * self.linear("btf,fd->btd", jax.nn.gelu(gate) * up)


class Gemma(nnx.Module):
    """Einsum layouts, grouped queries, a tied table that goes in times sqrt(D) of the base; in NNX."""

    def __init__(self, e: Scales, rngs: nnx.Rngs):
        self.e = e
        self.input_embedding = nnx.Param(jax.random.normal(rngs.params(), (VOCABULARY, e.width)))
        self.layers = nnx.List([GemmaBlock(e, rngs) for _ in range(e.depth)])
        self.final_norm = GemmaNorm(e.width)

    def __call__(self, tokens):
        x = self.input_embedding[...][tokens] * self.e.embedding() * BASE_WIDTH**0.5
        for i, layer in enumerate(self.layers):
            x = layer(x, i)
        return self.final_norm(x) @ self.input_embedding[...].T * self.e.readout()


def _kind(make: Any, x: Any, **fields: Any) -> Kind:
    return Kind(make, x, None, **fields)


STYLES: Mapping[str, Kind] = {
    "styles/nanodo": _kind(SetupGPT, TEXT),
    "styles/lm1b": _kind(SineDecoder, TEXT),
    "styles/boxed": _kind(BoxedMLP, VECTORS),
    "styles/flax_resnet": _kind(BatchNormResNet, IMAGES),
    "styles/map_vit": _kind(MapViT, IMAGES, arguments={"output": 0}),
    "styles/gemma": _kind(lambda e: nnx.eval_shape(lambda: Gemma(e, nnx.Rngs(0))), TEXT),
}
