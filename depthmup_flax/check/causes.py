"""What explains a failed check: the exponents of the rule itself, and what the audit finds in the networks' code."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from depthmup_flax.auditing.audit_report import Audit, Finding, Row, summary
from depthmup_flax.auditing.model_audit import audit
from depthmup_flax.auditing.roles import same_role
from depthmup_flax.check.layers import Layers, SizedNetwork
from depthmup_flax.rule.factor import factor_text
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo

log = logging.getLogger(__name__)

EVERYTHING, BRANCHES = "all parameters", "parameters in branches"


def causes_in_rule(axis: str, rule: Parametrization) -> list[Finding]:
    """The cause over an axis that right networks and optimizers have, too."""
    gamma = rule.gamma if rule.inner_gamma is None else min(rule.gamma, rule.inner_gamma)
    if axis == "depth" and (rule.alpha < 0.5 or rule.alpha + gamma < 1):
        text = (
            f"alpha = {float(rule.alpha):g}, gamma = {float(gamma):g} is unstable; depth needs alpha >= 1/2 (TP6 Claim "
            "7.1) and alpha + gamma >= 1 (Claim 7.2)."
        )
        return [Finding("rule_not_stable_in_depth", (BRANCHES,), text, "'depth_mup'")]
    if axis == "width" and rule.width != "mup":
        text = "the rule's width factors are 'standard', not 'mup'."
        return [Finding("rule_without_width", (EVERYTHING,), text, "'depth_mup' or 'mup'")]
    if axis == "width" and rule.gamma0_width_exponent < 0:
        text = "gamma0 falls with width, so features stop moving (B24 C.1)."
        return [Finding("lazy_rule", (EVERYTHING,), text, "gamma0_width_exponent=0")]
    return []


@dataclasses.dataclass(frozen=True)
class Reading:
    """What an audit read in the code over an axis, or why there is none."""

    audit: Audit | None = None
    error: str = ""  # what the audit raised; "" without an audit: the networks name no model

    @property
    def certain(self) -> tuple[Finding, ...]:
        """The audit's findings."""
        return () if self.audit is None else self.audit.certain

    @property
    def not_judged(self) -> frozenset[str]:
        """The parameters about which the audit could not judge something."""
        findings = () if self.audit is None else self.audit.not_judged
        return frozenset(path for one in findings for path in one.paths)

    @property
    def is_whole(self) -> bool:
        """Whether the audit judged everything."""
        return self.audit is not None and not self.audit.not_judged


def read_code(axis: str, networks: Sequence[SizedNetwork], rule: Parametrization) -> Reading:
    """The audit over an axis; what it raises is part of the result, as the measurements count without it, too."""
    try:
        return Reading(audit_of_largest(axis, networks, rule))
    except Exception as error:
        log.warning("the audit over %s failed", axis, exc_info=True)
        return Reading(error=f"{type(error).__name__}: {error}")


def audit_of_largest(axis: str, networks: Sequence[SizedNetwork], rule: Parametrization) -> Audit | None:
    """The audit of the largest network of an axis, with paths of the report; ``None`` if a network names no model.

    The base is the model's own, if it is known, and otherwise the smallest network. Over width, the audit compares the
    roles in ``info`` with those of the trace; over depth, the branches.
    """
    base, *_, network = sorted((one for one in networks if one.size.axis == axis), key=lambda one: one.size.size)
    source, base_source = network.traced.network.source, base.traced.network.source
    if source is None or base_source is None:
        return None
    knows_base = source.base is not None
    base_info = {} if knows_base else base.info
    result = audit(
        source.model,
        source.base if knows_base else base_source.model,
        source.x,
        in_code=(rule,),
        depth_ratio=_depth_ratio(network.info, base_info) if axis == "depth" else None,
        output=source.output,
        axes=axis,
        carry=any(leaf.carries for leaf in (*network.info.values(), *base.info.values())),
        **source.kwargs,
    ).under(rule)
    # Without the rule's a, which is the same at all sizes.
    plain = rule.replace(branch_multiplier=1.0)
    carried_at_base = {base.collapse(path): leaf.factor(plain) for path, leaf in base_info.items()}
    wrong = _differences(axis, network, result.rows, plain, carried_at_base)
    every = [row.path for row in result.rows]  # what is not about some parameters is about all
    return dataclasses.replace(
        result,
        findings=tuple(_over_axis(one, axis, network) for one in (*result.certain, *wrong)),
        not_judged=tuple(
            dataclasses.replace(one, paths=_collapsed(one.paths or every, network)) for one in result.not_judged
        ),
    )


def _differences(
    axis: str,
    network: SizedNetwork,
    rows: Sequence[Row],
    plain: Parametrization,
    carried_at_base: Mapping[str, ArrayLike],
) -> list[Finding]:
    """What a network's ``info`` says of parameters, but the trace, in ``rows``, reads otherwise."""
    has_branches = any(leaf.in_branch for leaf in network.info.values())
    wrong: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        given = network.info.get(row.path)
        if given is None or row.info is None:
            continue
        if axis == "width" and not same_role(row.info, given):
            wrong.setdefault((given.role, row.info.role), []).append(row.path)
        carried = np.divide(given.factor(plain), carried_at_base.get(network.collapse(row.path), 1.0))
        read = row.info.factor(plain)
        if not np.allclose(carried, read, rtol=1e-3, atol=0):
            wrong.setdefault((f"carrying {factor_text(carried)}", factor_text(read)), []).append(row.path)
        # Without any branch in info, the networks may have one that every depth has once.
        if axis == "depth" and has_branches and row.in_branch != given.in_branch and (row.in_branch or row.uses):
            position = ("outside of branches", "inside")
            wrong.setdefault((position[given.in_branch], position[row.in_branch]), []).append(row.path)
    findings = []
    for (said, of_trace), paths in wrong.items():
        text = f"info has {summary(paths)} as {said}; the trace reads {of_trace}."
        findings.append(Finding("wrong_info", tuple(paths), text, "info = audit.info"))
    return findings


def _over_axis(finding: Finding, axis: str, network: SizedNetwork) -> Finding:
    """A finding with the paths of the report, which says over what it was read."""
    text = f"read from the code over {axis}: {finding.text}"
    return dataclasses.replace(finding, paths=_collapsed(finding.paths, network), text=text)


def _collapsed(paths: Sequence[str], network: SizedNetwork) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(network.collapse, paths)))


def is_open(axis: str, reading: Reading, layers: Layers, rule: Parametrization) -> bool:
    """Whether activations are measured over an axis, as what the code and the sizes of updates say is not all.

    Weights that map the width to a few features, and vectors that every layer has on the stream, may have a wrong
    effect although their factors, initial values and updates are right.
    """
    others = layers.to_few_features | layers.on_stream
    return reading.audit is None or bool(reading.not_judged | others) or bool(causes_in_rule(axis, rule))


def _depth_ratio(info: Mapping[str, ParamInfo], base: Mapping[str, ParamInfo]) -> float | None:
    """The ratio of the depths of two networks, by the user's count; an empty ``base`` has the ratio 1."""
    ratio, base_ratio = ({leaf.depth_ratio for leaf in of.values() if leaf.in_branch} for of in (info, base))
    base_ratio = base_ratio or {1.0}
    return ratio.pop() / base_ratio.pop() if len(ratio) == len(base_ratio) == 1 else None
