"""Which parameters can carry a factor that a place of the forward pass lacks.

A factor in front of a parameter that enters linearly is the same network as that factor in the
parameter's value. So a set of parameters carries the factor of a place if the array there is
multiplied by ``c`` when all of them are, and if nothing else of the forward pass changes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from depthmup_flax.auditing.degrees import Carried, degrees, operands
from depthmup_flax.trace.graph import PARAM, Graph, Node, Place
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.slices import Slices, sliced
from depthmup_flax.util import primitives
from depthmup_flax.util.groups import grouped, series

_TRIES = 8  # some parameters are left out, and others looked for
_VIEWS = primitives.SAME_PLACE | primitives.MOVES  # of an array

# Path -> what the forward pass adds to the parameter before it multiplies with it: 0, or 1 in the
# norms of Gemma.
Carriers: TypeAlias = Mapping[str, float]


@dataclasses.dataclass(frozen=True, eq=False)
class CarrierSearch:
    """Looks for carriers in the graph of one model; ``kinds`` are those of its arrays."""

    graph: Graph
    kinds: Sequence[str]

    @functools.cached_property
    def needed(self) -> Sequence[bool]:
        """Whether the output depends on each node."""
        return self.graph.needed()

    @functools.cached_property
    def slices(self) -> Slices | None:
        """The graph with slices of parameters apart."""
        return sliced(self.graph)

    def find(self, places: Collection[Place], without: Collection[str] = ()) -> Carriers | None:
        """The nearest parameters, or slices, that carry a factor of all of these places together.

        ``without`` some. A slice with an offset carries nothing.
        """
        carriers = self._find(places, without)
        if carriers is not None or self._of_slices is None or self.slices is None:
            return carriers
        blocked = set(without)
        for name, (path, _) in self.slices.slices.items():
            if path in without:
                blocked.add(name)
        of_slices = self._of_slices._find(self.slices.places(places), blocked)
        has_offset = of_slices is not None and any(of_slices.values())
        return None if has_offset else of_slices

    def powers(self, carriers: Carriers, places: Collection[Place]) -> set[float]:
        """The powers with which these places grow if the parameters are multiplied by a number.

        NaN: it is no power.
        """
        offsets: dict[int, float] = {}
        for i, node in enumerate(self.graph.nodes):
            if node.op == PARAM and node.params["path"] in carriers:
                offsets[i] = carriers[node.params["path"]]
        result = degrees(Carried(self.graph, self.needed, offsets, frozenset()))
        return {result.of[i] or 0.0 for i, _ in places}

    @functools.cached_property
    def _of_slices(self) -> CarrierSearch | None:
        if self.slices is None:
            return None
        kinds = [self.kinds[i] for i in self.slices.origin]
        return CarrierSearch(self.slices.graph, kinds)

    def _find(self, places: Collection[Place], without: Collection[str]) -> Carriers | None:
        leaks = self.graph.needed(set(places))
        arrays = [array for array, _ in places]
        tries = [frozenset(without)]
        for blocked in itertools.islice(tries, _TRIES):  # which grows
            try:
                offsets = _Walk(self.graph, self.kinds, leaks, blocked).of_all(arrays)
            except RecursionError:  # hundreds of sums inside of one branch
                return None
            if not offsets:
                continue
            paths = {self.graph.nodes[i].params["path"]: offset for i, offset in offsets.items()}
            if self._scales(offsets, places):
                return paths
            # One of them may be enough, as queries that two sets of keys read.
            tries += [blocked.union(alike) for alike in grouped(paths, series).values()]
            tries.append(blocked.union(paths))
        return None

    def _scales(self, offsets: Mapping[int, float], places: Collection[Place]) -> bool:
        """Whether the places have degree one in the carriers, and the output behind them none."""
        result = degrees(Carried(self.graph, self.needed, offsets, frozenset(places)))
        if any(result.of[i] not in (1.0, None) for i, _ in places):
            return False
        return result.seen[self.graph.output] in (0.0, None)


# Node of a parameter -> its offset; ``None``: the array cannot be carried.
_Offsets: TypeAlias = "dict[int, float] | None"


@dataclasses.dataclass(frozen=True, eq=False)
class _Walk:
    """From a place up to the nearest parameters in which it is homogeneous of degree one.

    Not to those that are ``blocked``, nor to those that ``leaks`` says others read, too.
    """

    graph: Graph
    kinds: Sequence[str]
    leaks: Sequence[bool]
    blocked: Collection[str]
    known: dict[int, _Offsets] = dataclasses.field(default_factory=dict)  # by array

    def of_all(self, arrays: Sequence[int]) -> _Offsets:
        """The parameters of all arrays together; ``None`` if one of them cannot be carried."""
        result: dict[int, float] = {}
        for i in arrays:
            offsets = self.of(i)
            if offsets is None:
                return None
            for j, offset in offsets.items():
                if result.setdefault(j, offset) != offset:
                    return None
        return result

    def of(self, i: int) -> _Offsets:
        """The parameters of one array."""
        if i not in self.known:
            self.known[i] = {}  # a loop's carry that depends on itself
            offsets = self._of(i)
            if offsets is None and self.kinds[i] == PARAM:
                offsets = self._of_computed(i)
            self.known[i] = offsets
        return self.known[i]

    def _of(self, i: int) -> _Offsets:
        node = self.graph.nodes[i]
        if node.value == 0:
            return {}
        if node.op == PARAM:
            is_blocked = self.leaks[i] or node.params["path"] in self.blocked
            return None if is_blocked else {i: 0.0}
        if self.kinds[i] not in (ACTIVATION, PARAM) or node.op == "stop_gradient":
            return None
        offset = self._offset(node)
        if offset is not None:
            return self._of_sum_with_offset(node, offset)
        if node.op == "carry":
            return self.of_all([*node.inputs, node.params["next"]])
        roles = operands(node)
        if roles.factors:
            return self._of_product(node)
        return self.of_all([node.inputs[k] for k in roles.terms]) if roles.terms else None

    def _of_computed(self, i: int) -> _Offsets:
        """The parameter that an array is computed of, if it is one, as of a rounded matrix."""
        upstream = self.graph.upstream(i, lambda j: False)
        parameters = [j for j in upstream if self.graph.nodes[j].op == PARAM]
        if len(parameters) != 1 or parameters == [i]:
            return None
        return self.of(parameters[0])

    def _of_product(self, node: Node) -> _Offsets:
        """Of one factor: the weights, or what they multiply."""
        factors = list(dict.fromkeys(node.inputs[:2]))
        if len(factors) < 2:
            return None
        result = None
        for i in sorted(factors, key=self._distance):
            offsets = self.of(i)
            if offsets:  # the way through the other may be long
                return offsets
            if result is None:
                result = offsets  # empty of a loop's own carry
        return result

    def _distance(self, i: int) -> int:
        """0 of weights, 1 of numbers times weights, else 2.

        A norm may compute its scale over the deviation first.
        """
        nodes = self.graph.nodes
        while nodes[i].op in _VIEWS:
            i = nodes[i].inputs[0]
        if self.kinds[i] == PARAM:
            return 0
        is_scaled = nodes[i].op == "mul" and any(self.kinds[j] == PARAM for j in nodes[i].inputs)
        return 1 if is_scaled else 2

    def _offset(self, node: Node) -> float | None:
        """The number that is added to an array of parameters."""
        if node.op not in ("add", "add_any") or len(node.inputs) != 2:
            return None
        left, right = node.inputs
        for number, array in ((left, right), (right, left)):
            value = self.graph.nodes[number].value
            if value and self.kinds[array] == PARAM:
                return value
        return None

    def _of_sum_with_offset(self, node: Node, offset: float) -> _Offsets:
        """The parameter that a number is added to, if it is that parameter alone."""
        nodes = self.graph.nodes
        (i,) = (j for j in node.inputs if nodes[j].value is None)
        while nodes[i].op in _VIEWS | primitives.LOOKUPS:
            i = nodes[i].inputs[0]
        if nodes[i].op != PARAM or not self.of(i):
            return None
        return {i: offset}
