"""The audit of the networks of a check."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from depthmup_flax.coord_check.layer_names import SizedNetwork
from depthmup_flax.infer.audit import audit
from depthmup_flax.infer.audit_table import Finding, summary
from depthmup_flax.infer.missing_factors import same_role
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, Role


def code_findings(axis: str, networks: Sequence[SizedNetwork], rule: Parametrization) -> list[Finding] | None:
    """Certain mistakes in the largest network of an axis, with the smallest as base; ``None`` if it cannot be audited.

    Over width, the audit compares the roles in ``info`` with those of the trace; over depth, the branches. Paths are
    those of the report.
    """
    base, *_, network = sorted((one for one in networks if one.size.axis == axis), key=lambda one: one.size.size)
    (base_source, source), info = (one.traced.network.source for one in (base, network)), network.info
    if source is None or base_source is None:
        return None
    inside = {path for path, leaf in info.items() if leaf.in_branch}
    try:
        result = audit(
            source.model,
            base_source.model,
            source.x,
            rule=rule,
            # At one depth, a branch that every depth has once looks like the others.
            in_branch=inside.__contains__ if inside and axis == "depth" else None,
            depth_ratio=_depth_ratio(info, base.info) if axis == "depth" else None,
            output=source.output,
            **source.kwargs,
        )
    except Exception:  # the measurements count even if the model cannot be read
        return None
    found = [finding for finding in result.findings if finding.certain]
    if axis == "width":  # at one width, the trace would read roles by place
        wrong: dict[tuple[Role, Role], list[str]] = {}
        for row in result.rows:
            if row.info and row.path in info and not same_role(row.info, info[row.path]):
                wrong.setdefault((info[row.path].role, row.info.role), []).append(row.path)
        for (given, read), paths in wrong.items():
            text = f"info has {summary(paths)} as {given}; the trace reads {read}."
            found.append(Finding("wrong_role", tuple(paths), text, "info = audit.info"))
    renamed = lambda paths: tuple(dict.fromkeys(map(network.collapse, paths)))
    return [dataclasses.replace(f, paths=renamed(f.paths)) for f in found]


def _depth_ratio(info: Mapping[str, ParamInfo], base: Mapping[str, ParamInfo]) -> float | None:
    """The ratio of the depths of two networks, by the user's count."""
    ratio, base_ratio = ({leaf.depth_ratio for leaf in of.values() if leaf.in_branch} for of in (info, base))
    return ratio.pop() / base_ratio.pop() if len(ratio) == len(base_ratio) == 1 else None
