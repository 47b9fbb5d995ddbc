"""Where activations are normalized, whatever the norm.

There they do not grow with the array that they are made of.

Each array has a *root*, an earlier array or itself, and a *degree*: the power with which it grows
if its root is multiplied by a number. The variance of an array has degree 2, its root 1, and the
array over that 0: it is normalized. A row of `_GROWTH` tells what a primitive does to both, and to
the size of entries.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from depthmup_flax.trace.axes import summed_size
from depthmup_flax.trace.graph import STATE, Graph, Node
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.uses import ENTRYWISE, Uses
from depthmup_flax.util import primitives

_SMALL = 1e-2  # the largest epsilon in a norm


@dataclasses.dataclass(frozen=True)
class Norms:
    """The norms of a graph.

    Attributes:
      roots: for each node, the node that it is compared with.
      degrees: the power with which the node grows if its root is multiplied by a number.
      reads: a normalized array, whose degree is 0 -> the array that is normalized.
      sizes: a normalized array -> the root mean square of its entries, up to what all models share.
    """

    roots: Sequence[int]
    degrees: Sequence[float]
    reads: Mapping[int, int]
    sizes: Mapping[int, float]


class Growth(NamedTuple):
    """How an array grows with its root."""

    degree: float
    # Of its entries, in powers of their root's: a sum of ``n`` squares is ``n`` times a square.
    size: float


def find_norms(graph: Graph, uses: Uses) -> Norms:
    """The norms of a graph: by their own statistics, or by running averages."""
    reader = _Reader(graph, list(range(len(graph.nodes))), [Growth(1.0, 1.0)] * len(graph.nodes))
    norms: dict[int, int] = {}
    sizes: dict[int, float] = {}
    products = {use.node for use in uses.uses if use.kind != ENTRYWISE}
    roots_of_averages: set[int] = set()  # square roots of running averages
    for i, node in enumerate(graph.nodes):
        reads_root = not roots_of_averages.isdisjoint(node.inputs)
        if uses.kinds[i] != ACTIVATION:
            if reads_root or (node.op in ("sqrt", "rsqrt") and uses.kinds[i] == STATE):
                roots_of_averages.add(i)
            continue
        reads = [j for j in node.inputs if uses.kinds[j] == ACTIVATION]
        if node.op in primitives.SCALES and len(reads) == 1 and reads_root:
            norms[i] = reads[0]
            continue
        if i in products or not reads:
            continue
        growth = reader.of_operation(node, reads)
        if growth is None:
            continue
        if growth.degree == 0:
            norms[i] = max(reads, key=lambda j: reader.growth[j].degree)
            sizes[i] = growth.size
        else:
            reader.roots[i] = reader.roots[reads[0]]
            reader.growth[i] = growth
    return Norms(reader.roots, [growth.degree for growth in reader.growth], norms, sizes)


@dataclasses.dataclass(frozen=True)
class _Reader:
    """What is known of the arrays up to the current one; those without a root are their own."""

    graph: Graph
    roots: list[int]
    growth: list[Growth]

    def of_operation(self, node: Node, reads: Sequence[int]) -> Growth | None:
        """How a result grows with the root of what is read; ``None`` if it has no degree."""
        if len({self.roots[j] for j in reads}) > 1:
            return None
        if node.op in _GROWTH:
            return _GROWTH[node.op](self, node, reads)
        return self.growth[reads[0]] if node.op.startswith("reduce_") else None

    def numbers(self, node: Node, reads: Sequence[int]) -> list[float | None]:
        """What is read beside activations."""
        return [self.graph.nodes[j].value for j in node.inputs if j not in reads]

    def factor(self, node: Node, reads: Sequence[int]) -> float:
        """The number that activations are multiplied or divided by, 1 if it is unknown."""
        numbers = self.numbers(node, reads)
        return abs(numbers[0]) if numbers and numbers[0] else 1.0


def _of_the_first(reader: _Reader, node: Node, reads: Sequence[int]) -> Growth:
    return reader.growth[reads[0]]


def _of_a_sum_of_entries(reader: _Reader, node: Node, reads: Sequence[int]) -> Growth:
    growth = reader.growth[reads[0]]
    if growth.degree != 2:
        return growth
    return Growth(2.0, growth.size * summed_size(reader.graph.nodes[reads[0]], node))


def _of_a_product(reader: _Reader, node: Node, reads: Sequence[int]) -> Growth:
    factors = [reader.growth[j] for j in node.inputs if j in reads]
    size = math.prod(growth.size for growth in factors) * reader.factor(node, reads)
    return Growth(sum(growth.degree for growth in factors), size)


def _of_a_quotient(reader: _Reader, node: Node, reads: Sequence[int]) -> Growth:
    number = Growth(0.0, reader.factor(node, reads))
    top, bottom = (reader.growth[j] if j in reads else number for j in node.inputs)
    first = reader.growth[reads[0]]
    # The number of terms of a mean of squares cancels that of the sum; other means are not counted.
    is_counted = len(reads) == 2 or first.degree != 1
    return Growth(top.degree - bottom.degree, top.size / bottom.size if is_counted else first.size)


def _of_alike(reader: _Reader, node: Node, reads: Sequence[int]) -> Growth | None:
    """Of a sum or a choice of arrays of one degree; a norm's epsilon does not count."""
    if len({reader.growth[j].degree for j in reads}) > 1:
        return None
    if node.op != "select_n":
        for number in reader.numbers(node, reads):
            is_small = number is not None and (abs(number) <= _SMALL or math.isinf(number))
            if not is_small:
                return None
    return reader.growth[reads[0]]


def _of_a_power(reader: _Reader, node: Node, reads: Sequence[int]) -> Growth:
    growth = reader.growth[reads[0]]
    power = node.params["y"] if node.op == "integer_pow" else primitives.POWERS[node.op]
    return Growth(power * growth.degree, growth.size**power)


_KEEPING = primitives.SAME_PLACE | primitives.MOVES | {"abs", "cumsum", "reduce_window_sum"}
_JOINING = primitives.SUMS | {"complex", "max", "min", "select_n", "concatenate"}
# Primitive -> (reader, node, activations that it reads) -> how its result grows.
_GROWTH: Mapping[str, Callable[[_Reader, Node, Sequence[int]], Growth | None]] = {
    **dict.fromkeys(_KEEPING, _of_the_first),
    **dict.fromkeys(_JOINING, _of_alike),
    **dict.fromkeys(primitives.POWERS, _of_a_power),
    "reduce_sum": _of_a_sum_of_entries,
    "mul": _of_a_product,
    "div": _of_a_quotient,
}
