"""The decoder-only language model (TP6 sec. 10.3)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup_flax.errors import InputError
from depthmup_flax.models.sizes import require_choice, require_dropout, require_sizes
from depthmup_flax.nn.layers import Readout
from depthmup_flax.nn.transformer import (
    Embed,
    Transformer,
    base_head_dim,
    heads,
    learned_positions,
    require_heads,
    sincos_positions,
)
from depthmup_flax.rule.parametrization import PRESETS, Parametrization


class GPT(nn.Module):
    """Token and position embeddings, causal transformer blocks as in `ViT`, a readout over the vocabulary.

    Attributes:
      vocab_size: number of tokens.
      width: n, the model dimension.
      depth: transformer layers (TP6's L in 10.3); each has two residual branches, attention and feed-forward.
      base_width, base_depth: the tuned proxy's; 0 means this model is its own base.
      parametrization: the rule.
      num_heads: heads at every width, so that their dimension grows with it.
      head_dim: if above 0, the dimension of a head at every width, so that their number grows; ``num_heads`` is then
        not used.
      mlp_ratio: hidden features of the feed-forward branch in units of ``width``.
      norm: ``layer`` (at the beginning of each branch, and before the readout) or ``none``.
      positions: ``learned`` (as many as the tokens that the model is initialized with) or ``sincos`` (fixed).
      tied: the readout's weights are the token embedding.
      dropout: of branch outputs in training.
      zero_init_readout: the readout starts at zero; not with ``tied``.
      use_bias: biases in every layer, an untied readout included.
      sigma: initial standard deviation of the weights in units of ``1/sqrt(fan_in)``.
      scan: compile one layer and loop over it, or compile every layer.
      remat: what the backward pass computes again to save memory: ``none``, ``dots`` (all but products with weights)
        or ``full``.
      dtype: of the computation inside layers.
      param_dtype: of parameters and of the residual stream.
    """

    input_kind: ClassVar[str] = "tokens"

    vocab_size: int
    width: int = 128
    depth: int = 4
    base_width: int = 0
    base_depth: int = 0
    parametrization: Parametrization = PRESETS["depth_mup"]
    num_heads: int = 4
    head_dim: int = 0
    mlp_ratio: int = 4
    norm: str = "layer"
    positions: str = "learned"
    tied: bool = False
    dropout: float = 0.0
    zero_init_readout: bool = False
    use_bias: bool = False
    sigma: float = 1.0
    scan: bool = True
    remat: str = "none"
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        require_sizes(self, "vocab_size", "width", "depth", "num_heads", "mlp_ratio", or_zero=("head_dim",))
        require_heads(self.width, self.base_width, self.num_heads, self.head_dim)
        require_choice(self, "norm", ("none", "layer"))
        require_choice(self, "positions", ("learned", "sincos"))
        require_dropout(self)
        if self.positions == "sincos" and self.width % 2:
            raise InputError(f"model.width is {self.width}: sincos positions need a multiple of 2.")
        if self.tied and self.zero_init_readout:
            raise InputError("model.zero_init_readout is set, but model.tied makes the readout the token embedding.")
        super().__post_init__()

    def base(self) -> GPT:
        """The same network at the base width (and this depth), whose shapes define the width ratios."""
        return self.clone(width=self.base_width or self.width)

    @nn.compact
    def __call__(self, tokens: jax.Array, *, train: bool = False) -> jax.Array:
        """``[B, T]`` of integers ``-> [B, T, vocab_size]``: the logits of the next token, in float32 (or wider)."""
        if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise InputError(f"GPT got an input of shape {tokens.shape} and type {tokens.dtype}: give tokens [B, T].")
        base_width = self.base_width or self.width
        width_ratio, length = self.width / base_width, tokens.shape[1]
        embed = Embed(
            self.vocab_size,
            self.width,
            self.parametrization,
            width_ratio,
            self.sigma,
            self.param_dtype,
            name="stem",
        )
        h = embed(tokens)
        if self.positions == "learned":
            h = h + learned_positions(self, length, self.width, self.sigma / math.sqrt(base_width), self.param_dtype)
        else:
            h = h + sincos_positions(length, self.width)
        h = Transformer(
            self.depth,
            self.base_depth,
            heads(self.width, self.num_heads, self.head_dim),
            base_head_dim(self.width, self.base_width, self.num_heads, self.head_dim),
            causal=True,
            norm=self.norm,
            mlp_ratio=self.mlp_ratio,
            dropout=self.dropout,
            parametrization=self.parametrization,
            sigma=self.sigma,
            use_bias=self.use_bias,
            scan=self.scan,
            remat=self.remat,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="transformer",
        )(h, train=train)
        if self.tied:
            return embed.attend(h)
        return Readout(
            self.vocab_size,
            self.parametrization,
            width_ratio=width_ratio,
            sigma=0.0 if self.zero_init_readout else self.sigma,
            use_bias=self.use_bias,
            param_dtype=self.param_dtype,
            name="readout",
        )(h)
