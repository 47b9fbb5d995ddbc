"""What vision and language transformers share: attention, feed-forward, embedding, and the stack of blocks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.errors import InputError
from depthmup_flax.nn.layers import INTO, OUT_OF, Dense, Dtype, Norm, ResidualBranch, normal, stacked
from depthmup_flax.parallel.sharding import gathered, inner
from depthmup_flax.rule.parametrization import PRESETS, Parametrization


class SelfAttention(nn.Module):
    """Multi-head softmax attention with logits scaled by ``sqrt(d_base) / d`` and queries that start at zero (B24 A.3).

    Projections are plain matrices ``[n, num_heads * head_dim]``, so they are hidden layers whether heads or their
    dimension grow.

    Attributes:
      num_heads: heads; their dimension is that of the input over this.
      base_head_dim: the base model's head dimension; 0 is this one's.
      causal: a position sees itself and what is before it.
      parametrization: gives the scale.
      sigma: standard deviation of key, value and output weights in units of ``1/sqrt(fan_in)``.
    """

    num_heads: int
    base_head_dim: int = 0
    causal: bool = False
    parametrization: Parametrization = PRESETS["depth_mup"]
    sigma: float = 1.0
    use_bias: bool = False
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, T, n] -> [B, T, n]``."""
        features = x.shape[-1]
        if features % self.num_heads:
            raise InputError(f"num_heads is {self.num_heads}, which does not divide the width {features}.")
        head_dim = features // self.num_heads
        dense = functools.partial(
            Dense, features, use_bias=self.use_bias, dtype=self.dtype, param_dtype=self.param_dtype
        )
        q, k, v = (
            inner(dense(axes=INTO, sigma=sigma, name=name)(x)).reshape(*x.shape[:-1], self.num_heads, head_dim)
            for name, sigma in (("query", 0.0), ("key", self.sigma), ("value", self.sigma))
        )
        # For the coordinate check, which finds the attention's scale from them.
        self.sow("intermediates", "q", q)
        self.sow("intermediates", "k", k)
        scale = self.parametrization.attention_scale(head_dim, self.base_head_dim or head_dim)
        mixed_BxTxHxD = jax.nn.dot_product_attention(q, k, v, scale=scale, is_causal=self.causal)
        return dense(axes=OUT_OF, sigma=self.sigma, name="out")(inner(mixed_BxTxHxD.reshape(x.shape)))


class FeedForward(nn.Module):
    """``down(gelu(up(x)))`` with ``ratio`` times as many features between."""

    ratio: int = 4
    sigma: float = 1.0
    use_bias: bool = False
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[..., n] -> [..., n]``."""
        dense = functools.partial(
            Dense, sigma=self.sigma, use_bias=self.use_bias, dtype=self.dtype, param_dtype=self.param_dtype
        )
        z = inner(jax.nn.gelu(dense(self.ratio * x.shape[-1], axes=INTO, name="up")(x)))
        return dense(x.shape[-1], axes=OUT_OF, name="down")(z)


class Embed(nn.Module):
    """A learned vector per token, std ``sigma``: a one-hot input has a fan-in of 1. Optionally the readout as well.

    A tied embedding has the optimizer multipliers of an input and of a readout, which agree; the factor ``1/m`` of a
    readout is in `attend`.

    Attributes:
      num_embeddings: tokens.
      features: n.
      parametrization, width_ratio: of the readout, for `attend`.
    """

    num_embeddings: int
    features: int
    parametrization: Parametrization = PRESETS["depth_mup"]
    width_ratio: float = 1.0
    sigma: float = 1.0
    param_dtype: Dtype = jnp.float32

    def setup(self) -> None:
        """The table ``[num_embeddings, features]``."""
        axes = ("fixed_in", "width_out")
        shape = (self.num_embeddings, self.features)
        self.embedding = gathered(self.param("embedding", normal(self.sigma, axes), shape, self.param_dtype), axes)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """``[...]`` of integers ``-> [..., n]``."""
        return self.embedding[tokens]

    def attend(self, x: jax.Array) -> jax.Array:
        """``[..., n] -> [..., num_embeddings]``: ``x @ embedding^T / (m sqrt(n_base)) / gamma0``, at least float32.

        ``1/sqrt(n_base)`` makes the base model's outputs of order one, as an untied readout's initial weights do.
        """
        rule, m = self.parametrization, self.width_ratio
        scale = rule.readout_multiplier(m) / math.sqrt(self.features / m) / rule.output_divisor(m)
        x, table = nn.dtypes.promote_dtype(x, self.embedding, dtype=jnp.promote_types(x.dtype, jnp.float32))
        return (x @ table.T) * scale


class Transformer(nn.Module):
    """Pre-norm (or norm-free) blocks ``h <- h + c attention(norm(h)); h <- h + c feed_forward(norm(h))`` and a norm.

    ``c = a r^-alpha``, where ``r`` may count layers or branches: a layer has two, here and in the base model.

    Attributes:
      depth: layers.
      base_depth: the base model's; 0 is this one's.
      num_heads, base_head_dim, causal: see `SelfAttention`.
      norm: ``layer`` or ``none``: at the beginning of each branch, and after the last.
      mlp_ratio: see `FeedForward`.
      dropout: probability with which an entry of a branch's output is dropped in training (needs an rng "dropout").
    """

    depth: int
    base_depth: int = 0
    num_heads: int = 4
    base_head_dim: int = 0
    causal: bool = False
    norm: str = "layer"
    mlp_ratio: int = 4
    dropout: float = 0.0
    parametrization: Parametrization = PRESETS["depth_mup"]
    sigma: float = 1.0
    use_bias: bool = False
    scan: bool = True
    remat: str = "none"
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, h: jax.Array, *, train: bool) -> jax.Array:
        """``[B, T, n] -> [B, T, n]``."""
        own = {"sigma": self.sigma, "use_bias": self.use_bias, "dtype": self.dtype, "param_dtype": self.param_dtype}
        norm = functools.partial(Norm, self.norm, dtype=self.dtype, param_dtype=self.param_dtype)
        # LayerNorm, unlike Norm's other kinds, is the same in training and evaluation.
        block = stacked(_Block, self.depth, scan=self.scan, remat=self.remat)(
            attention=functools.partial(
                SelfAttention, self.num_heads, self.base_head_dim, self.causal, self.parametrization, **own
            ),
            feed_forward=functools.partial(FeedForward, self.mlp_ratio, **own),
            norm=norm,
            dropout=functools.partial(nn.Dropout, self.dropout, deterministic=not train) if self.dropout else None,
            residual=functools.partial(
                ResidualBranch,
                parametrization=self.parametrization,
                depth_ratio=self.depth / (self.base_depth or self.depth),
            ),
            name="blocks",
        )
        h, _ = block(h, None)
        return norm(name="norm")(h, train=train).astype(h.dtype)


class _Block(nn.Module):
    """One layer; carries the stream and records it in ``intermediates``."""

    attention: Callable[..., nn.Module]
    feed_forward: Callable[..., nn.Module]
    norm: Callable[..., nn.Module]
    dropout: Callable[..., nn.Module] | None
    residual: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        for make, name in ((self.attention, "attention"), (self.feed_forward, "mlp")):
            branch = [self.norm(name=f"{name}_norm"), make(name=name)]
            if self.dropout is not None:
                branch.append(self.dropout(name=f"{name}_dropout"))
            h = self.residual(functools.partial(_in_turn, branch))(h)
        self.sow("intermediates", "stream", h)
        return h, None


def _in_turn(layers: Sequence[Callable[[jax.Array], jax.Array]], x: jax.Array) -> jax.Array:
    for layer in layers:
        x = layer(x)
    return x


def base_head_dim(width: int, base_width: int, num_heads: int, head_dim: int) -> int:
    """The base model's head dimension: ``head_dim`` if that is fixed, or the base width's share of a head."""
    return head_dim or (base_width or width) // num_heads


def heads(width: int, num_heads: int, head_dim: int) -> int:
    """``num_heads``, or as many as heads of a fixed dimension fill the width."""
    return width // head_dim if head_dim else num_heads


def require_heads(width: int, base_width: int, num_heads: int, head_dim: int) -> None:
    """``num_heads`` (or a fixed ``head_dim``) must divide the width and the base width."""
    name, divisor = ("head_dim", head_dim) if head_dim else ("num_heads", num_heads)
    for field, value in (("width", width), ("base_width", base_width)):
        if value % divisor:
            near = max(1, round(value / divisor)) * divisor
            raise InputError(
                f"model.{field} is {value}, which model.{name} = {divisor} does not divide: use {field} {near}, say."
            )


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


def learned_positions(module: nn.Module, count: int, features: int, std: float, param_dtype: Any) -> jax.Array:
    """``[count, features]``: the first rows of the table ``positions`` of ``module``, not decayed.

    The table has as many rows as the first call, which initializes it, asks for.
    """
    rows = count
    if module.has_variable("params", "positions"):
        rows = nn.unbox(module.get_variable("params", "positions")).shape[0]
    if count > rows:
        raise InputError(f"the sequence has {count} tokens, but the model was made for {rows}: give it at most {rows}.")
    axes = ("fixed_in", "width_out")
    table = module.param("positions", normal(std, axes, decay=False), (rows, features), param_dtype)
    return gathered(table, axes)[:count]
