"""The numbers of constants and of running averages, and the means of random masks.

A random mask is the mean of its entries, its keep rate, so a mask over its keep rate is 1. Numbers
that are unknown, such as rates that differ by layer, are drawn between 0.3 and 0.7, so a keep rate
is one, too: a factor in which they cancel is the same for every seed. A row of `_MEANS` tells what
a primitive makes of random numbers.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence

from depthmup_flax.trace.axes import summed_size
from depthmup_flax.trace.constants import folded
from depthmup_flax.trace.graph import CONST, STATE, Graph, Node
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.util import primitives


@dataclasses.dataclass(frozen=True)
class ConstantNumbers:
    """The numbers of a graph.

    Attributes:
      numbers: a constant -> the number that all of its entries are; a random array -> its mean;
        ``None`` is unknown.
      is_random: arrays made of random numbers.
      are_drawn: whether a number is unknown, and drawn.
    """

    graph: Graph
    numbers: Mapping[int, float | None]
    is_random: set[int]
    are_drawn: bool

    def factor(self, i: int) -> float | None:
        """What an array multiplies others with, up to its sign; ``None`` is unknown."""
        modulus = self.graph.nodes[i].params.get("modulus")
        number = modulus or self.numbers.get(i)  # a complex number folds otherwise
        return None if number is None else abs(number)

    def mask_rate(self, i: int) -> float | None:
        """The mean of a random mask; ``None`` of other arrays."""
        return self.numbers.get(i) if i in self.is_random else None


def constant_numbers(
    graph: Graph,
    kinds: Sequence[str],
    needed: Sequence[bool],
    seed: int,
) -> ConstantNumbers:
    """The numbers of what is needed and does not depend on the batch."""
    reader = _Reader(graph, {}, set())
    are_drawn = False
    for i, node in enumerate(graph.nodes):
        if not needed[i] or kinds[i] == ACTIVATION or node.params.get("modulus"):
            continue
        if node.op in primitives.DRAWS or not reader.is_random.isdisjoint(node.inputs):
            reader.is_random.add(i)
            reader.numbers[i] = reader.mean(node)
            continue
        number = node.value
        if number is None and kinds[i] in (CONST, STATE):
            number = reader.folded(node)
            if number is None and node.size == 1:
                number = random.Random(f"{seed} {i}").uniform(0.3, 0.7)
                are_drawn = True
        reader.numbers[i] = number
    return ConstantNumbers(graph, reader.numbers, reader.is_random, are_drawn)


@dataclasses.dataclass(frozen=True)
class _Reader:
    """What is known of the nodes up to the current one."""

    graph: Graph
    numbers: dict[int, float | None]
    is_random: set[int]

    def number(self, i: int) -> float | None:
        """That of an array before, or of a constant that was not asked for."""
        return self.numbers.get(i, self.graph.nodes[i].value)

    def folded(self, node: Node) -> float | None:
        """What an operation makes of numbers."""
        count = 1.0
        if node.inputs:
            count = summed_size(self.graph.nodes[node.inputs[0]], node)
        return folded(node.op, node.params, list(map(self.number, node.inputs)), count)

    def mean(self, node: Node) -> float | None:
        """The mean of an array made of random numbers, if it is known."""
        return _MEANS[node.op](self, node) if node.op in _MEANS else None


def _of_a_comparison(reader: _Reader, node: Node) -> float | None:
    """Of a mask that compares uniform random numbers with a number."""
    for place, j in enumerate(node.inputs):
        if j not in reader.is_random:
            bound = reader.number(j)
            # The mask is where the random number is less.
            is_below = (node.op in primitives.LESS) == (place == 1)
            return bound if bound is None or is_below else 1 - bound
    return None


def _of_a_floor(reader: _Reader, node: Node) -> float | None:
    """Of a keep rate plus a random number, rounded down."""
    inner = reader.graph.nodes[node.inputs[0]]
    if inner.op != "add":
        return None
    rates = [reader.number(j) for j in inner.inputs if j not in reader.is_random]
    return rates[0] if rates else None


def _of_the_opposite(reader: _Reader, node: Node) -> float | None:
    rate = reader.number(node.inputs[0])
    return None if rate is None else 1 - rate


def _of_arithmetic(reader: _Reader, node: Node) -> float | None:
    """Of several masks, or of random signs, whose mean 0 is no size."""
    return reader.folded(node) or None


_ARITHMETIC = primitives.SAME_PLACE | primitives.MOVES | primitives.SCALES | primitives.SUMS
# Primitive -> (reader, node) -> the mean of the array.
_MEANS: Mapping[str, Callable[[_Reader, Node], float | None]] = {
    **dict.fromkeys(_ARITHMETIC, _of_arithmetic),
    **dict.fromkeys(primitives.LESS | primitives.GREATER, _of_a_comparison),
    "floor": _of_a_floor,
    "not": _of_the_opposite,
}
