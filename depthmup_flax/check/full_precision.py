"""A forward pass in float32, whatever precision it was written in.

The rounding of bfloat16 (1 part in 256) exceeds the changes of a few steps, so the check evaluates the jaxpr of the
forward pass with float32 in place of floating-point types of 8 or 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from depthmup_flax.util.jaxprs import all_equations, called_jaxpr, opened, propagate, scan_counts
from depthmup_flax.util.precision import product_precision


def low_precision(jaxpr: Any) -> str | None:
    """The name of a floating-point type of less than 32 bits in a jaxpr, if there is one."""
    inner = opened(jaxpr)[0]
    variables = [*inner.invars, *inner.constvars, *(x for eqn in all_equations(jaxpr) for x in eqn.outvars)]
    dtypes = [getattr(x.aval, "dtype", None) for x in variables]
    return min((dtype.name for dtype in dtypes if dtype is not None and _is_low(dtype)), default=None)


def in_float32(jaxpr: Any) -> Callable[..., list[Any]]:
    """A function of flat inputs that evaluates a jaxpr in float32.

    Functions in low precision lose their custom derivatives: JAX differentiates their operations.
    """
    return lambda *inputs: _evaluate(jaxpr, [widened(x) for x in inputs])


def widened(x: Any) -> Any:
    """``x`` in float32 if it is of a floating-point type of less than 32 bits."""
    return jnp.asarray(x, jnp.float32) if _is_low(getattr(x, "dtype", None)) else x


def _is_low(dtype: Any) -> bool:
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4


def _evaluate(jaxpr: Any, inputs: Sequence[Any]) -> list[Any]:
    return propagate(jaxpr, inputs, _equation, widened)


def _equation(eqn: core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        return _scan(eqn, inputs)
    if name == "cond":
        branches = [lambda *args, branch=branch: _evaluate(branch, args) for branch in params["branches"]]
        return jax.lax.switch(inputs[0], branches, *inputs[1:])
    if name == "while":
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        go_on = lambda carry: _evaluate(params["cond_jaxpr"], [*inputs[:first], *carry])[0]
        body = lambda carry: _evaluate(params["body_jaxpr"], [*inputs[first:second], *carry])
        return jax.lax.while_loop(go_on, body, list(inputs[second:]))
    if (called := called_jaxpr(eqn)) is not None and (not name.startswith("custom") or low_precision(called)):
        return _evaluate(called, inputs)
    if name in ("convert_element_type", "reduce_precision") and _is_low(getattr(eqn.outvars[0].aval, "dtype", None)):
        return [jnp.asarray(inputs[0], jnp.float32)]
    if name == "bitcast_convert_type":
        return [widened(eqn.primitive.bind(*inputs, **params))]
    is_low = lambda value: isinstance(value, np.dtype) and _is_low(value)
    wide = {key: jnp.dtype("float32") if is_low(value) else value for key, value in params.items()}
    if name in ("dot_general", "conv_general_dilated"):
        precision = product_precision(jnp.float32)
        wide["precision"] = None if precision is None else (precision, precision)
    results = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(wide))
    return results if eqn.primitive.multiple_results else [results]


def _scan(eqn: core.JaxprEqn, inputs: Sequence[Any]) -> list[Any]:
    num_consts, num_carry = scan_counts(eqn)
    consts, rest = inputs[:num_consts], inputs[num_consts:]

    def body(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        results = _evaluate(eqn.params["jaxpr"], [*consts, *carry, *xs])
        return results[:num_carry], results[num_carry:]

    options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    carry, results = jax.lax.scan(body, list(rest[:num_carry]), list(rest[num_carry:]), **options)
    return [*carry, *results]
