"""Those of the outsider's models that are pure functions of a dictionary of parameters."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .cases import Kind
from .fresh import linear, norm
from .scales import LOOPED_RULE, Scales
from .scope import Scope

L = jax.nn


def shifted(x: jax.Array) -> jax.Array:
    return jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]


def wkv(p: Scope, k: jax.Array, v: jax.Array) -> jax.Array:
    """RWKV's average of the values before, whose weights decay, in the form without overflow."""
    w, first = -jnp.exp(p("decay", k.shape[-1])), p("first", k.shape[-1])

    def step(carry: Any, kv: Any) -> Any:
        (a, b, m), (k, v) = carry, kv
        n = jnp.maximum(m, first + k)
        e1, e2 = jnp.exp(m - n), jnp.exp(first + k - n)
        out = (e1 * a + e2 * v) / (e1 * b + e2)
        n = jnp.maximum(m + w, k)
        e1, e2 = jnp.exp(m + w - n), jnp.exp(k - n)
        return (e1 * a + e2 * v, e1 * b + e2, n), out

    zero = jnp.zeros_like(k[:, 0])
    return jax.lax.scan(step, (zero, zero, zero - 1e38), (k.swapaxes(0, 1), v.swapaxes(0, 1)))[1].swapaxes(0, 1)


def rwkv(p: Scope, tokens: jax.Array, e: Scales) -> jax.Array:
    """Mixtures of a token with the one before it, under a scan over layers."""
    n = e.width

    def mixed(q: Scope, name: str, x: jax.Array, size: int = n) -> jax.Array:
        ratio = q(f"mix_{name}", n)
        return (x * ratio + shifted(x) * (1 - ratio)) @ q(name, n, size)

    def block(q: Scope, x: jax.Array, layer: Any) -> jax.Array:
        y = e.input() * norm(q / "ln1", x)
        y = L.sigmoid(mixed(q, "r", y)) * wkv(q, mixed(q, "k", y), mixed(q, "v", y))
        x = x + e.branch("time") * (y @ q("output", n, n))
        y = norm(q / "ln2", x)
        k = jnp.square(L.relu(mixed(q / "ffn", "k", y, 4 * n)))
        gate = L.sigmoid(e.inner() * mixed(q / "ffn", "r", y))
        return x + e.branch("channel") * (gate * (k @ (q / "ffn")("value", 4 * n, n)))

    x = p.scanned(e.depth, block, norm(p / "ln0", p("emb", 11, n)[tokens]))
    return e.readout() * (norm(p / "ln_out", x) @ p("head", n, 11))


def mesh_graph_net(p: Scope, graph: Any, e: Scales) -> jax.Array:
    """Streams of nodes and edges, whose branches end in norms."""
    n = e.width

    def mlp(q: Scope, x: jax.Array) -> jax.Array:
        return norm(q / "ln", e.before() * linear(q / "second", L.relu(linear(q / "first", x, n)), n))

    h, edges = (mlp(p / name, graph[name]) for name in ("nodes", "edges"))
    senders, receivers = graph["senders"], graph["receivers"]
    for i in range(e.depth):
        q = p / f"processor_{i}"
        y = mlp(q / "edge", jnp.concatenate([edges, h[senders], h[receivers]], -1))
        edges = edges + e.branch("edge", i) * y
        sums = jax.ops.segment_sum(edges, receivers, h.shape[0])
        h = h + e.branch("node", i) * mlp(q / "node", jnp.concatenate([h, sums], -1))
    hidden = L.relu(linear(p / "decode_first", h, n))
    return e.readout() * (hidden @ p("decode", n, 3)) + p("decode_bias", 3)


def style_gan(p: Scope, z: jax.Array, e: Scales) -> jax.Array:
    """Every example has kernels of its own: a code multiplies their inputs, and a norm follows."""
    n = e.width

    def convolved(q: Scope, x: jax.Array, w: jax.Array, features: int, size: int = 3) -> jax.Array:
        style = w @ q("affine", n, n) + q("affine_bias", n)
        kernels = q("conv", size, size, n, features) * style[:, None, None, :, None]
        if features == n:
            kernels = kernels * jax.lax.rsqrt(jnp.sum(kernels**2, (1, 2, 3), keepdims=True) + 1e-8)
        one = functools.partial(jax.lax.conv_general_dilated, window_strides=(1, 1), padding="SAME",
                                dimension_numbers=("NHWC", "HWIO", "NHWC"))  # fmt: skip
        return jax.vmap(lambda x, kernel: one(x[None], kernel)[0])(x, kernels)

    w = linear(p / "mapping_0", z, n)
    w = L.leaky_relu(e.outer() * linear(p / "mapping_1", L.leaky_relu(w), n))
    x = jnp.broadcast_to(p("const", 4, 4, n), (z.shape[0], 4, 4, n))
    for i in range(e.depth):
        q = p / f"block_{i}"
        y = L.leaky_relu(convolved(q / "conv0", L.leaky_relu(x), w, n) + q("bias0", n))
        x = x + e.branch("block", i) * (convolved(q / "conv1", y, w, n) + q("bias1", n))
    return e.readout() * convolved(p / "rgb", x, w, 3, 1) + p("rgb_bias", 3)


def n_beats(p: Scope, past: jax.Array, e: Scales) -> jax.Array:
    """Streams of a fixed size: each block takes its part from the past, and adds to the forecast."""
    n = e.width
    forecast = jnp.zeros((past.shape[0], 6))
    for i in range(e.depth):
        q = p / f"block_{i}"
        y = L.relu(linear(q / "fc1", L.relu(linear(q / "fc0", past, n)), n))
        past = past - e.branch("backcast", i) * (y @ q("backcast", n, 24))
        forecast = forecast + e.branch("forecast", i) * e.readout() * (y @ q("forecast", n, 6))
    return forecast


def heun(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """A neural ODE by Heun's method: one block of weights, called twice a step."""
    n = e.width
    first, second = (p("f1", n, 2 * n), p("time", 2 * n)), (p("f2", 2 * n, n), p("b2", n))

    def field(t: jax.Array, h: jax.Array) -> jax.Array:
        return jnp.tanh(h @ first[0] + t * first[1]) @ second[0] + second[1]

    def step(h: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
        dt = e.branch("step")
        k1 = field(t, h)
        return h + dt / 2 * (k1 + field(t + dt, h + dt * k1)), None

    h, _ = jax.lax.scan(step, linear(p / "stem", x, n), jnp.arange(e.depth) / e.depth)
    return e.readout() * linear(p / "head", h, 3)


F, X, TOKENS = jnp.float32, jax.ShapeDtypeStruct, jax.ShapeDtypeStruct((2, 6), jnp.int32)
GRAPH = {
    "nodes": X((9, 7), F), "edges": X((20, 4), F), "senders": X((20,), jnp.int32), "receivers": X((20,), jnp.int32)
}  # fmt: skip
FUNCTIONS: Mapping[str, Kind] = {
    "rwkv": Kind(rwkv, TOKENS),
    "mesh_graph_net": Kind(mesh_graph_net, GRAPH),
    "style_gan": Kind(style_gan, X((2, 8), F)),
    "n_beats": Kind(n_beats, X((4, 24), F), rare=True),
    "heun": Kind(heun, X((4, 6), F), rule=LOOPED_RULE),
}
