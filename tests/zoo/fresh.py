"""Twenty models that are unlike the others, written after them; what the audit said was counted before any mending."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from .cases import Kind
from .fresh_functions import FUNCTIONS
from .scales import Scales

Dense = functools.partial(nn.Dense, use_bias=False)


class PixelNeRF(nn.Module):
    """Residual blocks of a radiance field; the image's code is added before each of the first three."""

    e: Scales

    @nn.compact
    def __call__(self, points, code):
        e, h = self.e, self.e.width
        bands = 2.0 ** jnp.arange(4)
        x = jnp.concatenate(
            [points, *(f(points[..., None] * bands).reshape(*points.shape[:-1], -1) for f in (jnp.sin, jnp.cos))], -1
        )
        x = nn.Dense(h, name="lin_in")(x)
        for i in range(e.depth):
            if i < 1:
                x = x + nn.Dense(h, name=f"lin_z_{i}")(code)[:, None]
            y = nn.Dense(h, name=f"fc_0_{i}")(nn.relu(x))
            x = x + e.branch("block", i) * nn.Dense(h, name=f"fc_1_{i}")(nn.relu(y))
        return nn.Dense(4, name="lin_out")(nn.relu(x) * e.readout())


class FTTransformer(nn.Module):
    """Every column of a table is a token; the last token reads all."""

    e: Scales

    @nn.compact
    def __call__(self, columns):
        e, n = self.e, self.e.width
        d = n // 2
        w = self.param("weight", nn.initializers.normal(1.0), (columns.shape[-1], n))
        b = self.param("bias", nn.initializers.zeros, (columns.shape[-1], n))
        cls = self.param("cls", nn.initializers.normal(1.0), (n,))
        x = columns[..., None] * w + b
        x = jnp.concatenate([x, jnp.tile(cls, (x.shape[0], 1, 1))], 1)
        for i in range(e.depth):
            y = nn.LayerNorm(name=f"layers_{i}_n1")(x) if i else x
            q, k, v = jnp.split(nn.DenseGeneral((2, 3 * d), name=f"layers_{i}_qkv")(y), 3, -1)
            a = nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * e.heads(d))
            y = nn.DenseGeneral(n, (-2, -1), name=f"layers_{i}_proj")(jnp.einsum("bhqk,bkhd->bqhd", a, v))
            x = x + y * e.branch("attention", i)
            u, g = jnp.split(nn.Dense(2 * n, name=f"layers_{i}_w1")(nn.LayerNorm(name=f"layers_{i}_n2")(x)), 2, -1)
            x = x + nn.Dense(n, name=f"layers_{i}_w2")(u * nn.relu(g)) * e.branch("ffn", i)
        return nn.Dense(2, name="head")(e.readout() * nn.relu(nn.LayerNorm(name="norm")(x[:, -1])))


class DecisionTransformer(nn.Module):
    """Returns, states and actions in turn, under a causal mask; a tanh bounds the action."""

    e: Scales

    @nn.compact
    def __call__(self, returns, states, actions):
        e, n = self.e, self.e.width
        time = nn.Embed(8, n, name="embed_timestep")(jnp.arange(states.shape[1]))
        tokens = [
            nn.Dense(n, name=name)(z) + time
            for name, z in (("embed_return", returns), ("embed_state", states), ("embed_action", actions))
        ]
        x = nn.LayerNorm(name="embed_ln")(jnp.stack(tokens, 2).reshape(states.shape[0], -1, n))
        mask = jnp.tril(jnp.ones((x.shape[1],) * 2, bool))
        for i in range(e.depth):
            y = nn.LayerNorm(name=f"h{i}_ln_1")(x)
            q, k, v = (
                z.reshape(*z.shape[:2], -1, 8) for z in jnp.split(nn.Dense(3 * n, name=f"h{i}_c_attn")(y), 3, -1)
            )
            y = jax.nn.dot_product_attention(q, k, v, mask=mask).reshape(x.shape)
            x = x + e.branch("attention", i) * nn.Dense(n, name=f"h{i}_c_proj")(y)
            y = nn.Dense(4 * n, name=f"h{i}_c_fc")(nn.LayerNorm(name=f"h{i}_ln_2")(x))
            x = x + e.branch("mlp", i) * nn.Dense(n, name=f"h{i}_mlp_proj")(nn.gelu(y))
        x = nn.LayerNorm(name="ln_f")(x).reshape(states.shape[0], -1, 3, n)
        return jnp.tanh(e.readout() * nn.Dense(2, name="predict_action")(x[:, :, 1]))


class AlphaZero(nn.Module):
    """Convolutions with batch norm, a head of moves and one of values."""

    e: Scales

    @nn.compact
    def __call__(self, board, train=True):
        e, n = self.e, self.e.width
        norm = functools.partial(nn.BatchNorm, use_running_average=not train)
        x = nn.relu(norm()(nn.Conv(n, (3, 3), use_bias=False)(board)))
        for i in range(e.depth):
            y = nn.Conv(n, (3, 3), use_bias=False, name=f"res{i}_conv1")(x)
            y = nn.Conv(n, (3, 3), use_bias=False, name=f"res{i}_conv2")(nn.relu(norm(name=f"res{i}_bn1")(y)))
            x = nn.relu(x + e.branch("block", i) * norm(name=f"res{i}_bn2")(y))
        policy = nn.Conv(2, (1, 1), name="policy_conv")(e.readout() * x).reshape(x.shape[0], -1)
        value = nn.Conv(1, (1, 1), name="value_conv")(e.readout() * x).reshape(x.shape[0], -1)
        return {"policy": policy, "value": jnp.tanh(value.mean(-1))}


class ConformerConv(nn.Module):
    """Speech: a convolution module between attention and feed-forwards, one norm at the end of each block."""

    e: Scales

    @nn.compact
    def __call__(self, frames):
        e, n = self.e, self.e.width
        x = nn.Conv(n, (3,), (2,), name="subsample")(frames)
        x = nn.Dense(n, name="proj")(nn.relu(x))
        for i in range(e.depth):

            def feed(x, name, i=i):
                y = nn.swish(nn.Dense(4 * n, name=f"{name}_up_{i}")(nn.LayerNorm(name=f"{name}_ln_{i}")(x)))
                return x + 0.5 * e.branch(name, i) * nn.Dense(n, name=f"{name}_down_{i}")(y)

            x = feed(x, "ff1")
            y = nn.LayerNorm(name=f"attn_ln_{i}")(x)
            y = nn.MultiHeadDotProductAttention(n // 8, name=f"attn_{i}")(y)
            x = x + e.branch("attention", i) * y
            y = nn.glu(nn.Dense(2 * n, name=f"conv_in_{i}")(nn.LayerNorm(name=f"conv_ln_{i}")(x)))
            y = nn.Conv(n, (5,), feature_group_count=n, name=f"conv_dw_{i}")(y)
            y = nn.Dense(n, name=f"conv_out_{i}")(nn.swish(nn.GroupNorm(None, 8, name=f"conv_gn_{i}")(y)))
            x = x + e.branch("conv", i) * y
            x = feed(x, "ff2")
        return e.readout() * nn.Dense(7, name="ctc")(nn.LayerNorm(name="out_ln")(x))


class ImpalaStage(nnx.Module):
    """A convolution, a pool, residual blocks."""

    def __init__(self, e, channels, features, rngs):
        conv = lambda a, b: nnx.Conv(a, b, (3, 3), rngs=rngs)
        self.e, self.entry = e, conv(channels, features)
        self.blocks = nnx.List([nnx.List([conv(features, features), conv(features, features)]) for _ in range(e.depth)])

    def __call__(self, x):
        x = nnx.max_pool(self.entry(x), (3, 3), (2, 2), "SAME")
        for i, (first, second) in enumerate(self.blocks):
            x = x + self.e.branch("block", i) * second(nnx.relu(first(nnx.relu(x))))
        return x


class Impala(nnx.Module):
    """Three stages, a hidden layer of fixed place, logits and a baseline."""

    def __init__(self, e, rngs):
        self.e, n = e, e.width
        self.stages = nnx.List([ImpalaStage(e, a, b, rngs) for a, b in ((3, n), (n, 2 * n), (2 * n, 2 * n))])
        self.hidden = nnx.Linear(2 * n, 4 * n, rngs=rngs)
        self.policy, self.baseline = nnx.Linear(4 * n, 5, rngs=rngs), nnx.Linear(4 * n, 1, rngs=rngs)

    def __call__(self, frames):
        x = frames
        for stage in self.stages:
            x = stage(x)
        x = nnx.relu(self.hidden(nnx.relu(x).mean((1, 2)))) * self.e.readout()
        return jnp.concatenate([self.policy(x), self.baseline(x)], -1)


class MuZero(nnx.Module):
    """A state that the same dynamics change three times, each with residual blocks of their own weights."""

    def __init__(self, e, rngs):
        n, self.e = e.width, e
        self.represent, self.action = nnx.Linear(12, n, rngs=rngs), nnx.Embed(4, n, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(n, rngs=rngs) for _ in range(e.depth)])
        self.layers = nnx.List([nnx.Linear(n, n, rngs=rngs) for _ in range(e.depth)])
        self.reward = nnx.Linear(n, 1, rngs=rngs)

    def __call__(self, observation):
        state, rewards = self.represent(observation), []
        for step in range(3):
            state = state + self.e.embedding() * self.action(jnp.array([step]))
            for i, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=True)):
                state = state + self.e.branch("block", i) * layer(nnx.relu(norm(state)))
            state = state / jnp.sqrt(jnp.mean(state**2, -1, keepdims=True) + 1e-5)
            rewards.append(self.e.readout() * self.reward(state))
        return jnp.concatenate(rewards, -1)


class GRN(eqx.Module):
    """A gated residual network of the temporal fusion transformer: the branch ends in a gated linear unit."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear
    gate: eqx.nn.Linear
    norm: eqx.nn.LayerNorm

    def __init__(self, n, key):
        a, b, c = jax.random.split(key, 3)
        self.first, self.second = eqx.nn.Linear(n, n, key=a), eqx.nn.Linear(n, n, key=b)
        self.gate, self.norm = eqx.nn.Linear(n, 2 * n, key=c), eqx.nn.LayerNorm(n)

    def __call__(self, x):
        y = self.second(jax.nn.elu(self.first(self.norm(x))))
        value, gate = jnp.split(self.gate(y), 2)
        return value * jax.nn.sigmoid(gate)


class TemporalFusion(eqx.Module):
    """Gated residual networks behind a linear layer."""

    stem: eqx.nn.Linear
    blocks: tuple[GRN, ...]
    quantiles: eqx.nn.Linear
    e: Scales = eqx.field(static=True)

    def __init__(self, e, key):
        keys = jax.random.split(key, e.depth + 2)
        self.stem = eqx.nn.Linear(12, e.width, key=keys[0])
        self.blocks = tuple(GRN(e.width, k) for k in keys[2:])
        self.quantiles, self.e = eqx.nn.Linear(e.width, 3, key=keys[1]), e

    def __call__(self, x):
        x = self.stem(x)
        for i, block in enumerate(self.blocks):
            x = x + self.e.branch("grn", i) * block(x)
        return self.quantiles(x) * self.e.readout()


class ResidualFlow(eqx.Module):
    """Equinox's MLPs as branches, stacked by ``filter_vmap`` and scanned."""

    stem: eqx.nn.Linear
    layers: eqx.nn.MLP
    head: eqx.nn.Linear
    e: Scales = eqx.field(static=True)

    def __init__(self, e, key):
        a, b, c = jax.random.split(key, 3)
        make = lambda key: eqx.nn.MLP(e.width, e.width, 2 * e.width, 1, activation=jax.nn.softplus, key=key)
        self.stem, self.head = eqx.nn.Linear(12, e.width, key=a), eqx.nn.Linear(e.width, 2, key=b)
        self.layers, self.e = eqx.filter_vmap(make)(jax.random.split(c, e.depth)), e

    def __call__(self, x):
        arrays, static = eqx.partition(self.layers, lambda leaf: isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)))
        step = lambda x, layer: (x + self.e.branch("flow") * eqx.combine(layer, static)(x), None)
        return self.e.readout() * self.head(jax.lax.scan(step, self.stem(x), arrays)[0])


Z = jnp.zeros
LIBRARY: Mapping[str, Kind] = {
    "pixel_nerf": Kind(PixelNeRF, (Z((2, 5, 3)), Z((2, 9))), None),
    "ft_transformer": Kind(FTTransformer, Z((2, 7)), None),
    "decision_transformer": Kind(DecisionTransformer, (Z((2, 4, 1)), Z((2, 4, 5)), Z((2, 4, 2))), None),
    "alpha_zero": Kind(AlphaZero, Z((2, 5, 5, 3)), None,
                       arguments={"output": lambda out: jnp.concatenate([out["policy"], out["value"][:, None]], -1)}),
    "conformer_conv": Kind(ConformerConv, Z((2, 12, 6)), None),
    "impala": Kind(lambda e: nnx.eval_shape(lambda: Impala(e, nnx.Rngs(0))), Z((2, 16, 16, 3)), None),
    "muzero": Kind(lambda e: nnx.eval_shape(lambda: MuZero(e, nnx.Rngs(0))), Z((2, 12)), None),
    "temporal_fusion": Kind(lambda e: eqx.filter_eval_shape(TemporalFusion, e, jax.random.key(0)), Z((2, 12)), None),
    "residual_flow": Kind(lambda e: eqx.filter_eval_shape(ResidualFlow, e, jax.random.key(0)), Z((2, 12)), None),
}  # fmt: skip
FRESH: Mapping[str, Kind] = {f"fresh/{name}": kind for name, kind in {**LIBRARY, **FUNCTIONS}.items()}
