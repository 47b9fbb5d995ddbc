"""The configuration that the parts of a transformer share."""

from __future__ import annotations

import dataclasses

from depthmup_flax.nn.blocks import LayerConfig


@dataclasses.dataclass(frozen=True)
class TransformerConfig(LayerConfig):
    """A stack of attention and feed-forward branches.

    Attributes:
      depth: layers, each with two branches.
      num_heads: their dimension is the width over this.
      num_kv_heads: heads of keys and values, a divisor of ``num_heads``: neighboring heads share them. 0: each its own.
      base_head_dim: the base model's head dimension; 0 means this model's.
      causal: a position attends to itself and to earlier ones.
      rotary: sides of the grid that the tokens form, whose queries and keys are rotated by their positions; tokens
        before the grid are not. Empty for none. See `depthmup_flax.nn.positions.rotary_angles`.
      qk_norm: RMS norm of the queries and of the keys of each head.
      mlp: of `depthmup_flax.nn.feed_forward.MLPS`.
      mlp_ratio: hidden features of the feed-forward branch in units of the width.
      mlp_features: if above 0, replaces ``mlp_ratio``: hidden features, of this model.
      experts: feed-forward networks among which a router chooses for each token; 0 for one without router.
      experts_per_token: how many it chooses.
      dropout: probability of dropping an entry of a branch's output in training (needs an rng "dropout").
      attention: of `depthmup_flax.nn.attention.ATTENTIONS`.
      scan, remat: see `depthmup_flax.nn.blocks.stacked`.
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
