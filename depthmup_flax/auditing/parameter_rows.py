"""What an audit says about each parameter, and how many layers have one like it."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from depthmup_flax.auditing.audit_report import Finding, Row
from depthmup_flax.auditing.carriers import Correction
from depthmup_flax.auditing.comparison import Comparison
from depthmup_flax.auditing.counterparts import Layers, Shapes
from depthmup_flax.auditing.matching import MatchedModels
from depthmup_flax.auditing.relative_factors import close
from depthmup_flax.rule.factor import ONE, Factor
from depthmup_flax.rule.parametrization import ParamInfo
from depthmup_flax.trace.facts import Traced
from depthmup_flax.util.groups import series


@dataclasses.dataclass(frozen=True)
class ParameterRows:
    """The lines of an audit's table."""

    all: Sequence[Row]
    on_stream: Sequence[Row]  # of parameters outside of branches whose number grows with the depth
    same_layers: bool  # outside of branches, both models have as many layers of each kind


def parameter_rows(
    compared: Comparison,
    infos: Mapping[str, ParamInfo],
    unread: Mapping[str, str],
    findings: Sequence[Finding],
    corrections: Sequence[Correction],
) -> ParameterRows:
    """One row for each parameter; ``unread``: path -> why its role was not read.

    ``infos`` say what parameters carry, those of ``compared`` do not; ``corrections`` why.
    """
    of_path: dict[str, list[Finding]] = {}
    for correction in corrections:
        for path in correction.paths:
            of_path.setdefault(path, []).append(correction.finding)
    rows = []
    for path in compared.match.model.leaves:
        why_not = unread.get(path, "")
        row = _row(compared, path, infos.get(path), why_not, findings)
        rows.append(dataclasses.replace(row, of_carried=_of_carried(row, of_path.get(path, ()))))
    count, base_count = _numbers_of_layers(compared.match)
    on_stream = []
    for row in rows:
        if not row.in_branch and count[series(row.path)] > base_count[series(row.path)] > 0:
            on_stream.append(row)
    return ParameterRows(rows, on_stream, count == base_count)


def _row(
    compared: Comparison,
    path: str,
    info: ParamInfo | None,
    why_not: str,
    findings: Sequence[Finding],
) -> Row:
    factor, wanted = compared.factor(path)
    missing = dict.fromkeys(finding.name for finding in findings if path in finding.paths)
    return Row(
        path,
        compared.match.model.shapes[path],
        info,
        compared.facts.times.get(path, 0.0),
        factor,
        wanted,
        expected=None if wanted is None else float(wanted.under(compared.rule)),
        missing=tuple(missing),
        carried=ONE if info is None else info.carried,
        why_not=why_not,
    )


def _of_carried(row: Row, findings: Sequence[Finding]) -> tuple[float, Factor] | None:
    """`Row.of_carried`: of the one finding that a parameter carries for."""
    if len(findings) != 1:
        return None
    (finding,) = findings
    if not finding.found or finding.factor is None:
        return None
    wanted = finding.factor.over(1 / finding.found)
    is_of_place = row.wanted is not None and close(row.found, finding.found)
    return None if is_of_place and str(row.wanted) == str(wanted) else (finding.found, wanted)


def _numbers_of_layers(match: MatchedModels) -> tuple[Counter[str], Counter[str]]:
    """Path without numbers -> layers with such a parameter outside of branches, in both models."""
    base_layers: dict[str, frozenset[int]] = {}
    for path, base_path in match.pairs.items():
        base_layers[base_path] = match.layers.get(path, frozenset())
    return (
        _number_of_layers(match.model.shapes, match.layers, match.facts),
        _number_of_layers(match.base.shapes, base_layers, match.base_facts),
    )


def _number_of_layers(shapes: Shapes, layers: Layers, facts: Traced) -> Counter[str]:
    count: Counter[str] = Counter()
    for path, shape in shapes.items():
        if not facts.inside.get(path):
            count[series(path)] += math.prod(shape[axis] for axis in layers.get(path, ()))
    return count
