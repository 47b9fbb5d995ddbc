"""Which parameters can carry a factor that a place of the forward pass lacks.

A factor in front of a parameter that enters linearly is the same network as that factor in the parameter's value. So a
set of parameters carries the factor of a place if the array there is multiplied by ``c`` when all of them are, and if
nothing else of the forward pass changes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from depthmup_flax.auditing.audit_report import Finding
from depthmup_flax.rule.factor import Factor, in_blocks
from depthmup_flax.trace.branches import Branch
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.graph import PARAM, Graph, Node, Place
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.slices import Slices, sliced
from depthmup_flax.trace.uses import PRODUCT
from depthmup_flax.util import primitives
from depthmup_flax.util.groups import grouped, series

_TRIES = 8  # some parameters are left out, and others looked for
# Path -> what the forward pass adds to the parameter before it multiplies with it: 0, or 1 in the norms of Gemma.
Carriers: TypeAlias = Mapping[str, float]


class CarrierSearch:
    """Looks for carriers in the graph of one model."""

    def __init__(self, graph: Graph, kinds: Sequence[str]):
        self.graph, self.nodes, self.kinds, self.needed = graph, graph.nodes, kinds, graph.needed()

    @functools.cached_property
    def slices(self) -> Slices | None:
        """The graph with slices of parameters apart."""
        return sliced(self.graph)

    @functools.cached_property
    def _of_slices(self) -> CarrierSearch | None:
        return CarrierSearch(self.slices.graph, [self.kinds[i] for i in self.slices.origin]) if self.slices else None

    def find(self, places: Collection[Place], without: Collection[str] = ()) -> Carriers | None:
        """The nearest parameters, or slices, that carry a factor of all of these places together; ``without`` some."""
        found = self._find(places, without)
        if found is None and self.slices is not None and self._of_slices is not None:
            of_them = {name for name, (path, _) in self.slices.slices.items() if path in without}
            found = self._of_slices._find(self.slices.places(places), {*without, *of_them})
            found = None if found is not None and any(found.values()) else found
        return found

    def _find(self, places: Collection[Place], without: Collection[str]) -> Carriers | None:
        leaks, tried = self.graph.needed(set(places)), [frozenset(without)]
        for blocked in itertools.islice(tried, _TRIES):
            try:
                found = _Walk(self, leaks, blocked).of_all([place for place, _ in places])
            except RecursionError:  # hundreds of sums inside of one branch
                return None
            if not found:
                continue
            carriers = {self.nodes[i].params["path"]: offset for i, offset in found.items()}
            if self._scales(found, places):
                return carriers
            # One of them may be enough, as queries that two sets of keys read.
            tried += [blocked.union(alike) for alike in grouped(carriers, series).values()]
            tried.append(blocked.union(carriers))
        return None

    def powers(self, carriers: Carriers, places: Collection[Place]) -> set[float]:
        """The powers with which these places grow if the parameters are multiplied by a number; NaN: it is no power."""
        offsets = {i: carriers.get(n.params["path"]) for i, n in enumerate(self.nodes) if n.op == PARAM}
        degrees = _Degrees(self, {i: offset for i, offset in offsets.items() if offset is not None}, set())
        return {degrees.of[i] or 0.0 for i, _ in places}

    def _scales(self, carriers: Mapping[int, float], places: Collection[Place]) -> bool:
        """Whether the places have degree one in the carriers, and the output does not change behind the places."""
        degrees = _Degrees(self, carriers, set(places))
        return all(degrees.of[i] in (1.0, None) for i, _ in places) and degrees.seen[self.graph.output] in (0.0, None)


class _Walk:
    """From a place up to the nearest parameters in which it is homogeneous of degree one."""

    def __init__(self, search: CarrierSearch, leaks: Sequence[bool], blocked: Collection[str]):
        self.graph, self.nodes, self.kinds = search.graph, search.nodes, search.kinds
        self.leaks, self.blocked = leaks, blocked
        self.known: dict[int, dict[int, float] | None] = {}

    def of_all(self, several: Sequence[int]) -> dict[int, float] | None:
        """The parameters, node -> offset, of all arrays together; ``None`` if one of them cannot be carried."""
        result: dict[int, float] = {}
        for i in several:
            found = self.of(i)
            if found is None or any(result.get(j, offset) != offset for j, offset in found.items()):
                return None
            result |= found
        return result

    def of(self, i: int) -> dict[int, float] | None:
        """The parameters of one array."""
        if i not in self.known:
            self.known[i] = {}  # a loop's carry that depends on itself
            found = self._of(i)
            if found is None and self.kinds[i] == PARAM:  # computed of one parameter, as a rounded matrix
                made_of = [j for j in self.graph.upstream(i, lambda j: False) if self.nodes[j].op == PARAM]
                found = self.of(made_of[0]) if len(made_of) == 1 and made_of != [i] else None
            self.known[i] = found
        return self.known[i]

    def _of(self, i: int) -> dict[int, float] | None:
        node = self.nodes[i]
        if node.value == 0:
            return {}
        if node.op == PARAM:
            path = node.params["path"]
            return None if self.leaks[i] or path in self.blocked else {i: 0.0}
        if self.kinds[i] not in (ACTIVATION, PARAM) or node.op == "stop_gradient":
            return None
        if (offset := self._offset(node)) is not None:
            return self._with_offset(node, offset)
        if node.op == "carry":
            return self.of_all([*node.inputs, node.params["next"]])
        terms, factors, _ = _operands(node)
        if factors:
            return self._of_product(node)
        return self.of_all([node.inputs[k] for k in terms]) if terms else None

    def _of_product(self, node: Node) -> dict[int, float] | None:
        """Of one factor: the weights, or what they multiply."""
        factors = list(dict.fromkeys(node.inputs[:2]))
        if len(factors) < 2:
            return None
        factors.sort(key=self._distance)
        result = None
        for i in factors:  # the first that is found: the way through the other may be long
            if found := self.of(i):
                return found
            result = found if result is None else result  # empty of a loop's own carry
        return result

    def _distance(self, i: int) -> int:
        """0 of weights, 1 of numbers times weights (a norm's scale over the deviation, computed first), else 2."""
        while self.nodes[i].op in primitives.SAME_PLACE | primitives.MOVES:
            i = self.nodes[i].inputs[0]
        of_factors = [self.kinds[j] for j in self.nodes[i].inputs] if self.nodes[i].op == "mul" else []
        return 0 if self.kinds[i] == PARAM else 1 if PARAM in of_factors else 2

    def _offset(self, node: Node) -> float | None:
        """The number that is added to an array of parameters."""
        if node.op not in ("add", "add_any") or len(node.inputs) != 2:
            return None
        values = [self.nodes[j].value for j in node.inputs]
        of_param = [self.kinds[j] == PARAM for j in node.inputs]
        return next((v for v, other in zip(values, of_param[::-1], strict=True) if v and other), None)

    def _with_offset(self, node: Node, offset: float) -> dict[int, float] | None:
        """The parameter that a number is added to, if it is that parameter alone."""
        (j,) = (j for j in node.inputs if self.nodes[j].value is None)
        while self.nodes[j].op in primitives.SAME_PLACE | primitives.MOVES | primitives.LOOKUPS:
            j = self.nodes[j].inputs[0]
        found = self.of(j) if self.nodes[j].op == PARAM else None
        return {k: offset for k in found} if found else None


class _Degrees:
    """The power with which each array grows if carriers are multiplied by a number; NaN if it is no power.

    ``None`` is any power: that of zero.

    Attributes:
      of: of each array.
      seen: the same as its readers see it, with the places of the factor replaced by what the code has there.
    """

    def __init__(self, search: CarrierSearch, carriers: Mapping[int, float], cut: Collection[Place]):
        self.nodes, self.carriers, self.cut = search.nodes, carriers, cut
        size = len(self.nodes)
        self.of: list[float | None] = [0.0] * size
        self.seen: list[float | None] = [0.0] * size
        starts: dict[int, float | None] = {}
        for _ in range(2):  # a loop that starts from zeros has the degree of its second round
            for i, node in enumerate(self.nodes):
                if search.needed[i]:
                    self.of[i] = starts.get(i) if i in starts else self._degree(i, node)
                    self.seen[i] = 0.0 if (i, -1) in cut and self.of[i] in (1.0, None) else self.of[i]
            starts = {
                i: self._read(node.params["next"], i)
                for i, node in enumerate(self.nodes)
                if node.op == "carry" and search.needed[i] and self.of[i] is None
            }
            if not starts:
                break
        for i, node in enumerate(self.nodes):  # each round has the degree of the first
            is_carried = node.op == "carry" and search.needed[i]
            if is_carried and _sum([self.of[i], self._read(node.params["next"], i)]) != self.of[i]:
                self.of[i] = self.seen[i] = math.nan

    def _read(self, j: int, reader: int) -> float | None:
        """The degree of an array as one of its readers sees it."""
        return 0.0 if (j, reader) in self.cut and self.seen[j] in (1.0, None) else self.seen[j]

    def _degree(self, i: int, node: Node) -> float | None:
        if node.value == 0:
            return None
        if node.op == PARAM:
            if i not in self.carriers:
                return 0.0
            return 1.0 if self.carriers[i] == 0 else math.inf  # infinite: a number must be added first
        degrees = [self._read(j, i) for j in node.inputs]
        if not degrees:
            return 0.0
        if any(degree == math.inf for degree in degrees):
            return self._behind_offset(node, degrees)
        if all(degree == 0 for degree in degrees):
            return 0.0
        if any(degree is not None and math.isnan(degree) for degree in degrees):
            return math.nan
        return self._of_operation(node, degrees)

    def _behind_offset(self, node: Node, degrees: Sequence[float | None]) -> float | None:
        if node.op in primitives.SAME_PLACE | primitives.MOVES | primitives.LOOKUPS and not any(degrees[1:]):
            return math.inf
        values = [self.nodes[j].value for j in node.inputs]
        is_sum = node.op in ("add", "add_any") and set(degrees) == {math.inf, 0.0}
        return 1.0 if is_sum and any(value in self.carriers.values() for value in values) else math.nan

    def _of_operation(self, node: Node, degrees: Sequence[float | None]) -> float | None:
        op = node.op
        if op == "div":
            top, bottom = degrees
            return None if top is None else math.nan if bottom is None else top - bottom
        if op in primitives.POWERS or op == "abs":
            power = 1.0 if op == "abs" else node.params["y"] if op == "integer_pow" else primitives.POWERS[op]
            return None if degrees[0] is None else power * degrees[0]
        terms, factors, others = _operands(node)
        if any(degrees[k] not in (0.0, None) for k in others):
            return math.nan
        if factors:
            product = [degrees[k] for k in factors]
            return None if None in product else sum(d for d in product if d is not None)
        return _sum([degrees[k] for k in terms]) if terms else 0.0


def _operands(node: Node) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Which inputs the result is a sum of, or one of; which it is a product of; and the others."""
    op, every = node.op, range(len(node.inputs))
    if op in primitives.PRODUCTS | primitives.EXPERT_PRODUCTS | {"mul"}:
        return (), every[:2], every[2:]
    if op in primitives.SUMS | {"complex", "concatenate", "stack", "max", "min"}:
        return every, (), ()
    if op in ("select_n", "cond"):
        return every[1:], (), every[:1]
    if op in primitives.WRITES:  # what is written, and not where
        return (0, 1 if op == "dynamic_update_slice" else every[-1]), (), ()
    if op in primitives.LINEAR | primitives.SUMMED | primitives.ROTATIONS | {"div"} or (
        op.startswith(("reduce_", "cum")) and "prod" not in op
    ):
        return every[:1], (), every[1:]
    return (), (), every


def _sum(degrees: Sequence[float | None]) -> float | None:
    known = {d for d in degrees if d is not None}
    return math.nan if len(known) > 1 else known.pop() if known else None


class CarriedFactors:
    """What parameters, or slices of them, carry together; and the findings that nothing carries.

    Attributes:
      left: the findings that remain.
    """

    def __init__(self, search: CarrierSearch, facts: Traced):
        self.left: list[Finding] = []
        self._search = search
        self._facts = facts
        self._factors: dict[str, Factor] = {}  # also of slices
        self._offsets: dict[str, float] = {}
        self._of_tables: list[tuple[Carriers, Factor]] = []

    def carry_all(self, findings: Sequence[Finding]) -> None:
        """Lets parameters carry what these findings lack, each as a whole or by its parts; keeps the others."""
        for finding in findings:
            if self._of_tables and finding.name == "attention_scale":
                finding = self._behind_tables(finding)
                if finding.factor is not None and finding.factor.over(1.0).is_one:
                    continue
            if self.carry(finding):
                continue
            left = [part for part in finding.parts if not self.carry(part)] if len(finding.parts) > 1 else []
            self.left += left if 0 < len(left) < len(finding.parts) else [finding]

    def carry(self, finding: Finding) -> bool:
        """Whether parameters carry what a finding lacks, from now on."""
        solved = _solution(self._search, finding, self._facts)
        if solved is None:
            return False
        for carriers, _ in solved:
            if any(self._offsets.get(path, offset) != offset for path, offset in carriers.items()):
                return False
        if finding.name == "embedding_scaled_with_width":
            self._of_tables += solved
        for carriers, factor in solved:
            for path, offset in carriers.items():
                self._factors[path] = self._factors.get(path, Factor()) * factor
                self._offsets[path] = offset
        return True

    def by_path(self) -> dict[str, tuple[Factor, float]]:
        """Path -> the factor, and the offset, of each parameter that carries one."""
        whole = {path: factor for path, factor in self._factors.items() if path in self._facts.uses}
        of_slices = {name: factor for name, factor in self._factors.items() if name not in self._facts.uses}
        if of_slices and self._search.slices is not None:
            whole |= _together(self._search.slices, of_slices, whole)
        return {path: (factor, self._offsets.get(path, 0.0)) for path, factor in whole.items()}

    def _behind_tables(self, finding: Finding) -> Finding:
        """The finding without the factor of embeddings, which scores have if no norm precedes them: tables carry it."""
        factor = finding.factor
        for carriers, of_table in self._of_tables:
            powers = {power for power in self._search.powers(carriers, finding.places) if not math.isnan(power)}
            powers = powers or {0.0}
            factor = factor * of_table ** -powers.pop() if factor is not None and len(powers) == 1 else None
        return dataclasses.replace(finding, factor=factor)


def _together(slices: Slices, of_slices: Mapping[str, Factor], whole: Mapping[str, Factor]) -> dict[str, Factor]:
    """The factors of parameters from those of their slices, in blocks, times what they carry as a whole."""
    result: dict[str, dict[str, Any]] = {}
    for field in dataclasses.fields(Factor):
        of_power = field.name == "multiplier"  # the only field that adds up where others multiply
        values = {name: getattr(factor, field.name) for name, factor in of_slices.items()}
        values = {name: 2.0**value if of_power else value for name, value in values.items()}
        for path, array in slices.together(values).items():
            of_whole = getattr(whole.get(path, Factor()), field.name)
            array = np.log2(array) + of_whole if of_power else array * of_whole
            result.setdefault(path, {})[field.name] = in_blocks(array)
    return {path: Factor(**fields) for path, fields in result.items()}


def carry_multiplier(carried: CarriedFactors, branches: Sequence[Branch]) -> bool:
    """Whether parameters carry the rule's a in all of these branches, whose code has no multiplier, from now on."""
    places = tuple((branch.end, branch.node) for branch in branches)
    return carried.carry(Finding("multiplier", (), "", "", factor=Factor(multiplier=1.0), places=places))


def _solution(search: CarrierSearch, finding: Finding, facts: Traced) -> list[tuple[Carriers, Factor]] | None:
    """Parameters and the factors that they carry together instead of the code; ``None`` if they cannot."""
    if finding.factor is None or not finding.places:
        return None
    found = search.find(finding.places)
    if found is not None:
        return [(found, finding.factor)]
    # A table that is the readout, too, carries what its look-ups lack; what the readout reads carries the inverse.
    products = [(u.node, -1) for path in finding.paths for u in facts.uses[path] if u.kind == PRODUCT and not u.first]
    others = [place for place in products if place not in finding.places]
    table = search.find([*finding.places, *others]) if others else None
    if table is None or set(table) != set(finding.paths):
        return None
    before = search.find(others, without=finding.paths)
    return None if before is None else [(table, finding.factor), (before, finding.factor**-1.0)]
