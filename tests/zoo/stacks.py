"""Networks of one stream: a stem, layers of branches, a readout, in the ways that people norm, add and write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .branches import BRANCHES, WEIGHTLESS, Branch, dense
from .scales import Scales
from .scope import Scope

VOCABULARY, LENGTH, FEATURES, CLASSES = 11, 6, 12, 4
TOKENS = jax.ShapeDtypeStruct((2, LENGTH), jnp.int32)
VECTORS = jax.ShapeDtypeStruct((2, LENGTH, FEATURES), jnp.float32)
Net = Callable[[Scope, Any, Scales], Any]  # parameters, batch, multipliers -> outputs


def rms(p: Scope, x: jax.Array, name: str = "norm") -> jax.Array:
    """A root-mean-square norm with a scale."""
    x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)
    return x * p(name, x.shape[-1])


def unscaled(p: Scope, x: jax.Array, name: str = "norm") -> jax.Array:
    """A layer norm without parameters."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def layer_norm(p: Scope, x: jax.Array, name: str = "norm") -> jax.Array:
    """A layer norm with scale and bias."""
    return unscaled(p, x) * (p / name)("scale", x.shape[-1]) + (p / name)("bias", x.shape[-1])


def tanh_norm(p: Scope, x: jax.Array, name: str = "norm") -> jax.Array:
    """A dynamic tanh in place of a norm."""
    return jnp.tanh(p("alpha", 1) * x) * p(name, x.shape[-1])


NORMS: Mapping[str, Callable[..., jax.Array]] = {
    "rms": rms, "layer": layer_norm, "unscaled": unscaled, "tanh": tanh_norm,
    "none": lambda p, x, name="": x,
}  # fmt: skip


def read(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Tokens by a table, vectors by a matrix: ``[B, T, D]``."""
    if jnp.issubdtype(x.dtype, jnp.integer):
        return e.embedding() * p("embed", VOCABULARY, e.width)[x]
    return e.embedding() * dense(p, "stem", x, e.width)


def write(p: Scope, x: jax.Array, e: Scales, norm: str = "rms") -> jax.Array:
    """Logits."""
    return e.readout() * dense(p, "head", NORMS[norm](p, x, "end_norm"), CLASSES)


# How the multiplier c of a branch y is written; all are the same sum, up to the scale of the parameters.
Write = Callable[[Any, jax.Array, float, Any], jax.Array]
WRITES: dict[str, Write] = {
    "plain": lambda x, y, c, s: s * x + c * y,
    "divided": lambda x, y, c, s: s * x + y / (1 / c),
    "array": lambda x, y, c, s: s * x + y * jnp.full((x.shape[-1],), c),
    "subtracted": lambda x, y, c, s: s * x - (-c) * y,
    "bfloat16": lambda x, y, c, s: s * x + (y.astype(jnp.bfloat16) * c).astype(x.dtype),
    "outside": lambda x, y, c, s: (s * x / c + y) * c,
    "remat": lambda x, y, c, s: jax.checkpoint(lambda x, y: s * x + c * y)(x, y),
    "summed": lambda x, y, c, s: jnp.sum(jnp.stack([s * x, c * y]), axis=0),
    "einsum": lambda x, y, c, s: jnp.einsum("kbtn,k->btn", jnp.stack([x, y]), jnp.array([s, c], jnp.float32)),
    "in_place": lambda x, y, c, s: (s * x).at[...].add(c * y),
    "scattered": lambda x, y, c, s: (s * x).at[:, jnp.arange(x.shape[1])].add(c * y),
    "where": lambda x, y, c, s: jnp.where(jnp.ones(x.shape[:2], bool)[..., None], s * x + c * y, s * x),
}  # fmt: skip
WITH_NORM: dict[str, Write] = {"deep": lambda x, y, c, s: s * x / c + y}  # a norm reads their ratio (DeepNet)


def stack(
    *names: str | tuple[str, Branch],
    norm: str = "rms",
    place: str = "pre",
    write_as: str = "plain",
    scan: bool = False,
    gain: Callable[[Scope, jax.Array], jax.Array] = lambda p, y: y,
    start: Callable[[Scope, jax.Array, Scales], jax.Array] = read,
    end: Callable[[Scope, jax.Array, Scales], jax.Array] = write,
    between: Callable[[Scope, jax.Array, Scales, Any], jax.Array] = lambda p, x, e, i: x,
) -> Net:
    """A network of blocks with these branches, one behind the other.

    ``place`` of the norm: ``pre``, ``post`` (behind the sum), ``end`` (of the branch), ``sandwich``. ``gain`` is what a
    branch is multiplied by that is learned. ``between`` is done behind each block.
    """
    normed = NORMS[norm]
    parts = [(name, _branch(name)) if isinstance(name, str) else name for name in names]

    def net(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
        def block(p: Scope, x: jax.Array, i: Any) -> jax.Array:
            for name, branch in parts:
                part = p / name
                y = normed(part, x) if place in ("pre", "sandwich") else x
                y = branch(part, y, e)
                y = normed(part, e.before() * y, "norm_end") if place in ("end", "sandwich") else y
                c = e.branch(name, i if isinstance(i, int) else None)
                x = (WRITES | WITH_NORM)[write_as](x, gain(part, y), c, e.stream())
                x = normed(part, x) if place == "post" else x
            return between(p, x, e, i)

        return end(p, (p.scanned if scan else p.unrolled)(e.depth, block, start(p, x, e)), e)

    return net


def _branch(name: str) -> Branch:
    return BRANCHES[name] if name in BRANCHES else lambda p, y, e: WEIGHTLESS[name](y)


def folded(p: Scope, y: jax.Array) -> jax.Array:
    """LayerScale."""
    return y * p("gamma", y.shape[-1])


def rezero(p: Scope, y: jax.Array) -> jax.Array:
    """One learned number."""
    return y * p("alpha")


def skip_init(p: Scope, y: jax.Array) -> jax.Array:
    """The same as an array of one entry, behind a tanh."""
    return y * jnp.tanh(p("gate", 1))


def tied(norm: str = "rms") -> dict[str, Any]:
    """``start`` and ``end`` with one table."""
    table: dict[str, Any] = {}

    def start(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
        table["rows"] = p("embed", VOCABULARY, e.width)
        return e.embedding() * table["rows"][x]

    def end(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
        return e.readout() * NORMS[norm](p, x, "end_norm") @ table["rows"].T

    return {"start": start, "end": end}


def pooled(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Logits of the mean over tokens."""
    return write(p, x.mean(1), e)


def multiplied_input(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """The readout's input is multiplied, which has a bias."""
    return dense(p, "head", rms(p, x, "end_norm") * e.readout(), CLASSES) + p("head_bias", CLASSES)


def heads_two(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """A policy and a value."""
    y = rms(p, x, "end_norm")
    return jnp.concatenate([e.readout() * dense(p, "policy", y, CLASSES), e.readout() * dense(p, "value", y, 1)], -1)


def hidden_head(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """A hidden layer in front of the readout."""
    y = jnp.tanh(e.outer() * dense(p, "head_hidden", rms(p, x, "end_norm"), e.width))
    return e.readout() * dense(p, "head", y, CLASSES)


def positions(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Learned positions, and a norm of their sum with embeddings (BERT's)."""
    x = read(p, x, e)
    return layer_norm(p, x + p("positions", x.shape[1], e.width), "start_norm")


def class_token(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """A learned token in front."""
    x = read(p, x, e)
    return jnp.concatenate([jnp.broadcast_to(p("token", 1, 1, e.width), (x.shape[0], 1, e.width)), x], 1)


def first_token(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Logits of the first token."""
    return write(p, x[:, 0], e)


def bottleneck(p: Scope, x: jax.Array, e: Scales, i: Any) -> jax.Array:
    """Behind the first block the width goes through three features."""
    if not isinstance(i, int) or i:
        return x
    return e.outer() * dense(p, "wide", jnp.tanh(dense(p, "narrow", x, 3)), e.width)
