"""`audit` compares the rule with the forward pass of a model, read from a trace.

The forward passes of the model and of the base model are traced with shapes alone. The uses of a parameter give its
role, sums with the stream give the branches, and constant factors, compared between the two models, the multipliers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from depthmup_flax.auditing import parameter_trees as trees
from depthmup_flax.auditing.audit_report import Audit, Row, summary
from depthmup_flax.auditing.carriers import CarriedFactors, CarrierSearch, carry_multiplier
from depthmup_flax.auditing.counterparts import base_sizes, contradictions, matched, width_ratio
from depthmup_flax.auditing.findings import AXES, Comparison, equal_sizes, not_judged
from depthmup_flax.auditing.given_model import Model, Output, as_model
from depthmup_flax.auditing.relative_factors import DepthRatios, close, depth_ratios
from depthmup_flax.auditing.roles import layer_axes, traced_infos
from depthmup_flax.rule.annotations import Axes, require_axes
from depthmup_flax.rule.info_trees import matches
from depthmup_flax.rule.parametrization import (
    PRESETS,
    AuditRecord,
    Parametrization,
    ParamInfo,
    Role,
    require_parametrization,
)
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.pairs import traced_pair
from depthmup_flax.trace.uses import LOOKUP, PRODUCT
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.groups import series
from depthmup_flax.util.surroundings import own_surroundings
from depthmup_flax.util.types import ArrayTree


@own_surroundings(mesh=False)
def audit(
    model: Any,
    base: Any,
    x: ArrayTree,
    *,
    depth_ratio: float | None = None,
    overrides: Mapping[str, Axes] | None = None,
    output: Output = None,
    axes: str | Collection[str] = AXES,
    carry: bool = True,
    in_code: Sequence[Parametrization] = (),
    known: Mapping[str, Callable[..., Any]] | None = None,
    **kwargs: Any,
) -> Audit:
    """Reads roles, branches and multipliers from traces of the forward passes. Nothing is computed or compiled.

    What it finds serves every rule. If the code has factors of one, such as ``rule.residual_multiplier(r)``,
    ``audit.record`` says of which, and the optimizers take no other. What the code lacks, parameters carry.

    A trace shows neither initial values (set them with `depthmup_flax.rescale_init`) nor the optimizer
    (``dm.depthmup(direction, audit.info, rule, ...)``). `depthmup_flax.coord_check` measures both.

    Args:
      model, base: Linen, NNX or Equinox modules, or pairs (function, parameters); arrays may be shapes. An Equinox
        module is mapped over the batch. The base has the tuned width *and* depth.
      x: a batch, arrays or shapes, for both models. A tuple without names is passed as several arguments.
      depth_ratio: branches of the model over the base model's; by default residual sums are counted, those of an
        encoder and a decoder separately.
      overrides: glob -> `Axes`, for what the trace does not tell; wins over it.
      output: which results the loss reads, if there are several: an index, a key, a tuple of them, or a function of
        what the model returns.
      axes: what you scale: "width", "depth" or both. If model and base are equal in one, its factors are 1.
      carry: whether parameters carry factors that the code lacks, where they can (`ParamInfo`): `rescale_init` and the
        optimizers then apply them. ``False`` wants all of them in the code.
      in_code: rules, beside the presets, whose factors the code may have: one with ``alpha=0.75``.
      known: name of a kernel, foreign call, callback or function (under ``jit`` or with a derivative of its own) -> a
        function of the same arrays in ``jax.numpy``, which is read in its place.
      **kwargs: of the call, such as ``train=True``.

    Raises:
      InputError: the two models are not the same code, the arguments do not fit them, or a forward pass fails.
    """
    for rule in in_code:
        require_parametrization(rule)
    if isinstance(kwargs.get("rule"), Parametrization):
        raise InputError(
            "audit takes no rule: what it finds serves every rule. Pass rule to rescale_init and the optimizer."
        )
    scaled, known = {axes} if isinstance(axes, str) else set(axes), known or {}
    if not scaled or not scaled <= set(AXES):
        raise InputError(f"axes is {axes!r}: it must name what you scale. Pass 'width', 'depth' or both.")
    require_axes("overrides", overrides or {})
    mine, base_model = (
        as_model(one, x, name, output, kwargs, known) for one, name in ((model, "model"), (base, "base"))
    )
    for name in known.keys() - mine.graph.replaced - base_model.graph.replaced:
        raise InputError(
            f"known has {name!r}: the forward pass calls nothing of this name. Print the audit without it."
        )
    facts, base_facts, again = traced_pair(mine.graph, base_model.graph)
    layers = layer_axes(facts.uses)
    pairs = matched(mine.shapes, base_model.shapes, layers, facts.places(), base_facts.places())
    base_shapes = base_sizes(mine.shapes, base_model.shapes, pairs, layers)
    growing = {
        path: [k for k, (a, b) in enumerate(zip(mine.shapes[path], base_shapes[path], strict=True)) if a != b]
        for path in pairs
    }
    base_growing = {q: growing[path] for path, q in pairs.items()}
    if facts.has_tokens or base_facts.has_tokens:
        facts, base_facts = again[0](growing), again[1](base_growing)
    for glob in overrides or {}:
        if not any(matches(path, glob) for path in mine.leaves):
            raise InputError(
                f"overrides has {glob!r}, which matches no parameter, such as {next(iter(mine.leaves))!r}."
            )
    same_width = not any(growing.values())
    candidates = [*PRESETS.values(), *in_code]
    compare = functools.partial(Comparison, mine, facts, base_facts, pairs)
    ratios = depth_ratios(facts, base_facts, depth_ratio)
    alphas = _distinct([rule for rule in candidates if rule.alpha > 0], lambda rule: rule.alpha)
    rule = max(alphas, key=lambda rule: len(compare({}, rule, _of_layers(compare, rule, ratios)).coded_branches))
    ratios = _of_layers(compare, rule, ratios)
    fixed = compare({}, rule, ratios).fixed_branches()
    facts, base_facts = (f.without([b for b in f.branches if b.kind in fixed]) for f in (facts, base_facts))
    compare = functools.partial(Comparison, mine, facts, base_facts, pairs)
    infos, unread = traced_infos(mine, facts, base_shapes, ratios, overrides or {}, same_width=same_width)
    strange = contradictions(mine.shapes, base_model.shapes, pairs, layers, base_shapes)
    for path in strange & infos.keys():
        unread[path] = "the base model has no layer of its width: give the base model this depth, and pass depth_ratio="
        del infos[path]
    widths = _distinct([rule for rule in candidates if rule.width_power], lambda rule: tuple(_of_width(rule).values()))
    rule = max(
        (rule.replace(**_of_width(other)) for other in widths),
        key=lambda rule: compare(infos, rule, ratios).coded_widths,
    )
    infos |= compare(infos, rule, ratios).as_readouts()
    infos |= _inner_layers(infos, facts)
    compared = compare(infos, rule, ratios)
    findings = compared.findings()
    record = _record(compared, base_model, pairs, carry=carry)
    if carry:
        carried = CarriedFactors(CarrierSearch(mine.graph, facts.kinds), facts)
        carried.carry_all(findings)
        findings = carried.left
        # A branch that the code multiplies by something has the rule's a in it.
        bare = [branch for branch in facts.branches if close(compared.branches[branch.node], 1)]
        has_multiplier: bool | None = carry_multiplier(carried, bare) if bare else bool(facts.branches)
        if has_multiplier and ratios.together == 1:  # the code's multiplier is 1 in both models
            has_multiplier = None
        record = dataclasses.replace(record, has_multiplier=has_multiplier)
        for path, (factor, offset) in carried.by_path().items():
            if path in infos:
                infos[path] = dataclasses.replace(infos[path], carried=factor, offset=offset)
    m, r = width_ratio(mine.shapes, base_shapes, {path: path for path in pairs}, layers), ratios.together
    rows = [compared.row(path, unread.get(path, ""), findings) for path in mine.leaves]
    base_layers = {q: layers.get(p, frozenset()) for p, q in pairs.items()}
    counts = _counts(mine.shapes, layers, facts), _counts(base_model.shapes, base_layers, base_facts)
    same_layers = counts[0] == counts[1]
    on_stream = [
        row for row in rows if not row.in_branch and counts[0][series(row.path)] > counts[1][series(row.path)] > 0
    ]
    unjudged = not_judged(compared, rows, on_stream, unread, scaled, m, same_layers=same_layers)
    notes = [
        *equal_sizes(compared, scaled, m, same_width=same_width),
        *_notes(compared, rows, on_stream),
        *_initial_scale(rows, facts),
    ]
    return Audit(rows, tuple(findings), tuple(unjudged), tuple(notes), m, r, mine.structure, record, pairs=pairs)


def _distinct(rules: Sequence[Parametrization], what: Callable[[Parametrization], Any]) -> list[Parametrization]:
    """The first rule of each kind."""
    kinds: dict[tuple[Any, ...], Parametrization] = {}
    for rule in rules:
        kinds.setdefault((what(rule),), rule)
    return list(kinds.values())


def _of_width(rule: Parametrization) -> dict[str, Any]:
    """The fields that set the factors of the width."""
    return {"width": rule.width, "gamma0_width_exponent": rule.gamma0_width_exponent}


def _of_layers(compare: Callable[..., Comparison], rule: Parametrization, ratios: DepthRatios) -> DepthRatios:
    """The depth ratios of layers, apart from how often each is used."""
    compared = compare({}, rule, ratios)
    if compared.absolute:
        return ratios
    uses, repeated = compared.uses()
    layers = {node: ratio / uses.get(node, 1.0) for node, ratio in ratios.of_branch.items()}
    return DepthRatios(ratios.together, layers, uses, repeated)


def _inner_layers(infos: Mapping[str, ParamInfo], facts: Traced) -> dict[str, ParamInfo]:
    """The matrices of branches whose products later matrices of their branch read, and their biases, as inner ones."""
    ends = {path for branch in facts.branches for path in branch.factors}
    inner = {
        path
        for path, leaf in infos.items()
        if leaf.in_branch and leaf.role is Role.HIDDEN and path not in ends
        if any(use.kind == PRODUCT for use in facts.uses.get(path, ()))
    }
    inner |= {bias.path for path in inner for bias in facts.biases.get(path, ()) if bias.path not in ends}
    return {path: dataclasses.replace(infos[path], inner=True) for path in inner & infos.keys()}


def _record(compared: Comparison, base: Model, pairs: Mapping[str, str], *, carry: bool) -> AuditRecord:
    """What the code has of a rule."""
    rule, has_widths = compared.rule, compared.coded_widths > 0
    return AuditRecord(
        alpha=float(rule.alpha) if compared.coded_branches else None,
        width_power=float(rule.width_power) if has_widths else None,
        gamma0_width_exponent=float(rule.gamma0_width_exponent) if has_widths else 0.0,
        base=base.shapes,
        base_sizes=base.initial_sizes(pairs) if carry else None,
    )


def _counts(
    shapes: Mapping[str, tuple[int, ...]], layers: Mapping[str, Collection[int]], facts: Traced
) -> Counter[str]:
    """Path without numbers -> the layers that have such a parameter outside of branches."""
    counts = Counter[str]()
    for path, shape in shapes.items():
        if not facts.inside.get(path):
            counts[series(path)] += math.prod(shape[k] for k in layers.get(path, ()))
    return counts


def _initial_scale(rows: Sequence[Row], facts: Traced) -> list[str]:
    """The initial scale of readouts and of tables that are looked up, unless an annotation declares it."""
    wrong: dict[float, list[str]] = {}
    for row in rows:
        info = row.info
        if info is None or info.init_std is not None or row.in_branch:
            continue
        is_table = info.role is Role.INPUT and any(use.kind == LOOKUP for use in facts.uses.get(row.path, ()))
        m = info.width_in if info.role is Role.OUTPUT else info.width_out if is_table else 1.0
        if m != 1:
            wrong.setdefault(m, []).append(row.path)
    return [
        f"initial values are not seen. Under muP {summary(paths)} should start with the base model's standard "
        f"deviation, m^1/2 = {m**0.5:.4g} times what initializers of 1/sqrt(width) give, such as Flax's defaults. "
        "rescale_init sets all initial values, given those of base:\n"
        "write: params = dm.rescale_init(params, base_params, audit.info, rule)"
        for m, paths in wrong.items()
    ]


def _notes(compared: Comparison, rows: Sequence[Row], on_stream: Sequence[Row]) -> list[str]:
    notes = [] if compared.facts.depth else ["the trace finds no residual sums."]
    matrices = max((branch.matrices for branch in compared.facts.branches), default=0)
    if matrices > 1:
        notes.append(
            f"branches have {matrices} weight matrices in a row: for two or more, arXiv:2603.00541 and CompleteP "
            "advise alpha = 1 in place of 1/2. To compare:\nwrite: rule = dm.get_parametrization('completep')"
        )
    is_coarse = lambda dtype: jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits <= 16
    of_rows = {
        "map the width to a fixed number of features: start at zero, or with a standard deviation of 1/fan_in. With "
        "1/sqrt(fan_in), the product changes as sqrt(m) in wide networks.": [
            row.path for row in rows if row.info is not None and row.info.to_few_features
        ],
        "have 16 bits: the rule makes steps smaller as networks grow, and those below half a unit in the last place "
        "are lost. Keep parameters in float32 and compute in 16 bits.": [
            path for path, leaf in compared.model.leaves.items() if is_coarse(trees.abstract(leaf).dtype)
        ],
        "stand on the stream in every layer, as norms after the sum do: updates add up with depth, which no multiplier "
        "corrects. Use norms in front of branches, or without scale and bias.": [
            row.path for row in on_stream if row.info and row.info.role is Role.VECTOR
        ],
    }
    notes += [f"{summary(paths)} {text}" for text, paths in of_rows.items() if paths]
    if compared.r > 1 and any(leaf.width_in < 1 or leaf.width_out < 1 for leaf in compared.infos.values()):
        notes.append("the model is narrower than the base model: were model and base swapped?")
    return notes
