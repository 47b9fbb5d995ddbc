"""Models that somebody who had not seen the audit's code wrote, from its documentation alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from .branches import attend, rotate
from .cases import Kind
from .outsider_functions import FUNCTIONS
from .outsider_libraries import LIBRARIES
from .scales import Scales

Dense = functools.partial(nn.Dense, use_bias=False)


def convolved(u: jax.Array, kernel: jax.Array) -> jax.Array:
    """A causal convolution as long as the sequence, by Fourier transforms."""
    n = 2 * u.shape[1]
    product = jnp.fft.rfft(u, n, axis=1) * jnp.fft.rfft(kernel, n, axis=0)
    return jnp.fft.irfft(product, n, axis=1)[:, : u.shape[1]]


class HyenaOperator(nn.Module):
    """Gates and long convolutions in turn; a network of positions makes the kernels."""

    e: Scales

    @nn.compact
    def __call__(self, x):
        n, length = self.e.width, x.shape[1]
        u = nn.Dense(3 * n, name="in_proj")(x)
        u = nn.Conv(3 * n, (3,), padding=[(2, 0)], feature_group_count=3 * n, name="short_filter")(u)
        *gates, v = jnp.split(u, 3, -1)
        t = jnp.linspace(0, 1, length)[:, None]
        z = jnp.concatenate([t] + [f(6.28 * k * t) for k in (1, 2) for f in (jnp.sin, jnp.cos)], -1)
        frequency = self.param("freq", nn.initializers.ones, (16,))
        for i in range(2):
            z = jnp.sin(frequency * nn.Dense(16, name=f"implicit_{i}")(z))
        kernels = Dense(2 * n, name="implicit_out")(z).reshape(length, 2, n) * jnp.exp(-t[:, None])
        bias = self.param("bias", nn.initializers.normal(1.0), (2, n))
        for order, gate in enumerate(reversed(gates)):
            v = convolved(v * gate, kernels[:, order]) + v * gate * bias[order]
        return nn.Dense(n, name="out_proj")(v)


class Hyena(nn.Module):
    """Long convolutions and feed-forward layers, tied embeddings."""

    e: Scales

    @nn.compact
    def __call__(self, tokens):
        e, n = self.e, self.e.width
        embed = nn.Embed(11, n, name="wte")
        h = e.embedding() * embed(tokens)
        for i in range(e.depth):
            h = h + e.branch("mixer", i) * HyenaOperator(e, name=f"mixer_{i}")(nn.LayerNorm(name=f"ln1_{i}")(h))
            y = e.inner() * nn.Dense(4 * n, name=f"fc1_{i}")(nn.LayerNorm(name=f"ln2_{i}")(h))
            h = h + e.branch("mlp", i) * nn.Dense(n, name=f"fc2_{i}")(nn.gelu(y))
        return embed.attend(nn.LayerNorm(name="ln_f")(h)) * e.readout()


class LlamaBlock(nn.Module):
    """Grouped queries with rotary positions, a gated feed-forward layer."""

    e: Scales

    @nn.compact
    def __call__(self, h, _):
        e, n = self.e, self.e.width
        dense, d = functools.partial(nn.DenseGeneral, use_bias=False), n // 4
        y = nn.RMSNorm(name="input_norm")(h)
        q = rotate(dense((4, d), name="wq")(y))
        k, v = rotate(dense((2, d), name="wk")(y)), dense((2, d), name="wv")(y)
        y = dense(n, axis=(-2, -1), name="wo")(attend(q, k, v, e.heads(d, 4)))
        h = e.stream() * h + e.branch("attention") * y
        y = e.input() * nn.RMSNorm(name="post_norm")(h)
        y = nn.silu(dense(3 * n, name="gate")(y)) * dense(3 * n, name="up")(y)
        return h + e.branch("mlp") * dense(n, name="down")(y), None


class Llama(nn.Module):
    """Rematerialized blocks under ``nn.scan``."""

    e: Scales

    @nn.compact
    def __call__(self, tokens):
        h = self.e.embedding() * nn.Embed(11, self.e.width, name="tok_embeddings")(tokens)
        remat = nn.remat(LlamaBlock, prevent_cse=False)
        block = nn.scan(remat, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.e.depth)
        h, _ = block(self.e, name="layers")(h, None)
        return Dense(11, name="output")(nn.RMSNorm(name="norm")(h)) * self.e.readout()


class UViT(nn.Module):
    """Long skips join the second half as branches; a convolution of the pixels follows the readout."""

    e: Scales

    @nn.compact
    def __call__(self, images, times):
        e, n, b = self.e, self.e.width, images.shape[0]
        h = nn.Conv(n, (4, 4), strides=(4, 4), name="patch_embed")(images).reshape(b, -1, n)
        angles = times[:, None] * jnp.exp(-jnp.arange(4.0))
        time = nn.Dense(n, name="time_embed")(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
        h = jnp.concatenate([time[:, None], h], 1)
        h = h + self.param("pos_embed", nn.initializers.normal(0.02), (1, h.shape[1], n))
        skips = []
        for i in range(e.depth):
            if i >= e.depth // 2:
                y = nn.Dense(n, name=f"block_{i}_skip_linear")(jnp.concatenate([h, skips.pop()], -1))
                h = h + e.branch("skip") * y
            y = nn.LayerNorm(name=f"block_{i}_norm1")(h)
            h = h + e.branch("attention", i) * nn.MultiHeadDotProductAttention(n // 8, name=f"block_{i}_attn")(y, y)
            y = nn.gelu(nn.Dense(4 * n, name=f"block_{i}_fc1")(nn.LayerNorm(name=f"block_{i}_norm2")(h)))
            h = h + e.branch("mlp", i) * nn.Dense(n, name=f"block_{i}_fc2")(y)
            skips.append(h)
        h = nn.Dense(48, name="decoder_pred")(nn.LayerNorm(name="norm")(h) / e.m)
        h = h[:, 1:].reshape(b, 2, 2, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(b, 8, 8, 3)
        return nn.Conv(3, (3, 3), name="final_layer")(h)


class DiTBlock(nn.Module):
    """One layer of the condition modulates and gates both branches."""

    e: Scales
    layer: int

    @nn.compact
    def __call__(self, h, condition):
        e, n, norm = self.e, self.e.width, nn.LayerNorm(use_scale=False, use_bias=False)
        modulation = nn.Dense(6 * n, kernel_init=nn.initializers.zeros, name="adaLN")(nn.silu(condition))
        s1, b1, g1, s2, b2, g2 = jnp.split(modulation[:, None], 6, -1)
        y = norm(h) * (1 + s1) + b1
        y = g1 * nn.MultiHeadDotProductAttention(n // 8, name="attn")(y, y)
        h = h + e.branch("attention", self.layer) * y
        y = e.inner() * nn.Dense(4 * n, name="fc1")(norm(h) * (1 + s2) + b2)
        return h + e.branch("mlp", self.layer) * g2 * nn.Dense(n, name="fc2")(nn.gelu(y))


class DiT(nn.Module):
    """A diffusion transformer: times and classes condition every block."""

    e: Scales

    @nn.compact
    def __call__(self, latents, times, classes):
        e, n, b = self.e, self.e.width, latents.shape[0]
        h = nn.Conv(n, (2, 2), strides=(2, 2), name="x_embedder")(latents).reshape(b, -1, n)
        h = h + self.param("pos_embed", nn.initializers.normal(1.0), (1, h.shape[1], n))
        angles = times[:, None] * jnp.exp(-jnp.arange(8.0))
        c = nn.Dense(n, name="t_mlp1")(jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1))
        c = e.outer() * nn.Dense(n, name="t_mlp2")(nn.silu(c)) + nn.Embed(11, n, name="y_embedder")(classes)
        for i in range(e.depth):
            h = DiTBlock(e, i, name=f"blocks_{i}")(h, c)
        shift, scale = jnp.split(nn.Dense(2 * n, name="final_adaLN")(nn.silu(c))[:, None], 2, -1)
        h = nn.LayerNorm(use_scale=False, use_bias=False)(h) * (1 + scale) + shift
        return nn.Dense(16, name="final_linear")(h * e.readout())


class MixtureOfDepths(nn.Module):
    """Every other block changes half of the tokens; the router's weight of a token multiplies its change."""

    e: Scales

    @nn.compact
    def __call__(self, tokens):
        e, n = self.e, self.e.width
        h = e.embedding() * nn.Embed(11, n, name="embed")(tokens)
        for i in range(e.depth):
            score = Dense(1, kernel_init=nn.initializers.zeros, name=f"mod_{i}_router")(h)[..., 0]
            gate, chosen = jax.lax.top_k(score, tokens.shape[1] // 2)
            x = jnp.take_along_axis(h, chosen[..., None], 1)
            y = nn.LayerNorm(name=f"mod_{i}_ln_1")(x)
            u = nn.MultiHeadDotProductAttention(n // 8, name=f"mod_{i}_attn")(y, y)
            y = nn.gelu(nn.Dense(4 * n, name=f"mod_{i}_fc")(nn.LayerNorm(name=f"mod_{i}_ln_2")(x)))
            u = (u + nn.Dense(n, name=f"mod_{i}_proj")(y)) * nn.sigmoid(gate)[..., None]
            h = h.at[jnp.arange(h.shape[0])[:, None], chosen].add(e.branch("routed", i) * u)
            y = nn.gelu(nn.Dense(4 * n, name=f"dense_{i}_fc")(nn.LayerNorm(name=f"dense_{i}_ln")(h)))
            h = h + e.branch("dense", i) * nn.Dense(n, name=f"dense_{i}_proj")(y)
        return nn.Dense(11, name="head")(nn.LayerNorm(name="ln_f")(h) * e.readout())


F, X, TOKENS = jnp.float32, jax.ShapeDtypeStruct, jax.ShapeDtypeStruct((2, 6), jnp.int32)
LINEN: Mapping[str, Kind] = {
    "hyena": Kind(Hyena, TOKENS, None),
    "llama": Kind(Llama, TOKENS, None),
    "u_vit": Kind(UViT, (X((2, 8, 8, 3), F), X((2,), F)), None),
    "dit": Kind(DiT, (X((2, 8, 8, 4), F), X((2,), F), X((2,), jnp.int32)), None),
    "mixture_of_depths": Kind(MixtureOfDepths, TOKENS, None),
}
OUTSIDER: Mapping[str, Kind] = {f"outsider/{name}": kind for name, kind in {**LINEN, **LIBRARIES, **FUNCTIONS}.items()}
