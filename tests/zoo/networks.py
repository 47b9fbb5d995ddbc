"""Whole networks that are no single stack: encoders and decoders, U-Nets, towers, stages, ensembles."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .branches import attention, dense, mlp
from .scales import HEADS, Scales
from .scope import Scope
from .stacks import CLASSES, NORMS, VOCABULARY, read, rms, write
from .streams import add, cross, feed_forwards


def perceiver(p: Scope, x: jax.Array, e: Scales, repeat: bool = True) -> jax.Array:
    """Learned latents read inputs of fixed size, in every block or once."""

    def block(p: Scope, x: tuple[jax.Array, jax.Array], i: int) -> tuple[jax.Array, jax.Array]:
        h, inputs = x
        if repeat:
            h = add(e, h, cross(p / "cross", rms(p, h, "norm_c"), inputs, e), "cross", i)
        h = add(e, h, attention(p / "attention", rms(p, h, "norm_a"), e), "attention", i)
        return add(e, h, mlp(p / "mlp", rms(p, h, "norm_m"), e), "mlp", i), inputs

    h = jnp.broadcast_to(p("latents", 4, e.width), (x.shape[0], 4, e.width))
    if not repeat:
        h = h + cross(p / "first", rms(p, h, "start_norm"), x, e)
    h, _ = p.unrolled(e.depth, block, (h, x))
    return write(p, h.mean(1), e)


def encoder_decoder(
    p: Scope,
    tokens: jax.Array,
    e: Scales,
    norm: str = "rms",
    place: str = "pre",
    bias: bool = False,
    tied: bool = False,
    decoder: int = 1,
) -> jax.Array:
    """Two stacks; the decoder reads what the encoder returns. ``bias``: a table that all layers share (T5)."""
    normed = NORMS[norm]

    def sublayer(p: Scope, x: jax.Array, name: str, i: int, c: float | None, call: Any) -> jax.Array:
        y = call(normed(p, x, f"norm_{name}") if place == "pre" else x)
        x = add(e, x, y, name, i, c)
        return x if place == "pre" else normed(p, x, f"norm_{name}")

    table = p("embed", VOCABULARY, e.width)
    deep = e.depth * (1 if e.r == 1 else decoder)
    c = float(e.rule.residual_multiplier(deep / 2))
    distance = jnp.abs(jnp.arange(tokens.shape[1])[:, None] - jnp.arange(tokens.shape[1]))
    shared = {k: p(f"bias_{k}", 6, HEADS)[distance].transpose(2, 0, 1) if bias else None for k in ("enc", "dec")}

    def encode(p: Scope, x: jax.Array, i: int) -> jax.Array:
        look = lambda y: cross(p / "attention", y, y, e, shared["enc"])
        x = sublayer(p, x, "encoder", i, None, look)
        return sublayer(p, x, "encoder_mlp", i, None, lambda y: mlp(p / "mlp", y, e))

    memory = p.unrolled(e.depth, encode, e.embedding() * table[tokens], "encoder")
    memory = normed(p, memory, "encoder_norm") if place == "pre" else memory

    def decode(p: Scope, x: jax.Array, i: int) -> jax.Array:
        x = sublayer(p, x, "decoder", i, c, lambda y: cross(p / "attention", y, y, e, shared["dec"]))
        x = sublayer(p, x, "cross", i, c, lambda y: cross(p / "cross", y, memory, e))
        return sublayer(p, x, "decoder_mlp", i, c, lambda y: mlp(p / "mlp", y, e))

    x = p.unrolled(deep, decode, e.embedding() * table[tokens[:, ::-1]], "decoder")
    x = normed(p, x, "decoder_norm") if place == "pre" else x
    return e.readout() * (x @ table.T if tied else dense(p, "head", x, CLASSES))


def unet(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Blocks at two lengths, a skip around the shorter one; the width doubles there."""

    x = read(p, x, e)
    skip = feed_forwards(p / "down", x, e)
    x = dense(p, "shrink", skip.reshape(x.shape[0], -1, 2 * e.width), 2 * e.width)
    x = feed_forwards(p / "middle", x, e)
    x = dense(p, "grow", x, 2 * e.width).reshape(skip.shape)
    x = dense(p, "join", jnp.concatenate([x, skip], -1), e.width)
    return write(p, feed_forwards(p / "up", x, e), e)


def towers(p: Scope, x: jax.Array, e: Scales, shared: bool = False, similarity: bool = True, unit: bool = False) -> Any:
    """Two networks of one batch each (CLIP), or one network of two (siamese)."""

    def block(p: Scope, x: jax.Array, i: int) -> jax.Array:
        x = add(e, x, attention(p / "attention", rms(p, x, "norm_a"), e), "attention", i)
        return add(e, x, mlp(p / "mlp", rms(p, x, "norm_m"), e), "mlp", i)

    def tower(p: Scope, x: jax.Array) -> jax.Array:
        h = p.unrolled(e.depth, block, read(p, x, e))
        features = e.readout() * dense(p, "projection", rms(p, h.mean(1), "end_norm"), 8)
        return features / jnp.linalg.norm(features, axis=-1, keepdims=True) if unit else features

    first = p / "tower" if shared else p / "text"
    a, b = tower(first, x), tower(first if shared else p / "image", x[:, ::-1])
    return a @ b.T * p("temperature") if similarity else (a, b)


def autoencoder(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Two stacks around a latent array of fixed size."""

    h = feed_forwards(p / "encoder", read(p, x, e), e)
    code = dense(p, "narrow", rms(p, h, "code_norm"), 3)
    return write(p, feed_forwards(p / "decoder", dense(p, "wide", code, e.width), e), e)


def stages(p: Scope, x: jax.Array, e: Scales, projected: bool = True) -> jax.Array:
    """The width doubles half-way, by a projection (ResNet's shortcut, or between stages: Swin's merging)."""
    x = read(p, x, e)
    for i in range(e.depth):
        q, n = p / f"block_{i}", e.width * (1 + (i >= e.depth // 2))
        if n != x.shape[-1] and not projected:
            x = dense(p, "merge", rms(p, x, "merge_norm"), n)
        y = dense(q, "second", jax.nn.gelu(dense(q, "first", rms(q, x), n)), n)
        if n != x.shape[-1]:
            x = dense(q, "shortcut", x, n)
        x = add(e, x, y, "mlp", i)
    return write(p, x, e)


def images(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Convolutions over images ``[B, H, W, 3]``."""

    def conv(p: Scope, name: str, x: jax.Array, features: int) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        kernel = p(name, 3, 3, x.shape[-1], features)
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)

    def block(p: Scope, x: jax.Array, i: int) -> jax.Array:
        y = conv(p, "first", jax.nn.gelu(rms(p, x)), e.width)
        return add(e, x, conv(p, "second", jax.nn.gelu(y), e.width), "conv", i)

    x = p.unrolled(e.depth, block, conv(p, "stem", x, e.width))
    return write(p, x.mean((1, 2)), e)


def ensemble(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """Two critics of one form under ``vmap`` (SimBa)."""
    stem, head = p("stem", 2, x.shape[-1], e.width), p("head", 2, e.width, 1)
    ups = [p(f"up_{i}", 2, e.width, 4 * e.width) for i in range(e.depth)]
    downs = [p(f"down_{i}", 2, 4 * e.width, e.width) for i in range(e.depth)]

    def critic(stem: jax.Array, head: jax.Array, ups: Any, downs: Any) -> jax.Array:
        h = x @ stem
        for i, (up, down) in enumerate(zip(ups, downs, strict=True)):
            y = jax.nn.relu(NORMS["unscaled"](p, h) @ up) @ down
            h = add(e, h, y, "mlp", i)
        return e.readout() * h @ head

    return jax.vmap(critic)(stem, head, ups, downs)


def masked_autoencoder(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """The encoder reads some tokens; a learned token stands for the others in the decoder."""

    def block(p: Scope, x: jax.Array, i: int) -> jax.Array:
        return add(e, x, attention(p / "attention", rms(p, x), e), "attention", i)

    h = read(p, x, e) + p("positions", x.shape[1], e.width)
    seen = (p / "encoder").unrolled(e.depth, block, h[:, jnp.array([0, 2, 5])])
    full = jnp.broadcast_to(p("mask", e.width), h.shape)
    full = full.at[:, jnp.array([0, 2, 5])].set(dense(p, "bridge", seen, e.width))
    return write(p, (p / "decoder").unrolled(e.depth, block, full + p("positions_2", x.shape[1], e.width)), e)
