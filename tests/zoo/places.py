"""Networks with factors where few people multiply: behind nonlinearities, on the batch, on what occurs once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .branches import Branch, attend, attention, attention_with, dense, heads_of, mlp
from .cases import Kind
from .scales import Scales
from .scope import Scope
from .stacks import CLASSES, TOKENS, VECTORS, Net, read, rms, stack, write
from .streams import add, feed_forwards

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "cos": lambda y: (2 / 16) ** 0.5 * jnp.cos(y), "sin": jnp.sin, "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid,
    "softmax": jax.nn.softmax, "square": jnp.square, "abs": jnp.abs, "clip": lambda y: jnp.clip(y, -1, 1),
    "relu": jax.nn.relu, "relu6": jax.nn.relu6, "gelu": jax.nn.gelu, "erf_gelu": lambda y: jax.nn.gelu(y, False),
    "silu": jax.nn.silu, "softplus": jax.nn.softplus, "elu": jax.nn.elu, "leaky_relu": jax.nn.leaky_relu,
    "exp": jnp.exp, "mish": lambda y: y * jnp.tanh(jax.nn.softplus(y)), "hard_swish": jax.nn.hard_swish,
}  # fmt: skip


def features(bend: Callable[[jax.Array], jax.Array], p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """A layer of features in front of the stream."""
    y = bend(e.batch() * x @ p("features", x.shape[-1], e.width) + p("phase", e.width))
    return write(p, feed_forwards(p, dense(p, "stem", e.bent() * y, e.width), e), e)


def bent_branch(bend: Callable[[jax.Array], jax.Array]) -> Callable[[Scope, jax.Array, Scales], jax.Array]:
    """Three matrices; the second reads a multiplied nonlinearity."""

    def branch(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
        n = y.shape[-1]
        y = jax.nn.relu(dense(p, "middle", e.bent() * bend(dense(p, "up", y, n) + p("bias", n)), n))
        return dense(p, "down", y, n)

    return branch


def last_branch(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """The last matrix reads a multiplied nonlinearity."""
    return dense(p, "down", e.bent() * jnp.tanh(dense(p, "up", y, 2 * y.shape[-1])), y.shape[-1])


def gated(p: Scope, y: jax.Array, e: Scales, bend: Callable[[jax.Array], jax.Array] = lambda y: y) -> jax.Array:
    """The last matrix reads a multiplied product of two layers, or a nonlinearity of it (DeepONet of jaxpi)."""
    n = 2 * y.shape[-1]
    hidden = jax.nn.silu(dense(p, "gate", y, n)) * dense(p, "up", y, n)
    return dense(p, "down", bend(e.bent() * hidden), y.shape[-1])


def crossed(bend: Callable[[jax.Array], jax.Array]) -> Callable[[Scope, jax.Array, Scales], jax.Array]:
    """A multiplied nonlinearity chooses between two others (the modified MLP of jaxpi)."""

    def branch(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
        h, u, v = (bend(dense(p, name, y, y.shape[-1])) for name in ("up", "one", "other"))
        h = e.bent() * h
        return dense(p, "down", h * u + (1 - h) * v, y.shape[-1])

    return branch


def two_layers(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Multiplied random features, a layer without a nonlinearity, and the readout."""
    y = e.bent() * jnp.cos(dense(p, "features", rms(p, x, "end_norm"), e.width))
    return e.readout() * dense(p, "head", dense(p, "hidden", y, e.width), CLASSES)


def mixed(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """Attention whose result is multiplied in front of the last matrix."""
    n = y.shape[-1]
    q, k, v = (heads_of(dense(p, name, y, n)) for name in ("query", "key", "value"))
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) * e.heads(q.shape[-1]))
    return dense(p, "out", e.bent() * jnp.einsum("bhts,bshd->bthd", weights, v).reshape(y.shape), n)


def towers(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """The product of two networks, one of which ends in a multiplied layer (DeepONet)."""
    a, b = (
        dense(q, "last", feed_forwards(q, read(q, z, e), e), e.width) for q, z in ((p / "a", x), (p / "b", x[:, ::-1]))
    )
    return (e.outer() * a * b).sum(-1) * e.readout()


def concatenated(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """A layer that reads the multiplied batch beside a nonlinearity of it."""
    y = jnp.concatenate([e.batch() * x, jnp.sin(x)], -1)
    return write(p, feed_forwards(p, dense(p, "stem", y, e.width), e), e)


def image(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """A convolution of the multiplied batch."""
    kernel = p("stem", 3, x.shape[-1], e.width)
    y = jax.lax.conv_general_dilated(e.batch() * x, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    return write(p, feed_forwards(p, y + p("bias", e.width), e), e)


def one_hot(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Tokens as multiplied unit vectors."""
    return write(p, feed_forwards(p, dense(p, "stem", e.batch() * jax.nn.one_hot(x, 11), e.width), e), e)


def fourier(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Fixed waves of the batch, multiplied."""
    waves = x[..., None] * 2.0 ** jnp.arange(3)
    y = jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], -1).reshape(*x.shape[:-1], -1)
    return write(p, feed_forwards(p, dense(p, "stem", e.batch() * y, e.width), e), e)


def pooling_head(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """A learned query reads all tokens; one feed-forward is added to what it returns (big_vision's ViT)."""
    h = rms(p, feed_forwards(p, read(p, x, e), e), "trunk_norm")
    q, n = p / "pool", e.width
    query = heads_of(dense(q, "query", jnp.broadcast_to(q("probe", 1, 1, n), (h.shape[0], 1, n)), n))
    k, v = (heads_of(dense(q, name, h, n)) for name in ("key", "value"))
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", query, k) * e.heads(query.shape[-1]))
    y = dense(q, "out", jnp.einsum("bhts,bshd->bthd", weights, v).reshape(h.shape[0], n), n)
    y = y + e.once() * mlp(q / "mlp", rms(q, y, "norm"), e)
    return e.readout() * dense(p, "head", y, CLASSES)


def refined(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """One attention layer behind the trunk."""
    h = feed_forwards(p, read(p, x, e), e)
    return write(p, h + e.once() * attention(p / "last", rms(p / "last", h), e), e)


def prenet(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """One feed-forward in front of a trunk of attention."""
    h = read(p, x, e)
    h = h + e.once() * mlp(p / "first", rms(p / "first", h), e)
    block = lambda q, h, i: add(e, h, attention(q, rms(q, h), e), "attention", i)
    return write(p, p.unrolled(e.depth, block, h), e)


def pooled_width(end: Callable[[Scope, jax.Array], jax.Array]) -> Net:
    """An output that no weight makes: ``end`` of the features."""

    def net(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
        return e.total() * end(p, feed_forwards(p, read(p, x, e), e))

    return net


def biased_head(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Logits with a bias, all multiplied."""
    return e.readout() * (dense(p, "head", rms(p, x, "end_norm"), CLASSES) + p("head_bias", CLASSES))


def biased_stem(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Embeddings with a bias, all multiplied."""
    return e.embedding() * (dense(p, "stem", x, e.width) + p("stem_bias", e.width))


def biased_hidden(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """A hidden layer with a bias in front of the readout, all multiplied."""
    y = jnp.tanh(e.outer() * (dense(p, "hidden", rms(p, x, "end_norm"), e.width) + p("hidden_bias", e.width)))
    return e.readout() * dense(p, "head", y, CLASSES)


def biased_inner(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """The same inside a branch."""
    n = y.shape[-1]
    return dense(p, "down", jax.nn.tanh(e.inner() * (dense(p, "up", y, n) + p("up_bias", n))), n)


def flow(couplings: int, output: int) -> Net:
    """Couplings of a normalizing flow (Jet): what a network returns is added to one half and multiplies it."""

    def net(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
        total = jnp.zeros(x.shape[0])
        for k in range(couplings):
            q, (a, b) = p / f"coupling{k}", jnp.split(x, 2, -1)
            y = e.readout() * dense(q, "head", rms(q, feed_forwards(q, read(q, a, e), e)), 2 * b.shape[-1])
            shift, scale = jnp.split(y, 2, -1)
            scale = jax.nn.sigmoid(scale)
            x, total = jnp.concatenate([(b + shift) * scale, a], -1), total + jnp.log(scale).sum((1, 2))
        return (x, total)[output]

    return net


def deep_flow(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """As many couplings as the network is deep; each ends in a readout."""
    for k in range(e.depth):
        q, (a, b) = p / f"coupling{k}", jnp.split(x, 2, -1)
        y = jax.nn.relu(dense(q, "middle", jax.nn.relu(dense(q, "in", a, e.width)), e.width))
        x = jnp.concatenate([add(e, b, e.readout() * dense(q, "out", y, b.shape[-1]), "coupling", k), a], -1)
    return x


def gain(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A nonlinearity times a scale that a number multiplies."""
    return (2 * p("gain", y.shape[-1])) * jnp.tanh(dense(p, "in", y, y.shape[-1]))


def routed(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A layer whose gates, few features, are multiplied as a readout."""
    gates = jax.nn.softmax(e.readout() * dense(p, "router", y, 3))
    return dense(p, "out", jnp.tanh(gates[..., :1] * dense(p, "in", y, y.shape[-1])), y.shape[-1])


def complex_rotary(pair: Callable[..., jax.Array]) -> Branch:
    """Attention with rotary positions by complex numbers (Llama's first code), which ``pair`` makes."""

    def turned(z: jax.Array) -> jax.Array:
        d = z.shape[-1]
        angles = jnp.arange(z.shape[1])[:, None] * 100.0 ** (-jnp.arange(d // 2) / (d // 2))
        pairs = z.reshape(*z.shape[:-1], -1, 2)
        both = pair(pairs[..., 0], pairs[..., 1]) * jnp.exp(1j * angles)[:, None]
        return jnp.stack([both.real, both.imag], -1).reshape(z.shape)

    return attention_with(lambda q, k, v, scale: attend(turned(q), turned(k), v, scale))


def _places() -> dict[str, Kind]:
    faults = lambda name: ("batch",) if name == "relu" else ("bent", "batch")  # of relu both are one
    kinds = {f"features_{n}": Kind(functools.partial(features, f), VECTORS, only=faults(n))
             for n, f in ACTIVATIONS.items()}  # fmt: skip
    for name, make in {"branch": bent_branch, "crossed": crossed}.items():
        kinds |= {f"{name}_{n}": Kind(stack((name, make(f))), TOKENS, only=("bent",)) for n, f in ACTIVATIONS.items()}
    ends: Mapping[str, Any] = {
        "mean": lambda p, h: rms(p, h).mean(-1),
        "norm_mean": lambda p, h: jnp.tanh(rms(p, h)).mean(-1, keepdims=True),
        "weighted_mean": lambda p, h: (rms(p, h) * p("weights", h.shape[-1])).mean(-1),
        "energy": lambda p, h: 0.5 * jnp.square(dense(p, "last", h, h.shape[-1])).mean(-1),
    }
    kinds |= {f"output_{n}": Kind(pooled_width(f), VECTORS, only=("total",)) for n, f in ends.items()}
    kinds |= {
        "last": Kind(stack(("last", last_branch)), TOKENS, only=("bent",)),
        "gated": Kind(stack(("gated", gated)), TOKENS, only=("bent",)),
        "mixed": Kind(stack(("mixed", mixed)), TOKENS, only=("bent",)),
        "crossing": Kind(stack(("gated", functools.partial(gated, bend=jnp.tanh))), TOKENS, only=("bent",)),
        "two_layers": Kind(stack("mlp", end=two_layers), TOKENS, only=("bent", "none", "no_readout", "kept_readout")),
        "gated_scanned": Kind(stack(("gated", gated), scan=True), TOKENS, only=("bent",)),
        "bare_scanned": Kind(stack(("gated", gated), norm="none", scan=True), TOKENS, only=("bent",)),
        "towers": Kind(towers, VECTORS, only=("outer", "no_readout")),
        "biased_head": Kind(stack("mlp", end=biased_head), TOKENS),
        "biased_stem": Kind(stack("mlp", start=biased_stem), VECTORS),
        "biased_hidden": Kind(stack("mlp", end=biased_hidden), TOKENS),
        "biased_inner": Kind(stack(("biased", biased_inner)), TOKENS),
        "gain": Kind(stack("attention", ("gain", gain)), TOKENS),
    }
    for name, pair in {"complex": jax.lax.complex, "imaginary": lambda a, b: a + 1j * b}.items():
        rotary = stack(("rotary", complex_rotary(pair)))
        kinds[f"{name}_rotary"] = Kind(rotary, TOKENS, only=("none", "root_heads", "plain_heads"))
    for n in (1, 2):
        kinds |= {f"flow{n}_{name}": Kind(flow(n, k), VECTORS) for k, name in enumerate(("values", "densities"))}
    kinds["deep_flow"] = Kind(deep_flow, VECTORS, only=("none", "first_layer", "inverse", "squared"))
    once = {"pooling_head": pooling_head, "refined": refined, "prenet": prenet}
    kinds |= {name: Kind(net, VECTORS, only=("once", "none", "no_readout")) for name, net in once.items()}
    kinds["concatenated"] = Kind(concatenated, VECTORS, only=("batch", "none"), rare=True)
    batch = {"image": (image, VECTORS), "fourier": (fourier, VECTORS), "one_hot": (one_hot, TOKENS)}
    kinds |= {name: Kind(*net, only=("batch", "none")) for name, net in batch.items()}
    kinds["routed"] = Kind(stack(("routed", routed)), TOKENS, only=("none", "no_readout", "double_readout"))
    return kinds


PLACES: Mapping[str, Kind] = {f"places/{name}": kind for name, kind in _places().items()}
