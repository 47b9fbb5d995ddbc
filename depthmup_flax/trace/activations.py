"""What operations do to activations alone: which arrays they add, scale and copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from depthmup_flax.trace.graph import Graph
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.util.primitives import MOVES, SAME_PLACE, SCALES, SUMS


@dataclasses.dataclass(frozen=True)
class Activations:
    """A graph, without what does not depend on the batch. Arrays are numbers of nodes."""

    graph: Graph
    kinds: Sequence[str]

    def reads(self, i: int) -> list[int]:
        """The activations that an operation reads."""
        return [j for j in self.graph.nodes[i].inputs if self.kinds[j] == ACTIVATION]

    def added(self, i: int) -> list[int]:
        """The two arrays that an operation adds, or nothing. Zeros are one, as a stream's start."""
        node = self.graph.nodes[i]
        if node.op not in SUMS | {"scatter-add"}:
            return []
        # The operand in the middle of a "scatter-add" says where.
        operands = node.inputs if node.op in SUMS else node.inputs[::2]
        terms = [j for j in operands if self.kinds[j] == ACTIVATION or self._is_zeros(j)]
        return terms if len(set(terms)) == 2 else []

    def _is_zeros(self, i: int) -> bool:
        node = self.graph.nodes[i]
        return node.value == 0 and bool(node.shape)

    def sides(self, i: int) -> Sequence[Sequence[int]]:
        """The two arrays that an operation adds, in both orders: either may be the shortcut."""
        terms = self.added(i)
        return (terms, terms[::-1]) if terms else ()

    def scales(self, i: int) -> bool:
        """Whether an operation multiplies an activation by something else, or adds that to it."""
        node = self.graph.nodes[i]
        if node.op not in SCALES | {"add", "sub"}:
            return False
        reads = self.reads(i)
        return len(reads) == 1 and (node.op != "div" or node.inputs[0] in reads)

    def source(self, i: int) -> int:
        """The array that an array is a copy of, up to a factor."""
        return [*self.copied(i)][-1]

    def copied(self, i: int) -> Iterator[int]:
        """An array, and those that it is a copy of, up to a factor."""
        yield i
        is_copy = self.graph.nodes[i].op in SAME_PLACE - {"carry", "stop_gradient"}
        reads = self.reads(i)
        if len(reads) == 1 and (is_copy or self.scales(i)):
            yield from self.copied(*reads)

    def centers(self, i: int) -> bool:
        """Whether a mean, a maximum or the like of an array is subtracted from it, as by norms."""
        nodes = self.graph.nodes
        if nodes[i].op != "sub":
            return False
        size = nodes[i].size
        j = nodes[i].inputs[1]
        while nodes[j].size == size and nodes[j].op in SAME_PLACE | MOVES | SCALES | {"gather"}:
            j = next(iter(self.reads(j)), i)
        return nodes[j].size < size
