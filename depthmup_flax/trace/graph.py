"""A forward pass as a graph of array operations.

Arrays have numbers, in an order in which they can be computed; everything that is read of a graph
is a list or a mapping over these numbers. `tracing` makes graphs, from shapes alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

# Operations without inputs.
PARAM = "param"
STATE = "state"  # such as running averages
INPUT = "input"  # of the batch
CONST = "const"

# An array, and the node that reads it there; -1 for all that read it.
Place: TypeAlias = tuple[int, int]
# The number of a loop in the graph, and of its iterations; NaN is unknown (``while``).
Loop: TypeAlias = tuple[int, float]


def rounds(loops: Sequence[Loop]) -> float:
    """How often what is inside of these loops runs; NaN is unknown."""
    return math.prod(length for _, length in loops)


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One array: the operation that makes it, and the arrays (numbers of nodes) that it reads."""

    op: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    # Of the primitive, with its equations in "callers"; for `PARAM` its path.
    params: Mapping[str, Any]
    loops: tuple[Loop, ...]  # that it runs in, the outermost first
    value: float | None = None  # of a constant whose entries are all equal

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)


@dataclasses.dataclass
class Graph:
    """Nodes in an order in which they can be computed. The body of a loop occurs once."""

    nodes: list[Node] = dataclasses.field(default_factory=list)
    output: int = -1
    # The last sums of streams that the output does not depend on: that of a graph's edges, which
    # nothing reads. As traced, these are any last sums.
    ends: tuple[int, ...] = ()
    loops: tuple[Loop, ...] = ()  # that new nodes run in
    # Functions in whose place others are traced.
    replaced: set[str] = dataclasses.field(default_factory=set)

    @property
    def results(self) -> tuple[int, ...]:
        """The output and the ends: what a forward pass is computed for."""
        return (self.output, *self.ends)

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

    def upstream(self, node: int, ends: Callable[[int], bool]) -> Iterator[int]:
        """A node and those that it depends on, up to nodes that are ``ends``."""
        stack = [node]
        seen = {node}
        while stack:
            i = stack.pop()
            yield i
            if not ends(i):
                new = set(self.nodes[i].inputs) - seen
                seen |= new
                stack += new

    def carries(self) -> Iterator[tuple[int, int]]:
        """What loops carry: the node that a round starts from, and what the next starts from."""
        for i, node in enumerate(self.nodes):
            if node.op == "carry":
                yield i, node.params["next"]

    def needed(self, cut: Collection[Place] = ()) -> list[bool]:
        """Whether the output or an end depends on each node.

        Paths through the places ``cut`` do not count.
        """
        needed = [False] * len(self.nodes)
        stack = [i for i in self.results if (i, -1) not in cut]
        while stack:
            i = stack.pop()
            if needed[i]:
                continue
            needed[i] = True
            node = self.nodes[i]
            inputs = node.inputs
            if node.op == "carry":  # the other rounds of its loop make it, too
                inputs = (*inputs, node.params["next"])
            if cut:
                inputs = tuple(j for j in inputs if (j, -1) not in cut and (j, i) not in cut)
            stack += inputs
        return needed
