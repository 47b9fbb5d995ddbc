"""Single numbers that a forward pass computes from constants, and the means of its random masks."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from depthmup_flax.infer.dataflow import CONST, STATE, Graph, Node, folded
from depthmup_flax.infer.parameter_uses import MOVES, SAME_PLACE

_RANDOM = frozenset({"random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform"})
_LESS, _GREATER = ("lt", "le"), ("gt", "ge")


class Numbers:
    """The numbers of a graph. Those that are unknown are drawn between 0.3 and 0.7, so a keep rate is one, too.

    Attributes:
      masks: a random mask -> the mean of its entries, in [0, 1]. A mask over its keep rate has the mean 1.
      drawn: whether a number is unknown.
    """

    def __init__(self, graph: Graph, kinds: Sequence[str], seed: int):
        self._nodes, self._kinds, self._seed = graph.nodes, kinds, seed
        self._known: dict[int, float | None] = {}
        self._random: set[int] = set()
        self.masks: dict[int, float] = {}
        self.drawn = False

    def of(self, i: int) -> float | None:
        """The number that all entries of a constant are, or their mean in a random mask; ``None`` of other arrays.

        It is called for all constants of a graph, in its order.
        """
        node, kind = self._nodes[i], self._kinds[i]
        if node.op in _RANDOM or any(j in self._random for j in node.inputs):
            self._random.add(i)
            mean = self._mean(node)
            if mean is not None:
                self.masks[i] = mean
            return self.masks.get(i)
        if node.value is None and kind in (CONST, STATE):
            return self._computed(i, node)
        return node.value

    def _computed(self, i: int, node: Node) -> float | None:
        values = [self._known.get(j, self._nodes[j].value) for j in node.inputs]
        count = math.prod(self._nodes[node.inputs[0]].shape) / max(math.prod(node.shape), 1) if node.inputs else 1.0
        value = folded(node.op, node.params, values, count)
        if value is None and math.prod(node.shape) == 1:
            value, self.drawn = random.Random(f"{self._seed} {i}").uniform(0.3, 0.7), True
        self._known[i] = value
        return value

    def _mean(self, node: Node) -> float | None:
        """The mean of a mask that compares uniform random numbers with a number, or of what is made of one."""
        numbers = [self._known.get(j, self._nodes[j].value) for j in node.inputs]
        if node.op in (*_LESS, *_GREATER):
            place = next((k for k, j in enumerate(node.inputs) if j not in self._random), None)
            bound = None if place is None else numbers[place]
            is_below = (node.op in _LESS) == (place == 1)  # the mask is where the random number is less
            return bound if bound is None or is_below else 1 - bound
        if node.op == "floor":  # of a keep rate plus a random number
            inner = self._nodes[node.inputs[0]]
            rates = [self._known.get(j, self._nodes[j].value) for j in inner.inputs if j not in self._random]
            return rates[0] if inner.op == "add" and rates else None
        means = [x for x in map(self.masks.get, node.inputs, numbers) if x is not None]
        if not means or len(means) < len(numbers):
            return None
        if node.op == "not":
            return 1 - means[0]
        if node.op in ("mul", "div"):
            return folded(node.op, {}, means, 1)
        return means[0] if node.op in SAME_PLACE | MOVES else None
