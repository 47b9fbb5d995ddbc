"""The blocks of vision and language transformers, their feed-forward branches, and the embedding."""

from __future__ import annotations

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup_flax.devices.sharding import gathered, target_platform
from depthmup_flax.nn.attention import SelfAttention
from depthmup_flax.nn.blocks import TransformerConfig, stacked
from depthmup_flax.nn.layers import INTO, OUT_OF, normal, readout_product
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.util.precision import readout_precision
from depthmup_flax.util.types import Dtype

MLPS = ("gelu", "swiglu")


class FeedForward(nn.Module):
    """``down(gelu(up(x)))``, or ``down(silu(gate(x)) * up(x))`` for ``swiglu`` (Shazeer, arXiv:2002.05202).

    ``up`` and ``gate`` have ``mlp_ratio`` times as many features as ``x``, or ``mlp_features``.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[..., n] -> [..., n]``."""
        config, n = self.config, x.shape[-1]
        hidden = config.hidden(n)
        z = config.dense(hidden, INTO, name="up")(x)
        if config.mlp == "gelu":
            z = _recomputed(jax.nn.gelu)(z)
        else:
            gated = _recomputed(lambda z, gate: jax.nn.silu(gate) * z)
            z = gated(z, config.dense(hidden, INTO, name="gate")(x))
        return config.dense(n, OUT_OF, name="down")(z)


def _recomputed(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """``function``; in a program for a GPU its derivative is computed from its arguments, not from saved parts.

    They would be arrays of all hidden features: reading them takes longer than a tanh. XLA also computes a GELU with
    the product before it, if nothing else needs its parts.
    """
    return jax.checkpoint(function) if target_platform() == "gpu" else function


class Transformer(nn.Module):
    """Pre-norm (or norm-free) blocks ``h <- h + c attention(norm(h)); h <- h + c feed_forward(norm(h))`` and a norm.

    ``c = a r^-alpha``, where ``r`` may count layers or branches: a layer has two, here and in the base model.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(self, h: jax.Array) -> jax.Array:
        """``[B, T, n] -> [B, T, n]``, of the same dtype."""
        config = self.config
        blocks = stacked(_Block, config.depth, scan=config.scan, remat=config.remat)(config, name="blocks")
        last, _ = blocks(h.astype(config.stream_dtype or h.dtype), None)
        return config.normalization("norm")(last).astype(h.dtype)


class _Block(nn.Module):
    """One layer; carries the stream and records it in ``intermediates``."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        config = self.config
        attention_norm, attention = config.normalization("attention_norm"), SelfAttention(config, name="attention")
        mlp_norm = config.normalization("mlp_norm")
        mlp = FeedForward(config, name="mlp")
        attention_dropout, mlp_dropout = (
            nn.Dropout(config.dropout, deterministic=not config.train, name=name)
            for name in ("attention_dropout", "mlp_dropout")
        )
        h = config.residual(lambda x: attention_dropout(attention(attention_norm(x))))(h)
        h = config.residual(lambda x: mlp_dropout(mlp(mlp_norm(x))))(h)
        self.sow("intermediates", "stream", h)
        return h, None


_TABLE = ("vocab_in", "width_out")


class Embed(nn.Module):
    """A learned vector for each token; `attend` uses the same table as a readout.

    An input and a readout have the same optimizer multipliers, so a tied embedding follows the rule of both; `attend`
    has the readout's factor ``1/m`` and its ``dtype``. ``sigma`` is the initial standard deviation, as the fan-in of a
    one-hot input is 1.
    """

    num_embeddings: int
    features: int
    rule: Parametrization
    width_ratio: float
    sigma: float = 1.0
    param_dtype: Dtype = jnp.float32
    dtype: Dtype | None = None

    def setup(self) -> None:
        """The table ``[num_embeddings, features]``."""
        shape = (self.num_embeddings, self.features)
        self.embedding = self.param("embedding", normal(self.sigma, _TABLE), shape, self.param_dtype)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """``[...]`` of integers ``-> [..., n]``."""
        return self.embedding[tokens]  # a sharded table stays sharded: the looked-up rows are smaller

    def attend(self, x: jax.Array) -> jax.Array:
        """``[..., n] -> [..., num_embeddings]``: ``x @ embedding^T / (m sqrt(n_base)) / gamma0``, at least float32.

        The table's entries are of order one, so the initial std of an untied readout is a factor here:
        ``1/sqrt(n_base)``, or ``1/sqrt(n)`` under ``sp``, the std of ``flax.linen.Embed``.
        """
        rule, m = self.rule, self.width_ratio
        fan_in = rule.readout_fan_in(self.features, m)
        scale = rule.readout_multiplier(m) / math.sqrt(fan_in) / rule.output_divisor(m)
        precision = readout_precision(x.dtype if self.dtype is None else self.dtype)
        x, table = nn.dtypes.promote_dtype(
            x, gathered(self.embedding, _TABLE), dtype=jnp.promote_types(x.dtype, jnp.float32)
        )
        return readout_product(x, table.T, precision) * scale
