"""Those of the outsider's models that are in NNX, Equinox and Haiku."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
from flax import nnx

from .cases import Kind
from .scales import Scales

random = jax.random


class MBConv(nnx.Module):
    """An inverted bottleneck with squeeze and excitation; a residual one keeps its size."""

    def __init__(self, i, o, stride, rngs):
        conv = lambda a, b, k, s=1, g=1: nnx.Conv(
            a, b, (k, k), strides=(s, s), feature_group_count=g, use_bias=False, rngs=rngs
        )
        self.expand, self.depthwise, self.project = (
            conv(i, 4 * i, 1),
            conv(4 * i, 4 * i, 3, stride, 4 * i),
            conv(4 * i, o, 1),
        )
        self.norms = nnx.List([nnx.BatchNorm(n, rngs=rngs) for n in (4 * i, 4 * i, o)])
        self.reduce, self.excite = nnx.Linear(4 * i, i // 4, rngs=rngs), nnx.Linear(i // 4, 4 * i, rngs=rngs)
        self.is_residual = stride == 1

    def __call__(self, x, e, name, i):
        y = nnx.swish(self.norms[0](self.expand(x)))
        y = nnx.swish(self.norms[1](self.depthwise(y)))
        s = nnx.swish(self.reduce(y.mean((1, 2), keepdims=True)))
        y = self.project(y * nnx.sigmoid(self.excite(s)))
        if not self.is_residual:
            return self.norms[2](y)
        return x + e.branch(name, i) * self.norms[2](e.before() * y)


class EfficientNet(nnx.Module):
    """Two stages, each behind a block that halves the resolution and has no shortcut."""

    def __init__(self, e, rngs):
        n, self.e = e.width, e
        self.stem = nnx.Conv(3, n, (3, 3), strides=(2, 2), use_bias=False, rngs=rngs)
        self.stages = nnx.List([
            nnx.List([MBConv(i, o, 2, rngs), *(MBConv(o, o, 1, rngs) for _ in range(e.depth))])
            for i, o in ((n, n), (n, 2 * n))
        ])  # fmt: skip
        self.top, self.head = nnx.Linear(2 * n, 4 * n, rngs=rngs), nnx.Linear(4 * n, 10, rngs=rngs)

    def __call__(self, images):
        x = nnx.swish(self.stem(images))
        for name, stage in zip(("first", "second"), self.stages, strict=True):
            for i, block in enumerate(stage):
                x = block(x, self.e, name, i - 1)
        return self.head(nnx.swish(self.top(x)).mean((1, 2)) * self.e.readout())


def concat_elu(x: jax.Array) -> jax.Array:
    return nnx.elu(jnp.concatenate([x, -x], -1))


class GatedResnet(nnx.Module):
    """PixelCNN++'s block: its kernel sees what is above and to the left; it may read another stream."""

    def __init__(self, n, rngs, *, reads):
        self.first = nnx.Conv(2 * n, n, (2, 2), padding="VALID", rngs=rngs)
        self.other = nnx.Linear(2 * n, n, rngs=rngs) if reads else None
        self.second = nnx.Conv(2 * n, 2 * n, (2, 2), padding="VALID", rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x, other=None):
        pad = lambda x: jnp.pad(x, ((0, 0), (1, 0), (1, 0), (0, 0)))
        y = self.first(pad(concat_elu(x)))
        y = y if other is None else y + self.other(concat_elu(other))
        a, b = jnp.split(self.second(pad(self.drop(concat_elu(y)))), 2, -1)
        return a * nnx.sigmoid(b)


class PixelCNN(nnx.Module):
    """A stream of what is above, and one of what is to the left, which reads it."""

    def __init__(self, e, rngs):
        n, self.e = e.width, e
        self.up_in, self.left_in = (nnx.Conv(3, n, (2, 2), rngs=rngs) for _ in range(2))
        self.up = nnx.List([GatedResnet(n, rngs, reads=False) for _ in range(e.depth)])
        self.left = nnx.List([GatedResnet(n, rngs, reads=True) for _ in range(e.depth)])
        self.out = nnx.Linear(n, 20, rngs=rngs)

    def __call__(self, x):
        up, left = self.up_in(x), self.left_in(x)
        for i, (a, b) in enumerate(zip(self.up, self.left, strict=True)):
            up = up + self.e.branch("up", i) * a(up)
            left = left + self.e.branch("left", i) * b(left, up)
        return self.out(nnx.elu(left) * self.e.readout())


class Attend(eqx.Module):
    """Attention of one set to another."""

    q: eqx.nn.Linear
    k: eqx.nn.Linear
    v: eqx.nn.Linear
    o: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, n, heads, key):
        self.q, self.k, self.v, self.o = (eqx.nn.Linear(n, n, use_bias=False, key=k) for k in random.split(key, 4))
        self.heads = heads

    def __call__(self, x, y, scale):
        split = lambda layer, a: jax.vmap(layer)(a).reshape(a.shape[0], self.heads, -1)
        q, k, v = split(self.q, x), split(self.k, y), split(self.v, y)
        w = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k) * scale)
        return jax.vmap(self.o)(jnp.einsum("hqk,khd->qhd", w, v).reshape(x.shape[0], -1))


class InducedSets(eqx.Module):
    """Set Transformer: inducing points read the set in a stream of their own, of two sums, inside each layer."""

    embed: eqx.nn.Linear
    layers: list[Any]
    head: eqx.nn.Linear
    e: Scales = eqx.field(static=True)

    def __init__(self, e, key):
        n, (a, b, *keys), self.e = e.width, random.split(key, 2 + e.depth), e
        self.embed, self.head = eqx.nn.Linear(3, n, key=a), eqx.nn.Linear(n, 5, key=b)
        mab = lambda key: (Attend(n, 2, key), eqx.nn.Linear(n, n, key=key))
        self.layers = [(random.normal(k, (4, n)), mab(k), mab(k)) for k in keys]

    def __call__(self, x):
        e, scale = self.e, self.e.heads(self.e.width // 2)
        h = jax.vmap(self.embed)(x)
        for i, (points, (read, mix), (attend, last)) in enumerate(self.layers):
            y = points + read(points, h, scale)
            y = y + jax.nn.relu(jax.vmap(mix)(y))
            h = h + e.branch("attention", i) * attend(h, y, scale)
            h = h + e.branch("mlp", i) * jax.nn.relu(jax.vmap(last)(h))
        return self.head(h.mean(0) * e.readout())


def _gmlp(e: Scales) -> Callable[[jax.Array], jax.Array]:
    """Gates that mix tokens by a matrix of fixed size."""

    def net(tokens: jax.Array) -> jax.Array:
        n, t = e.width, tokens.shape[1]
        h = e.embedding() * hk.Embed(11, n, name="embed")(tokens)
        for i in range(e.depth):
            y = e.input() * hk.LayerNorm(-1, True, True, name=f"norm_{i}")(h)
            u, v = jnp.split(jax.nn.gelu(e.inner() * hk.Linear(4 * n, name=f"proj_in_{i}")(y)), 2, -1)
            w = hk.get_parameter(f"spatial_w_{i}", (t, t), init=hk.initializers.RandomNormal(0.01))
            b = hk.get_parameter(f"spatial_b_{i}", (t, 1), init=jnp.ones)
            y = u * (jnp.einsum("ts,bsd->btd", w, hk.LayerNorm(-1, True, True, name=f"gate_norm_{i}")(v)) + b)
            h = h + e.branch("block", i) * hk.Linear(n, name=f"proj_out_{i}")(y)
        return hk.Linear(4, name="classifier")(hk.LayerNorm(-1, True, True, name="last")(h).mean(1) * e.readout())

    return net


def _haiku(net: Callable[[Scales], Callable[[jax.Array], jax.Array]], x: Any) -> Kind:
    def pair(e: Scales) -> Any:
        made = hk.without_apply_rng(hk.transform(net(e)))
        return made.apply, jax.eval_shape(made.init, random.key(0), x)

    return Kind(pair, x, None)


def _nnx(make: Callable[[Scales, Any], Any], x: Any) -> Kind:
    return Kind(lambda e: nnx.eval_shape(lambda: make(e, nnx.Rngs(0))), x, None)


def _eqx(make: Callable[[Scales, Any], Any], x: Any) -> Kind:
    return Kind(lambda e: eqx.filter_eval_shape(make, e, random.key(0)), x, None)


F, X, TOKENS = jnp.float32, jax.ShapeDtypeStruct, jax.ShapeDtypeStruct((2, 6), jnp.int32)
LIBRARIES: Mapping[str, Kind] = {
    "efficient_net": _nnx(EfficientNet, X((2, 16, 16, 3), F)),
    "pixel_cnn": _nnx(PixelCNN, X((2, 6, 6, 3), F)),
    "induced_sets": _eqx(InducedSets, X((2, 9, 3), F)),
    "gmlp": _haiku(_gmlp, TOKENS),
}
