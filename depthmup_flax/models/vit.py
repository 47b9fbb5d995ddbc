"""The vision transformer (B24 App. A.3)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup_flax.errors import InputError
from depthmup_flax.models.sizes import require_choice, require_dropout, require_sizes
from depthmup_flax.nn.layers import Dense, Readout, normal
from depthmup_flax.nn.transformer import (
    Transformer,
    base_head_dim,
    heads,
    learned_positions,
    require_heads,
    sincos_positions_2d,
)
from depthmup_flax.rule.parametrization import PRESETS, Parametrization


class ViT(nn.Module):
    """Patches, a class token, positions, pre-norm or norm-free transformer blocks, a readout (B24 A.3).

    Attention logits are scaled by ``sqrt(d_base) / d`` and queries start at zero; other weights start with standard
    deviation ``sigma / sqrt(fan_in)`` (the paper writes 1/sqrt(N) for all).

    Attributes:
      num_classes: number of outputs.
      width: n, the model dimension.
      depth: transformer layers; each has two residual branches, attention and feed-forward.
      base_width, base_depth: the tuned proxy's; 0 means this model is its own base.
      parametrization: the rule.
      patch_size: side of a square patch in pixels.
      num_heads: heads at every width, so that their dimension grows with it.
      head_dim: if above 0, the dimension of a head at every width, so that their number grows; ``num_heads`` is then
        not used. Both transfer; which is better at a given cost is an open question.
      mlp_ratio: hidden features of the feed-forward branch in units of ``width``.
      norm: ``layer`` (at the beginning of each branch, and before the readout) or ``none``.
      pool: ``token``, a class token; or ``mean`` over patches.
      positions: ``learned`` or ``sincos`` (fixed, two-dimensional).
      dropout: of branch outputs in training.
      zero_init_readout: the readout starts at zero.
      use_bias: biases in every layer, the readout included.
      sigma: initial standard deviation of the weights in units of ``1/sqrt(fan_in)``.
      scan: compile one layer and loop over it, or compile every layer.
      remat: what the backward pass computes again to save memory: ``none``, ``dots`` (all but products with weights)
        or ``full``.
      dtype: of the computation inside layers.
      param_dtype: of parameters and of the residual stream.
    """

    input_kind: ClassVar[str] = "image"

    num_classes: int
    width: int = 192
    depth: int = 12
    base_width: int = 0
    base_depth: int = 0
    parametrization: Parametrization = PRESETS["depth_mup"]
    patch_size: int = 8
    num_heads: int = 4
    head_dim: int = 0
    mlp_ratio: int = 4
    norm: str = "layer"
    pool: str = "token"
    positions: str = "learned"
    dropout: float = 0.0
    zero_init_readout: bool = False
    use_bias: bool = False
    sigma: float = 1.0
    scan: bool = True
    remat: str = "none"
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        require_sizes(
            self, "num_classes", "width", "depth", "patch_size", "num_heads", "mlp_ratio", or_zero=("head_dim",)
        )
        require_heads(self.width, self.base_width, self.num_heads, self.head_dim)
        require_choice(self, "norm", ("none", "layer"))
        require_choice(self, "pool", ("token", "mean"))
        require_choice(self, "positions", ("learned", "sincos"))
        require_dropout(self)
        if self.positions == "sincos" and self.width % 4:
            raise InputError(f"model.width is {self.width}: sincos positions in two dimensions need a multiple of 4.")
        super().__post_init__()

    def base(self) -> ViT:
        """The same network at the base width (and this depth), whose shapes define the width ratios."""
        return self.clone(width=self.base_width or self.width)

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """``[B, H, W, C] -> [B, num_classes]``: logits in float32 (or wider)."""
        if x.ndim != 4:
            raise InputError(
                f"x has shape {x.shape}, but images are [batch, height, width, channels]: write x[None] for one image."
            )
        if x.shape[1] % self.patch_size or x.shape[2] % self.patch_size:
            raise InputError(
                f"model.patch_size is {self.patch_size}, which does not divide images of shape {x.shape[1:]}: choose a "
                "divisor of their height and width, or set data.image_size."
            )
        base_width = self.base_width or self.width
        rows, columns = (side // self.patch_size for side in x.shape[1:3])
        h = Dense(
            self.width,
            ("fixed_in", "width_out"),
            self.sigma,
            self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="stem",
        )(patches(x.astype(self.param_dtype), self.patch_size)).astype(self.param_dtype)
        # B24's 1/sqrt(N), in base units: an embedding's scale must not depend on the width.
        std = self.sigma / math.sqrt(base_width)
        if self.positions == "learned":
            h = h + learned_positions(self, rows * columns, self.width, std, self.param_dtype)
        else:
            h = h + sincos_positions_2d(rows, columns, self.width)
        if self.pool == "token":
            init = normal(std, (None, None, "width_out"), decay=False)
            token = self.param("class_token", init, (1, 1, self.width), self.param_dtype)
            h = jnp.concatenate([jnp.broadcast_to(token, (len(h), 1, self.width)), h], axis=1)
        h = Transformer(
            self.depth,
            self.base_depth,
            heads(self.width, self.num_heads, self.head_dim),
            base_head_dim(self.width, self.base_width, self.num_heads, self.head_dim),
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
        return Readout(
            self.num_classes,
            self.parametrization,
            width_ratio=self.width / base_width,
            sigma=0.0 if self.zero_init_readout else self.sigma,
            use_bias=self.use_bias,
            param_dtype=self.param_dtype,
            name="readout",
        )(h[:, 0] if self.pool == "token" else h.mean(1))


def patches(x_BxHxWxC: jax.Array, size: int) -> jax.Array:
    """``[B, H, W, C] -> [B, (H / size) (W / size), size * size * C]``, row by row."""
    b, height, width, channels = x_BxHxWxC.shape
    x = x_BxHxWxC.reshape(b, height // size, size, width // size, size, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, size * size * channels)
