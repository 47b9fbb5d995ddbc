"""Multi-head softmax attention: projections, norms and rotations of queries and keys, and the product; positions."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from depthmup_flax.devices.sharding import divides, on_parts, target_platform, traced_platform
from depthmup_flax.nn.blocks import ATTENTION, TransformerConfig
from depthmup_flax.nn.fused_attention import Form, fused_attention, fuses
from depthmup_flax.nn.layers import INTO, OUT_OF, Norm
from depthmup_flax.rule.parametrization import Parametrization, require_parametrization
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.precision import products_in
from depthmup_flax.util.types import Dtype, Scalar

ATTENTIONS = ("auto", "xla")
CUDNN_DTYPES, CUDNN_HEAD_DIM = (jnp.bfloat16, jnp.float16), 128


class SelfAttention(nn.Module):
    """Multi-head softmax attention with logits scaled by ``sqrt(d_base) / d`` and queries that start at zero (B24 A.3).

    Projections are matrices ``[n, heads * head_dim]``: hidden layers, whether the number of heads or their dimension
    grows. With fewer heads of keys and values than of queries, neighboring heads share theirs (grouped queries,
    arXiv:2305.13245).

    ``qk_norm`` divides the queries and the keys of each head by their root mean square (arXiv:2302.05442, with RMS
    norms) and multiplies them by scales ``[head_dim]``, which all heads share and which are vectors of the rule. The
    norm fixes sizes, not directions: products of queries and keys that training aligns still grow as ``d``, so the
    logits keep their scale. Queries then start at random, as a norm would give the first update of zeros full size at
    any learning rate. So the logits start at the size ``sqrt(d_base / d)``, smaller than their changes in wide
    networks, as the outputs of a readout.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, T, n] -> [B, T, n]``."""
        config, features = self.config, x.shape[-1]
        num_heads, kv_heads = config.num_heads, config.num_kv_heads or config.num_heads
        head_dim, tokens, fused = features // num_heads, x.shape[1], config.attention == "auto"
        if fused and _takes_cudnn(head_dim, config.dtype or jnp.promote_types(x.dtype, config.param_dtype)):
            # Compilers make these zeros with the norm before, and drop them with the addition after. Zeros added to
            # queries, keys and values would be copies.
            x = jnp.pad(x, ((0, 0), (0, tokens % 2), (0, 0)))
        project = lambda name, heads, sigma: config.dense(heads * head_dim, INTO, sigma=sigma, name=name)(x)
        q = project("query", num_heads, config.sigma if config.qk_norm else 0.0)
        k, v = (project(name, kv_heads, config.sigma) for name in ("key", "value"))
        q, k = (self._prepared(f"{name}_norm", x, head_dim, tokens) for name, x in (("query", q), ("key", k)))
        scale = config.rule.attention_scale(head_dim, config.base_head_dim or head_dim)
        attend = functools.partial(attention, head_dim=head_dim, scale=scale, causal=config.causal, fused=fused)
        mixed = attend(q, k, v, tokens=tokens)
        return config.dense(features, OUT_OF, name="out")(checkpoint_name(mixed, ATTENTION))[:, :tokens]

    def _prepared(self, norm: str, x_BxTxN: jax.Array, head_dim: int, tokens: int) -> jax.Array:
        """Queries or keys, normalized and rotated as configured; those after ``tokens`` are padding."""
        config = self.config
        if not config.qk_norm and not config.rotary:
            return x_BxTxN
        x = _by_head(x_BxTxN, head_dim)
        if config.qk_norm:
            x = Norm("rms", config.dtype, config.param_dtype, name=norm)(x)
        if config.rotary:
            x = rotated(x, config.rotary, tokens)
        return x.reshape(x_BxTxN.shape)


def _by_head(x_BxTxN: jax.Array, head_dim: int) -> jax.Array:
    return x_BxTxN.reshape(*x_BxTxN.shape[:-1], -1, head_dim)


def _for_each_head(x_BxTxN: jax.Array, head_dim: int, num_heads: int) -> jax.Array:
    """Keys or values, repeated for the heads that share them: ``[B, T, num_heads D]``."""
    group = num_heads * head_dim // x_BxTxN.shape[-1]
    if group == 1:
        return x_BxTxN
    return jnp.repeat(_by_head(x_BxTxN, head_dim), group, axis=-2).reshape(*x_BxTxN.shape[:-1], -1)


def _takes_cudnn(head_dim: int, dtype: Dtype) -> bool:
    """Whether the program is for a GPU and cuDNN has a fused attention of such heads on all since Ampere."""
    return target_platform() == "gpu" and jnp.dtype(dtype) in CUDNN_DTYPES and head_dim <= CUDNN_HEAD_DIM


def _by_cudnn(
    head_dim: int, scale: float, causal: bool, tokens: int, q_BxTxN: jax.Array, k_BxTxM: jax.Array, v_BxTxM: jax.Array
) -> jax.Array:
    """Attention by cuDNN among the first ``tokens`` of an even number, without which it has no gradient.

    Heads need a multiple of 8 features: zeros fill them.
    """
    fill = ((0, 0), (0, 0), (0, 0), (0, -head_dim % 8))
    q, k, v = (jnp.pad(_by_head(x, head_dim), fill) for x in (q_BxTxN, k_BxTxM, v_BxTxM))
    lengths = None
    if tokens < q.shape[1] and not causal:  # a causal query sees no later key
        in_each_lane = 0 * q[:, 0, 0, 0].astype(jnp.int32)  # cuDNN's batching rule wants all arrays to have lanes
        lengths = jnp.int32(tokens) + in_each_lane
    mixed = jax.nn.dot_product_attention(
        q, k, v, scale=scale, is_causal=causal, implementation="cudnn",
        query_seq_lengths=lengths, key_value_seq_lengths=lengths,
    )  # fmt: skip
    return mixed[..., :head_dim].reshape(q_BxTxN.shape)


def attention_fn(
    rule: Parametrization,
    head_dim: int,
    base_head_dim: int,
    attend: Callable[..., jax.Array] = nn.dot_product_attention,
) -> Callable[..., jax.Array]:
    """Flax's attention with the rule's scale of the logits: ``nn.MultiHeadDotProductAttention(attention_fn=...)``.

    Needed only if the head dimension grows: otherwise the rule's scale is Flax's, ``1/sqrt(d)``. With `SelfAttention`
    it is built in.

    Args:
      rule: gives `Parametrization.attention_scale`, ``sqrt(d_base) / d`` (arXiv:2203.03466 Def. 4.1).
      head_dim, base_head_dim: features of a head, here and in the base model.
      attend: attention that divides the logits by ``sqrt(head_dim)``, ``(query [..., T, H, d], key, value, ...) ->
        [..., T, H, d]``. For ``nnx.MultiHeadAttention`` pass ``nnx.dot_product_attention``.

    Returns:
      A function with the arguments of ``attend``.

    Raises:
      InputError: a dimension is no whole number, or, when it is called, not that of the queries.
    """
    require_parametrization(rule)
    factor = rule.attention_scale(head_dim, base_head_dim) * math.sqrt(head_dim)

    @functools.wraps(attend)  # Flax passes a mask, dropout, ... only if the signature has these arguments
    def scaled(query: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        if query.shape[-1] != head_dim:
            raise InputError(
                f"head_dim is {head_dim}, but the queries have {query.shape[-1]} features in each head: use "
                "width / heads."
            )
        return attend(query * jnp.asarray(factor, query.dtype), *args, **kwargs)

    return scaled


def attention(
    q_BxTxN: jax.Array,
    k_BxTxM: jax.Array,
    v_BxTxM: jax.Array,
    *,
    head_dim: int,
    scale: Scalar,
    causal: bool,
    fused: bool = True,
    tokens: int | None = None,
) -> jax.Array:
    """``softmax(scale q k^T) v`` of every head, ``N = H D`` with the heads side by side: ``[B, T, N]``.

    Keys and values may have fewer heads: ``M`` is a divisor of ``N``. Tokens after the first ``tokens`` are padding,
    which no other token sees; their results mean nothing. With ``fused``, programs for GPUs use cuDNN's where it has a
    form, and sharded programs for TPUs `fused_attention`. Sweeps on TPUs do not: for small networks the compiler
    estimates no gain.
    """
    tokens = tokens or q_BxTxN.shape[1]
    if not isinstance(scale, numbers.Real):  # traced, where lanes have several width rules: kernels take numbers
        q_BxTxN, scale = q_BxTxN * jnp.asarray(scale, q_BxTxN.dtype), 1.0
    fused = fused and divides(q_BxTxN)
    if fused and _takes_cudnn(head_dim, q_BxTxN.dtype) and q_BxTxN.shape[1] % 2 == 0:
        return on_parts(functools.partial(_by_cudnn, head_dim, scale, causal, tokens), q_BxTxN, k_BxTxM, v_BxTxM)
    if fused and traced_platform() == "tpu" and fuses(q_BxTxN.shape[1], q_BxTxN.shape[2], head_dim, q_BxTxN.dtype):
        form = Form(head_dim, float(scale), causal)
        kernel = lambda q, k, v: fused_attention(q, k, v, form)
        k, v = (_for_each_head(x, head_dim, q_BxTxN.shape[-1] // head_dim) for x in (k_BxTxM, v_BxTxM))
        return on_parts(kernel, q_BxTxN, k, v)
    q, k, v = (_by_head(x[:, :tokens], head_dim) for x in (q_BxTxN, k_BxTxM, v_BxTxM))
    with products_in(q.dtype):
        mixed = jax.nn.dot_product_attention(q, k, v, scale=scale, is_causal=causal)
    padding = q_BxTxN.shape[1] - tokens
    return jnp.pad(mixed.reshape(*mixed.shape[:2], -1), ((0, 0), (0, padding), (0, 0)))


def rotary_angles(grid: tuple[int, ...], head_dim: int) -> np.ndarray:
    """``[product of grid, head_dim / 2]``: angles by which `rotated` turns the pairs of a head's features.

    The angle of pair ``i`` of ``p`` is the position times ``10000^(-i / p)`` (Su et al., arXiv:2104.09864, Eq. 15), so
    that a product of a query and a key depends on the difference of their positions. A grid with several sides, of
    patches, has ``p = head_dim / 2 / sides`` pairs for the position along each.
    """
    pairs = head_dim // 2 // len(grid)
    frequencies = 10_000.0 ** (-np.arange(pairs) / pairs)
    places = np.indices(grid).reshape(len(grid), -1)  # row by row
    return np.concatenate([place[:, None] * frequencies for place in places], axis=1).astype(np.float32)


def rotated(x_BxTxHxD: jax.Array, grid: tuple[int, ...], tokens: int) -> jax.Array:
    """Queries or keys, with features ``i`` and ``i + D / 2`` turned by their token's `rotary_angles`.

    The last of the first ``tokens`` form the grid; earlier ones, such as a class token, are not turned, nor is padding.
    """
    head_dim = x_BxTxHxD.shape[3]
    angles = np.zeros((x_BxTxHxD.shape[1], head_dim // 2), np.float32)
    angles[tokens - math.prod(grid) : tokens] = rotary_angles(grid, head_dim)
    dtype = jnp.promote_types(x_BxTxHxD.dtype, jnp.float32)
    cos, sin = (f(angles)[:, None].astype(dtype) for f in (np.cos, np.sin))
    a, b = jnp.split(x_BxTxHxD.astype(dtype), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x_BxTxHxD.dtype)
