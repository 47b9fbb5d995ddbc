"""The value of a forward pass at given parameters, with factors at some places of its graph."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from depthmup_flax.trace import numpy_operations
from depthmup_flax.trace.axes import contracted_size
from depthmup_flax.trace.graph import CONST, Graph, Node, Place, rounds

Array: TypeAlias = Any
_CARRY = "carry"
_WORK_OF_AN_ENTRY = 100.0


class NotEvaluated(Exception):
    """A graph has an operation that cannot be computed here."""


def work(graph: Graph) -> float:
    """About how many multiplications a forward pass takes; infinite if a loop's length is unknown.

    An entry that is read and written takes as long as a hundred of a product.
    """
    total = 0.0
    for node, needed in zip(graph.nodes, graph.needed(), strict=True):
        if needed:
            of_entry = _WORK_OF_AN_ENTRY + _summed(graph, node)
            total += rounds(node.loops) * node.size * of_entry
    return math.inf if math.isnan(total) else total


def _summed(graph: Graph, node: Node) -> float:
    """How many products one entry of a result is the sum of."""
    if node.op == "dot_general":
        return contracted_size(graph, node)
    if node.op == "conv_general_dilated":
        kernel = graph.nodes[node.inputs[1]]
        return kernel.size / kernel.shape[node.params["dimension_numbers"].rhs_spec[0]]
    return 0.0


def evaluate(
    graph: Graph,
    given: Mapping[int, Array],
    factors: Mapping[Place, float],
) -> Array:
    """The output of a graph.

    Args:
      given: node of a parameter, a state or an input -> its value.
      factors: what multiplies an array where one node reads it, or, at (node, -1), everywhere.

    Raises:
      NotEvaluated: an operation cannot be computed here, as a kernel of another machine.
    """
    values = dict(given)
    multiplied = {i for i, _ in factors}
    evaluator = _Evaluator(graph, graph.needed(), factors, multiplied, _stacked(graph), values)
    evaluator.run(0, len(graph.nodes), 0)
    return _times(values[graph.output], factors.get((graph.output, -1), 1.0))


def _stacked(graph: Graph) -> dict[int, list[int]]:
    """Number of a loop -> the nodes that stack what its rounds return."""
    result: dict[int, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        if node.op == "scan_out":
            result.setdefault(node.params["loop"], []).append(i)
    return result


def _times(value: Array, factor: float) -> Array:
    return value if factor == 1 else value * np.asarray(factor, value.dtype)


@dataclasses.dataclass
class _Evaluator:
    """The values of nodes, in the order of the graph."""

    graph: Graph
    needed: Sequence[bool]
    factors: Mapping[Place, float]
    multiplied: Collection[int]  # arrays with factors
    stacked: Mapping[int, Sequence[int]]
    values: dict[int, Array]
    # Of an equation with several results, those of the last one that was computed.
    equation: tuple[Any, tuple[int, ...]] = (None, ())
    results: Sequence[Array] = ()

    def run(self, start: int, stop: int, depth: int) -> None:
        """Computes these nodes, which are inside of ``depth`` loops."""
        self.equation = (None, ())
        i = start
        while i < stop:
            loops = self.graph.nodes[i].loops
            if len(loops) > depth:
                end = self._end(i, stop, depth)
                self._loop(i, end, depth)
                i = end
                continue
            if self.needed[i] and i not in self.values:
                self.values[i] = self._value(i, self.graph.nodes[i])
            i += 1

    def _end(self, start: int, stop: int, depth: int) -> int:
        """The first node behind a loop."""
        loop = self.graph.nodes[start].loops[depth]
        for i in range(start, stop):
            if self.graph.nodes[i].loops[depth : depth + 1] != (loop,):
                return i
        return stop

    def _loop(self, start: int, end: int, depth: int) -> None:
        number, length = self.graph.nodes[start].loops[depth]
        if math.isnan(length):
            raise NotEvaluated("a loop has an unknown number of rounds")
        nodes = self.graph.nodes
        inside = range(start, end)
        carries = [i for i in inside if nodes[i].op == _CARRY and len(nodes[i].loops) == depth + 1]
        slices = []
        for i in inside:
            if nodes[i].op == "scan_in" and nodes[i].params["loop"] == number:
                slices.append(i)
        carried = {i: self._read(nodes[i].inputs[0], i) for i in carries if self.needed[i]}
        of_rounds: dict[int, list[Array]] = {i: [] for i in self.stacked.get(number, ())}
        for k in range(int(length)):
            for i in inside:
                self.values.pop(i, None)
            self.values.update(carried)
            for i in slices:
                if self.needed[i]:
                    place = int(length) - 1 - k if nodes[i].params["reverse"] else k
                    self.values[i] = self._read(nodes[i].inputs[0], i)[place]
            self.run(start, end, depth + 1)
            carried = {i: self._read(nodes[i].params["next"], i) for i in carried}
            for i, several in of_rounds.items():
                if self.needed[i]:
                    several.append(self._read(nodes[i].inputs[0], i))
        for i, several in of_rounds.items():
            if self.needed[i]:
                in_order = several[::-1] if nodes[i].params["reverse"] else several
                self.values[i] = np.stack(in_order)

    def _read(self, i: int, reader: int) -> Array:
        if i not in self.multiplied:
            return self.values[i]
        factor = self.factors.get((i, -1), 1.0) * self.factors.get((i, reader), 1.0)
        return _times(self.values[i], factor)

    def _value(self, i: int, node: Node) -> Array:
        if node.op == CONST:
            return node.params["array"]
        inputs = [self._read(j, i) for j in node.inputs]
        if node.op in _OWN:
            return _OWN[node.op](node, inputs)
        if not node.params.get("callers"):
            raise NotEvaluated(f"{node.op} is no operation of one device")
        eqn = node.params["callers"][-1]
        if node.op in _MADE and node.op != eqn.primitive.name:
            return _MADE[node.op](*inputs)
        same, read = self.equation
        if same is not eqn or read != node.inputs or len(self.results) < 2:
            self.results = self._bound(eqn, inputs)
            self.equation = (eqn, node.inputs)
        return self.results[node.params["result"]]

    def _bound(self, eqn: Any, inputs: Sequence[Array]) -> Sequence[Array]:
        own = numpy_operations.OPERATIONS.get(eqn.primitive.name)
        if own is not None:
            return [own(eqn, *map(np.asarray, inputs))]
        try:
            results = eqn.primitive.bind(*inputs, **eqn.params)
        except Exception as error:  # of any kernel or callback
            raise NotEvaluated(f"{eqn.primitive.name} cannot be computed here") from error
        results = results if eqn.primitive.multiple_results else [results]
        if any(isinstance(result, jax.core.Tracer) for result in results):
            raise NotEvaluated("the audit is called inside of a trace")
        return results


def _of_first(node: Node, inputs: Sequence[Array]) -> Array:
    return inputs[0]


def _of_choice(node: Node, inputs: Sequence[Array]) -> Array:
    index, *results = inputs
    return results[min(max(int(index), 0), len(results) - 1)]


def _of_reshape(node: Node, inputs: Sequence[Array]) -> Array:
    order = node.params["dimensions"]
    array = inputs[0] if order is None else np.transpose(inputs[0], order)
    return np.reshape(array, node.shape)


# Operations in place of others: of the sums over a stack, and of equal terms.
_MADE: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": operator.add,
    "mul": operator.mul,
}
# Operations of graphs that are no primitives, or that others are replaced by.
_OWN: Mapping[str, Callable[[Node, Sequence[Array]], Array]] = {
    "copy": _of_first,
    "cond": _of_choice,
    "reshape": _of_reshape,
}
