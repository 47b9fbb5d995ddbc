"""Models that are unlike the others, written after them; what the audit said was counted before any mending."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from .cases import Kind
from .scales import Scales
from .scope import Scope

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


L = jax.nn


def linear(p: Scope, x: jax.Array, n: int) -> jax.Array:
    return x @ p("w", x.shape[-1], n) + p("b", n)


def norm(p: Scope, x: jax.Array) -> jax.Array:
    mu, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mu) / jnp.sqrt(var + 1e-5) * p("scale", x.shape[-1]) + p("offset", x.shape[-1])


def fourier_operator(p: Scope, u: jax.Array, e: Scales) -> jax.Array:
    """FNO: a product in Fourier space beside a linear layer, with real and imaginary weights."""
    x = linear(p / "lift", u, e.width)
    for i in range(e.depth):
        q = p / f"fourier_{i}"
        modes = jnp.fft.rfft(x, axis=1)[:, :3]
        w = q("real", 3, e.width, e.width) + 1j * q("imag", 3, e.width, e.width)
        mixed = jnp.fft.irfft(jnp.einsum("bki,kio->bko", modes, w), u.shape[1], axis=1)
        x = x + e.branch("fourier", i) * L.gelu(mixed + linear(q / "skip", x, e.width))
    return e.readout() * linear(p / "project", x, 1)


def egnn(p: Scope, batch: Any, e: Scales) -> jax.Array:
    """Coordinates (three numbers) and features of atoms change in turn, from distances."""
    x, atoms = batch
    h = e.embedding() * p("atom_table", 5, e.width)[atoms]
    for i in range(e.depth):
        q = p / f"egnn_{i}"
        y = norm(q / "ln", h)
        difference = x[:, :, None] - x[:, None]
        distance = jnp.sum(difference**2, -1, keepdims=True)
        pairs = y[:, :, None] @ q("left", e.width, e.width) + y[:, None] @ q("right", e.width, e.width)
        m = L.silu(pairs + distance @ q("distance", 1, e.width))
        pull = jnp.tanh(m @ q("phi_x", e.width, 1))
        x = x + e.branch("coordinates", i) * (difference * pull).mean(2)
        h = h + e.branch("features", i) * linear(q / "phi_h", L.silu(linear(q / "m", m.mean(2), e.width)), e.width)
    return e.readout() * linear(p / "energy", h.mean(1), 1)


def deep_o_net(p: Scope, batch: Any, e: Scales) -> jax.Array:
    """Two networks whose inner product is the output: the readout has no weight of its own."""

    def body(q: Scope, z: jax.Array) -> jax.Array:
        z = linear(q / "in", z, e.width)
        for i in range(e.depth):
            z = z + e.branch("block", i) * linear(q / f"out_{i}", jnp.tanh(linear(q / f"hid_{i}", z, e.width)), e.width)
        return linear(q / "last", z, e.width)

    u, y = batch
    return (body(p / "branch_net", u) * body(p / "trunk_net", y)).sum(-1) * e.readout()


def griffin(p: Scope, tokens: jax.Array, e: Scales) -> jax.Array:
    """Two recurrent layers for each layer of local attention."""

    def recurrent(q: Scope, y: jax.Array) -> jax.Array:
        n = e.width
        u, gate = y @ q("x", n, n), L.gelu(y @ q("y", n, n))
        r, i = L.sigmoid(u @ q("a", n, n)), L.sigmoid(u @ q("i", n, n))
        log_a = -8.0 * L.softplus(q("lambda", n)) * r
        a, b = jnp.exp(log_a), jnp.sqrt(1 - jnp.exp(2 * log_a) + 1e-6) * (i * u)
        step = lambda h, ab: (ab[0] * h + ab[1],) * 2
        _, h = jax.lax.scan(step, jnp.zeros_like(u[:, 0]), (a.swapaxes(0, 1), b.swapaxes(0, 1)))
        return (h.swapaxes(0, 1) * gate) @ q("o", n, n)

    def local(q: Scope, y: jax.Array) -> jax.Array:
        n, t = e.width, jnp.arange(y.shape[1])
        split = lambda z: z.reshape(*z.shape[:2], n // 8, 8)
        k, v = (y @ q(name, n, 8) for name in "kv")  # one head of keys and values
        s = jnp.einsum("bthd,bsd->bhts", split(y @ q("q", n, n)), k) / 8**0.5
        s = jnp.where((t[:, None] >= t) & (t[:, None] - t < 3), s, -1e9)
        return jnp.einsum("bhts,bsd->bthd", L.softmax(s), v).reshape(y.shape) @ q("o", n, n)

    table = p("embedder", 11, e.width)
    x = e.embedding() * 4.0 * table[tokens]
    for i in range(e.depth):
        for j in range(3):
            q = p / f"blocks_{3 * i + j}"
            y = norm(q / "temporal_norm", x)
            y = local(q / "attention", y) if j == 2 else recurrent(q / "recurrent", y)
            x = x + e.branch("attention" if j == 2 else "recurrent", i) * y
            y = norm(q / "channel_norm", x)
            y = (L.gelu(y @ q("gate", e.width, 3 * e.width)) * (y @ q("up", e.width, 3 * e.width))) @ q(
                "down", 3 * e.width, e.width
            )
            x = x + e.branch("mlp", i) * y
    return 30.0 * jnp.tanh(e.readout() * (norm(p / "final_norm", x) @ table.T) / 30.0)


def sasrec(p: Scope, batch: Any, e: Scales) -> jax.Array:
    """Items of a session; logits are products with the table of items, candidates alone."""
    items, candidates = batch
    table = p("items", 13, e.width)
    x = e.embedding() * table[items] * 4.0 + p("positions", items.shape[1], e.width)
    for i in range(e.depth):
        q = p / f"b{i}"
        y, d = norm(q / "ln1", x), e.width // 2
        split = lambda z: z.reshape(*z.shape[:2], 2, -1).transpose(0, 2, 1, 3)
        a = split(linear(q / "q", y, e.width)) @ split(linear(q / "k", x, e.width)).swapaxes(-1, -2) * e.heads(d)
        a = L.softmax(jnp.where(jnp.tri(items.shape[1]) > 0, a, -jnp.inf))
        mixed = (a @ split(linear(q / "v", x, e.width))).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + e.branch("attention", i) * linear(q / "o", mixed, e.width)
        x = x + e.branch("ffn", i) * linear(q / "w2", L.relu(linear(q / "w1", norm(q / "ln2", x), e.width)), e.width)
    return e.readout() * jnp.einsum("btn,bcn->btc", norm(p / "ln", x), table[candidates])


def deep_cross(p: Scope, features: jax.Array, e: Scales) -> jax.Array:
    """DCN-v2: every layer multiplies the first features by a linear map of the last ones."""
    first = x = linear(p / "embed", features, e.width)
    for i in range(e.depth):
        x = x + e.branch("cross", i) * first * linear(p / f"cross_{i}", x, e.width)
    return e.readout() * linear(p / "logit", x, 1)


def point_transformer(p: Scope, xyz: jax.Array, e: Scales) -> jax.Array:
    """Attention by vectors over the nearest neighbors of a point."""
    x = linear(p / "in", xyz, e.width)
    near = jnp.argsort(jnp.sum((xyz[:, :, None] - xyz[:, None]) ** 2, -1), -1)[..., :3]
    take = jax.vmap(lambda z, k: z[k])
    offsets = xyz[:, :, None] - take(xyz, near)
    for i in range(e.depth):
        q = p / f"pt_{i}"
        y = norm(q / "ln", x)
        position = linear(q / "p2", L.relu(linear(q / "p1", offsets, e.width)), e.width)
        weights = linear(q / "q", y, e.width)[:, :, None] - take(linear(q / "k", y, e.width), near) + position
        weights = L.softmax(linear(q / "g2", L.relu(linear(q / "g1", weights, e.width)), e.width), axis=2)
        mixed = (weights * (take(linear(q / "v", y, e.width), near) + position)).sum(2)
        x = x + e.branch("point", i) * linear(q / "o", mixed, e.width)
    return e.readout() * linear(p / "out", x.max(1), 6)


def vq_vae(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Two stacks around codes of four numbers, chosen from a table; the gradient goes past the choice."""

    def stack(p: Scope, x: jax.Array) -> jax.Array:
        for i in range(e.depth):
            q = p / f"res_{i}"
            x = x + e.branch("res", i) * linear(q / "b", L.relu(linear(q / "a", L.relu(x), e.width // 2)), e.width)
        return L.relu(x)

    z = linear(p / "pre_vq", stack(p / "encoder", linear(p / "in", x, e.width)), 4)
    codes = p("codebook", 8, 4)
    nearest = jnp.argmin(jnp.sum((z[:, :, None] - codes) ** 2, -1), -1)
    z = z + jax.lax.stop_gradient(codes[nearest] - z)
    return e.readout() * linear(p / "out", stack(p / "decoder", linear(p / "post_vq", z, e.width)), 12)


X, TOKENS = jax.ShapeDtypeStruct, jax.ShapeDtypeStruct((2, 6), jnp.int32)
F = jnp.float32
FUNCTIONS: Mapping[str, Kind] = {
    "fourier_operator": Kind(fourier_operator, X((2, 8, 2), F)),
    "egnn": Kind(egnn, (X((2, 5, 3), F), X((2, 5), jnp.int32))),
    "deep_o_net": Kind(deep_o_net, (X((2, 7), F), X((2, 2), F))),
    "griffin": Kind(griffin, TOKENS),
    "sasrec": Kind(sasrec, (TOKENS, X((2, 3), jnp.int32))),
    "deep_cross": Kind(deep_cross, X((3, 12), F)),
    "point_transformer": Kind(point_transformer, X((2, 7, 3), F)),
    "vq_vae": Kind(vq_vae, X((2, 5, 12), F)),
}  # fmt: skip
Z = jnp.zeros
LIBRARY: Mapping[str, Kind] = {
    "pixel_nerf": Kind(PixelNeRF, (Z((2, 5, 3)), Z((2, 9))), None),
    "muzero": Kind(lambda e: nnx.eval_shape(lambda: MuZero(e, nnx.Rngs(0))), Z((2, 12)), None),
    "residual_flow": Kind(lambda e: eqx.filter_eval_shape(ResidualFlow, e, jax.random.key(0)), Z((2, 12)), None),
}  # fmt: skip
FRESH: Mapping[str, Kind] = {f"fresh/{name}": kind for name, kind in {**LIBRARY, **FUNCTIONS}.items()}
