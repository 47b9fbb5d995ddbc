"""Traces a forward pass, with shapes alone, into a `Graph`: nothing is computed or compiled.

Calls (``jit``, ``remat``, custom derivatives, ``shard_map``) are inlined. The body of a loop occurs once, and its nodes
say how often they run. The body of a kernel is not read: what it computes is known by its name, or not at all.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from depthmup_flax.auditing.called_names import called_names
from depthmup_flax.auditing.dataflow import CONST, INPUT, PARAM, STATE, Graph, entries, folded, reduced, uniform_value
from depthmup_flax.auditing.known_functions import KNOWN
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.jaxprs import Interpreter, JaxprLoop, opened
from depthmup_flax.util.types import ArrayTree

# Operations on several arrays, one result for each.
_PARALLEL = frozenset({"optimization_barrier", "psum", "psum2", "psum_invariant", "pmax", "pmin"})

# Name of a function, kernel or primitive -> a function of the same arrays, which is traced in its place.
Known = Mapping[str, Callable[..., Any]]


def trace(
    function: Callable[..., Any],
    params: Mapping[str, Any],
    state: ArrayTree,
    inputs: ArrayTree,
    known: Known,
    axis_name: str = "",
) -> Graph:
    """The graph of ``function(params, state, inputs)``, which returns one array.

    ``params`` maps paths to shapes; ``state`` (running averages) and ``inputs`` (the batch) are trees of shapes.
    ``axis_name`` is a mapped axis that the function sums over, as in a BatchNorm over devices. `Graph.replaced` are the
    names of ``known`` that are called.
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
        return trace(function, params, state, inputs, known, unbound.group(1))
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
    (graph.output,) = _Inliner(graph, known).run(closed, leaves)
    return graph


class _Inliner(Interpreter[int]):
    """Adds the operations of a jaxpr, and of those that it calls, to a graph; values are numbers of nodes."""

    def __init__(self, graph: Graph, known: Known):
        self.graph, self.loop_ids = graph, itertools.count()
        self.known = known
        self.callers: tuple[core.JaxprEqn, ...] = ()  # the equations around the current one, and itself

    def constant(self, array: Any) -> int:
        """One node per reader."""
        return self.graph.add(CONST, (), np.shape(array), {"entries": entries(array)}, uniform_value(array))

    def equation(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> Sequence[int]:
        """The results of any equation, which knows its callers."""
        outside, self.callers = self.callers, (*self.callers, eqn)
        results = self._results(eqn, inputs)
        self.callers = outside
        return results

    def _results(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> Sequence[int]:
        """Those of a known function, of a part on one device, or as in `Interpreter`."""
        for called in called_names(eqn):
            if called in self.known:
                self.graph.replaced.add(called)
                return self._in_place(eqn, called, self.known[called], inputs)
            if called in KNOWN:
                return self._in_place(eqn, called, KNOWN[called](eqn.params), inputs)
        if eqn.primitive.name == "shard_map":  # shapes inside are those of one device
            body = eqn.params["jaxpr"]
            outs = self.run(body, list(map(self._part, inputs, shapes_of(opened(body)[0].invars))))
            return list(map(self._part, outs, shapes_of(eqn.outvars)))
        return super().equation(eqn, inputs)

    def _part(self, i: int, shape: tuple[int, ...]) -> int:
        """An array as one device sees it, or put together from these parts."""
        node = self.graph.nodes[i]
        return i if node.shape == shape else self.graph.add("part", (i,), shape, value=node.value)

    def _in_place(
        self, eqn: core.JaxprEqn, name: str, function: Callable[..., Any], inputs: Sequence[int]
    ) -> list[int]:
        """The results of a function of the same arrays, traced in place of an equation."""
        arrays = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in _avals(eqn.invars)]
        try:
            closed = jax.make_jaxpr(function)(*arrays)
        except TypeError as error:
            raise InputError(f"known[{name!r}] fails on the arrays of {name}, {_listed(arrays)}: {error}") from error
        if shapes_of(closed.jaxpr.outvars) != shapes_of(eqn.outvars):
            returned, wanted = (_listed(_avals(one.outvars)) for one in (closed.jaxpr, eqn))
            raise InputError(f"known[{name!r}] returns {returned}: it must return what {name} does, {wanted}.")
        known, self.known = self.known, {key: value for key, value in self.known.items() if key != name}
        results = self.run(closed, inputs)  # the function may call one of the same name
        self.known = known
        return results

    def operation(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> list[int]:
        """One node for each result."""
        name, shapes, add = eqn.primitive.name, shapes_of(eqn.outvars), self.graph.add
        if len(shapes) == len(inputs) > 1 and name in _PARALLEL:
            return [add("copy", (i,), shape) for i, shape in zip(inputs, shapes, strict=True)]
        operands = [self.graph.nodes[i] for i in inputs]
        value = None
        if len(shapes) == 1 and operands:
            count = math.prod(operands[0].shape) / max(math.prod(shapes[0]), 1)
            value = folded(name, eqn.params, [node.value for node in operands], count)
            value = reduced(name, operands[0]) if value is None else value
        params = {**eqn.params, "callers": self.callers}
        return [add(name, inputs, shape, {**params, "result": i}, value) for i, shape in enumerate(shapes)]

    def cond(self, eqn: core.JaxprEqn, index: int, operands: Sequence[int]) -> list[int]:
        """One node for each result, which reads those of all branches."""
        results = [self.run(branch, operands) for branch in eqn.params["branches"]]
        several = zip(shapes_of(eqn.outvars), *results, strict=True)
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
        stacked = zip(outs[len(carry) :], shapes_of(eqn.outvars[len(carry) :]), strict=True)
        collected = [graph.add("scan_out", (i,), shape) for i, shape in stacked]
        return [*(graph.add("copy", (i,), nodes[i].shape) for i in outs[: len(carry)]), *collected]


def shapes_of(variables: Sequence[Any]) -> list[tuple[int, ...]]:
    """The shapes of a jaxpr's variables; of what is no array, ``()``."""
    return [tuple(getattr(var.aval, "shape", ())) for var in variables]


def _avals(variables: Sequence[Any]) -> list[Any]:
    return [var.aval for var in variables]


def _listed(arrays: Sequence[Any]) -> str:
    return ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
