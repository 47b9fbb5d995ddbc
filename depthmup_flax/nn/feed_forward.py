"""Feed-forward branches: with or without a gate, and several of them behind a router."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup_flax.nn.layers import HIDDEN, INTO, OUT_OF, Dense
from depthmup_flax.nn.transformer_config import TransformerConfig
from depthmup_flax.parallel.sharding import inner

MLPS = ("gelu", "swiglu")


class FeedForward(nn.Module):
    """``down(gelu(up(x)))``, or ``down(silu(gate(x)) * up(x))`` for ``swiglu`` (Shazeer, arXiv:2002.05202).

    There are ``mlp_ratio`` times as many features in between, or ``mlp_features``, with a gate and without.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[..., n] -> [..., n]``."""
        config, n = self.config, x.shape[-1]
        hidden = config.mlp_features or config.mlp_ratio * n
        z = config.dense(hidden, INTO, name="up")(x)
        z = jax.nn.gelu(z) if config.mlp == "gelu" else jax.nn.silu(config.dense(hidden, INTO, name="gate")(x)) * z
        return config.dense(n, OUT_OF, name="down")(inner(z))


class MixtureOfExperts(nn.Module):
    """``sum over the chosen of g_e expert_e(x)``: a router chooses ``experts_per_token`` `FeedForward` for each token.

    ``g`` is the softmax of the router's logits over the chosen, so the weights of a token's experts sum to one.

    The rule. Experts are independent hidden layers, stacked along ``experts``, an axis that does not grow; each has the
    factors of a feed-forward of its own. Their number needs none: the sum is a weighted mean of changes that a token's
    gradient aligns, so updates of the same size, as Adam's, change it as much for any number of experts. (SGD's are
    not: the gradient of an expert is that of its share of the tokens.) At the start, where experts are independent, the
    sum has size ``experts_per_token^-1/2``: tune it with the number per token of the large network. The router
    maps the width to a fixed number of features: the updates of a hidden layer, and ``1/fan_in`` at the start
    (`ParamInfo.to_few_features`). Zeros would choose the same experts for all tokens.

    Every expert computes every token, and those that are not chosen are weighed with zero: no token is dropped, and a
    step costs the same whatever the router chooses, but ``experts / experts_per_token`` times as much as is needed.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[..., n] -> [..., n]``."""
        config = self.config
        sigma = config.sigma * math.sqrt(config.parametrization.readout_multiplier(config.width_ratio))
        wide = jnp.promote_types(x.dtype, jnp.float32)  # rounded to 16 bits, near logits would tie
        router = Dense(config.experts, HIDDEN, sigma, dtype=wide, param_dtype=config.param_dtype, name="router")
        weights = top_weights(router(x), config.experts_per_token)
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


def top_weights(logits: jax.Array, count: int) -> jax.Array:
    """``[..., E]``: the softmax over the ``count`` largest logits, zero for the others."""
    _, chosen = jax.lax.top_k(logits, count)
    return jax.nn.softmax(logits, where=jax.nn.one_hot(chosen, logits.shape[-1], dtype=bool).any(-2))
