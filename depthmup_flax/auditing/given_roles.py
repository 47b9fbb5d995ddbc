"""Differences between the roles that a trace tells and those that a user gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from depthmup_flax.auditing.audit_table import Finding, summary
from depthmup_flax.auditing.traced_facts import Traced
from depthmup_flax.rule.parametrization import ParamInfo, Role


def misplaced(infos: Mapping[str, ParamInfo], inside: Collection[str], facts: Traced) -> list[Finding]:
    """Differences between the branches that the trace finds and the parameters that a user places in branches."""
    extra = [path for path, leaf in infos.items() if path in inside and not leaf.in_branch and facts.uses.get(path)]
    lacking = [path for path, leaf in infos.items() if leaf.in_branch and path not in inside]
    result = []
    if extra:
        what = "on a projected shortcut" if set(extra) <= set(facts.projections) else "outside of branches"
        text = f"in_branch has {summary(extra)}, which the trace finds {what}: their updates would shrink with depth."
        result.append(Finding("shortcut_in_branch", tuple(extra), text, "info = audit.info"))
    if lacking:
        text = f"in_branch lacks {summary(lacking)}, which the trace finds inside branches."
        result.append(Finding("in_branch_incomplete", tuple(lacking), text, "info = audit.info"))
    return result


def same_role(a: ParamInfo, b: ParamInfo) -> bool:
    """Whether the rule treats both alike, widths aside."""
    return a.role == b.role or {a.role, b.role} <= {Role.INPUT, Role.VECTOR}
