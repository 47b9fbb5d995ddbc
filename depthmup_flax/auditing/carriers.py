"""What parameters, or slices of them, carry together in place of the code."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from depthmup_flax.auditing.audit_report import Finding
from depthmup_flax.auditing.carrier_search import Carriers, CarrierSearch
from depthmup_flax.rule.factor import ONE, Factor, in_blocks
from depthmup_flax.trace.branches import Branch
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.graph import Graph, Place
from depthmup_flax.trace.slices import Slices
from depthmup_flax.trace.uses import PRODUCT


@dataclasses.dataclass(frozen=True)
class Load:
    """What one parameter carries."""

    factor: Factor
    offset: float  # what the forward pass adds to the parameter before it multiplies with it


@dataclasses.dataclass(frozen=True)
class Correction:
    """What a finding lacks, and the parameters that carry it."""

    finding: Finding
    paths: tuple[str, ...]

    @property
    def is_of_wrong_factor(self) -> bool:
        """Whether the code has a factor that no rule wants, rather than none."""
        return self.finding.factor is not None and self.finding.factor.constant != 1


@dataclasses.dataclass(frozen=True)
class CarriedFactors:
    """What parameters carry, and what nothing carries."""

    by_path: Mapping[str, Load]
    corrections: Sequence[Correction]
    left: Sequence[Finding]  # the findings that remain
    multiplier: bool  # parameters carry the rule's a in the branches without multiplier


def carry_factors(
    graph: Graph,
    facts: Traced,
    findings: Sequence[Finding],
    bare: Sequence[Branch],
) -> CarriedFactors:
    """Lets parameters carry what the findings lack, each as a whole or by its parts.

    ``bare`` are the branches whose code has no multiplier, so that parameters carry the rule's a,
    too, if they can.
    """
    loads = _Loads(CarrierSearch(graph, facts.kinds), facts)
    left: list[Finding] = []
    for finding in findings:
        rest = _behind_tables(loads, finding)
        if rest is not None:
            left += _not_carried(loads, rest)
    corrections = tuple(loads.corrections)
    has_multiplier = bool(bare) and _carry(loads, _multiplier(bare))
    return CarriedFactors(_by_path(loads), corrections, left, has_multiplier)


@dataclasses.dataclass(frozen=True, eq=False)
class _Loads:
    """What has been loaded on parameters, and on slices of them, so far."""

    search: CarrierSearch
    facts: Traced
    factors: dict[str, Factor] = dataclasses.field(default_factory=dict)
    offsets: dict[str, float] = dataclasses.field(default_factory=dict)
    of_tables: list[tuple[Carriers, Factor]] = dataclasses.field(default_factory=list)
    # Name of a finding -> the places whose factor is carried.
    places: dict[str, set[Place]] = dataclasses.field(default_factory=dict)
    corrections: list[Correction] = dataclasses.field(default_factory=list)

    def fits(self, carriers: Carriers) -> bool:
        """Whether no parameter has another offset where it carries something else."""
        return all(self.offsets.get(path, offset) == offset for path, offset in carriers.items())

    def path(self, name: str) -> str:
        """The parameter that a name is of, or one of its slices."""
        if name in self.facts.uses or self.search.slices is None:
            return name
        return self.search.slices.slices[name][0]

    def add(self, carriers: Carriers, factor: Factor) -> None:
        """Multiplies what these parameters carry."""
        for path, offset in carriers.items():
            self.factors[path] = self.factors.get(path, ONE) * factor
            self.offsets[path] = offset


def _not_carried(loads: _Loads, finding: Finding) -> list[Finding]:
    """What remains of a finding: nothing, some of its parts, or all of it."""
    if _carry(loads, finding):
        return []
    if len(finding.parts) < 2:
        return [finding]
    left = [part for part in finding.parts if not _carry(loads, part)]
    return left if 0 < len(left) < len(finding.parts) else [finding]


def _carry(loads: _Loads, finding: Finding) -> bool:
    """Whether parameters carry what a finding lacks, from now on.

    Two parameters of one product have a finding each, and lack its factor once.
    """
    carried = loads.places.setdefault(finding.name, set())
    if finding.places and carried.issuperset(finding.places):
        return True
    solution = _solution(loads, finding)
    if solution is None:
        return False
    if not all(loads.fits(carriers) for carriers, _ in solution):
        return False
    if finding.name == "embedding_scaled_with_width":
        loads.of_tables.extend(solution)
    for carriers, factor in solution:
        loads.add(carriers, factor)
    paths = dict.fromkeys(loads.path(name) for carriers, _ in solution for name in carriers)
    loads.corrections.append(Correction(finding, tuple(paths)))
    carried.update(finding.places)
    return True


def _multiplier(branches: Sequence[Branch]) -> Finding:
    """The lack of the rule's a in branches."""
    places = tuple((branch.end, branch.node) for branch in branches)
    return Finding("multiplier", (), "", "", factor=Factor(multiplier=1.0), places=places)


def _behind_tables(loads: _Loads, finding: Finding) -> Finding | None:
    """A finding without the factor that tables carry already; ``None`` if nothing is lacking then.

    Scores have the factor of embeddings if no norm precedes them.
    """
    if not loads.of_tables or finding.name != "attention_scale":
        return finding
    factor = finding.factor
    for carriers, of_table in loads.of_tables:
        powers = loads.search.powers(carriers, finding.places)
        powers = {power for power in powers if not math.isnan(power)} or {0.0}
        if factor is None or len(powers) > 1:
            return dataclasses.replace(finding, factor=None)
        factor *= of_table ** -powers.pop()
    if factor is not None and factor.over(1.0).is_one:
        return None
    return dataclasses.replace(finding, factor=factor)


def _solution(loads: _Loads, finding: Finding) -> list[tuple[Carriers, Factor]] | None:
    """Parameters and the factors that they carry together; ``None`` if they cannot."""
    if finding.factor is None or not finding.places:
        return None
    carriers = loads.search.find(finding.places)
    if carriers is not None:
        return [(carriers, finding.factor)]
    return _solution_for_table(loads, finding, finding.factor)


def _solution_for_table(
    loads: _Loads,
    finding: Finding,
    factor: Factor,
) -> list[tuple[Carriers, Factor]] | None:
    """For a table that is the readout, too.

    It carries what its look-ups lack, and what the readout reads carries the inverse.
    """
    products = []
    for path in finding.paths:
        uses = loads.facts.uses[path]
        products += [(use.node, -1) for use in uses if use.kind == PRODUCT and not use.first]
    others = [place for place in products if place not in finding.places]
    if not others:
        return None
    table = loads.search.find([*finding.places, *others])
    if table is None or set(table) != set(finding.paths):
        return None
    before = loads.search.find(others, without=finding.paths)
    if before is None:
        return None
    return [(table, factor), (before, factor**-1.0)]


def _by_path(loads: _Loads) -> dict[str, Load]:
    """What each whole parameter carries."""
    whole: dict[str, Factor] = {}
    of_slices: dict[str, Factor] = {}
    for name, factor in loads.factors.items():
        part = whole if name in loads.facts.uses else of_slices
        part[name] = factor
    if of_slices and loads.search.slices is not None:
        whole |= _in_blocks(loads.search.slices, of_slices, whole)
    return {path: Load(factor, loads.offsets.get(path, 0.0)) for path, factor in whole.items()}


def _in_blocks(
    slices: Slices,
    of_slices: Mapping[str, Factor],
    whole: Mapping[str, Factor],
) -> dict[str, Factor]:
    """The factors of parameters from those of their slices, times what they carry as a whole."""
    fields: dict[str, dict[str, Any]] = {}
    for field in dataclasses.fields(Factor):
        values = {name: getattr(factor, field.name) for name, factor in of_slices.items()}
        is_power = field.name == "multiplier"  # the only field that adds up where others multiply
        if is_power:
            values = {name: 2.0**value for name, value in values.items()}
        for path, array in slices.together(values).items():
            of_whole = getattr(whole.get(path, ONE), field.name)
            array = np.log2(array) + of_whole if is_power else array * of_whole
            fields.setdefault(path, {})[field.name] = in_blocks(array)
    return {path: Factor(**of_path) for path, of_path in fields.items()}
