"""What readouts, embeddings, hidden layers and attention lack, each with the code to write."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from depthmup_flax.auditing.audit_report import Finding, number, summary
from depthmup_flax.auditing.branch_factors import branch_ends
from depthmup_flax.auditing.comparison import Comparison, may_be_readout, readout_ratio
from depthmup_flax.auditing.finding_places import lacking, product_places, start_places
from depthmup_flax.auditing.relative_factors import close, ratio_of
from depthmup_flax.auditing.score_factors import ScoreFactors
from depthmup_flax.rule.factor import ONE, Factor
from depthmup_flax.rule.parametrization import ParamInfo, Role
from depthmup_flax.trace.uses import PRODUCT
from depthmup_flax.util.groups import grouped

TWICE = "readout_scaled_twice"
NOT_SCALED = "readout_not_scaled"


def readouts(compared: Comparison) -> list[Finding]:
    """Readouts whose products are not multiplied by 1/m, or an output that no readout makes."""
    result = _output(compared)
    for path in compared.facts.readouts:
        info = compared.infos.get(path)  # none of "", what no parameter makes
        if info is None or not may_be_readout(info) or path in compared.near_unread_sums:
            continue
        if info.role is Role.INPUT and not compared.is_tied(path):
            continue
        factor, wanted = compared.readout(path)
        if factor is not None and not _is_right_readout(compared, factor, wanted):
            result.append(_readout(compared, path, info, factor, wanted))
    return result


def _is_right_readout(compared: Comparison, factor: float, wanted: Factor) -> bool:
    """Whether a readout has its factor, times what multiplies a shortcut, which it may read."""
    expected = float(wanted.under(compared.rule))
    if close(factor, expected):
        return True
    branches = compared.branches.of_node.values()
    return any(close(factor, expected * entry.shortcut) for entry in branches)


def _readout(
    compared: Comparison,
    path: str,
    info: ParamInfo,
    factor: float,
    wanted: Factor,
) -> Finding:
    m = readout_ratio(info)
    is_too_small = (factor < float(wanted.under(compared.rule))) == (m > 1)
    text = f"the product with {path} is multiplied by {number(factor)}; the rule wants {wanted}"
    text += ": remove its other factors that depend on the width." if is_too_small else "."
    if close(factor, m**-0.5):
        text += " The code divides by sqrt(width), which only a rule with "
        text += "gamma0_width_exponent=-0.5 wants: if yours is one, pass in_code=[rule]."
    return Finding(
        TWICE if is_too_small else NOT_SCALED,
        (path,),
        text,
        f"logits = logits * rule.readout_multiplier(m)  # m = width / base_width, here {m:g}",
        factor=lacking(wanted, factor),
        found=factor,
        places=product_places(compared, [path], factor),
    )


def _output(compared: Comparison) -> list[Finding]:
    """The factor of an output that is no product with a readout, such as a mean over the width."""
    factor = compared.of_output
    if factor is None or close(factor, 1):
        return []
    text = f"the output, which no readout makes, is multiplied by {number(factor)} relative to "
    text += "the base model; the rule wants 1: a mean over the width rather than a sum."
    is_wider = max((info.width_in for info in compared.infos.values()), default=1.0) > 1
    finding = Finding(
        TWICE if (factor < 1) == is_wider else NOT_SCALED,
        (),
        text,
        "y = y.mean(-1)  # or y.sum(-1) / m, m = width / base_width",
        factor=lacking(ONE, factor),
        found=factor,
        places=((compared.match.model.graph.output, -1),),
    )
    return [finding]


def embeddings(compared: Comparison) -> list[Finding]:
    """Factors of the width around embeddings, and around hidden layers outside of branches."""
    unclear = compared.in_softmax | compared.near_unread_sums
    result = []
    for path in compared.products.paths:
        info = compared.infos.get(path)
        if info is None or path in unclear or _has_another_judgment(compared, path, info):
            continue
        factor = compared.products.around(path)
        if factor is None or close(factor, 1):
            continue
        is_inside = all(use.kind == PRODUCT and not use.first for use in compared.facts.uses[path])
        if _is_row(compared, path, info) or (info.role is Role.INPUT and not is_inside):
            result.append(_embedding(compared, path, info, factor))
        elif info.role in (Role.HIDDEN, Role.INPUT):
            result.append(_scaled_hidden(compared, (path,), factor))
    return result


def _has_another_judgment(compared: Comparison, path: str, info: ParamInfo) -> bool:
    """Whether a parameter is judged with its branch, or as a readout."""
    if compared.facts.inside.get(path):
        return True
    is_at_end = path in compared.facts.readouts and info.role is not Role.HIDDEN
    return is_at_end and not compared.is_tied(path)


def _is_row(compared: Comparison, path: str, info: ParamInfo) -> bool:
    """Whether it is a row of a table, taken by its number, as the embedding of a step is."""
    return info.role is Role.VECTOR and all(use.picked for use in compared.facts.uses[path])


def _embedding(compared: Comparison, path: str, info: ParamInfo, factor: float) -> Finding:
    code = "x = x * c  # c as in the base model"
    if close(factor, info.width_out**0.5):
        code = "x = x * base_width**0.5  # not width**0.5"
    return Finding(
        "embedding_scaled_with_width",
        (path,),
        f"{path} is multiplied by {number(factor)} relative to the base model; the rule wants 1.",
        code,
        factor=lacking(ONE, factor),
        found=factor,
        places=start_places(compared, path),
    )


def within_branches(compared: Comparison) -> list[Finding]:
    """Factors of the width inside of branches.

    A branch's multiplier may stand before its last layer, which is linear.
    """
    last_weights = compared.last_weights
    factors: dict[str, float | None] = {}
    for path in compared.infos:
        if path in last_weights:
            factors[path] = compared.products.in_front.get(path, 1.0)
    factors |= compared.inside_branches
    wrong: dict[float, dict[str, float]] = {}
    for path, factor in factors.items():
        if factor is None or close(factor, 1) or compared.infos[path].role is Role.OUTPUT:
            continue
        if not _is_multiplier_before_last_layer(compared, path, factor):
            wrong.setdefault(float(number(factor)), {})[path] = factor
    result = []
    for of_paths in wrong.values():
        result.append(_scaled_hidden(compared, tuple(of_paths), min(of_paths.values())))
    return result


def inner_sums(compared: Comparison) -> list[Finding]:
    """Factors of the width on layers inside of branches to which their own input is added."""
    judged = {path for finding in within_branches(compared) for path in finding.paths}
    of_branches = compared.wanted.values()
    result = []
    for entry in compared.inner_branches.of_node.values():
        factor = entry.factor
        if factor is None or close(factor, 1) or any(close(factor, x) for x in of_branches):
            continue
        paths = tuple(branch_ends(entry.branch, compared.facts))
        if paths and judged.isdisjoint(paths):
            finding = _scaled_hidden(compared, paths, factor)
            place = (entry.branch.end, entry.branch.node)
            result.append(dataclasses.replace(finding, places=(place,)))
    return result


def _is_multiplier_before_last_layer(compared: Comparison, path: str, factor: float) -> bool:
    for node in compared.facts.branches_of[path]:
        entry = compared.branches.of_node.get(node)
        if entry is None or not entry.before_last_layer:
            continue
        if close(factor, compared.wanted[node]):
            return True
    return False


def in_nonlinearities(compared: Comparison) -> list[Finding]:
    """Factors of the width in front of a nonlinearity or a gate, on what no parameter makes."""
    wrong: dict[float, list[str]] = {}
    for (path, operation), factors in compared.facts.bent.items():
        base = compared.base_facts.bent.get((compared.pairs[path], operation))
        factor = ratio_of(factors, base)
        if factor is not None and not close(factor, 1):
            wrong.setdefault(float(number(factor)), []).append(path)
    result = []
    for factor, paths in wrong.items():
        finding = _scaled_hidden(compared, tuple(dict.fromkeys(paths)), factor)
        result.append(dataclasses.replace(finding, factor=None))
    return result


def _scaled_hidden(compared: Comparison, paths: tuple[str, ...], factor: float) -> Finding:
    text = f"the product with {summary(paths)} is multiplied by {number(factor)} relative to the "
    text += "base model; the rule wants 1, as the initial values and the learning rate of hidden "
    text += "weights depend on the width."
    return Finding(
        "hidden_scaled_with_width",
        paths,
        text,
        "y = x @ kernel  # no factor",
        factor=lacking(ONE, factor),
        found=factor,
        places=product_places(compared, paths, factor),
    )


def attention(compared: Comparison) -> list[Finding]:
    """Products of queries and keys with another scale than the rule's."""
    wrong = []
    for scores in compared.scores:
        if not scores.product.in_softmax or math.isnan(scores.factor):
            continue
        if not scores.is_right(compared.rule):
            wrong.append(scores)
    return [_scores(alike) for alike in grouped(wrong, _scale).values()]


def _scale(scores: ScoreFactors) -> tuple[float, Factor, int, int]:
    return scores.factor, scores.wanted, scores.product.size, scores.base_size


def _scores(alike: Sequence[ScoreFactors]) -> Finding:
    """One finding about products with one wrong scale."""
    paths: dict[str, None] = {}
    for scores in alike:
        paths |= dict.fromkeys(sorted(scores.product.paths))
    names = f" of {summary(tuple(paths))}" if paths else ""
    factor, wanted, d, base_d = _scale(alike[0])
    return Finding(
        "attention_scale",
        tuple(paths),
        f"the products of queries and keys{names} are multiplied by {number(factor)} "
        f"relative to the base model; the rule wants {base_d / d:.4g}, as the head dimension is "
        f"{d} and {base_d} there.",
        f"scores = rule.attention_scale({d}, {base_d}) * q @ k.T  # head_dim, base_head_dim",
        factor=lacking(wanted, factor),
        found=factor,
        places=tuple((scores.product.node, -1) for scores in alike),
    )
