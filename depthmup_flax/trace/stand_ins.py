"""Plain functions that are read in place of libraries' kernels and bookkeeping.

A row is ``name: stand_in``; the name is that of the function or kernel, or ``file.py:function``
where several libraries have one of the name. Users pass rows of their own as ``known=`` of the
audit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp


def _cudnn_attention(params: Mapping[str, Any]) -> Callable[..., Any]:
    """Attention of `jax.nn.dot_product_attention` with ``implementation="cudnn"``."""
    heads_first = bool(params["layout"])
    has_bias = bool(params["variadic_args"][0])

    def attention(
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        bias: jax.Array,
        *_: jax.Array,
    ) -> jax.Array:
        if heads_first:  # to [batch, length, heads, features]
            q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        out = jax.nn.dot_product_attention(
            q, k, v, bias if has_bias else None, scale=params["scale"], implementation="xla"
        )
        return out.swapaxes(1, 2) if heads_first else out

    return attention


def _unrounded(params: Mapping[str, Any]) -> Callable[..., Any]:
    """Rounding to 8 bits and back: the array as it was."""
    del params
    return lambda x, scale, history: x


def _unrounded_with_scale(params: Mapping[str, Any]) -> Callable[..., Any]:
    """Rounding to 8 bits, which returns its scale, too: 1."""
    del params
    return lambda x, scale, history: (x, jnp.ones_like(scale))


def _scaled_back(params: Mapping[str, Any]) -> Callable[..., Any]:
    """A product of rounded arrays times both of their scales, which are 1."""
    del params
    return lambda scale, other_scale, x: x


# Name, or file:name -> (parameters of the equation) -> a function of the same arrays.
STAND_INS: Mapping[str, Callable[[Mapping[str, Any]], Callable[..., Any]]] = {
    "dot_product_attention_fwd_wrapper": _cudnn_attention,
    # flax.linen.Fp8DotGeneralOp, Fp8DirectDotGeneralOp, Fp8Einsum
    "fp8_ops.py:in_qdq": _unrounded,
    "fp8_ops.py:out_qdq": _unrounded,
    "fp8_ops.py:in_q": _unrounded_with_scale,
    "fp8_ops.py:out_dq": _scaled_back,
}
