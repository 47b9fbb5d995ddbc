"""The kind of each array, by what it depends on: the batch, parameters, states, or nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from depthmup_flax.trace.axes import product_axes
from depthmup_flax.trace.graph import CONST, INPUT, PARAM, STATE, Graph, Node

# An array that depends on the batch, or is looked up by it, or a learned token. The other kinds are
# `graph.PARAM` (made of parameters, and perhaps of states and constants), `STATE` (of states and
# constants) and `CONST`.
ACTIVATION = "activation"


def kind_of(graph: Graph, node: Node, kinds_of_inputs: Sequence[str]) -> str:
    """The kind of a node, given those of its inputs."""
    if node.op in (PARAM, STATE, CONST):
        return node.op
    if node.op == INPUT or ACTIVATION in kinds_of_inputs:
        return ACTIVATION
    if _reads_positions(graph, node, kinds_of_inputs):
        return ACTIVATION
    for kind in (PARAM, STATE):
        if kind in kinds_of_inputs:
            return kind
    return CONST


def _reads_positions(graph: Graph, node: Node, kinds_of_inputs: Sequence[str]) -> bool:
    """Whether a layer reads fixed features of several places, as a network of positions does."""
    if node.op != "dot_general" or sorted(kinds_of_inputs) != [CONST, PARAM]:
        return False
    place = kinds_of_inputs.index(CONST)
    contracted, _ = product_axes(node, place)
    shape = graph.nodes[node.inputs[place]].shape
    return math.prod(size for k, size in enumerate(shape) if k not in contracted) > 1


def moving(graph: Graph) -> set[int]:
    """What loops carry that starts from a constant, but becomes an activation.

    The zeros that a recurrent network starts from are such. One round may make others move, so it
    is asked again until nothing changes.
    """
    result: set[int] = set()
    while True:
        kinds: list[str] = []
        for i, node in enumerate(graph.nodes):
            of_inputs = [kinds[j] for j in node.inputs]
            kinds.append(ACTIVATION if i in result else kind_of(graph, node, of_inputs))
        more = [i for i, end in graph.carries() if kinds[end] == ACTIVATION != kinds[i]]
        if not more:
            return result
        result.update(more)
