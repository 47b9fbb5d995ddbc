"""Products that once had no judge: of fixed sizes, beside their own input, of two parameters, without a readout."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from .cases import Kind
from .scales import BASE_WIDTH, Scales
from .scope import Scope
from .stacks import CLASSES, TOKENS, VECTORS, read, rms, stack, write
from .streams import add

Branch = Callable[[Scope, jax.Array, Scales], jax.Array]


def token_mixing(p: Scope, y: jax.Array, e: Scales, front: bool = True) -> jax.Array:
    """Layers over the places of a sequence, which are as many at any width (MLP-Mixer)."""
    before, behind = (e.inner(), 1.0) if front else (1.0, e.inner())
    y = jnp.swapaxes(y, 1, 2)
    y = jax.nn.gelu(before * (y @ p("places_up", y.shape[-1], 24)))
    y = behind * (y @ p("places_down", 24, 6))
    return jnp.swapaxes(y, 1, 2) @ p("out", e.width, e.width)


def bottleneck(p: Scope, y: jax.Array, e: Scales, bend: Callable[[jax.Array], jax.Array] = jax.nn.gelu) -> jax.Array:
    """Four features inside; without a nonlinearity, a matrix of low rank."""
    return jax.nn.gelu(bend(e.inner() * (y @ p("narrow", e.width, 4))) @ p("wide", 4, e.width)) @ p(
        "out", e.width, e.width
    )


def state_space(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """y = C h + D u in front of a nonlinearity (S4)."""
    n = e.width
    states = jnp.cumsum(y, 1)[..., None] * p("B", n, 4)
    y = e.inner() * jnp.einsum("btnk,nk->btn", states, p("C", n, 4)) + p("D", n) * y
    return jax.nn.gelu(y) @ p("out", n, n)


def input_added(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A layer's own input is added in front of a nonlinearity (ResNeXt)."""
    n = e.width
    return jax.nn.relu(e.inner() * (y @ p("inside", n, n)) + y) @ p("out", n, n)


def first_value(p: Scope, x: tuple[jax.Array, jax.Array], i: jax.Array, e: Scales) -> tuple[jax.Array, jax.Array]:
    """A scan keeps the first layer's value, behind a shift of tokens (RWKV-7)."""
    (h, first), n = x, e.width
    y = rms(p, h)
    y = y + (jnp.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1] - y) * p("mix", n)
    value = y @ p("value", n, n)
    first = jnp.where(i == 0, value, first)
    value = value + (first - value) * jax.nn.sigmoid(p("gate", n))
    y = jax.nn.sigmoid(y @ p("receptance", n, n)) * jnp.cumsum(value, 1)
    return add(e, h, y @ p("out", n, n), "time", None), first


def kept_in_scan(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """`first_value` in every layer."""
    h = read(p, x, e)
    h, _ = p.scanned(e.depth, lambda p, x, i: first_value(p, x, i, e), (h, jnp.zeros_like(h)))
    return write(p, h, e)


def summed(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """The output is a mean over the width, behind a hidden layer."""
    h = read(p, x, e)
    for i in range(e.depth):
        q = p / f"block_{i}"
        h = add(e, h, jax.nn.gelu(rms(q, h) @ q("up", e.width, e.width)) @ q("down", e.width, e.width), "mlp", i)
    return e.total() * (rms(p, h, "end_norm") @ p("last", e.width, e.width)).mean(-1)


def plain(mix: Branch) -> Callable[[Scope, jax.Array, Scales], jax.Array]:
    """A network without residual sums."""

    def net(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
        return write(p, jax.nn.gelu(e.outer() * mix(p, jax.nn.gelu(read(p, x, e)), e)), e, norm="none")

    return net


def two_weights(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    return y @ (p("one", e.width, e.width) + p("other", e.width, e.width))


def complex_weights(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    modes = jnp.fft.rfft(y, axis=1) @ (p("real", e.width, e.width) + 1j * p("imaginary", e.width, e.width))
    return jnp.fft.irfft(modes, y.shape[1], axis=1)


def adapted(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A matrix beside one of low rank (LoRA)."""
    return y @ p("kernel", e.width, e.width) + (y @ p("a", e.width, 4)) @ p("b", 4, e.width)


def same_sizes(p: Scope, batch: tuple[jax.Array, jax.Array], e: Scales) -> jax.Array:
    """As many frequencies as the large network is wide (DiT)."""
    x, times = batch
    h = read(p, x, e)
    c = jax.nn.silu(times @ p("time_0", times.shape[-1], e.width)) @ p("time_1", e.width, e.width)
    for i in range(e.depth):
        q = p / f"block_{i}"
        shift, gate = jnp.split((jax.nn.silu(c) @ q("modulation", e.width, 2 * e.width))[:, None], 2, -1)
        y = jax.nn.gelu((rms(q, h) + shift) @ q("up", e.width, e.width)) @ q("down", e.width, e.width)
        h = add(e, h, gate * y, "mlp", i)
    return write(p, h, e)


def repeated(sum_of: Callable[[jax.Array, int], jax.Array], p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """One array is added several times, inside and at the end."""
    n = y.shape[-1]
    y = jax.nn.gelu(sum_of(y @ p("inside", n, n), int(e.copies())))
    return sum_of(y @ p("out", n, n), int(e.rounds()))


def summed_vector(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A vector that is multiplied and summed, as a product with one column."""
    n = y.shape[-1]
    total = e.inner() * (y * p("column", n)).sum(-1, keepdims=True)
    return jax.nn.gelu(total * p("row", n)) @ p("out", n, n)


def multiplied_readouts(p: Scope, x: jax.Array, e: Scales) -> jax.Array:
    """The product of two readouts has the factors of both."""
    h = rms(p, x, "end_norm")
    return e.readout() ** 2 * (h @ p("head", e.width, CLASSES)) * (h @ p("other", e.width, CLASSES))


SUMS_OF: Mapping[str, Callable[[jax.Array, int], jax.Array]] = {
    "plus": lambda z, k: sum([z] * k),
    "stack": lambda z, k: jnp.stack([z] * k).sum(0),
    "ones": lambda z, k: jnp.einsum("...k,k->...", jnp.stack([z] * k, -1), jnp.ones(k)),
    "loop": lambda z, k: jax.lax.fori_loop(0, k, lambda _, total: total + z, jnp.zeros_like(z)),
}

_INSIDE = ("inner", "none", "no_readout")
_TIMES = jax.ShapeDtypeStruct((2, 4 * BASE_WIDTH), jnp.float32)


def _of_branch(name: str, branch: Branch) -> Kind:
    return Kind(stack((name, branch)), TOKENS, only=_INSIDE)


def _without_depth(mix: Branch) -> Kind:
    size = (4 * BASE_WIDTH, 2)
    return Kind(plain(mix), VECTORS, size=size, only=("outer", "no_readout"), arguments={"axes": "width"})


UNSEEN: Mapping[str, Kind] = {
    "unseen/token_mixing_front": _of_branch("mixer", token_mixing),
    "unseen/token_mixing_behind": _of_branch("mixer", functools.partial(token_mixing, front=False)),
    "unseen/bottleneck": _of_branch("bottleneck", bottleneck),
    "unseen/low_rank": _of_branch("low_rank", functools.partial(bottleneck, bend=lambda y: y)),
    "unseen/state_space": _of_branch("state_space", state_space),
    "unseen/input_added": _of_branch("input_added", input_added),
    "unseen/first_value": Kind(kept_in_scan, TOKENS),
    "unseen/summed": Kind(summed, VECTORS, only=("none", "total")),
    "unseen/two_weights": _without_depth(two_weights),
    "unseen/complex_weights": _without_depth(complex_weights),
    "unseen/adapted": _without_depth(adapted),
    "unseen/same_sizes": Kind(same_sizes, (VECTORS, _TIMES)),
    "unseen/summed_vector": _of_branch("vector", summed_vector),
    "unseen/multiplied_readouts": Kind(stack("mlp", end=multiplied_readouts), TOKENS),
    **{
        f"unseen/repeated_{name}": Kind(
            stack(("repeated", functools.partial(repeated, sum_of))), TOKENS, only=("copies", "rounds", "none")
        )
        for name, sum_of in SUMS_OF.items()
    },
}
