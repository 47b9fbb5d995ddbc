"""The exponents that theory gives for the sizes of activations, changes and weights."""

from __future__ import annotations

from depthmup_flax.check.recorded_sizes import OUTPUT
from depthmup_flax.rule.parametrization import WIDTH_RULES, Geometry, Parametrization, ParamInfo, Role


def expected_exponent(axis: str, kind: str, name: str, in_branch: bool | None, rule: Parametrization) -> float | None:
    """The exponent of theory, or ``None`` if it gives none; ``in_branch`` is ``None`` if everything trains.

    Depth (TP6 Claims 7.1, 7.2): with alpha >= 1/2 activations start flat, and L branches that each move by
    ``L^-(alpha + gamma)`` move the features by ``L^(1 - alpha - gamma)``. Width (TP6 Table 2): flat under muP. If
    gamma0 follows ``m^e``, features move as ``m^e`` and outputs as 1 (B24 C.1). Under ``standard``, the exponents
    depend on the optimizer.
    """
    if axis == "width":
        if rule.width != "mup":
            return 0.0 if kind == "activation" else None
        return float(rule.gamma0_width_exponent) if kind == "change" and name != OUTPUT else 0.0
    if rule.alpha < 0.5:
        return None
    if kind == "activation" or in_branch is False:
        return 0.0
    exponent = float(1 - rule.alpha - rule.gamma)
    return exponent if in_branch else max(exponent, 0.0)


def expected_update(axis: str, leaf: ParamInfo, rule: Parametrization) -> float:
    """The exponent of a weight's update, which follows ``n^-c L^-gamma`` (TP6 Definition 6.1)."""
    if axis == "depth":
        return -float(rule.update_gamma(leaf)) if leaf.in_branch else 0.0
    return float(WIDTH_RULES[Geometry.SIGN][leaf.role].update_in) if rule.width == "mup" else 0.0


def expected_start(axis: str, leaf: ParamInfo, rule: Parametrization) -> float | None:
    """The exponent of a weight's standard deviation before training; ``None`` if only activations are judged.

    Width (TP6 Table 2): hidden weights start with ``n^-1/2``, input and output weights flat. Depth: flat, as the branch
    multiplier is the only factor.
    """
    if axis == "depth":
        return 0.0 if leaf.in_branch else None
    if rule.width != "mup" or (leaf.role is not Role.HIDDEN and leaf.in_branch):
        return None
    return -0.5 if leaf.role is Role.HIDDEN else 0.0
