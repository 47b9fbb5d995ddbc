"""Networks whose branches are added to more than one stream, or whose streams change their shape on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .branches import attend, attention, dense, heads_of, mlp
from .scales import HEADS, Scales
from .scope import Scope
from .stacks import NORMS, Net, read, rms, write

Layer = Callable[[Scope, Any, Any, Scales], Any]


def add(e: Scales, x: jax.Array, y: jax.Array, name: str, i: Any, right: float | None = None) -> jax.Array:
    """The residual sum."""
    return e.stream() * x + e.branch(name, i if isinstance(i, int) else None, right) * y


def feed_forwards(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """A stack of them."""
    return p.unrolled(e.depth, lambda q, h, i: add(e, h, mlp(q, rms(q, h), e), "mlp", i), x)


def cross(p: Scope, y: jax.Array, memory: jax.Array, e: Scales, bias: jax.Array | None = None) -> jax.Array:
    """Attention to another array."""
    n = y.shape[-1]
    q, k, v = (heads_of(dense(p, name, z, n)) for name, z in (("query", y), ("key", memory), ("value", memory)))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * e.heads(q.shape[-1])
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores if bias is None else scores + bias), v)
    return dense(p, "out", mixed.reshape(y.shape), n)


def simple(layer: Layer, start: Any = read, end: Any = write, scan: bool = False) -> Net:
    """A network of ``layer``s on what ``start`` returns."""

    def net(p: Scope, x: Any, e: Scales) -> Any:
        block = lambda p, x, i: layer(p, x, i, e)
        return end(p, (p.scanned if scan else p.unrolled)(e.depth, block, start(p, x, e)), e)

    return net


def edges(p: Scope, x: jax.Array, e: Scales) -> tuple[jax.Array, jax.Array]:
    """Nodes ``[B, T, D]`` and edges ``[B, T, T, D]``."""
    nodes = read(p, x, e)
    features = jnp.sin(jnp.arange(x.shape[1])[:, None, None] * jnp.arange(x.shape[1])[:, None] * jnp.ones(3))
    first = dense(p, "edge_stem", features, e.width)
    return nodes, jnp.broadcast_to(first, (x.shape[0], *first.shape))


def nodes_out(p: Scope, x: tuple[jax.Array, jax.Array], e: Scales) -> jax.Array:
    """Logits of the nodes."""
    return write(p, x[0], e)


def graph(sequential: bool) -> Layer:
    """Messages of edges and their ends; nodes read the sum of (new) edges."""

    def block(p: Scope, x: tuple[jax.Array, jax.Array], i: Any, e: Scales) -> tuple[jax.Array, jax.Array]:
        h, edge = x
        a, b = rms(p, h, "norm_h"), rms(p, edge, "norm_e")
        ends = dense(p, "sender", a, e.width)[:, :, None] + dense(p, "receiver", a, e.width)[:, None]
        message = dense(p, "edge_out", jax.nn.gelu(dense(p, "edge", b, e.width) + ends), e.width)
        new = add(e, edge, message, "edges", i)
        seen = (new if sequential else edge).mean(2)
        hidden = dense(p, "node_self", a, e.width) + dense(p, "node_edge", rms(p, seen, "norm_s"), e.width)
        h = add(e, h, dense(p, "node_out", jax.nn.gelu(hidden), e.width), "nodes", i)
        return h, new

    return block


def segments(p: Scope, h: jax.Array, i: Any, e: Scales) -> jax.Array:
    """A graph network by gathers and ``segment_sum`` (jraph)."""
    senders, receivers = jnp.array([0, 1, 2, 3, 4, 5]), jnp.array([1, 2, 3, 4, 5, 0])
    y = rms(p, h)
    pairs = jnp.concatenate([y[:, senders], y[:, receivers]], axis=-1)
    messages = jax.nn.relu(dense(p, "message", pairs, e.width))
    total = jax.vmap(lambda m: jax.ops.segment_sum(m, receivers, h.shape[1]))(messages)
    return add(e, h, dense(p, "out", total, e.width), "nodes", i)


def graph_attention(p: Scope, h: jax.Array, i: Any, e: Scales) -> jax.Array:
    """Scores by two vectors (GAT)."""
    z = dense(p, "dense", rms(p, h), e.width)
    scores = (z * p("a", e.width)).mean(-1)[:, :, None] + (z * p("b", e.width)).mean(-1)[:, None]
    return add(e, h, jax.nn.elu(jax.nn.softmax(jax.nn.leaky_relu(scores)) @ z), "nodes", i)


def two_inputs(p: Scope, x: jax.Array, e: Scales) -> tuple[jax.Array, jax.Array]:
    """Two streams of one batch."""
    return read(p / "first", x, e), read(p / "second", x[:, ::-1], e)


def both_out(p: Scope, x: tuple[jax.Array, jax.Array], e: Scales) -> jax.Array:
    """Logits of their concatenation."""
    return write(p, jnp.concatenate(x, axis=-1), e)


def co_attention(p: Scope, x: tuple[jax.Array, jax.Array], i: Any, e: Scales) -> tuple[jax.Array, jax.Array]:
    """Each stream reads the other."""
    a, b = x
    na, nb = rms(p, a, "norm_a"), rms(p, b, "norm_b")
    a, b = add(e, a, cross(p / "a", na, nb, e), "first", i), add(e, b, cross(p / "b", nb, na, e), "second", i)
    a = add(e, a, mlp(p / "mlp_a", rms(p, a, "norm_ma"), e), "first_mlp", i)
    return a, add(e, b, mlp(p / "mlp_b", rms(p, b, "norm_mb"), e), "second_mlp", i)


def one_reads_other(p: Scope, x: tuple[jax.Array, jax.Array], i: Any, e: Scales) -> tuple[jax.Array, jax.Array]:
    """The second stream reads the new values of the first, never the other way."""
    a, b = x
    a = add(e, a, mlp(p / "a", rms(p, a, "norm_a"), e), "first", i)
    return a, add(e, b, cross(p / "b", rms(p, b, "norm_b"), rms(p, a, "norm_c"), e), "second", i)


def joint_attention(p: Scope, x: tuple[jax.Array, jax.Array], i: Any, e: Scales) -> tuple[jax.Array, jax.Array]:
    """Two streams in one attention (MM-DiT)."""
    parts = [p / "text", p / "image"]
    normed = [rms(q, z) for q, z in zip(parts, x, strict=True)]
    q, k, v = (
        jnp.concatenate([heads_of(dense(part, name, z, e.width)) for part, z in zip(parts, normed, strict=True)], 1)
        for name in ("query", "key", "value")
    )
    mixed = attend(q, k, v, e.heads(q.shape[-1]), causal=False).reshape(x[0].shape[0], -1, e.width)
    out = []
    for part, z, y, name in zip(parts, x, jnp.split(mixed, 2, axis=1), ("text", "image"), strict=True):
        z = add(e, z, dense(part, "out", y, e.width), name, i)
        out.append(add(e, z, mlp(part / "mlp", rms(part, z, "norm_2"), e), f"{name}_mlp", i))
    return out[0], out[1]


def reversible(p: Scope, x: tuple[jax.Array, jax.Array], i: Any, e: Scales) -> tuple[jax.Array, jax.Array]:
    """Two halves that change each other (RevNet, Reformer)."""
    a, b = x
    a = add(e, a, attention(p / "f", rms(p, b, "norm_f"), e), "f", i)
    return a, add(e, b, mlp(p / "g", rms(p, a, "norm_g"), e), "g", i)


def reversible_halves(p: Scope, x: jax.Array, i: Any, e: Scales) -> jax.Array:
    """The same on the two halves of one array."""
    return jnp.concatenate(reversible(p, tuple(jnp.split(x, 2, axis=-1)), i, e), axis=-1)


def additive_coupling(p: Scope, x: jax.Array, i: Any, e: Scales) -> jax.Array:
    """Halves change in turn (NICE)."""
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([add(e, b, mlp(p / "mlp", rms(p, a), e), "mlp", i), a], axis=-1)


def pair_and_single(p: Scope, x: tuple[jax.Array, jax.Array], i: Any, e: Scales) -> tuple[jax.Array, jax.Array]:
    """Attention biased by pairs, which a product of the single stream updates (AlphaFold)."""
    s, z = x
    q, k, v = (heads_of(dense(p, name, rms(p, s, "norm_s"), e.width)) for name in ("query", "key", "value"))
    bias = dense(p, "bias", rms(p, z, "norm_z"), HEADS).transpose(0, 3, 1, 2)
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * e.heads(q.shape[-1]) + bias
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v).reshape(s.shape)
    s = add(e, s, dense(p, "out", mixed, e.width), "single", i)
    a = dense(p, "left", rms(p, s, "norm_p"), e.width)
    outer = a[:, :, None] * dense(p, "right", a, e.width)[:, None]
    return s, add(e, z, dense(p, "pair", outer, e.width), "pair", i)


def hyper_start(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Copies of the stream."""
    return jnp.stack([read(p, x, e)] * 2)


def hyper_connections(p: Scope, x: jax.Array, i: Any, e: Scales) -> jax.Array:
    """Two copies of the stream, mixed by learned matrices."""
    y = mlp(p / "mlp", rms(p, jnp.einsum("kbtn,k->btn", x, p("read", 2))), e)
    mixed = jnp.einsum("kbtn,kl->lbtn", x, p("mix", 2, 2))
    return e.stream() * mixed + e.branch("mlp", i) * p("write", 2)[:, None, None, None] * y


def hyper_out(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Logits of the sum of the copies."""
    return write(p, x.sum(0), e)


def momentum(p: Scope, x: tuple[jax.Array, jax.Array], i: Any, e: Scales) -> tuple[jax.Array, jax.Array]:
    """Branches are added to a velocity, which the stream follows."""
    h, v = x
    c = e.branch("mlp", i if isinstance(i, int) else None)
    v = 0.5 * v + c * mlp(p / "mlp", rms(p, h), e)
    return e.stream() * h + v, v


def highway(p: Scope, x: jax.Array, i: Any, e: Scales) -> jax.Array:
    """A learned gate between the stream and the branch."""
    y = rms(p, x)
    gate = jax.nn.sigmoid(dense(p, "gate", y, e.width))
    return add(e, x, gate * (jnp.tanh(dense(p, "dense", y, e.width)) - x), "mlp", i)


def parallel_sums(p: Scope, x: jax.Array, i: Any, e: Scales) -> jax.Array:
    """Attention and feed-forward read the same stream, each with a multiplier of its own (GPT-J)."""
    y = rms(p, x)
    a, b = attention(p / "attention", y, e), mlp(p / "mlp", y, e)
    return e.stream() * x + e.branch("attention", i) * a + e.branch("mlp", i) * b


def parallel_first(p: Scope, x: jax.Array, i: Any, e: Scales) -> jax.Array:
    """The branches are added to each other first; each has a norm of its own (GPT-NeoX)."""
    a, b = attention(p / "attention", rms(p, x, "norm_a"), e), mlp(p / "mlp", rms(p, x, "norm_b"), e)
    return (e.branch("attention", i) * a + e.branch("mlp", i) * b) + e.stream() * x


def conformer(p: Scope, x: jax.Array, i: Any, e: Scales) -> jax.Array:
    """Half steps of two feed-forwards around attention, a norm behind the last."""
    x = add(e, x, 0.5 * mlp(p / "first", rms(p, x, "norm_1"), e), "first", i)
    x = add(e, x, attention(p / "attention", rms(p, x, "norm_2"), e), "attention", i)
    x = add(e, x, 0.5 * mlp(p / "last", rms(p, x, "norm_3"), e), "last", i)
    return NORMS["unscaled"](p, x)


def wavenet_start(p: Scope, x: jax.Array, e: Scales) -> tuple[jax.Array, jax.Array]:
    """The stream, and an empty sum of skips."""
    x = read(p, x, e)
    return x, jnp.zeros_like(x)


def wavenet(p: Scope, x: tuple[jax.Array, jax.Array], i: Any, e: Scales) -> tuple[jax.Array, jax.Array]:
    """Every layer adds to the stream and to the sum that the readout reads."""
    h, skips = x
    y = jnp.tanh(dense(p, "filter", h, e.width)) * jax.nn.sigmoid(dense(p, "gate", h, e.width))
    skips = skips + e.branch("skip", i) * dense(p, "skip", y, e.width)
    return add(e, h, dense(p, "out", y, e.width), "stream", i), skips


def skips_out(p: Scope, x: tuple[jax.Array, jax.Array], e: Scales) -> jax.Array:
    """Logits of the skips."""
    return write(p, jax.nn.relu(x[1]), e)


def conditioned(p: Scope, x: tuple[jax.Array, jax.Array], i: Any, e: Scales) -> tuple[jax.Array, jax.Array]:
    """Norms and gates by a condition (DiT's adaLN)."""
    h, c = x
    shift, scale, gate = jnp.split(dense(p, "modulation", jax.nn.silu(c), 3 * e.width)[:, None], 3, axis=-1)
    y = NORMS["unscaled"](p, h) * (1 + scale) + shift
    return add(e, h, gate * mlp(p / "mlp", y, e), "mlp", i), c


def condition_start(p: Scope, x: jax.Array, e: Scales) -> tuple[jax.Array, jax.Array]:
    """The stream, and what a small network makes of a time."""
    h = read(p, x, e)
    time = jnp.sin(jnp.ones((x.shape[0], 1)) * jnp.arange(8.0))
    return h, dense(p, "time_2", jax.nn.silu(dense(p, "time_1", time, e.width)), e.width)


def embedded(p: Scope, x: jax.Array, e: Scales, terms: int) -> jax.Array:
    """A condition: the sum of what small networks make of a time and other numbers, ``[B, D]``."""
    parts = []
    for k in range(terms):
        features = jnp.sin((k + jnp.ones((x.shape[0], 1))) * jnp.arange(8.0))
        q = p / f"embedder_{k}"
        parts.append(dense(q, "linear_2", jax.nn.silu(dense(q, "linear_1", features, e.width)), e.width))
    return sum(parts[1:], parts[0])


def modulated(p: Scope, h: jax.Array, c: jax.Array, i: Any, e: Scales, name: str = "") -> jax.Array:
    """Two branches that one layer of a condition modulates and gates."""
    parts = jnp.split(dense(p, "modulation", jax.nn.silu(c), 6 * e.width)[:, None], 6, axis=-1)
    shift, scale, gate, shift_2, scale_2, gate_2 = parts
    y = NORMS["unscaled"](p, h) * (1 + scale) + shift
    h = add(e, h, gate * attention(p / "attention", y, e), f"{name}attention", i)
    y = NORMS["unscaled"](p, h) * (1 + scale_2) + shift_2
    return add(e, h, gate_2 * mlp(p / "mlp", y, e), f"{name}mlp", i)


def own_condition(terms: int) -> Layer:
    """Each block embeds the condition anew (DiT in diffusers); the last layer reads that of the first block."""

    def block(p: Scope, x: tuple[jax.Array, Any], i: Any, e: Scales) -> tuple[jax.Array, Any]:
        h, first = x
        c = embedded(p, h, e, terms)
        return modulated(p, h, c, i, e), first if i else c

    return block


def condition_out(p: Scope, x: tuple[jax.Array, jax.Array], e: Scales) -> jax.Array:
    """Logits of what a condition modulates."""
    shift, scale = jnp.split(dense(p, "final", jax.nn.silu(x[1]), 2 * e.width)[:, None], 2, axis=-1)
    return write(p, NORMS["unscaled"](p, x[0]) * (1 + scale) + shift, e)


def own_conditions_of_two(p: Scope, x: tuple[jax.Array, jax.Array], i: Any, e: Scales) -> tuple[jax.Array, jax.Array]:
    """Two streams; in each block each has a condition of its own."""
    a, b = x
    a = modulated(p / "text", a, embedded(p / "text", a, e, 2), i, e, "text_")
    return a, modulated(p / "image", b, embedded(p / "image", b, e, 2), i, e, "image_")


def own_time(p: Scope, h: jax.Array, i: Any, e: Scales) -> jax.Array:
    """What each block makes of a time and a class is added inside of its branch (U-Nets of diffusion)."""
    y = dense(p, "conv_1", jax.nn.silu(rms(p, h)), e.width)
    y = y + dense(p, "time", jax.nn.silu(embedded(p, h, e, 2)), e.width)[:, None]
    return add(e, h, dense(p, "conv_2", jax.nn.silu(rms(p, y, "norm_2")), e.width), "out", i)


def injected(p: Scope, x: tuple[jax.Array, jax.Array], i: Any, e: Scales) -> tuple[jax.Array, jax.Array]:
    """The first stream is added again, with a learned number."""
    h, first = x
    h = h + 0.5 * e.right * p("lambda") * first
    return add(e, h, mlp(p / "mlp", rms(p, h), e), "mlp", i), first


def value_residual(p: Scope, x: tuple[jax.Array, Any], i: Any, e: Scales) -> tuple[jax.Array, Any]:
    """Values are mixed with those of the first layer."""
    h, first = x
    y = rms(p, h)
    q, k, v = (heads_of(dense(p, name, y, e.width)) for name in ("query", "key", "value"))
    first = v if i == 0 else first
    mixed = attend(q, k, 0.5 * v + 0.5 * first, e.heads(q.shape[-1])).reshape(h.shape)
    h = add(e, h, dense(p, "out", mixed, e.width), "attention", i)
    return add(e, h, mlp(p / "mlp", rms(p, h, "norm_2"), e), "mlp", i), first


def twice(p: Scope, x: jax.Array, e: Scales) -> tuple[jax.Array, jax.Array]:
    """The stream, twice."""
    h = read(p, x, e)
    return h, h
