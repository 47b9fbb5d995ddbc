"""The forward pass as a graph of array operations, traced with shapes alone: nothing is computed or compiled.

Calls (``jit``, ``remat``, custom derivatives) are inlined. The body of a loop occurs once, and its nodes say how often
they run.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.extend import core

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.jaxprs import Interpreter, JaxprLoop
from depthmup_flax.util.types import ArrayTree

PARAM, STATE, INPUT, CONST = "param", "state", "input", "const"  # operations without inputs

# The number of a loop in the graph, and of its iterations; NaN is unknown (``while``).
Loop: TypeAlias = tuple[int, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One array: the operation that makes it, and the arrays that the operation reads (numbers of nodes)."""

    op: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    params: Mapping[str, Any]  # of the primitive; for `PARAM` its path
    loops: tuple[Loop, ...]  # that it runs in, the outermost first
    value: float | None = None  # of a constant whose entries are all equal


@dataclasses.dataclass
class Graph:
    """Nodes in an order in which they can be computed."""

    nodes: list[Node] = dataclasses.field(default_factory=list)
    output: int = -1
    loops: tuple[Loop, ...] = ()  # that new nodes run in

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
        needed = [False] * len(self.nodes)
        needed[self.output] = True
        for i in reversed(range(len(self.nodes))):
            if needed[i]:
                for j in self.nodes[i].inputs:
                    needed[j] = True
        return needed


def trace(
    function: Callable[..., Any], params: Mapping[str, Any], state: ArrayTree, inputs: ArrayTree, axis_name: str = ""
) -> Graph:
    """The graph of ``function(params, state, inputs)``, which returns one array.

    ``params`` maps paths to shapes; ``state`` (running averages) and ``inputs`` (the batch) are trees of shapes.
    ``axis_name`` is a mapped axis that the function sums over, as in a BatchNorm over devices.
    """
    called = function
    if axis_name:
        called = lambda *args: jax.vmap(function, in_axes=None, axis_size=1, axis_name=axis_name)(*args)[0]
    try:
        closed = jax.make_jaxpr(called)(dict(params), state, inputs)
    except NameError as error:  # JAX names the axis in a sentence
        unbound = re.search(r"unbound axis name:? *'?(\w+)", str(error))
        if unbound is None or axis_name:
            raise
        return trace(function, params, state, inputs, unbound.group(1))
    if len(closed.jaxpr.outvars) != 1:
        raise InputError(
            f"the model returns {len(closed.jaxpr.outvars)} arrays: name the one that the loss reads, such as "
            "output=0, output='logits' or a function of what the model returns."
        )
    graph = Graph()
    # Dictionaries are flattened in the order of their keys.
    leaves = [graph.add(PARAM, (), params[path].shape, {"path": path}) for path in sorted(params)]
    for op, tree in ((STATE, state), (INPUT, inputs)):
        leaves += [graph.add(op, (), leaf.shape, {"dtype": leaf.dtype}) for leaf in jax.tree.leaves(tree)]
    (graph.output,) = _Inliner(graph).run(closed, leaves)
    return graph


class _Inliner(Interpreter[int]):
    """Adds the operations of a jaxpr, and of those that it calls, to a graph; values are numbers of nodes."""

    def __init__(self, graph: Graph):
        self.graph, self.loop_ids = graph, itertools.count()

    def constant(self, array: Any) -> int:
        """One node per reader."""
        return self.graph.add(CONST, (), np.shape(array), value=uniform_value(array))

    def operation(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> list[int]:
        """One node for each result."""
        name, shapes, add = eqn.primitive.name, _shapes(eqn.outvars), self.graph.add
        if len(shapes) == len(inputs) > 1 and name in _PARALLEL:
            return [add("copy", (i,), shape) for i, shape in zip(inputs, shapes, strict=True)]
        value = folded(name, eqn.params, [self.graph.nodes[i].value for i in inputs]) if len(shapes) == 1 else None
        return [add(name, inputs, shape, {**eqn.params, "result": i}, value) for i, shape in enumerate(shapes)]

    def cond(self, eqn: core.JaxprEqn, index: int, operands: Sequence[int]) -> list[int]:
        """One node for each result, which reads those of all branches."""
        results = [self.run(branch, operands) for branch in eqn.params["branches"]]
        several = zip(_shapes(eqn.outvars), *results, strict=True)
        return [self.graph.add("cond", (index, *outs), shape) for shape, *outs in several]

    def loop(self, eqn: core.JaxprEqn, loop: JaxprLoop, inputs: Sequence[int]) -> list[int]:
        """One round; what is carried says which node the next round reads."""
        _, consts, carry, xs = loop.split(inputs)
        graph, number = self.graph, next(self.loop_ids)
        nodes, outside = graph.nodes, graph.loops
        graph.loops = (*outside, (number, loop.length))
        enter = [graph.add("carry", (i,), nodes[i].shape) for i in carry]
        sliced = [graph.add("scan_in", (i,), nodes[i].shape[1:], {"loop": number}, nodes[i].value) for i in xs]
        outs = self.run(loop.body, [*consts, *enter, *sliced])
        graph.loops = outside
        for i, out in zip(enter, outs, strict=False):
            nodes[i] = dataclasses.replace(nodes[i], params={"next": out})
        stacked = zip(outs[len(carry) :], _shapes(eqn.outvars[len(carry) :]), strict=True)
        collected = [graph.add("scan_out", (i,), shape) for i, shape in stacked]
        return [*(graph.add("copy", (i,), nodes[i].shape) for i in outs[: len(carry)]), *collected]


def _shapes(variables: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(getattr(var.aval, "shape", ())) for var in variables]


# Operations on several arrays, one result for each.
_PARALLEL = frozenset({"optimization_barrier", "psum", "psum2", "psum_invariant", "pmax", "pmin"})
_LARGEST = 100_000  # entries of a constant that are compared


def uniform_value(array: Any) -> float | None:
    """The number that all entries of a constant are, if they are."""
    if isinstance(array, (bool, int, float)):
        return float(array)
    if not 0 < math.prod(np.shape(array)) <= _LARGEST or isinstance(array, jax.ShapeDtypeStruct):
        return None
    try:
        entries = np.asarray(array).ravel()
        return float(entries[0]) if (entries == entries[0]).all() else None
    except (TypeError, ValueError):  # a random key, or a number of another kind
        return None


_FOLD: Mapping[str, Callable[..., float]] = {
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
_KEEPS_VALUE = frozenset(
    {"convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "copy", "stop_gradient",
     "transpose", "slice", "reduce_precision", "sharding_constraint", "name"}
)  # fmt: skip


def folded(op: str, params: Mapping[str, Any], values: list[float | None]) -> float | None:
    """The value of an operation on constants, or ``None``."""
    known = [value for value in values if value is not None]
    if not known or len(known) != len(values):
        return None
    try:
        if op in _KEEPS_VALUE:
            return known[0]
        if op == "integer_pow":
            return float(known[0] ** params["y"])
        return float(_FOLD[op](*known)) if op in _FOLD else None
    except (ValueError, OverflowError, ZeroDivisionError, TypeError):  # such as log(-1), or a complex root
        return None
