"""Sums of equal arrays, which are products with a number.

``z + z``, ``sum([z] * k)``, the sum over a stack of ``k`` times ``z``, and a loop that adds ``z`` in
each of ``k`` rounds are ``k * z``. Arrays are equal if the same operations make them of the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from depthmup_flax.trace.graph import CONST, Graph

_MOST = 8  # terms of a sum that are compared: a stream is the sum of all of its branches


class Multiple(NamedTuple):
    """A number times an array."""

    number: float
    node: int

    def plus(self, other: Multiple) -> Multiple | None:
        """The sum, if both are of one array and have one sign; other differences stay."""
        if self.node != other.node or self.number * other.number < 0:
            return None
        return Multiple(self.number + other.number, self.node)


@dataclasses.dataclass
class EqualTerms:
    """What sums consist of, and which arrays are equal, up to the current node.

    Attributes:
      constant: a number -> the node of this constant.
      replaced: sums in whose place others are read, of the same value.
    """

    graph: Graph
    constant: Callable[[Any], int]
    replaced: set[int] = dataclasses.field(default_factory=set)
    # A sum -> the array that something is added to, and what.
    _sums: dict[int, tuple[int, Multiple]] = dataclasses.field(default_factory=dict)
    _multiples: dict[int, Multiple] = dataclasses.field(default_factory=dict)
    _equal: dict[int, int] = dataclasses.field(default_factory=dict)
    _first: dict[Hashable, int] = dataclasses.field(default_factory=dict)

    def learn(self, i: int) -> None:
        """Compares a new array with earlier ones."""
        node = self.graph.nodes[i]
        params: Hashable = tuple(item for item in node.params.items() if item[0] != "callers")
        if node.op == CONST:
            params = id(node.params["array"]) if node.value is None else node.value
        inputs = tuple(self._equal.get(j, j) for j in node.inputs)
        with contextlib.suppress(TypeError):  # a parameter of the primitive may have no hash
            self._equal[i] = self._first.setdefault((node.op, node.shape, inputs, params), i)

    def add(self, a: int, b: int, sign: float, dtype: Any, params: Mapping[str, Any]) -> int:
        """The node of a sum or a difference, which is a product if its terms are equal.

        A sum with an equal term has that term twice, unless others are made of it: what a skip
        connection adds again is another reader of the stream.
        """
        added = self._multiple(b)
        added = Multiple(sign * added.number, added.node)
        made = self._joined(a, added, dtype, params)
        if made is None and sign > 0:
            made = self._joined(b, self._multiple(a), dtype, params)
        if made is not None:
            return made
        nodes = self.graph.nodes
        shape = np.broadcast_shapes(nodes[a].shape, nodes[b].shape)
        result = self.graph.add("add" if sign > 0 else "sub", (a, b), shape, params)
        self.learn(result)
        if nodes[a].value == 0:
            self._multiples[result] = added
        elif nodes[b].value == 0:
            self._multiples[result] = self._multiple(a)
        else:
            self._sums[result] = (a, added)
        return result

    def of_rounds(self, start: int, end: int) -> Sequence[Multiple] | None:
        """What a round of a loop adds to what it carries, if nothing else reads that.

        ``None`` if it is not the same in all rounds.
        """
        terms: list[Multiple] = []
        sums = {start}
        i = end
        while i != start and i in self._sums and len(terms) < _MOST:
            sums.add(i)
            i, added = self._sums[i]
            terms.append(added)
        if i != start or any(term.node >= start for term in terms):
            return None
        for k in range(start, len(self.graph.nodes)):
            if k not in sums and not sums.isdisjoint(self.graph.nodes[k].inputs):
                return None
        return terms

    def product(self, term: Multiple, dtype: Any, params: Mapping[str, Any]) -> int:
        """The node of a number times an array."""
        if term.number == 1:
            return term.node
        inputs = (term.node, self.constant(np.asarray(term.number, dtype)))
        result = self.graph.add("mul", inputs, self.graph.nodes[term.node].shape, params)
        self._multiples[result] = term
        return result

    def _multiple(self, i: int) -> Multiple:
        return self._multiples.get(i) or Multiple(1.0, self._equal.get(i, i))

    def _joined(self, i: int, added: Multiple, dtype: Any, params: Mapping[str, Any]) -> int | None:
        """The node of a sum plus a term that it has, or ``None``."""
        others: list[Multiple] = []
        sums: list[int] = []
        while True:
            both = self._multiple(i).plus(added)
            if both is not None:
                before = None
                break
            if i not in self._sums or len(others) == _MOST:
                return None
            sums.append(i)
            before, term = self._sums[i]
            both = term.plus(added)
            if both is not None:
                break
            others.append(term)
            i = before
        rest = [term.node for term in others]
        if self._are_made_of(rest if before is None else [before, *rest], added.node):
            return None
        self.replaced.update(sums)
        total = self.product(both, dtype, params)
        if before is not None:
            total = self.add(before, total, 1.0, dtype, params)
        for term in reversed(others):
            total = self.add(total, self.product(term, dtype, params), 1.0, dtype, params)
        return total

    def _are_made_of(self, others: Iterable[int], i: int) -> bool:
        """Whether one of several arrays depends on another."""
        return any(i in self.graph.upstream(other, i.__ge__) for other in others)
