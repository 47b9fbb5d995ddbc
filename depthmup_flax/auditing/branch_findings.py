"""What branches, shortcuts and repeated layers lack, each with the code to write."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import NamedTuple

from depthmup_flax.auditing.audit_report import Finding, number, summary
from depthmup_flax.auditing.branch_factors import (
    BranchFactor,
    branch_ends,
    normalized_factor,
    projection_factor,
)
from depthmup_flax.auditing.comparison import Comparison
from depthmup_flax.auditing.finding_places import lacking, product_places
from depthmup_flax.auditing.relative_factors import close
from depthmup_flax.rule.factor import ONE
from depthmup_flax.trace.branches import Branch
from depthmup_flax.util.groups import grouped

MISSING = "missing_branch_multiplier"
CANCELED = "norm_cancels_multiplier"


class _Wrong(NamedTuple):
    """What wrong branches of one finding have in common."""

    name: str
    factor: float
    r: float
    uses: float


def missing_branches(compared: Comparison) -> list[Finding]:
    """Branches with another multiplier than the rule's, those that are alike in one finding."""
    wrong: dict[_Wrong, list[Branch]] = {}
    for node, entry in compared.branches.of_node.items():
        if entry.factor is None or close(entry.factor, compared.wanted[node]):
            continue
        key = _Wrong(
            _name(entry, compared),
            float(number(entry.factor)),
            compared.ratios.of_branch.get(node, 1.0),
            compared.ratios.uses.get(node, 1.0),
        )
        wrong.setdefault(key, []).append(entry.branch)
    numbered = len(wrong) > 1
    result = []
    for key, branches in wrong.items():
        whole = _of_branches(compared, key, branches, numbered)
        kinds = grouped(branches, lambda branch: branch.kind).values()
        parts = tuple(_of_branches(compared, key, alike, numbered) for alike in kinds)
        result.append(dataclasses.replace(whole, parts=parts))
    return result


def _name(entry: BranchFactor, compared: Comparison) -> str:
    """Whether a multiplier is missing, or canceled by a norm behind it."""
    wanted = compared.wanted[entry.branch.node]
    absolute = compared.is_absolute
    normalized = normalized_factor(entry, wanted, compared.facts, absolute=absolute)
    return CANCELED if not close(wanted, 1) and close(normalized, wanted) else MISSING


def _of_branches(
    compared: Comparison,
    key: _Wrong,
    branches: Sequence[Branch],
    numbered: bool,
) -> Finding:
    """One finding about several branches, which numbers tell from others if ``numbered``."""
    last = branches[-1].node
    paths: list[str] = []
    for branch in branches:
        paths += branch_ends(branch, compared.facts)
    where = "the branches without parameters"
    if paths:
        where = f"the branches that end in {summary(paths, numbered)}"
    text = f"{where} are normalized after their multiplier, which cancels it"
    text += ": multiply after the norm."
    if key.name == MISSING:
        wants = f"the rule wants {compared.branches_want[last]}{_as_if(compared, key)}"
        text = f"{where} are multiplied by {number(key.factor)}; {wants}."
    code = f"h = h + rule.residual_multiplier(r) * y  # r = depth / base_depth, here {key.r:g}"
    if key.uses != 1:
        arguments = f"{key.r:g}, uses={key.uses:g}"
        code = f"h = h + rule.residual_multiplier({arguments}) * y  # of layers, of each"
    exact = compared.branch_factor(last)
    if any(compared.branches.of_node[branch.node].mixed for branch in branches):
        exact = None  # nothing carries one factor for terms that need several
    return Finding(
        key.name,
        tuple(dict.fromkeys(paths)),
        text,
        code,
        factor=lacking(compared.branches_want[last], exact),
        found=exact,
        places=tuple((branch.end, branch.node) for branch in branches),
    )


def _as_if(compared: Comparison, wrong: _Wrong) -> str:
    """The depth ratio for which a factor is right: the user may count otherwise."""
    if close(wrong.factor, 1) or wrong.factor <= 0:
        return ""
    if wrong.uses != 1:
        return f" for r = {wrong.r:g} and {wrong.uses:g} uses"
    alpha = compared.rule.alpha
    r = wrong.factor ** (-1 / alpha)
    return (
        f" for r = {wrong.r:g} (under alpha = {alpha:g} it is right for r = {r:.3g}: if you count "
        f"so, pass depth_ratio={r:.3g})"
    )


def shortcuts(compared: Comparison) -> list[Finding]:
    """Shortcuts that are multiplied."""
    wrong: dict[tuple[float, bool], list[str]] = {}
    for entry in compared.branches.of_node.values():
        branch = entry.branch
        ratio = projection_factor(entry) if branch.projected else entry.shortcut
        if ratio is None or close(ratio, 1):
            continue
        projection = [path for path in branch.shortcut if path and branch.projected]
        key = (float(number(ratio)), bool(projection))
        wrong.setdefault(key, []).extend(projection or sorted(branch.paths))
    also = ""
    if compared.branches.fades:
        also = ", or k^(1/r) if each layer of the base model multiplies the stream by k"
    result = []
    for (ratio, is_projected), several in wrong.items():
        paths = tuple(dict.fromkeys(several))
        what = f"the shortcut at {summary(several)} is multiplied by {number(ratio)}"
        result.append(
            Finding(
                "shortcut_in_branch",
                paths,
                f"{what} relative to the base model; the rule wants 1{also}.",
                "h = shortcut(h) + rule.residual_multiplier(r) * y  # the multiplier on y alone",
                factor=lacking(ONE, ratio),
                found=ratio,
                places=product_places(compared, paths, ratio) if is_projected else (),
            )
        )
    return result


def repeated_weights(compared: Comparison) -> list[Finding]:
    """Parameters that are used more or less often than in the base model, untreated by the rule."""
    treated = compared.ratios.repeated.keys() & compared.infos.keys()
    wrong: dict[tuple[float, bool], list[str]] = {}
    for path, ratio in compared.repetitions.items():
        if path not in treated:
            key = (ratio, _adds_up(compared, path))
            wrong.setdefault(key, []).append(path)
    return [_of_uses(ratio, adds_up, paths) for (ratio, adds_up), paths in wrong.items()]


def _adds_up(compared: Comparison, path: str) -> bool:
    """Whether a parameter is in branches that are the same function at several depths."""
    if not compared.facts.inside.get(path):
        return False
    return not compared.repeated_branches.isdisjoint(compared.facts.branches_of[path])


def _of_uses(ratio: float, adds_up: bool, paths: Collection[str]) -> Finding:
    several = tuple(paths)
    text = (
        f"{summary(several)} {'are' if len(several) > 1 else 'is'} used {ratio:g} times as often "
        "as in the base model. With SGD or momentum, whose gradient is the sum over all uses, "
        "the learning rate is too large by that number; with normalized updates, such as Adam's, "
        "it is not."
    )
    code = f"optax.scale_by_adam(), or with SGD multiply the gradients of these by 1 / {ratio:g}"
    if adds_up:
        text += " Branches with the same weights add up in one direction"
        text += ", so their sum grows with depth."
        code = "rule = dm.get_parametrization('depth_mup'), or weights of its own for each layer"
    return Finding("repeated_weights", several, text, code, certain=adds_up)
