"""The blocks of vision and language transformers, their feed-forward branches, and the embedding."""

from __future__ import annotations

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup_flax.devices.sharding import gathered, inner, target_platform
from depthmup_flax.nn.attention import SelfAttention
from depthmup_flax.nn.blocks import TransformerConfig, stacked
from depthmup_flax.nn.layers import HIDDEN, INTO, OUT_OF, Dense, LogitFactors, normal, readout_product
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.precision import readout_precision
from depthmup_flax.util.types import Dtype

MLPS = ("gelu", "swiglu")
BALANCE_RATE = 0.01  # per step, for logits of order one


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
            z = _recomputed(_gated)(z, config.dense(hidden, INTO, name="gate")(x))
        return config.dense(n, OUT_OF, name="down")(inner(z))


def _gated(z: jax.Array, gate: jax.Array) -> jax.Array:
    return jax.nn.silu(gate) * z


def _recomputed(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """``function``; in a program for a GPU its derivative is computed from its arguments, not from saved parts.

    They would be arrays of all hidden features: reading them takes longer than a tanh. XLA also computes a GELU with
    the product before it, if nothing else needs its parts.
    """
    return jax.checkpoint(function) if target_platform() == "gpu" else function


class MixtureOfExperts(nn.Module):
    """``sum over the chosen of g_e expert_e(x)``: a router chooses ``experts_per_token`` `FeedForward` for each token.

    ``g`` is the softmax of the router's logits over the chosen, so the weights of a token's experts sum to one. Every
    expert computes every token, and those that are not chosen have weight zero: no token is dropped, and the cost of a
    step is that of all experts.

    The rule. Experts are independent hidden layers, stacked along ``experts``, an axis that does not grow; each has the
    factors of a feed-forward of its own. Their number needs no factor: the sum is a weighted mean of changes that a
    token's gradient aligns, so updates of the same size, as Adam's, change it as much for any number of experts. (SGD's
    differ: the gradient of an expert is that of its share of the tokens.) At the start, when experts are independent,
    the sum has size ``experts_per_token^-1/2``: tune the base model with the number per token of the large network. The
    router maps the width to a fixed number of features (`ParamInfo.to_few_features`): it has the updates of a hidden
    layer and starts at zero. Random logits would shrink with width as those of a readout, and updates would overtake
    them sooner: in wide networks more tokens would change their experts.

    Over depth, with ``alpha = 1/2``, the part of the router's effect along the gradient grows at the first step, as
    equal logits let the smallest step decide every choice. It has size (depth / width)^1/2: depth^(0.28 to 0.39) and
    width^(-0.41 to -0.51), +- 0.15, widths 32 to 128, depths 8 to 32, n = 6; 9 % of the change at width 32 and depth 8.
    The whole effect adds up at random, depth^(0.03 +- 0.03). A coordinate check of narrow networks may report it at the
    first step (80 of 81 pass with Adam, 79 with Muon). With ``alpha = 1`` it does not grow, depth^(0.00 +- 0.11) at
    width 32, but features shrink as depth^(-0.45 +- 0.04).

    Biases balance the experts without a loss (Wang et al., arXiv:2408.15664, Alg. 1): they enter the choice, not the
    weights. A training step adds `BALANCE_RATE` to an expert's bias if fewer tokens than the mean chose it, and
    subtracts it if more did. They are in the collection ``batch_stats``. At first all tokens choose the same experts;
    the biases separate them within tens of steps.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[..., n] -> [..., n]``."""
        config = self.config
        wide = jnp.promote_types(x.dtype, jnp.float32)  # in 16 bits, close logits would tie
        router = Dense(config.experts, HIDDEN, sigma=0.0, dtype=wide, param_dtype=config.param_dtype, name="router")
        logits = router(x)
        if not self.is_initializing() and not self.has_variable("batch_stats", "bias"):
            raise InputError(
                "the collection 'batch_stats' is missing, which has the biases of the experts: call apply with all "
                "collections of model.init, and in training with mutable=['batch_stats']."
            )
        bias = self.variable("batch_stats", "bias", jnp.zeros, (config.experts,), wide)
        chosen = largest(logits + bias.value, config.experts_per_token)
        if config.train and not self.is_initializing():
            load = chosen.astype(wide).mean(range(chosen.ndim - 1))
            bias.value += BALANCE_RATE * jnp.sign(load.mean() - load)
        weights = jax.nn.softmax(logits, where=chosen)
        experts = nn.vmap(
            FeedForward,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,
            out_axes=-2,
            axis_size=config.experts,
            metadata_params={nn.PARTITION_NAME: "experts"},
        )(config, name="experts")
        y = experts(x)
        return jnp.sum(weights[..., None].astype(y.dtype) * y, axis=-2)


def largest(x: jax.Array, count: int) -> jax.Array:
    """A mask of the ``count`` largest entries along the last axis; of equal ones, the first."""
    _, chosen = jax.lax.top_k(x, count)
    return jax.nn.one_hot(chosen, x.shape[-1], dtype=bool).any(-2)


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
        mlp = (MixtureOfExperts if config.experts else FeedForward)(config, name="mlp")
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

    def attend(self, x: jax.Array, *, factors: bool = False) -> jax.Array | LogitFactors:
        """``[..., n] -> [..., num_embeddings]``: ``x @ embedding^T / (m sqrt(n_base)) / gamma0``, at least float32.

        The table's entries are of order one, so the initial std of an untied readout is a factor here:
        ``1/sqrt(n_base)``, or ``1/sqrt(n)`` under ``sp``, the std of ``flax.linen.Embed``. With ``factors`` the result
        is a `LogitFactors`.
        """
        rule, m = self.rule, self.width_ratio
        fan_in = rule.readout_fan_in(self.features, m)
        scale = rule.readout_multiplier(m) / math.sqrt(fan_in) / rule.output_divisor(m)
        precision = readout_precision(x.dtype if self.dtype is None else self.dtype)
        x, table = nn.dtypes.promote_dtype(
            x, gathered(self.embedding, _TABLE), dtype=jnp.promote_types(x.dtype, jnp.float32)
        )
        if factors:
            return LogitFactors(x * scale, table.T, None, precision)
        return readout_product(x, table.T, precision) * scale
