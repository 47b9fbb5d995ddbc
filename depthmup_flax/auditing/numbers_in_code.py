"""Single numbers that a forward pass computes from constants, and the means of its random masks."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from depthmup_flax.auditing.dataflow import CONST, STATE, Graph, Node, folded
from depthmup_flax.auditing.parameter_uses import MOVES, SAME_PLACE

_RANDOM = frozenset({"random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform"})
_LESS, _GREATER = ("lt", "le"), ("gt", "ge")


class Numbers:
    """The numbers of a graph. Those that are unknown are drawn between 0.3 and 0.7, so a keep rate is one, too.

    Attributes:
      masks: a random mask -> the mean of its entries, its keep rate; 1 for a mask over its keep rate.
      drawn: whether a number is unknown.
    """

    def __init__(self, graph: Graph, kinds: Sequence[str], seed: int):
        self._nodes, self._kinds, self._seed = graph.nodes, kinds, seed
        self._known: dict[int, float | None] = {}
        self._random: set[int] = set()
        self._factors: dict[int, float | None] = {}
        self.masks: dict[int, float] = {}
        self.drawn = False

    def of(self, i: int) -> float | None:
        """The number that all entries of a constant are, or that a random mask is multiplied by; else ``None``.

        It is called for all constants of a graph, in its order.
        """
        self._factors[i] = result = self._read(i)
        return result

    def _read(self, i: int) -> float | None:
        node, kind = self._nodes[i], self._kinds[i]
        if node.op in _RANDOM or any(j in self._random for j in node.inputs):
            self._random.add(i)
            return self._of_mask(i, node)
        if node.value is None and kind in (CONST, STATE):
            return self._computed(i, node)
        return node.value

    def _of_mask(self, i: int, node: Node) -> float | None:
        """The number that a mask is multiplied by, apart from its keep rate; ``None`` of other random arrays."""
        mean = self._mean(node)
        if mean is not None:
            self.masks[i] = mean
            return 1.0
        mask = next((j for j in node.inputs if j in self.masks), None)
        if mask is None or node.op not in (*SAME_PLACE, *MOVES, "mul", "div"):
            return None
        self.masks[i], factor = self.masks[mask], self._factors[mask] or 1.0
        other = next((self._number(j) for j in node.inputs if j != mask), None)
        if node.op in ("mul", "div") and other:
            other = 1 / other if node.op == "div" else other
            if math.isclose(other * self.masks[i], 1, rel_tol=1e-5):
                self.masks[i] = 1.0
            else:
                factor *= other
        return factor

    def _computed(self, i: int, node: Node) -> float | None:
        values = list(map(self._number, node.inputs))
        count = math.prod(self._nodes[node.inputs[0]].shape) / max(math.prod(node.shape), 1) if node.inputs else 1.0
        value = folded(node.op, node.params, values, count)
        if value is None and math.prod(node.shape) == 1:
            value, self.drawn = random.Random(f"{self._seed} {i}").uniform(0.3, 0.7), True
        self._known[i] = value
        return value

    def _number(self, i: int) -> float | None:
        return self._known.get(i, self._nodes[i].value)

    def _mean(self, node: Node) -> float | None:
        """The mean of a mask that compares uniform random numbers with a number."""
        if node.op in (*_LESS, *_GREATER):
            place = next((k for k, j in enumerate(node.inputs) if j not in self._random), None)
            bound = None if place is None else self._number(node.inputs[place])
            is_below = (node.op in _LESS) == (place == 1)  # the mask is where the random number is less
            return bound if bound is None or is_below else 1 - bound
        if node.op == "floor":  # of a keep rate plus a random number
            inner = self._nodes[node.inputs[0]]
            rates = [self._number(j) for j in inner.inputs if j not in self._random]
            return rates[0] if inner.op == "add" and rates else None
        if node.op == "not" and node.inputs[0] in self.masks:
            return 1 - self.masks[node.inputs[0]]
        return None
