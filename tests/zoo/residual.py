"""Networks of public code in which a sum that is not residual stands beside those that are."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from .branches import attend, attention, dense, heads_of, mlp
from .cases import Kind
from .scales import HEADS, Scales
from .scope import Scope
from .stacks import NORMS, TOKENS, VECTORS, read, rms, write
from .streams import add, cross, feed_forwards, simple

IMAGES = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)
Conv = functools.partial(nn.Conv, use_bias=False)
GROUPS: Mapping[str, Any] = {
    "group": functools.partial(nn.GroupNorm, num_groups=4),
    "layer": nn.LayerNorm,
    "batch": functools.partial(nn.BatchNorm, use_running_average=False),
    "instance": nn.InstanceNorm,
}


class Standardized(nn.Module):
    """A convolution whose kernel has mean 0 and variance 1 over its inputs (BiT)."""

    features: int
    window: tuple[int, int]
    strides: tuple[int, int] = (1, 1)

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (*self.window, x.shape[-1], self.features))
        kernel = kernel - kernel.mean((0, 1, 2))
        kernel = kernel / jnp.sqrt(jnp.mean(kernel**2, (0, 1, 2)) + 1e-10) / (x.shape[-1] * self.window[0]) ** 0.5
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, self.strides, "SAME", dimension_numbers=numbers)


class ResNet(nn.Module):
    """Two stages, or one, of as many blocks as the network is deep.

    ``pre``: ResNet-v2, whose projection reads what the norm and the nonlinearity return; without, ResNet-v1 with a norm
    behind every convolution, also of the shortcut, and ReLU behind the sum. ``first``: the first stage is projected.
    """

    e: Scales
    pre: bool = True
    layers: int = 2
    stages: int = 2
    first: bool = False
    norm: str = "group"
    normed: bool = True  # the projection of v1
    conv: Any = Conv

    @nn.compact
    def __call__(self, x):
        e, norm = self.e, GROUPS[self.norm]
        x = self.conv(e.width, (3, 3), name="stem")(x)
        x = x if self.pre else nn.relu(norm(name="stem_norm")(x))
        for i in range(self.stages * e.depth):
            stage, name, n = i // e.depth, f"block{i}", e.width * (1 + i // e.depth)
            projected = i % e.depth == 0 and (stage or self.first)
            strides = (2, 2) if projected and stage else (1, 1)
            y = nn.relu(norm(name=f"{name}_norm")(x)) if self.pre else x
            if projected:
                x = self.conv(n, (1, 1), strides, name=f"{name}_proj")(y)
                x = norm(name=f"{name}_proj_norm")(x) if self.normed and not self.pre else x
            for k in range(self.layers):
                y = nn.relu(norm(name=f"{name}_norm{k}")(y)) if k and self.pre else y
                y = self.conv(n, (3, 3), (1, 1) if k else strides, name=f"{name}_conv{k}")(y)
                y = norm(name=f"{name}_norm{k}")(y) if not self.pre else y
                y = nn.relu(y) if not self.pre and k + 1 < self.layers else y
            x = e.stream() * x + e.branch("conv", i) * y
            x = x if self.pre else nn.relu(x)
        x = nn.relu(norm(name="end_norm")(x)) if self.pre else x
        return e.readout() * nn.Dense(5, name="head")(x.mean((1, 2)))


def _resnets() -> dict[str, Kind]:
    options: Mapping[str, Mapping[str, Any]] = {
        "v2": {},
        "v2_one_stage": {"stages": 1},
        "v2_one_layer": {"layers": 1},
        "v2_one_layer_first": {"layers": 1, "first": True},
        "v2_three_stages": {"stages": 3},
        "v2_layer_norm": {"norm": "layer", "layers": 3},
        "v2_batch_norm": {"norm": "batch", "first": True},
        "v1": {"pre": False, "first": True, "layers": 3},
        "v1_standardized": {"pre": False, "first": True, "layers": 3, "conv": Standardized},
        "v1_one_stage": {"pre": False, "first": True, "stages": 1},
        "v1_batch_norm": {"pre": False, "norm": "batch"},
        "v1_layer_norm": {"pre": False, "norm": "layer", "first": True},
        "v1_instance_norm": {"pre": False, "norm": "instance", "first": True},
        "v1_bare_projection": {"pre": False, "normed": False},
        "v1_one_layer": {"pre": False, "layers": 1, "first": True},
    }
    return {name: Kind(functools.partial(ResNet, **each), IMAGES, None) for name, each in options.items()}


# --- coupled streams whose last sums little reads


def interaction(reads: str, last: str = "nodes", normed: bool = True, updates: int = 0) -> Any:
    """An interaction network (GraphCast, jraph): nodes read what the edges' network returns, or their sum.

    ``last``: what the output reads; "change": it is added to the batch. ``normed``: each network ends in a layer norm.
    ``updates``: of the edges, fewer than layers by this number.
    """
    finish = (lambda p, y: NORMS["layer"](p, y, "end")) if normed else lambda p, y: y

    def net_of(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
        return finish(p, dense(p, "down", jax.nn.silu(dense(p, "up", x, e.width)), e.width))

    def net(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
        senders, receivers = jnp.array([0, 1, 2, 3, 4, 5, 0]), jnp.array([1, 2, 3, 4, 5, 0, 3])
        first = jnp.sin(jnp.arange(21.0)).reshape(1, 7, 3) * x[:, :1, :1]
        h, edge = net_of(p / "embed_nodes", x, e), net_of(p / "embed_edges", first, e)
        for i in range(e.depth):
            q = p / f"step_{i}"
            message = net_of(q / "edge", jnp.concatenate([edge, h[:, senders], h[:, receivers]], -1), e)
            new = add(e, edge, message, "edges", i) if i < e.depth - updates else edge
            seen = {"updates": message, "sums": new, "old": edge}[reads]
            total = jax.vmap(lambda m: jax.ops.segment_sum(m, receivers, 6))(seen)
            h = add(e, h, net_of(q / "node", jnp.concatenate([h, total], -1), e), "nodes", i)
            edge = new
        if last == "change":
            return x + e.readout() * dense(p, "head", h, x.shape[-1])
        return e.readout() * dense(p, "head", h.mean(1) if last == "nodes" else edge.mean(1), 4)

    return net


def vectors(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Two streams, of numbers and of vectors that start at zero; each layer mixes both along a ring (PaiNN)."""
    s, v = read(p, x, e), jnp.zeros((*x.shape[:2], 3, e.width))
    for i in range(e.depth):
        q = p / f"block_{i}"
        a, b, c = jnp.split(dense(q, "up", jax.nn.silu(dense(q, "in", rms(q, s), e.width)), 3 * e.width), 3, -1)
        seen = jnp.roll(b[:, :, None] * v, 1, 1) + c[:, :, None] * x[:, :, :3, None]
        v = add(e, v, seen, "vectors", i)
        s = add(e, s, a * jnp.square(dense(q, "size", v, e.width)).mean(2), "numbers", i)
    return write(p, s, e)


def uneven(lacks: int) -> Any:
    """One layer has no feed-forward."""

    def net(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
        def block(p: Scope, x: jax.Array, i: int) -> jax.Array:
            x = add(e, x, attention(p, rms(p, x), e), "attention", i)
            return x if i == lacks % e.depth else add(e, x, mlp(p / "mlp", rms(p / "mlp", x), e), "mlp", i)

        return write(p, p.unrolled(e.depth, block, read(p, x, e)), e)

    return net


def two_ways(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Two streams from one array, which are added (HiFi-GAN)."""
    h = read(p, x, e)
    return write(p, feed_forwards(p / "a", h, e) + feed_forwards(p / "b", h, e), e)


def evoformer(first: str, last: str) -> Any:
    """Two streams, rows biased by pairs and pairs updated by products of rows; ``first`` is updated first."""

    def net(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
        def rows(p: Scope, s: jax.Array, z: jax.Array, i: int) -> jax.Array:
            bias = dense(p, "bias", rms(p, z, "norm_z"), HEADS).transpose(0, 3, 1, 2)
            y = rms(p, s, "norm_s")
            s = add(e, s, cross(p / "attention", y, y, e, bias), "rows", i)
            return add(e, s, mlp(p / "mlp", rms(p, s, "norm_m"), e), "rows_mlp", i)

        def pairs(p: Scope, s: jax.Array, z: jax.Array, i: int) -> jax.Array:
            a = rms(p, s, "norm_p")
            outer = dense(p, "left", a, e.width)[:, :, None] * dense(p, "right", a, e.width)[:, None]
            z = add(e, z, dense(p, "outer", outer, e.width), "outer", i)
            return add(e, z, mlp(p / "pair_mlp", rms(p, z, "norm_q"), e), "pair_mlp", i)

        s = read(p / "rows", x, e)
        z = dense(p, "left", x, e.width)[:, :, None] + dense(p, "right", x, e.width)[:, None]
        for i in range(e.depth):
            q = p / f"block_{i}"
            if first == "pairs":
                z = pairs(q, s, z, i)
            s = rows(q, s, z, i)
            if first == "rows":
                z = pairs(q, s, z, i)
        return write(p, {"rows": s, "pairs": z.mean(2)}[last], e)

    return net


def with_losses(per_token: bool) -> Any:
    """A routed branch in each layer, whose router's losses are added up beside the stream; no loss reads the sum."""

    def net(p: Scope, x: jax.Array, e: Scales) -> tuple[jax.Array, jax.Array]:
        h, losses = read(p, x, e), jnp.zeros(x.shape[:2] if per_token else ())
        for i in range(e.depth):
            q = p / f"block_{i}"
            y = rms(q, h)
            scores = dense(q, "router", y, 3)
            losses = losses + (jnp.square(scores).mean(-1) if per_token else jnp.square(scores.mean((0, 1))).sum())
            gates = jax.nn.softmax(scores)
            y = sum(gates[..., k : k + 1] * mlp(q / f"expert{k}", y, e) for k in range(3))
            h = add(e, h, y, "experts", i)
        return write(p, h, e), losses

    return net


# --- the stream's first value


def two_way(place: str, again: str) -> Any:
    """SAM's decoder: queries and keys of every attention add the first values of the two streams.

    ``place`` of the norm; ``again``: "queries and keys", or what "all" read; "tokens" alone have a stream; "replacing":
    the first attention replaces the queries, to which their first value is added as before.
    """

    def net(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
        def norm(p: Scope, x: jax.Array, name: str, at: str) -> jax.Array:
            return NORMS["layer"](p, x, name) if at == place else x

        def attention(p: Scope, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            q, k, v = (heads_of(dense(p, n, y, e.width)) for n, y in (("q", q), ("k", k), ("v", v)))
            return dense(p, "out", attend(q, k, v, e.heads(q.shape[-1]), False).reshape(*q.shape[:2], -1), e.width)

        t0 = t = read(p / "points", x[:, :3], e)
        f0 = f = read(p / "image", x, e)
        for i in range(e.depth):
            q, see = p / f"layer_{i}", (lambda y, first: y + first)
            values = see if again == "all" else lambda y, first: y
            y = norm(q, t, "n1", "pre")
            y = attention(q / "self", see(y, t0), see(y, t0), values(y, t0))
            t = norm(q, y if again == "replacing" and not i else add(e, t, y, "self", i), "n1", "post")
            y = norm(q, t, "n2", "pre")
            t = add(e, t, attention(q / "to_image", see(y, t0), see(f, f0), values(f, f0)), "to_image", i)
            t = norm(q, t, "n2", "post")
            t = norm(q, add(e, t, mlp(q / "mlp", norm(q, t, "n3", "pre"), e), "mlp", i), "n3", "post")
            if again != "tokens":
                y = attention(q / "to_tokens", see(norm(q, f, "n4", "pre"), f0), see(t, t0), values(t, t0))
                f = norm(q, add(e, f, y, "to_tokens", i), "n4", "post")
        t = add(e, t, attention(p / "last", t + t0, f + f0, f), "last", None, 0.5)
        return e.readout() * dense(p, "head", NORMS["layer"](p, t.mean(1), "end"), 4)

    return net


# --- several products of scores with one set of weights


def relative(fused: bool, grows: bool, scaled: bool = False) -> Any:
    """Attention whose queries read tables of relative positions along two axes (SAM's encoder, ViTDet).

    ``fused``: queries, keys and values by one matrix; ``grows``: the head dimension, else the number of heads;
    ``scaled``: the queries are, before both products.
    """

    def block(p: Scope, x: jax.Array, i: Any, e: Scales) -> jax.Array:
        y, n = rms(p, x, "norm_a"), e.width
        heads = HEADS if grows else n // 8
        if fused:
            q, k, v = (heads_of(part, heads) for part in jnp.split(dense(p, "qkv", y, 3 * n), 3, -1))
        else:
            q, k, v = (heads_of(dense(p, name, y, n), heads) for name in ("query", "key", "value"))
        d = n // heads
        c = e.heads(d) if grows else d**-0.5
        near = jnp.arange(6)[:, None] - jnp.arange(6) + 5
        r = q * c if scaled else q * (c * 2 if grows else 1.0)
        rows, columns = (p(f"rel_{axis}", 11, d)[near] for axis in ("h", "w"))
        scores = jnp.einsum("bthd,bshd->bhts", q * c, k)
        scores = scores + jnp.einsum("bthd,tsd->bhts", r, rows) + jnp.einsum("bthd,tsd->bhts", r, columns)
        mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v).reshape(x.shape)
        x = add(e, x, dense(p, "out", mixed, n), "attention", i)
        return add(e, x, mlp(p / "mlp", rms(p, x, "norm_m"), e), "mlp", i)

    return block


# --- a stream that every layer multiplies


def faded(where: str, norm: str = "rms") -> Any:
    """The stream is multiplied in the sum, or the sum as a whole, by one number."""

    def block(p: Scope, x: jax.Array, i: Any, e: Scales) -> jax.Array:
        for name in ("first", "second"):
            y = mlp(p / name, NORMS[norm](p / name, x), e)
            c, k = e.branch(name, i if isinstance(i, int) else None), e.fading()
            x = k * x + c * y if where == "stream" else k * (x + c * y)
        return x

    return block


def _kinds() -> dict[str, Kind]:
    kinds = _resnets()
    for reads in ("updates", "sums", "old"):
        kinds[f"interaction_{reads}"] = Kind(interaction(reads), VECTORS)
    kinds["interaction_bare"] = Kind(interaction("updates", normed=False), VECTORS)
    kinds["interaction_edges"] = Kind(interaction("updates", "edges"), VECTORS)
    kinds["interaction_change"] = Kind(interaction("updates", "change"), VECTORS)
    kinds["interaction_skipped"] = Kind(interaction("updates", updates=1), VECTORS)
    kinds |= {f"uneven_{n}": Kind(uneven(k), TOKENS, size=(64, 6)) for n, k in (("first", 0), ("last", -1))}
    kinds |= {"vectors": Kind(vectors, VECTORS), "two_ways": Kind(two_ways, VECTORS)}
    for first in ("rows", "pairs"):
        for last in ("rows", "pairs"):
            kinds[f"evoformer_{first}_first_{last}_last"] = Kind(evoformer(first, last), VECTORS)
    for name, per_token in {"losses": False, "losses_of_tokens": True}.items():
        kinds[name] = Kind(with_losses(per_token), VECTORS, arguments={"output": 0})
    for place in ("post", "pre", "none"):
        for again in ("queries and keys", "all", "tokens", "replacing"):
            kinds[f"two_way_{place}_{again.partition(' ')[0]}"] = Kind(two_way(place, again), VECTORS)
    for name, options in {
        "fused": (True, False), "fused_growing": (True, True), "split": (False, False), "split_growing": (False, True),
        "fused_scaled": (True, False, True), "split_scaled_growing": (False, True, True),
    }.items():  # fmt: skip
        kinds[f"relative_{name}"] = Kind(simple(relative(*options)), TOKENS)
    for where in ("stream", "sum"):
        kinds[f"faded_{where}"] = Kind(simple(faded(where)), TOKENS)
        kinds[f"faded_{where}_scanned"] = Kind(simple(faded(where), scan=True), TOKENS)
        kinds[f"faded_{where}_layer"] = Kind(simple(faded(where, "layer")), TOKENS)
    return kinds


RESIDUAL: Mapping[str, Kind] = {f"residual/{name}": kind for name, kind in _kinds().items()}
