"""`audit` compares the rule with the forward pass of a model, read from a trace.

The forward passes of the model and of the base model are traced with shapes alone. The uses of a
parameter give its role, sums with the stream give the branches, and constant factors, compared
between the two models, the multipliers.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from depthmup_flax.auditing.audit_report import Audit, Finding
from depthmup_flax.auditing.branch_factors import BranchFactors, branch_factors
from depthmup_flax.auditing.carriers import CarriedFactors, Correction, carry_factors
from depthmup_flax.auditing.comparison import (
    Comparison,
    as_readouts,
    branch_wants,
    coded_branches,
    fixed_kinds,
    under,
)
from depthmup_flax.auditing.counterparts import width_ratio
from depthmup_flax.auditing.depth_ratios import DepthRatios, depth_ratios, is_absolute, of_layers
from depthmup_flax.auditing.evaluated_network import as_finding, unlike_outputs
from depthmup_flax.auditing.findings import all_findings
from depthmup_flax.auditing.given_model import Model, Output, as_model
from depthmup_flax.auditing.matching import MatchedModels, matched_models
from depthmup_flax.auditing.not_judged import not_judged
from depthmup_flax.auditing.notes import notes
from depthmup_flax.auditing.overrides import Axes, require_axes
from depthmup_flax.auditing.parameter_rows import parameter_rows
from depthmup_flax.auditing.product_factors import product_factors
from depthmup_flax.auditing.relative_factors import close
from depthmup_flax.auditing.roles import ParameterRoles, inner_layers, parameter_roles
from depthmup_flax.auditing.score_factors import apart, score_factors
from depthmup_flax.networks.adapters import modes
from depthmup_flax.rule.info_trees import matches
from depthmup_flax.rule.parametrization import (
    PRESETS,
    AuditRecord,
    Parametrization,
    ParamInfo,
    require_parametrization,
)
from depthmup_flax.trace.evaluation import NotEvaluated
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.surroundings import own_surroundings
from depthmup_flax.util.types import ArrayTree

SCALED = ("width", "depth")


@own_surroundings(mesh=False)
def audit(
    model: Any,
    base: Any,
    x: ArrayTree,
    *,
    depth_ratio: float | None = None,
    overrides: Mapping[str, Axes] | None = None,
    output: Output = None,
    axes: str | Collection[str] = SCALED,
    carry: bool = True,
    evaluate: bool = True,
    in_code: Sequence[Parametrization] = (),
    known: Mapping[str, Callable[..., Any]] | None = None,
    **kwargs: Any,
) -> Audit:
    """Reads roles, branches and multipliers from traces.

    What it finds serves every rule. If the code has factors of one, such as
    ``rule.residual_multiplier(r)``, ``audit.record`` says of which, and the optimizers take no
    other. What the code lacks, parameters carry.

    A trace shows neither initial values (set them with `depthmup_flax.rescale_init`) nor the
    optimizer (``dm.depthmup(direction, audit.info, rule, ...)``). `depthmup_flax.coord_check`
    measures both.

    Args:
      model, base: Linen, NNX, Equinox or torch modules, or pairs (function, parameters); arrays
        may be shapes. An Equinox module is mapped over the batch. The base has the tuned width *and*
        depth.
      x: a batch, arrays or shapes, for both models. A tuple without names is passed as several
        arguments; to torch modules, a dictionary by name.
      depth_ratio: branches of the model over the base model's; by default residual sums are
        counted, those of an encoder and a decoder separately.
      overrides: glob -> `Axes`, for what the trace does not tell; wins over it.
      output: which results the loss reads, if there are several: an index, a key, a tuple of them,
        or a function of what the model returns.
      axes: what you scale: "width", "depth" or both. If model and base are equal in one, its
        factors are 1.
      carry: whether parameters carry factors that the code lacks, where they can (`ParamInfo`):
        `rescale_init` and the optimizers then apply them. ``False`` wants all of them in the code.
      evaluate: whether an audit that is ok computes the outputs of a small network, to see that no
        factor was overlooked; ``False`` trusts the traces.
      in_code: rules, beside the presets, whose factors the code may have: one with ``alpha=0.75``,
        or with a ``gamma0_width_exponent``, such as ``ntk``.
      known: name of a kernel, foreign call, callback or function (under ``jit`` or with a
        derivative of its own) -> a function of the same arrays in ``jax.numpy``, which is read in
        its place.
      **kwargs: of the call, such as ``train=True``.

    Raises:
      InputError: the two models are not the same code, the arguments do not fit them, or a forward
        pass fails.
    """
    scaled = _scaled(axes)
    overrides = overrides or {}
    _require_arguments(in_code, overrides, kwargs)
    _require_same_modes(modes(model), modes(base))
    models = _traced_models(model, base, x, output, known or {}, kwargs)
    match = matched_models(*models)
    _require_matches(overrides, match)
    # A power of the width beside 1/m, as of 1/sqrt(D), is a rule's only if the user names that rule.
    rules = [rule for rule in PRESETS.values() if not rule.gamma0_width_exponent]
    rules += in_code
    depth = _depth_in_code(match, rules, depth_ratio)
    roles = parameter_roles(depth.match, depth.ratios, overrides)
    compared = _compared(depth, roles, rules)
    findings = all_findings(compared)
    record = _record(compared)
    if not carry:
        verdict = _verdict(compared, compared.infos, roles, findings, record, scaled)
        return _evaluated(verdict, compared, carried=None) if evaluate else verdict
    carried = _carried(compared, findings)
    record = dataclasses.replace(
        record,
        base_sizes=match.base.initial_sizes(match.pairs),
        has_multiplier=_has_multiplier(compared, carried),
    )
    infos = _with_loads(compared.infos, carried)
    verdict = _verdict(compared, infos, roles, carried.left, record, scaled, carried.corrections)
    return _evaluated(verdict, compared, carried) if evaluate else verdict


# --- arguments


def _scaled(axes: str | Collection[str]) -> set[str]:
    """What the user scales."""
    scaled = {axes} if isinstance(axes, str) else set(axes)
    if not scaled or not scaled <= set(SCALED):
        text = "it must name what you scale. Pass 'width', 'depth' or both."
        raise InputError(f"axes is {axes!r}: {text}")
    return scaled


def _require_arguments(
    in_code: Sequence[Parametrization], overrides: Mapping[str, Axes], kwargs: Mapping[str, Any]
) -> None:
    for rule in in_code:
        require_parametrization(rule)
    if isinstance(kwargs.get("rule"), Parametrization):
        text = "audit takes no rule: what it finds serves every rule."
        raise InputError(f"{text} Pass rule to rescale_init and the optimizer.")
    require_axes("overrides", overrides)


def _require_same_modes(model: Mapping[str, float], base: Mapping[str, float]) -> None:
    """Raises `InputError` for modules of which one trains, or drops, and the other does not."""
    for name, value in model.items():
        if bool(value) != bool(base.get(name, value)):
            raise InputError(
                f"{name} is {value} in model but {base[name]} in base: audit both as you train (NNX: "
                "after model.train() and base.train()), with dropout in both or in neither."
            )


def _require_matches(overrides: Mapping[str, Axes], match: MatchedModels) -> None:
    """Raises `InputError` for an override that matches no parameter."""
    paths = list(match.model.leaves)
    for glob in overrides:
        if not any(matches(path, glob) for path in paths):
            text = f"which matches no parameter, such as {paths[0]!r}"
            raise InputError(f"overrides has {glob!r}, {text}.")


# --- the stages


class _Models(NamedTuple):
    """Both models, traced."""

    model: Model
    base: Model


def _traced_models(
    model: Any,
    base: Any,
    x: ArrayTree,
    output: Output,
    known: Mapping[str, Callable[..., Any]],
    kwargs: Mapping[str, Any],
) -> _Models:
    """The graphs of both forward passes. Each name in ``known`` must occur in one of them."""
    models = _Models(
        as_model(model, x, "model", output, kwargs, known),
        as_model(base, x, "base", output, kwargs, known),
    )
    for name in known.keys() - models.model.graph.replaced - models.base.graph.replaced:
        text = "the forward pass calls nothing of this name. Print the audit without it."
        raise InputError(f"known has {name!r}: {text}")
    return models


@dataclasses.dataclass(frozen=True, eq=False)
class _Depth:
    """How the model's depth compares with its base's, and with a rule."""

    match: MatchedModels  # branches whose number is fixed are parts of the stream
    ratios: DepthRatios
    rule: Parametrization  # whose factors the code's branches have


def _depth_in_code(
    match: MatchedModels,
    rules: Sequence[Parametrization],
    depth_ratio: float | None,
) -> _Depth:
    """Tries every alpha of the rules: the one that most branches have counts."""
    facts = match.facts
    base_facts = match.base_facts
    ratios = depth_ratios(facts, base_facts, depth_ratio)
    ratios = of_layers(ratios, facts, base_facts, match.pairs)
    wants = branch_wants(facts.branches, ratios, {})
    absolute = is_absolute(ratios, facts, base_facts)
    fits = []
    for rule in _one_of_each_alpha(rules):
        wanted = under(wants, rule)
        factors = branch_factors(facts, base_facts, wanted, absolute=absolute)
        coded = coded_branches(factors, wanted, ratios)
        fits.append(_Fit(rule, factors, len(coded)))
    best = max(fits, key=operator.attrgetter("coded"))
    fixed = fixed_kinds(best.factors, ratios)
    return _Depth(match.without(fixed), ratios, best.rule)


class _Fit(NamedTuple):
    """How many branches of the code have the factor of a rule."""

    rule: Parametrization
    factors: BranchFactors
    coded: int


def _one_of_each_alpha(rules: Sequence[Parametrization]) -> list[Parametrization]:
    """The first rule of each alpha above 0: an alpha of 0 leaves no factor."""
    by_alpha: dict[Any, Parametrization] = {}
    for rule in rules:
        if rule.alpha > 0:
            by_alpha.setdefault(rule.alpha, rule)
    return list(by_alpha.values())


def _compared(depth: _Depth, roles: ParameterRoles, rules: Sequence[Parametrization]) -> Comparison:
    """The comparison with the rule whose factors the code has.

    Weights that are multiplied as readouts are such, and the inner layers of branches are known.
    """
    match = depth.match
    scores = score_factors(match.facts, match.base_facts)
    to_few = [path for path, info in roles.infos.items() if info.width_out == 1 != info.width_in]
    read_scores = apart(scores, match.facts)
    pair = (match.facts, match.base_facts)
    products = product_factors(*pair, match.pairs, to_few, read_scores)
    compared = Comparison(match, depth.ratios, roles.infos, depth.rule, scores, products)
    candidates = _one_of_each_width(depth.rule, rules)
    rule = max(candidates, key=compared.coded_widths)
    compared = dataclasses.replace(compared, rule=rule)
    infos = {**roles.infos, **as_readouts(compared)}
    infos |= inner_layers(infos, match.facts)
    return dataclasses.replace(compared, infos=infos)


def _one_of_each_width(
    rule: Parametrization,
    rules: Sequence[Parametrization],
) -> list[Parametrization]:
    """``rule`` with every factor of the width that rules have."""
    widths: dict[Any, None] = {}
    for candidate in rules:
        if candidate.width_power:
            widths[candidate.width, candidate.gamma0_width_exponent] = None
    return [rule.replace(width=width, gamma0_width_exponent=power) for width, power in widths]


def _record(compared: Comparison) -> AuditRecord:
    """What the code has of a rule."""
    rule = compared.rule
    coded = coded_branches(compared.branches, compared.wanted, compared.ratios)
    base = compared.match.base.shapes
    alpha = float(rule.alpha) if coded else None
    if not compared.coded_widths(rule):
        return AuditRecord(alpha=alpha, base=base)
    return AuditRecord(
        alpha=alpha,
        width_power=float(rule.width_power),
        gamma0_width_exponent=float(rule.gamma0_width_exponent),
        base=base,
    )


def _carried(compared: Comparison, findings: Sequence[Finding]) -> CarriedFactors:
    """What parameters carry: the rule's a, too, where the code multiplies a branch by nothing."""
    branches = compared.branches.of_node.values()
    bare = [entry.branch for entry in branches if close(entry.factor, 1)]
    return carry_factors(compared.match.model.graph, compared.facts, findings, bare)


def _has_multiplier(compared: Comparison, carried: CarriedFactors) -> bool | None:
    """Whether branches have the rule's a, in the code or carried; see `AuditRecord`."""
    branches = compared.branches.of_node.values()
    is_bare = any(close(entry.factor, 1) for entry in branches)
    has_multiplier = carried.multiplier if is_bare else bool(compared.facts.branches)
    if has_multiplier and compared.r == 1:  # the code's multiplier is 1 in both models
        return None
    return has_multiplier


def _with_loads(infos: Mapping[str, ParamInfo], carried: CarriedFactors) -> dict[str, ParamInfo]:
    """The infos with what each parameter carries."""
    result = dict(infos)
    for path, load in carried.by_path.items():
        if path in result:
            info = result[path]
            result[path] = dataclasses.replace(info, carried=load.factor, offset=load.offset)
    return result


def _verdict(
    compared: Comparison,
    infos: Mapping[str, ParamInfo],
    roles: ParameterRoles,
    findings: Sequence[Finding],
    record: AuditRecord,
    axes: Collection[str],
    corrections: Sequence[Correction] = (),
) -> Audit:
    """What is lacking, what was not judged, and what else to know."""
    match = compared.match
    same_paths = {path: path for path in match.pairs}
    m = width_ratio(match.model.shapes, match.base_shapes, same_paths, match.layers)
    rows = parameter_rows(compared, infos, roles.unread, findings, corrections)
    return Audit(
        rows.all,
        tuple(findings),
        tuple(not_judged(compared, rows, roles.unread, axes, m)),
        tuple(notes(compared, rows, axes, m, corrections)),
        m,
        compared.r,
        match.model.structure,
        record,
        pairs=match.pairs,
    )


def _evaluated(verdict: Audit, compared: Comparison, carried: CarriedFactors | None) -> Audit:
    """An audit that is ok only if the network's outputs are those that the rule wants."""
    if not verdict.ok:
        return verdict
    infos = {row.path: row.info for row in verdict.rows if row.info is not None}
    carries_multiplier = carried is not None and carried.multiplier
    try:
        unlike = unlike_outputs(compared, infos, carries_multiplier=carries_multiplier)
    except NotEvaluated as reason:
        note = f"outputs were not compared, as {reason}: the traces alone say that it is ok."
        return dataclasses.replace(verdict, notes=(note, *verdict.notes))
    if unlike is None:
        return verdict
    return dataclasses.replace(verdict, not_judged=(as_finding(compared, unlike),))
