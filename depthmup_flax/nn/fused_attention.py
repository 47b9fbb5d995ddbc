"""Softmax attention as one TPU kernel, which keeps logits and weights in the chip's vector memory.

XLA writes them to HBM, in the forward pass and several times in the backward pass; at a head dimension of 64 that takes
most of a vision transformer's step. The kernel reads projections ``[B, T, H D]`` without transposing heads, and its
backward pass recomputes the weights from queries and keys.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

_Own: TypeAlias = Callable[[jax.Array], jax.Array]

LANES = 128  # of a vector register
_BLOCK = 2**18  # entries of an operand that a step of the kernel reads: 1/2 MiB in bfloat16
_LOGITS = 2**18  # of one head that are computed together: 1 MiB in float32, of the 16 MiB of a TPU v4
_TOGETHER = 4  # examples of few tokens
_OVERLAPPING_LOGITS = 2**21  # of the heads of a block without a loop: the compiler overlaps them, which takes memory


def fuses(tokens: int, features: int, head_dim: int, dtype: jnp.dtype) -> bool:
    """Whether `fused_attention` has a form for ``[B, tokens, features]`` of this dtype.

    Products contract all features of a block, including the zeros of other heads, so blocks of many heads are slow.
    """
    width = _block_width(features, head_dim)
    widest = max(head_dim, (3 if width <= 4 * head_dim else 2) * LANES)
    return width <= widest and tokens * width <= _BLOCK and dtype == jnp.bfloat16


def _block_width(features: int, head_dim: int) -> int:
    """Features in a block: one wide head, narrow heads that fill a register, or all heads."""
    filled = max(head_dim, LANES)
    return filled if filled % head_dim == 0 and features % filled == 0 and filled % LANES == 0 else features


class Form(NamedTuple):
    """What the kernels are compiled for; ``interpret`` runs their operations on any platform, for tests."""

    head_dim: int
    scale: float
    causal: bool = False
    interpret: bool = False


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def fused_attention(q_BxTxN: jax.Array, k_BxTxN: jax.Array, v_BxTxN: jax.Array, form: Form) -> jax.Array:
    """``softmax(scale q k^T) v`` of every head, ``N = H D`` with the heads side by side: ``[B, T, N]``.

    Logits, their softmax and all sums are in float32; weights are rounded to the dtype of ``v`` for the product with
    it, as in `jax.nn.dot_product_attention`. No forward-mode derivatives.
    """
    return _call(_forward, (q_BxTxN, k_BxTxN, v_BxTxN), 1, form)[0]


def _fused_fwd(q: jax.Array, k: jax.Array, v: jax.Array, form: Form) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return fused_attention(q, k, v, form), (q, k, v)


def _fused_bwd(form: Form, qkv: tuple[jax.Array, ...], g: jax.Array) -> tuple[jax.Array, ...]:
    from jax.experimental.pallas import tpu as pltpu  # late: it is large, and other platforms do not need it

    sums = pltpu.VMEM((g.shape[1], _block_width(g.shape[2], form.head_dim)), jnp.float32)
    return tuple(_call(_backward, (*qkv, g), 3, form, (sums, sums)))


fused_attention.defvjp(_fused_fwd, _fused_bwd)


def _call(
    kernel: Callable[..., None],
    arrays_BxTxN: tuple[jax.Array, ...],
    outputs: int,
    form: Form,
    scratch: tuple[Any, ...] = (),
) -> list[jax.Array]:
    """Runs ``kernel`` on blocks of some examples and heads."""
    from jax.experimental import pallas as pl  # late, as above
    from jax.experimental.pallas import tpu as pltpu

    like = arrays_BxTxN[0]
    size, tokens, features = like.shape
    width = _block_width(features, form.head_dim)
    examples = max(n for n in range(1, size + 1) if size % n == 0 and (n == 1 or n * tokens * width <= _BLOCK))
    block = pl.BlockSpec((examples, tokens, width), lambda i, j: (i, 0, j))
    # The compiler schedules by this estimate: two products forward, five backward.
    logits = size * tokens * tokens * (features // form.head_dim) // (2 if form.causal else 1)
    cost = pl.CostEstimate(
        flops=2 * logits * form.head_dim * (2 if outputs == 1 else 5),
        transcendentals=logits,
        bytes_accessed=(len(arrays_BxTxN) + outputs) * like.nbytes,
    )
    return pl.pallas_call(
        functools.partial(kernel, form),
        grid=(size // examples, features // width),
        in_specs=[block] * len(arrays_BxTxN),
        out_specs=[block] * outputs,
        out_shape=[jax.ShapeDtypeStruct(like.shape, like.dtype)] * outputs,
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=cost,
        interpret=form.interpret,
        name=f"fused_attention{kernel.__name__}",
    )(*arrays_BxTxN)


def _forward(form: Form, q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any) -> None:
    examples, tokens, _ = q_ref.shape

    def attend(i: jax.Array, _: None) -> None:
        for rows, seen in _row_blocks(tokens, form.causal):
            q, k, v = q_ref[i, rows], k_ref[i, seen], v_ref[i, seen]
            of_head = functools.partial(_output, q, k, v, form.scale, rows.start if form.causal else None)
            (out,) = _sum_over_heads(of_head, (q,), form.head_dim, tokens)
            out_ref[i, rows] = out.astype(out_ref.dtype)

    # The compiler overlaps examples that are computed together. That helps small ones alone, and forward alone.
    together = math.gcd(examples, _TOGETHER) if tokens**2 <= _LOGITS // _TOGETHER else 1
    jax.lax.fori_loop(0, examples, attend, None, unroll=together)


def _backward(form: Form, *refs: Any) -> None:
    q_ref, k_ref, v_ref, g_ref, dq_ref, dk_ref, dv_ref, dk_sum, dv_sum = refs
    examples, tokens, _ = q_ref.shape

    def attend(i: jax.Array, _: None) -> None:
        for rows, seen in _row_blocks(tokens, form.causal):
            q, g, k, v = q_ref[i, rows], g_ref[i, rows], k_ref[i, seen], v_ref[i, seen]
            of_head = functools.partial(_gradients, q, k, v, g, form.scale, rows.start if form.causal else None)
            dq, dk, dv = _sum_over_heads(of_head, (q, k, v), form.head_dim, tokens)
            dq_ref[i, rows] = (dq * form.scale).astype(dq_ref.dtype)
            for sums, part in ((dk_sum, dk), (dv_sum, dv)):
                sums[seen] = part if rows.stop == tokens else sums[seen] + part
        dk_ref[i] = (dk_sum[...] * form.scale).astype(dk_ref.dtype)
        dv_ref[i] = dv_sum[...].astype(dv_ref.dtype)

    jax.lax.fori_loop(0, examples, attend, None)


def _row_blocks(tokens: int, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Rows of logits that are computed together, and the columns that any of them sees, from the last rows on."""
    size = max(LANES, _LOGITS // tokens // LANES * LANES)
    starts = list(range(0, tokens, size))
    if len(starts) > 1 and tokens - starts[-1] == 1:
        starts.pop()  # a product with a single row on the right cannot be compiled
    for start, stop in reversed(list(zip(starts, [*starts[1:], tokens], strict=True))):
        yield slice(start, stop), slice(0, stop if causal else tokens)


def _sum_over_heads(
    of_head: Callable[[_Own], tuple[jax.Array, ...]], like: tuple[jax.Array, ...], head_dim: int, tokens: int
) -> tuple[jax.Array, ...]:
    """The sum over a block's heads of the results of ``of_head``, float32 arrays of the shapes of ``like``.

    ``of_head`` gets a function that sets the other heads' features to zero. A product contracts all lanes at once, so
    zeros cost nothing; extracting a head's lanes would move data.
    """
    width = like[0].shape[1]
    heads = width // head_dim

    def add_head(head: jax.Array | int, total: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        lane = jax.lax.broadcasted_iota(jnp.int32, (1, width), 1)
        is_own = (lane >= head * head_dim) & (lane < (head + 1) * head_dim)
        own = lambda x: x if heads == 1 else jnp.where(is_own, x, jnp.zeros_like(x))
        return tuple(a + b for a, b in zip(total, of_head(own), strict=True))

    total = tuple(jnp.zeros(x.shape, jnp.float32) for x in like)
    if heads * tokens**2 > _OVERLAPPING_LOGITS:
        return jax.lax.fori_loop(0, heads, add_head, total)
    for head in range(heads):
        total = add_head(head, total)
    return total


def _output(
    q: jax.Array, k: jax.Array, v: jax.Array, scale: float, first_row: int | None, own: _Own
) -> tuple[jax.Array]:
    exponentials_QxK = _exponentials(_product(q, own(k), 1, 1), 0, scale, first_row)
    inverse = 1 / jnp.sum(exponentials_QxK, 1, keepdims=True)
    # The product with all of `v` also has values in other heads' features.
    return (own(_product(exponentials_QxK.astype(v.dtype), v, 1, 0) * inverse),)


def _gradients(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, scale: float, first_row: int | None, own: _Own
) -> tuple[jax.Array, ...]:
    """Gradients of queries and keys without their factor ``scale``, and of values.

    Logits are transposed: sums over keys then add registers instead of lanes, and two of the three last products take
    them as they are.
    """
    own_k = own(k)
    exponentials_KxQ = _exponentials(_product(own_k, q, 1, 1), 1, scale, first_row)
    weights_KxQ = exponentials_KxQ * (1 / jnp.sum(exponentials_KxQ, 0, keepdims=True))
    dweights_KxQ = _product(own(v), g, 1, 1)
    dlogits_KxQ = weights_KxQ * (dweights_KxQ - jnp.sum(weights_KxQ * dweights_KxQ, 0, keepdims=True))
    dlogits_KxQ, weights_KxQ = dlogits_KxQ.astype(q.dtype), weights_KxQ.astype(q.dtype)
    return _product(dlogits_KxQ, own_k, 0, 0), _product(dlogits_KxQ, own(q), 1, 0), _product(weights_KxQ, own(g), 1, 0)


def _exponentials(products: jax.Array, query_axis: int, scale: float, first_row: int | None) -> jax.Array:
    """The exponentials of scaled products of queries and keys, less their query's maximum.

    With ``first_row``, the position of the first query, queries do not see later keys.
    """
    if first_row is not None:
        row, column = (
            jax.lax.broadcasted_iota(jnp.int32, products.shape, axis) for axis in (query_axis, 1 - query_axis)
        )
        products = jnp.where(column <= row + first_row, products, -jnp.inf)
    largest = jnp.max(products, 1 - query_axis, keepdims=True)  # of the logits, too, as scales are positive
    return jnp.exp2((products - largest) * (scale * math.log2(math.e)))


def _product(a: jax.Array, b: jax.Array, a_axis: int, b_axis: int) -> jax.Array:
    return jax.lax.dot_general(a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32)
