"""Branches whose mathematics stands in a kernel, a callback or a transformed function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.sharding import AxisType, PartitionSpec

from .branches import Branch, attend, attention_with
from .scales import Scales
from .scope import Scope


def _swapped(core: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """For kernels that read ``[B, H, T, d]``."""

    def call(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
        return jnp.swapaxes(core(*(jnp.swapaxes(z, 1, 2) for z in (q, k, v)), scale), 1, 2)

    return call


def _cudnn(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
    """cuDNN's custom call, traced as on a GPU."""
    half = (z.astype(jnp.bfloat16) for z in (q, k, v))
    found = {"check_cudnn_version": lambda: 91000, "check_compute_capability": lambda capability: True}
    with mock.patch.multiple("jax._src.cudnn.fused_attention_stablehlo", **found):
        return jax.nn.dot_product_attention(*half, scale=scale, implementation="cudnn").astype(q.dtype)


def _own_kernel(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
    def kernel(q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any) -> None:
        scores = jax.lax.dot_general(q_ref[0, 0], k_ref[0, 0], (((1,), (1,)), ((), ()))) * scale
        out_ref[0, 0] = jax.nn.softmax(scores) @ v_ref[0, 0]

    block = pl.BlockSpec((1, 1, *q.shape[2:]), lambda b, h: (b, h, 0, 0))
    shape = jax.ShapeDtypeStruct(q.shape, q.dtype)
    return pl.pallas_call(kernel, shape, grid=q.shape[:2], in_specs=[block] * 3, out_specs=block)(q, k, v)


def _numpy_attention(q: Any, k: Any, v: Any, scale: float) -> Any:
    scores = np.einsum("bthd,bshd->bhts", q, k) * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhts,bshd->bthd", weights / weights.sum(-1, keepdims=True), v).astype(np.float32)


def _callback(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
    call = functools.partial(_numpy_attention, scale=scale)
    return jax.pure_callback(call, jax.ShapeDtypeStruct(q.shape, q.dtype), q, k, v)


def _ffi(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
    return jax.ffi.ffi_call("own_attention", jax.ShapeDtypeStruct(q.shape, q.dtype))(q, k, v, scale=np.float32(scale))


def _own_gradient(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
    @jax.custom_vjp
    def call(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attend(q, k, v, scale)

    call.defvjp(lambda q, k, v: (call(q, k, v), (q, k, v)), lambda saved, g: (g, g, g))
    return call(q, k, v)


def _own_tangent(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
    @jax.custom_jvp
    def soft(scores: jax.Array) -> jax.Array:
        return jax.nn.softmax(scores)

    soft.defjvp(lambda primals, tangents: (soft(*primals), tangents[0]))
    return jnp.einsum("bhts,bshd->bthd", soft(jnp.einsum("bthd,bshd->bhts", q, k) * scale), v)


def _blockwise(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
    """An online softmax over blocks of keys, in ``lax.scan``."""
    q = jnp.swapaxes(q * scale, 1, 2)
    blocks = tuple(jnp.moveaxis(z.reshape(z.shape[0], 2, -1, *z.shape[2:]), 1, 0) for z in (k, v))

    def body(carry: Any, block: Any) -> Any:
        total, norm, largest = carry
        scores = jnp.einsum("bhtd,bshd->bhts", q, block[0])
        new = jnp.maximum(largest, scores.max(-1))
        weights, shrink = jnp.exp(scores - new[..., None]), jnp.exp(largest - new)
        total = total * shrink[..., None] + jnp.einsum("bhts,bshd->bhtd", weights, block[1])
        return (total, norm * shrink + weights.sum(-1), new), None

    first = (jnp.zeros_like(q), jnp.zeros(q.shape[:3]), jnp.full(q.shape[:3], -1e9))
    (total, norm, _), _ = jax.lax.scan(body, first, blocks)
    return jnp.swapaxes(total / norm[..., None], 1, 2)


def _looped(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
    """One query at a time, in ``fori_loop``."""

    def body(t: Any, out: jax.Array) -> jax.Array:
        scores = jnp.einsum("bhd,bshd->bhs", q[:, t], k) * scale
        return out.at[:, t].set(jnp.einsum("bhs,bshd->bhd", jax.nn.softmax(scores), v))

    return jax.lax.fori_loop(0, q.shape[1], body, jnp.zeros_like(q))


def _mapped(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
    one = lambda qkv: jax.nn.softmax(qkv[0] @ jnp.swapaxes(qkv[1], -1, -2) * scale) @ qkv[2]
    return jnp.moveaxis(jax.lax.map(one, tuple(jnp.moveaxis(z, 2, 0) for z in (q, k, v))), 0, 2)


def _vmapped(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
    head = lambda q, k, v: jax.nn.softmax(q @ k.T * scale) @ v
    return jax.vmap(jax.vmap(head, 1, 1))(q, k, v)


def _sharded(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    part = PartitionSpec("data")
    call = functools.partial(attend, scale=scale)
    return jax.shard_map(call, mesh=mesh, in_specs=(part, part, part), out_specs=part, check_vma=False)(q, k, v)


def _flash(q: jax.Array, k: jax.Array, v: jax.Array, scale: float) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    return flash_attention(q, k, v, sm_scale=scale, causal=True)


# ``core(q, k, v, scale)`` of `branches.attention_with`; "flash" needs 128 tokens.
CORES: Mapping[str, Callable[..., jax.Array]] = {
    "dot_product": lambda q, k, v, scale: jax.nn.dot_product_attention(q, k, v, scale=scale),
    "checkpointed": lambda q, k, v, scale: jax.checkpoint(functools.partial(attend, scale=scale))(q, k, v),
    "jitted": lambda q, k, v, scale: jax.jit(attend, static_argnames="causal")(q, k, v, scale),
    "low_precision": lambda *qkv: attend(*(z.astype(jnp.bfloat16) for z in qkv[:3]), qkv[3]).astype(qkv[0].dtype),
    "keys_scaled": lambda q, k, v, scale: attend(q * scale**0.5, k * scale**0.5, v, 1.0),
    "cond": lambda *qkv: jax.lax.cond(qkv[0].shape[1] > 1, lambda: attend(*qkv), lambda: attend(*qkv, causal=False)),
    "cudnn": _cudnn,
    "own_gradient": _own_gradient, "own_tangent": _own_tangent, "blockwise": _blockwise, "looped": _looped,
    "mapped": _mapped, "vmapped": _vmapped, "sharded": _sharded,
    "own_kernel": _swapped(_own_kernel), "flash": _swapped(_flash),
    "callback": _callback, "ffi": _ffi,
}  # fmt: skip


def _pallas_product(x: jax.Array, w: jax.Array) -> jax.Array:
    def kernel(x_ref: Any, w_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] @ w_ref[...]

    shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
    return pl.pallas_call(kernel, shape)(x, w)


def _product_kernel(x: jax.Array, w: jax.Array) -> jax.Array:
    return _pallas_product(x.reshape(-1, x.shape[-1]), w).reshape(*x.shape[:-1], -1)


@jax.custom_vjp
def _rounded(x: jax.Array) -> jax.Array:
    scale = jnp.max(jnp.abs(x)) / 127.0
    return jnp.round(x / scale) * scale


_rounded.defvjp(lambda x: (_rounded(x), None), lambda _, g: (g,))


def _straight_through(x: jax.Array) -> jax.Array:
    scale = jax.lax.stop_gradient(jnp.max(jnp.abs(x)) / 127.0)
    return x + jax.lax.stop_gradient(jnp.round(x / scale) * scale - x)


def _int8(x: jax.Array, w: jax.Array) -> jax.Array:
    a, b = jnp.max(jnp.abs(x)) / 127.0, jnp.max(jnp.abs(w)) / 127.0
    x8, w8 = jnp.round(x / a).astype(jnp.int8), jnp.round(w / b).astype(jnp.int8)
    sums = jax.lax.dot_general(x8, w8, (((2,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    return sums.astype(x.dtype) * a * b


def _fp8(x: jax.Array, w: jax.Array) -> jax.Array:
    x8, w8 = (z.astype(jnp.float8_e4m3fn) for z in (x, w))
    return jax.lax.dot_general(x8, w8, (((2,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def _scaled_fp8(x: jax.Array, w: jax.Array) -> jax.Array:
    a, b = jnp.max(jnp.abs(x)) / 448.0, jnp.max(jnp.abs(w)) / 448.0
    return _fp8(x / a, w / b) * (a * b)


def _as_convolution(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, w[None], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))


def _product_callback(x: jax.Array, w: jax.Array) -> jax.Array:
    shape = jax.ShapeDtypeStruct((*x.shape[:-1], w.shape[1]), x.dtype)
    return jax.pure_callback(lambda x, w: np.asarray(x) @ np.asarray(w), shape, x, w)


# The product of ``[B, T, D]`` with a kernel.
PRODUCTS: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "product_kernel": _product_kernel,
    "bfloat16": lambda x, w: (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(x.dtype),
    "rounded": lambda x, w: _rounded(x) @ _rounded(w),
    "straight_through": lambda x, w: _straight_through(x) @ _straight_through(w),
    "int8": _int8, "scaled_fp8": _scaled_fp8, "as_convolution": _as_convolution,
    "unit_columns": lambda x, w: x @ (w * jax.lax.rsqrt(jnp.mean(w**2, 0) * w.shape[0])),
    "masked": lambda x, w: x @ (w * (jnp.arange(w.shape[1]) % 2)),
    "transposed": lambda x, w: jnp.einsum("btn,mn->btm", x, w.T),
    "blocks": lambda x, w: sum(x[..., k::2] @ w[k::2] for k in (0, 1)),
    "product_callback": _product_callback,
}  # fmt: skip


# No trace shows what a callback or a kernel computes; own code for few bits is rare.
RARE = (
    "callback", "ffi", "product_callback", "own_kernel", "flash", "product_kernel", "int8", "scaled_fp8",
)  # fmt: skip


def mlp_by(product: Callable[[jax.Array, jax.Array], jax.Array]) -> Branch:
    """A feed-forward with another product."""

    def branch(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
        n = y.shape[-1]
        return product(jax.nn.gelu(e.inner() * product(y, p("up", n, 2 * n))), p("down", 2 * n, n))

    return branch


def low_rank(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A kernel with a low-rank change, as in LoRA."""
    n = y.shape[-1]
    w = p("kernel", n, n) + p("a", n, 4) @ p("b", 4, n)
    return jax.nn.gelu(y) @ w


def weight_norm(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """Directions and lengths of the columns of a kernel."""
    v = p("v", y.shape[-1], y.shape[-1])
    return jax.nn.gelu(y) @ (p("g", y.shape[-1]) * v * jax.lax.rsqrt(jnp.sum(v**2, 0)))


def spectral(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A kernel divided by an estimate of its largest singular value."""
    w = p("kernel", y.shape[-1], y.shape[-1])
    u = jnp.ones(w.shape[1])
    for _ in range(2):
        v = w @ u / jnp.linalg.norm(w @ u)
        u = v @ w / jnp.linalg.norm(v @ w)
    return jax.nn.gelu(y) @ (w / (v @ w @ u))


WEIGHTS: Mapping[str, Branch] = {"low_rank": low_rank, "weight_norm": weight_norm, "spectral": spectral}


def norm_kernel(p: Scope, x: jax.Array, name: str = "norm") -> jax.Array:
    """A root-mean-square norm in a kernel."""

    def kernel(x_ref: Any, scale_ref: Any, out_ref: Any) -> None:
        y = x_ref[...]
        out_ref[...] = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), -1, keepdims=True) + 1e-6) * scale_ref[...]

    return pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))(x, p(name, x.shape[-1]))


def sum_kernel(x: jax.Array, y: jax.Array, c: float, s: float) -> jax.Array:
    """The residual sum in a kernel."""

    def kernel(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        out_ref[...] = s * x_ref[...] + c * y_ref[...]

    return pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def sharded_mlp(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A feed-forward whose hidden units are on several devices, in ``shard_map``."""
    mesh = jax.make_mesh((1,), ("model",), axis_types=(AxisType.Auto,))
    n, spec = y.shape[-1], PartitionSpec

    def call(y: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return jax.lax.psum(jax.nn.gelu(e.inner() * (y @ up)) @ down, "model")

    shards = (spec(), spec(None, "model"), spec("model", None))
    return jax.shard_map(call, mesh=mesh, in_specs=shards, out_specs=spec())(y, p("up", n, 2 * n), p("down", 2 * n, n))


KERNELS: Mapping[str, Branch] = {
    **{name: attention_with(core) for name, core in CORES.items()},
    **{name: mlp_by(product) for name, product in PRODUCTS.items()},
    **WEIGHTS, "sharded_mlp": sharded_mlp,
}  # fmt: skip
