"""The forward pass as a graph of array operations, traced with shapes alone: nothing is computed or compiled.

Calls (``jit``, ``remat``, custom derivatives) are inlined. The body of a loop occurs once, and its nodes say how often
they run. Only what the output depends on is kept in analyses.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.extend import core

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.jaxprs import opened, scan_counts
from depthmup_flax.util.types import ArrayTree

PARAM, STATE, INPUT, CONST = "param", "state", "input", "const"  # operations without inputs

# A loop: its number in the graph, and its iterations; NaN is unknown (``while``).
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

    def add(
        self,
        op: str,
        inputs: tuple[int, ...],
        shape: tuple[int, ...],
        params: Mapping[str, Any] | None = None,
        loops: tuple[Loop, ...] = (),
        value: float | None = None,
    ) -> int:
        """The number of a new node."""
        self.nodes.append(Node(op, inputs, tuple(shape), params or {}, loops, value))
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

    Args:
      function: pure.
      params: path -> shape of every parameter.
      state: shapes of running averages and the like.
      inputs: shapes of the batch.
      axis_name: of a mapped axis that the function sums over, as in a BatchNorm over devices.
    """
    make = lambda p, s, x: function(p, s, x)
    if axis_name:
        make = lambda p, s, x: jax.vmap(function, in_axes=None, axis_size=1, axis_name=axis_name)(p, s, x)[0]
    try:
        closed = jax.make_jaxpr(make)(dict(params), state, inputs)
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
    (graph.output,) = _Inliner(graph).run(closed.jaxpr, closed.consts, leaves, ())
    return graph


_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


class _Inliner:
    """Adds the operations of a jaxpr, and of those that it calls, to a graph."""

    def __init__(self, graph: Graph):
        self.graph, self.loop_ids = graph, itertools.count()

    def run(self, jaxpr: Any, consts: Any, arguments: list[int], loops: tuple[Loop, ...]) -> list[int]:
        """The nodes of the outputs; ``consts`` are arrays, or nodes of the graph."""
        number: dict[Any, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            value = uniform_value(const)
            number[var] = self.graph.add(CONST, (), np.shape(const), {}, loops, value)

        def read(atom: Any) -> int:
            if isinstance(atom, core.Literal):
                return self.graph.add(CONST, (), np.shape(atom.val), {}, loops, uniform_value(atom.val))
            return number[atom]

        for eqn in jaxpr.eqns:
            outputs = self._equation(eqn, [read(atom) for atom in eqn.invars], loops)
            number.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: list[int], loops: tuple[Loop, ...]) -> list[int]:
        name, shapes = eqn.primitive.name, [tuple(getattr(var.aval, "shape", ())) for var in eqn.outvars]
        add = lambda op, ins, shape, params=None, at=loops: self.graph.add(op, tuple(ins), shape, params, at)
        if name == "scan":
            return self._scan(eqn, inputs, loops)
        if name == "while":
            return self._while(eqn, inputs, loops)
        if name == "cond":
            index, *operands = inputs
            results = [self._call(branch, operands, loops) for branch in eqn.params["branches"]]
            return [add("cond", (index, *outs), shape) for shape, *outs in zip(shapes, *results, strict=True)]
        for key in _CALLS:
            inner = eqn.params.get(key)
            if inner is not None and hasattr(opened(inner)[0], "eqns") and name != "pallas_call":
                takes = len(opened(inner)[0].invars)
                if takes <= len(inputs):
                    return self._call(inner, inputs[len(inputs) - takes :], loops)[: len(shapes)]
        if len(shapes) == len(inputs) > 1 and name in _PARALLEL:
            return [add("copy", (i,), shape) for i, shape in zip(inputs, shapes, strict=True)]
        value = folded(name, eqn.params, [self.graph.nodes[i].value for i in inputs]) if len(shapes) == 1 else None
        params = dict(eqn.params)
        return [
            self.graph.add(name, tuple(inputs), shape, {**params, "result": i}, loops, value)
            for i, shape in enumerate(shapes)
        ]

    def _call(self, inner: Any, inputs: list[int], loops: tuple[Loop, ...]) -> list[int]:
        return self.run(*opened(inner), inputs, loops)

    def _scan(self, eqn: Any, inputs: list[int], loops: tuple[Loop, ...]) -> list[int]:
        inner, length = eqn.params["jaxpr"], eqn.params["length"]
        closed, carried = scan_counts(eqn)  # then slices of stacks
        loop = (next(self.loop_ids), float(length))
        inside = (*loops, loop)
        consts, carry, xs = inputs[:closed], inputs[closed : closed + carried], inputs[closed + carried :]
        shape = lambda i: self.graph.nodes[i].shape
        enter = [self.graph.add("carry", (i,), shape(i), {}, inside) for i in carry]
        sliced = [
            self.graph.add("scan_in", (i,), shape(i)[1:], {"loop": loop[0]}, inside, self.graph.nodes[i].value)
            for i in xs
        ]
        outs = self._call(inner, [*consts, *enter, *sliced], inside)
        self._close(enter, outs)
        collected = [
            self.graph.add("scan_out", (i,), tuple(var.aval.shape), {}, loops)
            for i, var in zip(outs[carried:], eqn.outvars[carried:], strict=True)
        ]
        leave = [self.graph.add("copy", (i,), shape(i), {}, loops) for i in outs[:carried]]
        return [*leave, *collected]

    def _close(self, enter: list[int], outs: list[int]) -> None:
        """Records what the next iteration reads."""
        for i, out in zip(enter, outs, strict=False):
            self.graph.nodes[i] = dataclasses.replace(self.graph.nodes[i], params={"next": out})

    def _while(self, eqn: Any, inputs: list[int], loops: tuple[Loop, ...]) -> list[int]:
        skip, closed = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        inside = (*loops, (next(self.loop_ids), math.nan))
        consts, carry = inputs[skip : skip + closed], inputs[skip + closed :]
        enter = [self.graph.add("carry", (i,), self.graph.nodes[i].shape, {}, inside) for i in carry]
        outs = self._call(eqn.params["body_jaxpr"], [*consts, *enter], inside)
        self._close(enter, outs)
        return [self.graph.add("copy", (i,), self.graph.nodes[i].shape, {}, loops) for i in outs]


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
