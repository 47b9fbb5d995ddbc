"""The forward pass as a graph of array operations, and the values of constants in it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

PARAM, STATE, INPUT, CONST = "param", "state", "input", "const"  # operations without inputs

# The number of a loop in the graph, and of its iterations; NaN is unknown (``while``).
Loop: TypeAlias = tuple[int, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One array: the operation that makes it, and the arrays that the operation reads (numbers of nodes)."""

    op: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    params: Mapping[str, Any]  # of the primitive, with its equations in "callers"; for `PARAM` its path
    loops: tuple[Loop, ...]  # that it runs in, the outermost first
    value: float | None = None  # of a constant whose entries are all equal


@dataclasses.dataclass
class Graph:
    """Nodes in an order in which they can be computed. The body of a loop occurs once."""

    nodes: list[Node] = dataclasses.field(default_factory=list)
    output: int = -1
    loops: tuple[Loop, ...] = ()  # that new nodes run in
    replaced: set[str] = dataclasses.field(default_factory=set)  # names of functions in whose place others are traced

    def add(
        self,
        op: str,
        inputs: Sequence[int],
        shape: tuple[int, ...],
        params: Mapping[str, Any] | None = None,
        value: float | None = None,
    ) -> int:
        """The number of a new node."""
        self.nodes.append(Node(op, tuple(inputs), tuple(shape), params or {}, self.loops, value))
        return len(self.nodes) - 1

    def needed(self) -> list[bool]:
        """Whether the output depends on each node."""
        needed, stack = [False] * len(self.nodes), [self.output]
        while stack:
            i = stack.pop()
            if not needed[i]:
                needed[i], node = True, self.nodes[i]
                stack += node.inputs
                if node.op == "carry":  # made by the other rounds of its loop, too
                    stack.append(node.params["next"])
        return needed


_LARGEST = 100_000  # entries of a constant that are compared


def uniform_value(array: Any) -> float | None:
    """The number that all entries of a constant are, if they are."""
    if isinstance(array, (bool, int, float)):
        return float(array)
    if not 0 < math.prod(np.shape(array)) <= _LARGEST or isinstance(array, jax.ShapeDtypeStruct):
        return None
    try:
        entries = np.asarray(array).ravel()
        number = entries[0].real if np.iscomplexobj(entries) and not entries[0].imag else entries[0]
        return float(number) if (entries == number).all() else None
    except (TypeError, ValueError):  # a random key, or a number of another kind
        return None


_FEW = 8  # entries of a constant that are kept, such as the lengths of a Fourier transform
_REDUCED: Mapping[str, Callable[..., Any]] = {"reduce_prod": np.prod, "reduce_sum": np.sum}


def entries(array: Any) -> tuple[float, ...]:
    """The entries of a short list of numbers, else nothing."""
    is_short = len(np.shape(array)) == 1 and np.shape(array)[0] <= _FEW and not isinstance(array, jax.ShapeDtypeStruct)
    return tuple(map(float, np.real(np.asarray(array)))) if is_short and np.asarray(array).dtype.kind in "iufc" else ()


def reduced(op: str, of: Node) -> float | None:
    """The sum or the product of a short list of numbers, or ``None``."""
    known = of.params.get("entries", ())
    return float(_REDUCED[op](known)) if known and op in _REDUCED else None


FOLDS: Mapping[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": max,
    "min": min,
    "pow": lambda a, b: a**b,
    "neg": lambda a: -a,
    "abs": abs,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: a**-0.5,
    "cbrt": lambda a: math.copysign(abs(a) ** (1 / 3), a),
    "exp": math.exp,
    "log": math.log,
    "square": lambda a: a * a,
}
KEEPS_VALUE = frozenset(
    {"convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "copy", "stop_gradient",
     "transpose", "slice", "reduce_precision", "sharding_constraint", "name",
     "reduce_max", "reduce_min", "pvary", "pcast", "reshard", "mesh_cast", "copy_p", "tile", "rev", "all_gather"}
)  # fmt: skip


def folded(op: str, params: Mapping[str, Any], values: Sequence[float | None], count: float) -> float | None:
    """The value of an operation on constants, or ``None``; ``count`` entries of the first are one of the result."""
    known = [value for value in values if value is not None]
    if not known or len(known) != len(values):
        return None
    try:
        if op in KEEPS_VALUE:
            return known[0]
        if op in ("reduce_sum", "reduce_prod"):
            return known[0] * count if op == "reduce_sum" else known[0] ** count
        if op == "integer_pow":
            return float(known[0] ** params["y"])
        return float(FOLDS[op](*known)) if op in FOLDS else None
    except (ValueError, OverflowError, ZeroDivisionError, TypeError):  # such as log(-1), or a complex root
        return None
