"""Models that are unlike the others, written after them; what the audit said was counted before any mending."""

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
    "decision_transformer": Kind(DecisionTransformer, (Z((2, 4, 1)), Z((2, 4, 5)), Z((2, 4, 2))), None),
    "impala": Kind(lambda e: nnx.eval_shape(lambda: Impala(e, nnx.Rngs(0))), Z((2, 16, 16, 3)), None),
    "muzero": Kind(lambda e: nnx.eval_shape(lambda: MuZero(e, nnx.Rngs(0))), Z((2, 12)), None),
    "residual_flow": Kind(lambda e: eqx.filter_eval_shape(ResidualFlow, e, jax.random.key(0)), Z((2, 12)), None),
}  # fmt: skip
FRESH: Mapping[str, Kind] = {f"fresh/{name}": kind for name, kind in {**LIBRARY, **FUNCTIONS}.items()}
