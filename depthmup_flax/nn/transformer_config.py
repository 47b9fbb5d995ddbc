"""The configuration of a transformer's layers."""

from __future__ import annotations

import dataclasses

from depthmup_flax.nn.blocks import LayerConfig


@dataclasses.dataclass(frozen=True)
class TransformerConfig(LayerConfig):
    """A stack of attention and feed-forward branches.

    Attributes:
      num_heads: of dimension width / ``num_heads``.
      num_kv_heads: heads of keys and values, a divisor of ``num_heads``; 0: as many as ``num_heads``.
      base_head_dim: the base model's head dimension; 0: this model's.
      causal: a position attends to itself and to earlier ones.
      rotary: sides of the grid of tokens whose queries and keys are rotated by their positions; tokens before the grid
        are not. Empty: no rotation. See `depthmup_flax.nn.positions.rotary_angles`.
      mlp_features: hidden features of this model; 0: ``mlp_ratio`` times the width.
      dropout: probability of dropping an entry of a branch's output in training (needs an rng "dropout").
      scan, remat: see `depthmup_flax.nn.blocks.stacked`.

    The other fields are those of `depthmup_flax.models.base.TransformerNetwork`.
    """

    norm: str = "layer"
    depth: int = 4
    num_heads: int = 4
    num_kv_heads: int = 0
    base_head_dim: int = 0
    causal: bool = False
    rotary: tuple[int, ...] = ()
    qk_norm: bool = False
    mlp: str = "gelu"
    mlp_ratio: int = 4
    mlp_features: int = 0
    experts: int = 0
    experts_per_token: int = 2
    dropout: float = 0.0
    attention: str = "auto"
    scan: bool = True
    remat: str = "none"

    def hidden(self, width: int) -> int:
        """Hidden features of a feed-forward network at this width."""
        return self.mlp_features or self.mlp_ratio * width
