"""What vision and language transformers share: attention, feed-forward, embedding, positions, the stack of blocks."""

from __future__ import annotations

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from depthmup_flax.errors import InputError
from depthmup_flax.nn.blocks import ATTENTION, LayerConfig, stacked
from depthmup_flax.nn.fused_attention import fused_attention, fuses
from depthmup_flax.nn.layers import INTO, OUT_OF, Factors, normal, readout_product
from depthmup_flax.parallel.sharding import gathered, inner, inner_part, on_parts, traced_platform
from depthmup_flax.precision import product_precision, products_in
from depthmup_flax.rule.parametrization import PRESETS, Parametrization
from depthmup_flax.types import Dtype

ATTENTIONS = ("auto", "xla")


@dataclasses.dataclass(frozen=True)
class TransformerConfig(LayerConfig):
    """A stack of attention and feed-forward branches.

    Attributes:
      depth: layers, each with two branches.
      num_heads: their dimension is the width over this.
      base_head_dim: the base model's head dimension; 0 means this model's.
      causal: a position attends to itself and to earlier ones.
      mlp_ratio: hidden features of the feed-forward branch in units of the width.
      dropout: probability of dropping an entry of a branch's output in training (needs an rng "dropout").
      attention: of `ATTENTIONS`: `attention` or `attention_by_xla`.
      scan, remat: see `depthmup_flax.nn.blocks.stacked`.
    """

    norm: str = "layer"
    depth: int = 4
    num_heads: int = 4
    base_head_dim: int = 0
    causal: bool = False
    mlp_ratio: int = 4
    dropout: float = 0.0
    attention: str = "auto"
    scan: bool = True
    remat: str = "none"


class Transformer(nn.Module):
    """Pre-norm (or norm-free) blocks ``h <- h + c attention(norm(h)); h <- h + c feed_forward(norm(h))`` and a norm.

    ``c = a r^-alpha``, where ``r`` may count layers or branches: a layer has two, here and in the base model.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(self, h: jax.Array) -> jax.Array:
        """``[B, T, n] -> [B, T, n]``."""
        config = self.config
        block = stacked(_Block, config.depth, scan=config.scan, remat=config.remat)(config, name="blocks")
        h, _ = block(h, None)
        return config.normalization("norm")(h).astype(h.dtype)


class _Block(nn.Module):
    """One layer; carries the stream and records it in ``intermediates``."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        config = self.config
        attention_norm, attention = config.normalization("attention_norm"), SelfAttention(config, name="attention")
        mlp_norm, mlp = config.normalization("mlp_norm"), FeedForward(config, name="mlp")
        attention_dropout, mlp_dropout = (
            nn.Dropout(config.dropout, deterministic=not config.train, name=name)
            for name in ("attention_dropout", "mlp_dropout")
        )
        h = config.residual(lambda x: attention_dropout(attention(attention_norm(x))))(h)
        h = config.residual(lambda x: mlp_dropout(mlp(mlp_norm(x))))(h)
        self.sow("intermediates", "stream", h)
        return h, None


class SelfAttention(nn.Module):
    """Multi-head softmax attention with logits scaled by ``sqrt(d_base) / d`` and queries that start at zero (B24 A.3).

    Projections are matrices ``[n, num_heads * head_dim]``, so they are hidden layers whether the number of heads or
    their dimension grows.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, T, n] -> [B, T, n]``."""
        config, features = self.config, x.shape[-1]
        if features % config.num_heads:
            raise InputError(f"num_heads is {config.num_heads}: it must divide the width {features}.")
        head_dim = features // config.num_heads
        heads = (*x.shape[:-1], config.num_heads, head_dim)
        q, k, v = (
            inner(config.dense(features, INTO, sigma=sigma, name=name)(x))
            for name, sigma in (("query", 0.0), ("key", config.sigma), ("value", config.sigma))
        )
        # The coordinate check infers the attention's scale from them.
        self.sow("intermediates", "q", q.reshape(heads))
        self.sow("intermediates", "k", k.reshape(heads))
        scale = config.parametrization.attention_scale(head_dim, config.base_head_dim or head_dim)
        attend = attention if config.attention == "auto" else attention_by_xla
        mixed = checkpoint_name(attend(q, k, v, head_dim=head_dim, scale=scale, causal=config.causal), ATTENTION)
        return config.dense(features, OUT_OF, name="out")(inner(mixed))


def attention(
    q_BxTxN: jax.Array, k_BxTxN: jax.Array, v_BxTxN: jax.Array, *, head_dim: int, scale: float, causal: bool
) -> jax.Array:
    """``softmax(scale q k^T) v`` of every head, ``N = H D`` with the heads side by side: ``[B, T, N]``.

    Programs for TPUs use `fused_attention` where it has a form.
    """
    shape = q_BxTxN.shape
    part = inner_part(shape)
    if traced_platform() == "tpu" and part is not None and fuses(part[1], part[2], head_dim, q_BxTxN.dtype):
        fused = lambda q, k, v: fused_attention(q, k, v, head_dim, scale, causal)
        return on_parts(fused, q_BxTxN, k_BxTxN, v_BxTxN)
    return attention_by_xla(q_BxTxN, k_BxTxN, v_BxTxN, head_dim=head_dim, scale=scale, causal=causal)


def attention_by_xla(
    q_BxTxN: jax.Array, k_BxTxN: jax.Array, v_BxTxN: jax.Array, *, head_dim: int, scale: float, causal: bool
) -> jax.Array:
    """`attention` on every platform as `jax.nn.dot_product_attention`."""
    shape = q_BxTxN.shape
    q, k, v = (x.reshape(*shape[:-1], -1, head_dim) for x in (q_BxTxN, k_BxTxN, v_BxTxN))
    with products_in(q.dtype):
        return jax.nn.dot_product_attention(q, k, v, scale=scale, is_causal=causal).reshape(shape)


class FeedForward(nn.Module):
    """``down(gelu(up(x)))`` with ``mlp_ratio`` times as many features in between."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[..., n] -> [..., n]``."""
        n = x.shape[-1]
        z = inner(jax.nn.gelu(self.config.dense(self.config.mlp_ratio * n, INTO, name="up")(x)))
        return self.config.dense(n, OUT_OF, name="down")(z)


_TABLE = ("vocab_in", "width_out")


class Embed(nn.Module):
    """A learned vector for each token; `attend` uses the same table as a readout.

    The optimizer multipliers of an input and of a readout agree, so a tied embedding has both; `attend` has the
    readout's factor ``1/m``, and its ``dtype``. ``sigma`` is the initial standard deviation: the fan-in of a one-hot
    input is 1.
    """

    num_embeddings: int
    features: int
    parametrization: Parametrization = PRESETS["depth_mup"]
    width_ratio: float = 1.0
    sigma: float = 1.0
    param_dtype: Dtype = jnp.float32
    dtype: Dtype | None = None

    def setup(self) -> None:
        """The table ``[num_embeddings, features]``."""
        shape = (self.num_embeddings, self.features)
        self.embedding = self.param("embedding", normal(self.sigma, _TABLE), shape, self.param_dtype)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """``[...]`` of integers ``-> [..., n]``."""
        return self.embedding[tokens]  # a table that is split stays so: what is looked up is smaller

    def attend(self, x: jax.Array, *, factors: bool = False) -> jax.Array | Factors:
        """``[..., n] -> [..., num_embeddings]``: ``x @ embedding^T / (m sqrt(n_base)) / gamma0``, at least float32.

        The table's entries are of order one, so an untied readout's initial std is a factor here: ``1/sqrt(n_base)``;
        under ``sp`` ``1/sqrt(n)``, the default of ``flax.linen.Embed``, whose entries are that small instead. (GPT-2's
        are 0.02 at every width.) With ``factors`` the `Factors` of the result.
        """
        rule, m = self.parametrization, self.width_ratio
        fan_in = rule.readout_fan_in(self.features, m)
        scale = rule.readout_multiplier(m) / math.sqrt(fan_in) / rule.output_divisor(m)
        precision = product_precision(x.dtype if self.dtype is None else self.dtype)
        x, table = nn.dtypes.promote_dtype(
            x, gathered(self.embedding, _TABLE), dtype=jnp.promote_types(x.dtype, jnp.float32)
        )
        if factors:
            return Factors(x * scale, table.T, None, precision)
        return readout_product(x, table.T, precision) * scale


def sincos_positions(count: int, features: int) -> np.ndarray:
    """``[count, features]``: sines, then cosines, of the position times ``10000^(-i / (features / 2))``.

    Vaswani et al. (arXiv:1706.03762), sec. 3.5, with sines and cosines side by side instead of interleaved.
    """
    half = features // 2
    angles = np.arange(count)[:, None] * 10_000.0 ** (-np.arange(half) / half)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def sincos_positions_2d(height: int, width: int, features: int) -> np.ndarray:
    """``[height * width, features]``: `sincos_positions` of the row in one half, of the column in the other."""
    rows, columns = (sincos_positions(size, features // 2) for size in (height, width))
    return np.concatenate([np.repeat(rows, width, axis=0), np.tile(columns, (height, 1))], axis=1)
