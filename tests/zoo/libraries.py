"""The same blocks in modules of Linen, NNX, Equinox and Haiku, with what only these libraries have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
from flax import nnx

from .branches import attend
from .scales import HEADS, Scales
from .stacks import CLASSES, VOCABULARY

Drop = Callable[[nn.Module, jax.Array, int, Scales], jax.Array]


def keep_as_is(module: nn.Module, y: jax.Array, i: int, e: Scales) -> jax.Array:
    """Every branch is kept."""
    return y


def _rate(i: int, e: Scales) -> float:
    return 0.4 * (i + 1) / e.depth


def drop_path(module: nn.Module, y: jax.Array, i: int, e: Scales) -> jax.Array:
    """Stochastic depth per example, with a rate that grows linearly."""
    keep = 1 - _rate(i, e)
    mask = jax.random.bernoulli(module.make_rng("dropout"), keep, (y.shape[0], *(1,) * (y.ndim - 1)))
    return jnp.where(mask, y / keep, 0.0)


def drop_path_floor(module: nn.Module, y: jax.Array, i: int, e: Scales) -> jax.Array:
    """The same by the floor of a uniform number (timm)."""
    keep = 1 - _rate(i, e)
    return y / keep * jnp.floor(keep + jax.random.uniform(module.make_rng("dropout"), (y.shape[0], 1, 1)))


def drop_path_flax(module: nn.Module, y: jax.Array, i: int, e: Scales) -> jax.Array:
    """The same by ``nn.Dropout`` with ``broadcast_dims``."""
    return nn.Dropout(_rate(i, e), broadcast_dims=(1, 2), deterministic=False)(y)


def drop_batch(module: nn.Module, y: jax.Array, i: int, e: Scales) -> jax.Array:
    """The whole batch is dropped together, by ``lax.cond``."""
    keep = jax.random.bernoulli(module.make_rng("dropout"), 1 - _rate(i, e))
    return jax.lax.cond(keep, lambda: y / (1 - _rate(i, e)), lambda: jnp.zeros_like(y))


def dropout(module: nn.Module, y: jax.Array, i: int, e: Scales) -> jax.Array:
    """Dropout with one rate."""
    return nn.Dropout(0.1, deterministic=False)(y)


def noisy(module: nn.Module, y: jax.Array, i: int, e: Scales) -> jax.Array:
    """Noise on the branch."""
    return y * (1 + 0.1 * jax.random.normal(module.make_rng("dropout"), y.shape))


class LinenNet(nn.Module):
    """Pre-norm attention and feed-forward in Linen; ``dense(features, name)`` makes the feed-forward's products."""

    e: Scales
    dense: Callable[..., nn.Module] = functools.partial(nn.Dense, use_bias=False)
    drop: Drop = keep_as_is
    norm: Callable[..., nn.Module] = nn.LayerNorm
    wrap: Callable[[nn.Module], Callable[[jax.Array], jax.Array]] = lambda module: module

    @nn.compact
    def __call__(self, tokens: jax.Array, train: bool = True) -> jax.Array:
        e, n = self.e, self.e.width
        x = e.embedding() * nn.Embed(VOCABULARY, n, name="embed")(tokens)
        for i in range(e.depth):
            y = self.norm(name=f"block_{i}_norm_1")(x)
            heads = lambda name, y=y, i=i: nn.DenseGeneral((HEADS, n // HEADS), name=f"block_{i}_{name}")(y)
            y = attend(heads("query"), heads("key"), heads("value"), e.heads(n // HEADS))
            y = nn.DenseGeneral(n, axis=(-2, -1), name=f"block_{i}_out")(y)
            x = e.stream() * x + e.branch("attention", i) * self.drop(self, y, i, e)
            y = self.norm(name=f"block_{i}_norm_2")(x)
            y = nn.gelu(e.inner() * self.wrap(self.dense(2 * n, name=f"block_{i}_up"))(y))
            y = self.wrap(self.dense(n, name=f"block_{i}_down"))(y)
            x = e.stream() * x + e.branch("mlp", i) * self.drop(self, y, i, e)
        return e.readout() * nn.Dense(CLASSES, name="head")(nn.LayerNorm(name="end_norm")(x))


class ScannedBlock(nn.Module):
    """A block with stochastic depth whose rate is scanned over."""

    e: Scales

    @nn.compact
    def __call__(self, x: jax.Array, rate: jax.Array) -> tuple[jax.Array, None]:
        e, n = self.e, x.shape[-1]
        y = nn.gelu(nn.Dense(2 * n, name="up")(nn.RMSNorm(name="norm")(x)))
        y = nn.Dense(n, name="down")(y)
        keep = jax.random.bernoulli(self.make_rng("dropout"), 1 - rate, (y.shape[0], 1, 1))
        return e.stream() * x + e.branch("mlp") * (y * keep / (1 - rate)), None


class ScannedLinen(nn.Module):
    """`ScannedBlock` under ``nn.scan``."""

    e: Scales

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        e = self.e
        x = e.embedding() * nn.Embed(VOCABULARY, e.width, name="embed")(tokens)
        axes = {"variable_axes": {"params": 0}, "split_rngs": {"params": True, "dropout": True}}
        rates = jnp.linspace(0.1, 0.4, e.depth)
        x, _ = nn.scan(ScannedBlock, **axes, in_axes=0, length=e.depth)(e, name="blocks")(x, rates)
        return e.readout() * nn.Dense(CLASSES, name="head")(x)


def spectral_norm(module: nn.Module) -> Callable[[jax.Array], jax.Array]:
    """``nn.SpectralNorm`` around a layer."""
    return lambda y: nn.SpectralNorm(module, collection_name="singular")(y, update_stats=True)


class NnxBlock(nnx.Module):
    """Attention and feed-forward of NNX."""

    def __init__(self, e: Scales, i: int, rngs: nnx.Rngs, drop: float):
        n, self.e, self.i = e.width, e, i
        self.norm_1, self.norm_2 = nnx.LayerNorm(n, rngs=rngs), nnx.LayerNorm(n, rngs=rngs)
        factor = e.heads(n // HEADS) * (n // HEADS) ** 0.5
        call = lambda q, *args, **options: nnx.dot_product_attention(q * factor, *args, **options)
        self.attention = nnx.MultiHeadAttention(
            HEADS, n, decode=False, attention_fn=call, dropout_rate=drop, deterministic=not drop, rngs=rngs
        )
        self.up, self.down = nnx.Linear(n, 4 * n, rngs=rngs), nnx.Linear(4 * n, n, rngs=rngs)
        self.drop = nnx.Dropout(drop, deterministic=not drop, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        e = self.e
        x = e.stream() * x + e.branch("attention", self.i) * self.drop(self.attention(self.norm_1(x)))
        y = self.down(nnx.gelu(e.inner() * self.up(self.norm_2(x))))
        return e.stream() * x + e.branch("mlp", self.i) * self.drop(y)


class NnxNet(nnx.Module):
    """A transformer of NNX modules."""

    def __init__(self, e: Scales, rngs: nnx.Rngs, drop: float = 0.0, tied: bool = False):
        self.e = e
        self.embed = nnx.Embed(VOCABULARY, e.width, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(e, i, rngs, drop) for i in range(e.depth)])
        self.norm = nnx.RMSNorm(e.width, rngs=rngs)
        self.head = None if tied else nnx.Linear(e.width, CLASSES, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.e.embedding() * self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.e.readout() * (self.embed.attend(x) if self.head is None else self.head(x))


def nnx_net(**options: Any) -> Callable[[Scales], Any]:
    """`NnxNet` without values."""
    return lambda e: nnx.eval_shape(lambda: NnxNet(e, nnx.Rngs(0), **options))


class EqxBlock(eqx.Module):
    """Equinox's attention and MLP; its 1/sqrt(d) is turned by scaled queries."""

    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    norm_1: eqx.nn.LayerNorm
    norm_2: eqx.nn.LayerNorm
    e: Scales = eqx.field(static=True)
    i: int = eqx.field(static=True)

    def __init__(self, e: Scales, i: int, key: jax.Array):
        n, keys = e.width, jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(HEADS, n, key=keys[0])
        self.mlp = eqx.nn.MLP(n, n, 2 * n, 1, activation=jax.nn.gelu, key=keys[1])
        self.norm_1, self.norm_2 = eqx.nn.LayerNorm(n), eqx.nn.LayerNorm(n)
        self.e, self.i = e, i

    def __call__(self, x: jax.Array) -> jax.Array:
        e, y = self.e, jax.vmap(self.norm_1)(x)
        d = e.width // HEADS
        factor = e.heads(d) * d**0.5
        heads = lambda q, k, v: (q * factor, k, v)
        x = e.stream() * x + e.branch("attention", self.i) * self.attention(y, y, y, process_heads=heads)
        return e.stream() * x + e.branch("mlp", self.i) * jax.vmap(self.mlp)(jax.vmap(self.norm_2)(x))


class EqxNet(eqx.Module):
    """A transformer of Equinox modules."""

    embed: eqx.nn.Embedding
    blocks: list[EqxBlock]
    head: eqx.nn.Linear
    e: Scales = eqx.field(static=True)

    def __init__(self, e: Scales, key: jax.Array):
        keys = jax.random.split(key, e.depth + 2)
        self.embed = eqx.nn.Embedding(VOCABULARY, e.width, key=keys[0])
        self.blocks = [EqxBlock(e, i, k) for i, k in enumerate(keys[2:])]
        self.head, self.e = eqx.nn.Linear(e.width, CLASSES, key=keys[1]), e

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.e.embedding() * jax.vmap(self.embed)(tokens)
        for block in self.blocks:
            x = block(x)
        return self.e.readout() * self.head(x.mean(0))


def eqx_net(e: Scales) -> Any:
    """`EqxNet` without values."""
    return eqx.filter_eval_shape(EqxNet, e, jax.random.key(0))


def _haiku(call: Callable[[jax.Array], jax.Array], x: Any) -> tuple[Any, Any]:
    net = hk.without_apply_rng(hk.transform(call))
    return net.apply, jax.eval_shape(net.init, jax.random.key(0), x)


def haiku_mlp(e: Scales, x: Any) -> Any:
    """Haiku's own names: ``linear``, ``linear_1``, ..."""

    def call(x: jax.Array) -> jax.Array:
        x = hk.Linear(e.width, name="stem")(x)
        for i in range(e.depth):
            y = hk.LayerNorm(-1, True, True)(x)
            y = hk.Linear(e.width)(jax.nn.gelu(e.inner() * hk.Linear(2 * e.width)(y)))
            x = e.stream() * x + e.branch("mlp", i) * y
        return e.readout() * hk.Linear(CLASSES, name="head")(x)

    return _haiku(call, x)


def haiku_unnamed(e: Scales, x: Any) -> Any:
    """All layers are called ``linear``, with the stem first and the readout last."""

    def call(x: jax.Array) -> jax.Array:
        x = hk.Linear(e.width)(x)
        for i in range(e.depth):
            x = e.stream() * x + e.branch("mlp", i) * hk.Linear(e.width)(jax.nn.relu(x))
        return e.readout() * hk.Linear(CLASSES)(x)

    return _haiku(call, x)


def haiku_attention(e: Scales, x: Any) -> Any:
    """Haiku's attention and its embedding; keys are scaled, as the module divides by ``sqrt(d)``."""

    def call(tokens: jax.Array) -> jax.Array:
        d = e.width // HEADS
        x = e.embedding() * hk.Embed(VOCABULARY, e.width)(tokens)
        for i in range(e.depth):
            y = hk.RMSNorm(-1)(x)
            attention = hk.MultiHeadAttention(
                HEADS, d, w_init=hk.initializers.VarianceScaling(), model_size=e.width, with_bias=False
            )  # the factor would not reach biases
            factor = e.heads(d) * d**0.5
            x = e.stream() * x + e.branch("attention", i) * attention(factor * y, y, y)
            y = hk.nets.MLP([4 * e.width, e.width])(hk.RMSNorm(-1)(x))
            x = e.stream() * x + e.branch("mlp", i) * y
        return e.readout() * hk.Linear(CLASSES)(hk.LayerNorm(-1, True, False)(x))

    return _haiku(call, x)


def haiku_stack(e: Scales, x: Any) -> Any:
    """``hk.experimental.layer_stack``."""

    def call(x: jax.Array) -> jax.Array:
        def block(x: jax.Array) -> jax.Array:
            y = hk.Linear(e.width)(jax.nn.gelu(hk.Linear(2 * e.width)(hk.RMSNorm(-1)(x))))
            return e.stream() * x + e.branch("mlp") * y

        x = hk.experimental.layer_stack(e.depth)(block)(hk.Linear(e.width)(x))
        return e.readout() * hk.Linear(CLASSES)(x)

    return _haiku(call, x)
