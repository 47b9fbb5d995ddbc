"""The numbers in constants, and what operations make of them.

Only arrays whose entries are all equal have a number: these are the factors that a forward pass
multiplies with.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from depthmup_flax.util.primitives import KEEPS_NUMBER

_LARGEST = 100_000  # entries of a constant that are compared
_FEW = 8  # entries of a constant that are remembered, such as the lengths of a Fourier transform


def uniform_value(array: Any) -> float | None:
    """The number that all entries of a constant are, if they are."""
    if isinstance(array, (bool, int, float)):
        return float(array)
    if isinstance(array, jax.ShapeDtypeStruct) or not 0 < math.prod(np.shape(array)) <= _LARGEST:
        return None
    try:
        flat = np.asarray(array).ravel()
        number = complex(flat[0])
        is_uniform = not number.imag and (flat == flat[0]).all()
    except (TypeError, ValueError):  # a random key, or a number of another kind
        return None
    return number.real if is_uniform else None


def modulus(array: Any) -> float | None:
    """The absolute value of one complex number; ``None`` of anything else."""
    if np.iscomplexobj(array) and not np.shape(array):
        return abs(complex(array))
    return None


def entries(array: Any) -> tuple[float, ...]:
    """The entries of a short list of numbers, else nothing."""
    shape = np.shape(array)
    if isinstance(array, jax.ShapeDtypeStruct) or len(shape) != 1 or shape[0] > _FEW:
        return ()
    if np.asarray(array).dtype.kind not in "iufc":
        return ()
    return tuple(map(float, np.real(np.asarray(array))))


# A reduction to one number -> the same of `entries`.
OF_ENTRIES: Mapping[str, Callable[..., Any]] = {"reduce_prod": np.prod, "reduce_sum": np.sum}

# A primitive -> the same of numbers. Without a row here, what it makes of constants is no known
# number.
FOLDS: Mapping[str, Callable[..., float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "max": max,
    "min": min,
    "neg": operator.neg,
    "abs": abs,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: a**-0.5,
    "cbrt": math.cbrt,
    "exp": math.exp,
    "log": math.log,
    "square": lambda a: a * a,
}


def folded(
    op: str,
    params: Mapping[str, Any],
    values: Sequence[float | None],
    count: float,
) -> float | None:
    """The number that an operation makes of numbers, or ``None``.

    ``count`` entries of the first operand are one of the result, which a sum over equal entries
    multiplies with.
    """
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None
    try:
        if op in KEEPS_NUMBER:
            return numbers[0]
        if op == "reduce_sum":
            return numbers[0] * count
        if op == "reduce_prod":
            return numbers[0] ** count
        if op == "integer_pow":
            return float(numbers[0] ** params["y"])
        return float(FOLDS[op](*numbers)) if op in FOLDS else None
    except (ValueError, OverflowError, ZeroDivisionError, TypeError):  # log(-1), or a complex root
        return None
