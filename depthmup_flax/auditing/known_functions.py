"""Functions and primitives of libraries that are read as the mathematics that they compute.

They are a call of a library of NVIDIA's, and products in FP8, where arrays are divided by a scale, rounded, and
multiplied by the same scale. For other kernels, a user passes ``known=`` to `audit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp


def _cudnn_attention(params: Mapping[str, Any]) -> Callable[..., Any]:
    """Attention of `jax.nn.dot_product_attention` with ``implementation="cudnn"``."""
    heads_first, has_bias = bool(params["layout"]), bool(params["variadic_args"][0])

    def attention(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array, *_: jax.Array) -> jax.Array:
        q, k, v = (x.swapaxes(1, 2) if heads_first else x for x in (q, k, v))  # [batch, length, heads, features]
        groups = q.shape[2] // k.shape[2]
        k, v = (jnp.repeat(x, groups, axis=2) for x in (k, v))
        scores = params["scale"] * jnp.einsum("bthd,bshd->bhts", q, k)
        weights = jax.nn.softmax(scores + bias if has_bias else scores)
        out = jnp.einsum("bhts,bshd->bthd", weights, v)
        return out.swapaxes(1, 2) if heads_first else out

    return attention


# Name, or file:name -> (parameters of the equation) -> a function of the same arrays.
KNOWN: Mapping[str, Callable[[Mapping[str, Any]], Callable[..., Any]]] = {
    "dot_product_attention_fwd_wrapper": _cudnn_attention,
    # flax.linen.Fp8DotGeneralOp, Fp8DirectDotGeneralOp, Fp8Einsum
    "fp8_ops.py:in_qdq": lambda params: lambda x, scale, history: x,
    "fp8_ops.py:out_qdq": lambda params: lambda x, scale, history: x,
    "fp8_ops.py:in_q": lambda params: lambda x, scale, history: (x, jnp.ones_like(scale)),
    "fp8_ops.py:out_dq": lambda params: lambda scale, other_scale, x: x,
}
