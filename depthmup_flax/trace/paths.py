"""For every array, sets of earlier arrays, by the paths on which it depends on them.

Sets are bits of integers, one for each array that may be of a stream: that two others read, a
branch and a shortcut. A residual sum continues the stream of its shortcut, so paths end where they
enter the sum by its branch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from depthmup_flax.trace.activations import Activations
from depthmup_flax.trace.graph import INPUT, PARAM, Graph, Node
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.uses import PRODUCT, Uses
from depthmup_flax.util.primitives import (
    ENTRYWISE,
    KEEPS_STREAM,
    NONLINEAR,
    PARTS,
    SAME_PLACE,
    SUMS,
)


@dataclasses.dataclass
class Paths:
    """The sets of each array up to the last that `extend` was called for."""

    graph: Graph
    activations: Activations
    needed: Sequence[bool]
    products: Collection[int]  # operations that contract a parameter
    degrees: Sequence[float]  # see `norms`
    after: list[int]  # on any path
    same: list[int]  # on a path that keeps the stream
    exact: list[int]  # on a path that keeps every entry in its place, up to a factor
    summed: list[int]  # the same, or with something added
    by_product: list[int]  # on a path through a product with a parameter
    by_nonlinearity: list[int]
    by_mixing: list[int]  # on a path through an operation that is not entry by entry
    by_part: list[int]  # on a path that reads a part of the array, such as one of several times
    learned: list[bool]  # depends on a parameter
    weighted: list[bool]  # depends on a product with a parameter
    of_batch: list[bool]  # depends on the batch
    starts: list[int]  # the array of each bit
    bit_of: dict[int, int]  # the number of an array's bit

    def nodes(self) -> Iterator[int]:
        """The activations that the output depends on."""
        kinds = self.activations.kinds
        return (i for i, needed in enumerate(self.needed) if needed and kinds[i] == ACTIVATION)

    def mark(self, i: int) -> None:
        """Gives an array a bit: it may be of a stream."""
        bit = 1 << len(self.starts)
        for sets in (self.after, self.same, self.exact, self.summed):
            sets[i] |= bit
        self.bit_of[i] = len(self.starts)
        self.starts.append(i)

    def extend(self, i: int, shortcut: int | None) -> None:
        """The sets of the next activation, given the shortcut if it is a residual sum."""
        node = self.graph.nodes[i]
        reads = self.activations.reads(i)
        is_product = i in self.products
        bends = self._bends(node, reads)
        mixes = node.op not in ENTRYWISE
        for j in reads:
            self.after[i] |= self.after[j]
            self.by_product[i] |= self.after[j] if is_product else self.by_product[j]
            self.by_nonlinearity[i] |= self.after[j] if bends else self.by_nonlinearity[j]
            self.by_mixing[i] |= self.after[j] if mixes else self.by_mixing[j]
            self.by_part[i] |= self.by_part[j] | (self.same[j] if node.op in PARTS else 0)
        starts_empty = node.op == "carry" and not reads  # but becomes an activation
        self.learned[i] = starts_empty or any(map(self._is_learned, node.inputs))
        self.weighted[i] = is_product or any(self.weighted[j] for j in reads)
        self.of_batch[i] = node.op == INPUT or any(self.of_batch[j] for j in reads)
        self._keep(i, reads, shortcut)

    def _keep(self, i: int, reads: Sequence[int], shortcut: int | None) -> None:
        """The sets by paths that keep the stream."""
        node = self.graph.nodes[i]
        scales = self.activations.scales(i)
        if scales or node.op in SAME_PLACE | SUMS:
            for j in reads:
                self.summed[i] |= self.summed[j]
        if shortcut is not None:
            self.after[i] = self.after[shortcut]
            self.same[i] = self.same[shortcut]
            self.exact[i] = self.exact[shortcut]
        elif i not in self.products and not self._spreads(node):
            if scales or node.op in KEEPS_STREAM | SUMS:
                self.same[i] = _common(self.same, reads)
            if scales or node.op in SAME_PLACE:
                self.exact[i] = _common(self.exact, reads)

    def _is_learned(self, i: int) -> bool:
        return self.activations.kinds[i] == PARAM or self.learned[i]

    def _bends(self, node: Node, reads: Sequence[int]) -> bool:
        """Whether an operation is a nonlinearity, or multiplies two learned arrays."""
        if node.op in ("max", "min", "abs") and reads:
            # The largest of the variance and zero, in a norm, has degree 2, and the inverse of its
            # root is multiplied.
            return self.degrees[reads[0]] == 1
        if node.op in ("mul", "dot_general") and len(set(reads)) == 2:
            return all(self.learned[j] and self.degrees[j] > 0 for j in reads)
        return node.op in NONLINEAR

    def _spreads(self, node: Node) -> bool:
        """Whether an array is copied to many places, as what modulates a stream is."""
        if node.op != "broadcast_in_dim":
            return False
        return node.size > self.graph.nodes[node.inputs[0]].size

    def array(self, bits: int) -> int:
        """The latest array of a set, or -1."""
        return self.starts[bits.bit_length() - 1] if bits else -1

    def bit(self, i: int) -> int:
        """The set of one array; of an array without a bit, the next bit, which no set has."""
        return 1 << self.bit_of.get(i, len(self.starts))

    def is_after(self, i: int, start: int) -> bool:
        """Whether an array depends on the array that a shortcut keeps, or is it."""
        return start in self.bit_of and bool(self.after[i] >> self.bit_of[start] & 1)


def new_paths(graph: Graph, uses: Uses, degrees: Sequence[float]) -> Paths:
    """Those of no array, yet."""
    nothing = [0] * len(graph.nodes)
    nowhere = [False] * len(graph.nodes)
    return Paths(
        graph=graph,
        activations=Activations(graph, uses.kinds),
        needed=graph.needed(),
        products={use.node for use in uses.uses if use.kind == PRODUCT},
        degrees=degrees,
        after=nothing.copy(),
        same=nothing.copy(),
        exact=nothing.copy(),
        summed=nothing.copy(),
        by_product=nothing.copy(),
        by_nonlinearity=nothing.copy(),
        by_mixing=nothing.copy(),
        by_part=nothing.copy(),
        learned=nowhere.copy(),
        weighted=nowhere.copy(),
        of_batch=nowhere.copy(),
        starts=[],
        bit_of={},
    )


def highest(bits: int) -> int:
    """The set of the latest array of a set."""
    return 1 << bits.bit_length() - 1 if bits else 0


def positions(bits: int) -> Iterator[int]:
    """The numbers of the bits of a set, the highest first."""
    while bits:
        yield bits.bit_length() - 1
        bits ^= highest(bits)


def _common(sets: Sequence[int], arrays: Sequence[int]) -> int:
    """What the sets of several arrays have in common."""
    if not arrays:
        return 0
    result = sets[arrays[0]]
    for j in arrays[1:]:
        result &= sets[j]
    return result
