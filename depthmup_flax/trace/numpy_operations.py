"""The most common operations by NumPy, which compiles nothing. Others are computed by JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from jax.extend import core

Array: TypeAlias = Any
_Operation: TypeAlias = Callable[..., Array]


def _result(eqn: core.JaxprEqn) -> Any:
    """The shape and type of what an equation computes."""
    return eqn.outvars[0].aval


def _entrywise(function: Callable[..., Array]) -> _Operation:
    def operation(eqn: core.JaxprEqn, *inputs: Array) -> Array:
        with np.errstate(all="ignore"):
            return function(*inputs).astype(_result(eqn).dtype, copy=False)

    return operation


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _select(which: Array, *cases: Array) -> Array:
    if len(cases) == 2 and which.dtype == bool:
        return np.where(which, cases[1], cases[0])
    return np.choose(which, cases)


def _integer_power(eqn: core.JaxprEqn, x: Array) -> Array:
    return _entrywise(np.power)(eqn, x, np.asarray(eqn.params["y"], x.dtype))


def _converted(eqn: core.JaxprEqn, x: Array) -> Array:
    return x.astype(eqn.params["new_dtype"])


def _reduced(function: Callable[..., Array]) -> _Operation:
    def operation(eqn: core.JaxprEqn, x: Array) -> Array:
        return function(x, axis=tuple(eqn.params["axes"])).astype(_result(eqn).dtype, copy=False)

    return operation


def _reshaped(eqn: core.JaxprEqn, x: Array) -> Array:
    return np.reshape(x, _result(eqn).shape)


def _transposed(eqn: core.JaxprEqn, x: Array) -> Array:
    return np.transpose(x, eqn.params["permutation"])


def _broadcast(eqn: core.JaxprEqn, x: Array) -> Array:
    shape = eqn.params["shape"]
    sizes = [1] * len(shape)
    for size, k in zip(x.shape, eqn.params["broadcast_dimensions"], strict=True):
        sizes[k] = size
    return np.broadcast_to(np.reshape(x, sizes), shape)


def _sliced(eqn: core.JaxprEqn, x: Array) -> Array:
    params = eqn.params
    strides = params["strides"] or (1,) * x.ndim
    return x[tuple(map(slice, params["start_indices"], params["limit_indices"], strides))]


def _joined(eqn: core.JaxprEqn, *inputs: Array) -> Array:
    return np.concatenate(inputs, axis=eqn.params["dimension"])


def _product(eqn: core.JaxprEqn, x: Array, y: Array) -> Array:
    """Axes of the result are those of the batch, of the first operand, then of the second."""
    sides = []
    free: list[int] = []
    for array, contracted, batched in zip((x, y), *eqn.params["dimension_numbers"], strict=True):
        kept = [k for k in range(array.ndim) if k not in contracted and k not in batched]
        free += [array.shape[k] for k in kept]
        batch = [array.shape[k] for k in batched]
        size = math.prod(array.shape[k] for k in contracted)
        moved = np.transpose(array, [*batched, *kept, *contracted])
        sides.append(np.reshape(moved, [*batch, -1, size]) if array.size else moved)
    result = np.matmul(sides[0], np.swapaxes(sides[1], -1, -2))
    return np.reshape(result, [*batch, *free]).astype(_result(eqn).dtype, copy=False)


_ENTRYWISE: Mapping[str, Callable[..., Array]] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "and": np.bitwise_and,
    "cos": np.cos,
    "div": np.divide,
    "eq": np.equal,
    "exp": np.exp,
    "expm1": np.expm1,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": _logistic,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "pow": np.power,
    "rsqrt": _rsqrt,
    "select_n": _select,
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "stop_gradient": np.positive,
    "sub": np.subtract,
    "tanh": np.tanh,
}

# Primitive -> (equation, inputs) -> its result.
OPERATIONS: Mapping[str, _Operation] = {
    **{name: _entrywise(function) for name, function in _ENTRYWISE.items()},
    "broadcast_in_dim": _broadcast,
    "concatenate": _joined,
    "convert_element_type": _converted,
    "dot_general": _product,
    "expand_dims": _reshaped,
    "integer_pow": _integer_power,
    "reduce_max": _reduced(np.max),
    "reduce_min": _reduced(np.min),
    "reduce_sum": _reduced(np.sum),
    "slice": _sliced,
    "squeeze": _reshaped,
    "transpose": _transposed,
}
