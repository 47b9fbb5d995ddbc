"""Small models that differ in how their streams are built, each right or with one mistake."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import depthmup_flax as dm
from depthmup_flax.auditing.audit_report import Audit

RULE = dm.get_parametrization("depth_mup")
WIDTH, DEPTH, LENGTH = 8, 2, 6  # of the base model; of sequences
BATCH = jax.ShapeDtypeStruct((2, LENGTH, 5), jnp.float32)
SENDERS, RECEIVERS = np.array([0, 1, 2, 3, 4, 5, 0, 2]), np.array([1, 2, 3, 4, 5, 0, 3, 5])
Shapes = dict[str, jax.ShapeDtypeStruct]


@dataclasses.dataclass(frozen=True)
class Net:
    """Sizes and multipliers of one model; its parameters are recorded, or given in ``values``.

    ``mistake`` is "all" branches or a site (with the number of one block) without a multiplier, "readout" or
    "attention".
    """

    width: int
    depth: int
    mistake: str = ""
    values: Mapping[str, Any] | None = None
    shapes: Shapes = dataclasses.field(default_factory=dict)

    def param(self, name: str, *shape: int) -> jax.Array:
        """A parameter."""
        if self.values is not None:
            return self.values[name]
        self.shapes[name] = jax.ShapeDtypeStruct(shape, jnp.float32)
        return jnp.zeros(shape)

    def multiplier(self, site: str, block: int, depth: int = 0) -> float:
        """Of a branch of the stream with a depth other than the model's, if given."""
        forgotten = self.mistake in ("all", site, f"{site}{block}")
        return 1.0 if forgotten else RULE.residual_multiplier((depth or self.depth) / DEPTH)

    def dense(self, name: str, x: jax.Array, features: int = 0) -> jax.Array:
        """A product, to the width by default."""
        return x @ self.param(f"{name}/w", x.shape[-1], features or self.width)

    def norm(self, name: str, x: jax.Array) -> jax.Array:
        """A layer norm."""
        y = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
        return y * self.param(f"{name}/scale", x.shape[-1])

    def mlp(self, name: str, x: jax.Array) -> jax.Array:
        """Two layers."""
        return self.dense(f"{name}/down", jax.nn.gelu(self.dense(f"{name}/up", x, 2 * self.width)))

    def attend(self, name: str, x: jax.Array, y: jax.Array, bias: Any = 0.0) -> jax.Array:
        """Attention of ``x`` to ``y``, whose head dimension grows."""
        q, k, v = (self.dense(f"{name}/{n}", a) for n, a in (("q", x), ("k", y), ("v", y)))
        scale = self.width**-0.5 if self.mistake == "attention" else RULE.attention_scale(self.width, WIDTH)
        return self.dense(f"{name}/o", jax.nn.softmax(scale * q @ k.swapaxes(1, 2) + bias) @ v)

    def head(self, h: jax.Array) -> jax.Array:
        """The readout of the mean over positions."""
        return self.dense("head", h.mean(1) * (1.0 if self.mistake == "readout" else WIDTH / self.width), 3)


Body = Callable[..., jax.Array]
Names = Callable[[Shapes], tuple[Any, Callable[[Any], Mapping[str, Any]]]]


def by_name(shapes: Shapes) -> tuple[Any, Callable[[Any], Mapping[str, Any]]]:
    """Parameters as a dictionary."""
    return shapes, lambda tree: tree


def as_list(shapes: Shapes) -> tuple[Any, Callable[[Any], Mapping[str, Any]]]:
    """Parameters as a flat list."""
    return list(shapes.values()), lambda tree: dict(zip(shapes, tree, strict=True))


@functools.cache
def _shapes(body: Body, sizes: tuple[int, int], x: tuple[Any, ...]) -> Shapes:
    """Of the parameters, which no mistake changes."""
    record = Net(*sizes)
    jax.eval_shape(lambda *x: body(record, *x), *x)
    return record.shapes


def audited(
    body: Body,
    mistake: str = "",
    x: tuple[Any, ...] = (BATCH,),
    names: Names = by_name,
    width: int = 2 * WIDTH,
    **options: Any,
) -> Audit:
    """The audit of a model of twice the base's depth."""
    models = []
    for sizes in ((width, 2 * DEPTH), (WIDTH, DEPTH)):
        tree, back = names(_shapes(body, sizes, x))
        call = lambda values, *x, sizes=sizes, back=back: body(Net(*sizes, mistake, back(values)), *x)
        models.append((call, tree))
    return dm.audit(*models, x, carry=False, **options)


# --- branches without weights


def _pool(y: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(y, 0.0, jax.lax.add, (1, 3, 1), (1, 1, 1), "SAME") / 3


MIXERS: Mapping[str, Callable[[jax.Array], jax.Array]] = {  # that the zoo lacks
    "pool_minus_itself": lambda y: _pool(y) - y,
    "absolute_fourier": lambda y: jnp.abs(jnp.fft.fft(y, axis=1)),
    "gate": lambda y: y * jax.nn.sigmoid(y.mean(1, keepdims=True)),
    "resize": lambda y: jax.image.resize(jax.image.resize(y, (y.shape[0], 3, y.shape[2]), "linear"), y.shape, "linear"),
    "neighbors": lambda y: jax.vmap(lambda a: jax.ops.segment_sum(a[SENDERS], RECEIVERS, LENGTH))(y),
    "wavelet": lambda y: jnp.concatenate([y[:, ::2] + y[:, 1::2], y[:, ::2] - y[:, 1::2]], 1) / 2**0.5,
    "second_difference": lambda y: jnp.roll(y, 1, 1) - 2 * y + jnp.roll(y, -1, 1),
}  # fmt: skip


def mixed(mixer: str) -> Body:
    """Blocks of a mixer without weights and a feed-forward network."""

    def body(net: Net, x: jax.Array) -> jax.Array:
        h = net.dense("stem", x)
        for i in range(net.depth):
            for site, branch in (("mix", MIXERS[mixer]), ("mlp", lambda y, i=i: net.mlp(f"block{i}/mlp", y))):
                h = h + net.multiplier(site, i) * branch(net.norm(f"block{i}/{site}_norm", h))
        return net.head(net.norm("norm", h))

    return body


# --- several streams


def translator(encoder: int, decoder: int) -> Body:
    """A pre-norm encoder and decoder of these depth ratios."""

    def body(net: Net, x: jax.Array, y: jax.Array) -> jax.Array:
        blocks = lambda ratio: DEPTH if net.depth == DEPTH else ratio * DEPTH
        h, g, n_encoder, n_decoder = net.dense("stem", x), net.dense("other_stem", y), blocks(encoder), blocks(decoder)
        for i in range(n_encoder):
            n = net.norm(f"encoder/{i}/n1", h)
            h = h + net.multiplier("read", i, n_encoder) * net.attend(f"encoder/{i}/self", n, n)
            y = net.mlp(f"encoder/{i}/mlp", net.norm(f"encoder/{i}/n2", h))
            h = h + net.multiplier("encode", i, n_encoder) * y
        memory = net.norm("encoder/norm", h)
        for i in range(n_decoder):
            n = net.norm(f"decoder/{i}/n1", g)
            g = g + net.multiplier("self", i, n_decoder) * net.attend(f"decoder/{i}/self", n, n)
            y = net.attend(f"decoder/{i}/cross", net.norm(f"decoder/{i}/n2", g), memory)
            g = g + net.multiplier("cross", i, n_decoder) * y
        return net.head(net.norm("norm", g))

    return body


# --- skip connections around streams


def long_skip(net: Net, x: jax.Array) -> jax.Array:
    """One skip connection around all blocks, as in image restoration."""
    stem = h = net.dense("stem", x)
    for i in range(net.depth):
        h = h + net.multiplier("mlp", i) * net.mlp(f"block{i}/mlp", h)
    return net.head(net.norm("norm", stem + net.dense("body", h)))


# --- names


def numbered(ratio: int) -> Body:
    """Blocks of two layers with biases; the first is ``ratio`` times as wide."""

    def body(net: Net, x: jax.Array) -> jax.Array:
        layer = lambda name, x, n: net.dense(name, x, n) + net.param(f"{name}/b", n)
        h = layer("stem", x, net.width)
        for i in range(net.depth):
            y = jax.nn.relu(layer(f"block{i}/up", h, ratio * net.width))
            h = h + net.multiplier("mlp", i) * layer(f"block{i}/down", y, net.width)
        return net.head(h)

    return body


# --- sums that no multiplier of a branch corrects


def recalled(net: Net, x: jax.Array) -> jax.Array:
    """Each block adds the stream's first value."""
    stem = h = net.dense("stem", x)
    for i in range(net.depth):
        h = h + net.multiplier("mlp", i) * net.mlp(f"block{i}/mlp", net.norm(f"block{i}/norm", h)) + stem
    return net.head(net.norm("norm", h))


def bent(of_sums: bool) -> Body:
    """A nonlinearity behind each sum; ``of_sums``: which is multiplied as a whole."""

    def body(net: Net, x: jax.Array) -> jax.Array:
        h = net.dense("stem", x)
        c = (DEPTH / net.depth) ** 0.5 if of_sums else 1.0
        for i in range(net.depth):
            y = net.multiplier("mlp", i) * net.mlp(f"block{i}/mlp", h)
            h = jnp.tanh(c * h + c * y)
        return net.head(h)

    return body


def scanned_velocity(damping: float) -> Body:
    """The same in ``lax.scan``."""

    def body(net: Net, x: jax.Array) -> jax.Array:
        layers = [net.param(f"blocks/{name}", net.depth, net.width, net.width) for name in ("up", "down")]

        def step(
            carry: tuple[jax.Array, jax.Array], layer: list[jax.Array]
        ) -> tuple[tuple[jax.Array, jax.Array], None]:
            h, v = carry
            v = damping * v + net.multiplier("mlp", 0) * jnp.tanh(h @ layer[0]) @ layer[1]
            return (h + v, v), None

        h = net.dense("stem", x)
        return net.head(net.norm("norm", jax.lax.scan(step, (h, jnp.zeros_like(h)), layers)[0][0]))

    return body


def leaky(net: Net, x: jax.Array) -> jax.Array:
    """Each layer moves the stream a part of the way to its own value."""
    h = net.dense("stem", x)
    for i in range(net.depth):
        h = h + net.multiplier("mlp", i) * (net.mlp(f"block{i}", h) - h)
    return net.head(h)


# --- others


def positions(net: Net, x: jax.Array) -> jax.Array:
    """Queries and keys of all layers add one table, as in DETR."""
    h, table = net.dense("stem", x), net.param("positions", LENGTH, net.width)
    for i in range(net.depth):
        n = net.norm(f"block{i}/norm", h) + table
        h = h + net.multiplier("att", i) * net.attend(f"block{i}/att", n, n)
    return net.head(net.norm("norm", h))


def bottleneck(net: Net, x: jax.Array) -> jax.Array:
    """The stream passes through a few features."""
    h = net.dense("stem", x)
    for i in range(net.depth):
        h = h + net.multiplier("mlp", i) * net.mlp(f"block{i}/mlp", net.norm(f"block{i}/norm", h))
    return net.head(net.dense("wide", jax.nn.relu(net.dense("few", net.norm("norm", h), 4))))
