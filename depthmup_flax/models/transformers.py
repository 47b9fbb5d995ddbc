"""The transformers: of images (B24 App. A.3), and the decoder-only language model (TP6 sec. 10.3)."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup_flax.devices.sharding import stream
from depthmup_flax.models.base import Classifier, LanguageModel, TransformerNetwork
from depthmup_flax.nn.blocks import LayerConfig
from depthmup_flax.nn.layers import STEM, normal
from depthmup_flax.nn.transformer import Embed
from depthmup_flax.util.errors import InputError


class ViT(TransformerNetwork, Classifier):
    """Patches, a class token, positions, pre-norm or norm-free transformer blocks, a readout (B24 A.3).

    Attention logits are scaled by ``sqrt(d_base) / d`` and queries start at zero. Other weights start with standard
    deviation ``sigma / sqrt(fan_in)``; the paper writes 1/sqrt(N) for all. Other fields: `TransformerNetwork`.

    Attributes:
      positions: ``learned``; or ``rotary``, by row and column. A class token is not rotated.
    """

    choices = TransformerNetwork.choices | {"pool": ("token", "mean")}
    rotary_divisor = 4

    width: int = 192
    depth: int = 12
    patch_size: int = 8  # side of a square patch in pixels
    pool: str = "token"  # ``token``, a class token; or ``mean`` over patches

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """``[B, H, W, C] -> [B, num_classes]``: logits, at least float32."""
        if x.shape[1] % self.patch_size or x.shape[2] % self.patch_size:
            raise InputError(f"model.patch_size is {self.patch_size}: use a divisor of the sides, {x.shape[1:3]}.")
        rows, columns = (side // self.patch_size for side in x.shape[1:3])
        stem = self.config(LayerConfig, train=train).dense(self.width, STEM, name="stem")
        h = stem(patches(x.astype(self.param_dtype), self.patch_size)).astype(self.param_dtype)
        if self.positions != "rotary":
            h = h + self.position_table(rows * columns)
        if self.pool == "token":
            init = normal(self.embedding_std, (None, None, "width_out"))
            token = self.param("class_token", init, (1, 1, self.width), self.param_dtype)
            h = jnp.concatenate([jnp.broadcast_to(token, (len(h), 1, self.width)), h], axis=1)
        h = self.transform(stream(h), grid=(rows, columns), train=train, causal=False)
        return self.logits(h[:, 0] if self.pool == "token" else h.mean(1), self.num_classes)


def patches(x_BxHxWxC: jax.Array, size: int) -> jax.Array:
    """``[B, H, W, C] -> [B, (H / size) (W / size), size * size * C]``, row by row."""
    b, height, width, channels = x_BxHxWxC.shape
    x = x_BxHxWxC.reshape(b, height // size, size, width // size, size, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, size * size * channels)


class GPT(TransformerNetwork, LanguageModel):
    """Token embeddings and positions, causal transformer blocks as in `ViT`, a readout over the vocabulary.

    Other fields: `TransformerNetwork`.

    Attributes:
      positions: ``learned``, for at most as many tokens as at initialization; or ``rotary``, for any number.
    """

    rotary_divisor = 2

    width: int = 128
    depth: int = 4
    tied: bool = False  # the readout's weights are the token embedding. Excludes ``zero_init_readout``.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tied and self.zero_init_readout:
            raise InputError("model.zero_init_readout is True: a tied readout is the token embedding. Set one False.")

    @property
    def multipliers(self) -> dict[str, float]:
        """Those of `TransformerNetwork`; a tied readout's has the factor of `Embed.attend`."""
        found = super().multipliers
        if self.tied:
            found["readout"] /= math.sqrt(self.rule.readout_fan_in(self.width, self.width_ratio))
        return found

    @nn.compact
    def __call__(self, tokens: jax.Array, *, train: bool = False) -> jax.Array:
        """``[B, T]`` of integers ``-> [B, T, vocab_size]``: logits, at least float32."""
        length, rule, m = tokens.shape[1], self.rule, self.width_ratio
        embed = Embed(self.vocab_size, self.width, rule, m, self.sigma, self.param_dtype, self.dtype, name="stem")
        h = embed(tokens)
        if self.positions != "rotary":
            h = h + self.position_table(length)
        h = self.transform(stream(h), grid=(length,), train=train, causal=True)
        if self.tied:
            return embed.attend(h)
        return self.logits(h, self.vocab_size, "vocab_out")
