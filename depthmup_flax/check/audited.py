"""What the audit reads in the code of a check's networks: where it decides, nothing is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from depthmup_flax.auditing.audit import Audit, audit
from depthmup_flax.auditing.audit_table import Finding, summary
from depthmup_flax.auditing.given_roles import same_role
from depthmup_flax.check.layer_names import Layers, SizedNetwork
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, Role


@dataclasses.dataclass(frozen=True)
class Reading:
    """What the code of the networks of one axis says; paths are those of the report.

    Attributes:
      findings: certain mistakes.
      unjudged: parameters about which the audit could not judge something.
    """

    findings: tuple[Finding, ...]
    unjudged: frozenset[str]

    @property
    def excludes(self) -> bool:
        """Whether a mistake of the forward pass would be among the findings."""
        return not self.unjudged

    @property
    def right(self) -> bool:
        """Whether all of the forward pass was read, and is right."""
        return self.excludes and not self.findings


def read_code(axis: str, networks: Sequence[SizedNetwork], rule: Parametrization) -> Reading | None:
    """The audit of the largest network of an axis; ``None`` if it cannot be audited.

    The base is the model's own, if it is known, and otherwise the smallest network. Over width, the audit compares the
    roles in ``info`` with those of the trace; over depth, the branches.
    """
    base, *_, network = sorted((one for one in networks if one.size.axis == axis), key=lambda one: one.size.size)
    (base_source, source), info = (one.traced.network.source for one in (base, network)), network.info
    if source is None or base_source is None:
        return None
    inside = {path for path, leaf in info.items() if leaf.in_branch}
    try:
        result = audit(
            source.model,
            base_source.model if source.base is None else source.base,
            source.x,
            rule=rule,
            # At one depth, a branch that every depth has once looks like the others.
            in_branch=inside.__contains__ if inside and axis == "depth" else None,
            depth_ratio=_depth_ratio(info, base.info if source.base is None else {}) if axis == "depth" else None,
            output=source.output,
            axes=axis,
            **source.kwargs,
        )
    except Exception:  # the measurements count even if the model cannot be read
        return None
    renamed = lambda paths: tuple(dict.fromkeys(map(network.collapse, paths)))
    findings = [finding for finding in result.findings if finding.certain]
    if axis == "width":  # at one width, the trace would read roles by place
        findings += _wrong_roles(result, info)
    return Reading(
        tuple(dataclasses.replace(finding, paths=renamed(finding.paths)) for finding in findings),
        frozenset(renamed(_unjudged(result))),
    )


def _wrong_roles(result: Audit, info: Mapping[str, ParamInfo]) -> list[Finding]:
    """The parameters whose roles in ``info`` are not those of the trace."""
    wrong: dict[tuple[Role, Role], list[str]] = {}
    for row in result.rows:
        if row.info and row.path in info and not same_role(row.info, info[row.path]):
            wrong.setdefault((info[row.path].role, row.info.role), []).append(row.path)
    return [
        Finding(
            "wrong_role",
            tuple(paths),
            f"info has {summary(paths)} as {given}; the trace reads {read}.",
            "info = audit.info",
        )
        for (given, read), paths in wrong.items()
    ]


def _unjudged(result: Audit) -> list[str]:
    """The parameters of what was not judged; all, if it is not about some of them."""
    if all(one.paths for one in result.not_judged):
        return [path for one in result.not_judged for path in one.paths]
    return [row.path for row in result.rows]


def groups_alone(layers: Layers, readings: Iterable[Reading | None]) -> frozenset[str] | None:
    """The parameters whose effect the code does not decide, so that it is measured; ``None``: all.

    Weights that map the width to a few features, weights with updates that are not entrywise, and vectors that every
    layer has on the stream may have a wrong effect although their factors, initial values and updates have the right
    size.
    """
    unjudged = frozenset[str]()
    for reading in readings:
        if reading is None:
            return None
        unjudged |= reading.unjudged
    few = {path for path, leaf in layers.weights.items() if leaf.to_few_features}
    return unjudged | few | layers.matrix_updates | {*layers.on_stream}


def _depth_ratio(info: Mapping[str, ParamInfo], base: Mapping[str, ParamInfo]) -> float | None:
    """The ratio of the depths of two networks, by the user's count; an empty ``base`` has the ratio 1."""
    ratio, base_ratio = ({leaf.depth_ratio for leaf in of.values() if leaf.in_branch} for of in (info, base))
    base_ratio = base_ratio or {1.0}
    return ratio.pop() / base_ratio.pop() if len(ratio) == len(base_ratio) == 1 else None
