"""By how many times each stream of a model is deeper than that of its base model, from their residual sums."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from depthmup_flax.auditing import parameter_trees as trees
from depthmup_flax.auditing.parameter_trees import series
from depthmup_flax.auditing.traced_facts import Branch, Traced
from depthmup_flax.rule.info_trees import matches
from depthmup_flax.util.errors import InputError

Kind: TypeAlias = frozenset[str]
# One ratio of all streams, or one of the branches with parameters that match a glob.
GivenRatio: TypeAlias = "float | Mapping[str, float] | None"


@dataclasses.dataclass(frozen=True)
class DepthRatios:
    """The ratio of all streams together, and that of each branch that counts, by the node of its sum."""

    together: float
    of_branch: Mapping[int, float]

    def of_path(self, path: str, facts: Traced) -> float:
        """The ratio of the branches that a parameter is inside."""
        nodes = facts.branches_of.get(path, ()) if facts.inside.get(path) else ()
        return max((self.of_branch[n] for n in nodes if n in self.of_branch), default=1.0)


def depth_ratios(facts: Traced, base: Traced, paths: Collection[str], given: GivenRatio) -> DepthRatios:
    """The depth ratios of two models, or the ``given`` ones; ``paths`` are those of the model's parameters.

    Streams that grow differently, such as those of an encoder and a decoder, have ratios of their own. Branches whose
    number is fixed count if they stand between others: a block that halves the resolution does, an attention pooling
    head does not.
    """
    mine, theirs = branch_counts(facts), branch_counts(base)
    counted = [_counted(stream, mine, theirs) for stream in _streams(facts.branches)]
    if not any(counted):  # equally deep
        counted = _streams(facts.branches)
    total = lambda counts, several: sum(counts.get(kind, 0) for kind in {b.kind for b in several})
    own = [_ratio(total(mine, several), total(theirs, several)) for several in counted]
    every = [b for several in counted for b in several]
    together = _ratio(total(mine, every), total(theirs, every))
    if isinstance(given, Mapping):
        trees.matching("depth_ratio", tuple(given), list(paths))
        numbers = {pattern: trees.depth_ratio_number(ratio) for pattern, ratio in given.items()}
    else:
        numbers = {} if given is None else {"**": trees.depth_ratio_number(given)}
    together = numbers.get("**", together)
    ratios: dict[int, float] = {}
    for several, ratio in zip(counted, own, strict=True):
        of_stream = ratio if 0 < ratio < math.inf else together
        ratios |= {b.node: _given(b, numbers, of_stream) for b in several}
    if not all(0 < ratio < math.inf for ratio in (together, *ratios.values())):
        raise InputError(
            f"the trace finds {total(mine, every):g} residual sums in the model and {total(theirs, every):g} in the "
            "base model: pass depth_ratio=depth / base_depth."
        )
    return DepthRatios(together, ratios)


def _given(branch: Branch, numbers: Mapping[str, float], otherwise: float) -> float:
    if "**" in numbers:
        return numbers["**"]
    fitting = [r for pattern, r in numbers.items() if any(matches(path, pattern) for path in branch.paths)]
    return fitting[-1] if fitting else otherwise


def _ratio(mine: float, base: float) -> float:
    return mine / base if base else math.inf if mine else 1.0


def _streams(branches: Sequence[Branch]) -> list[list[Branch]]:
    """The branches of each stream; streams with branches of one kind are one."""
    group_of: dict[Kind | int, list[Branch]] = {}
    groups: list[list[Branch]] = []
    for branch in branches:
        known = [group_of[key] for key in (branch.kind, branch.stream) if key in group_of]
        group = known[0] if known else []
        if not known:
            groups.append(group)
        for other in known[1:]:
            if other is not group:
                group += other
                groups = [one for one in groups if one is not other]
        group.append(branch)
        for one in group:
            group_of[one.kind] = group_of[one.stream] = group
    return groups


def _counted(stream: Sequence[Branch], mine: Mapping[Kind, float], base: Mapping[Kind, float]) -> list[Branch]:
    """The branches of a stream that count for its depth; none if their numbers are fixed."""
    growing = [k for k, b in enumerate(stream) if mine[b.kind] != base.get(b.kind)]
    kinds = {b.kind for b in stream[growing[0] : growing[-1] + 1]} if growing else set()
    names = frozenset[str]().union(*kinds)  # a first block without a norm is a block, too
    return [b for b in stream if b.kind in kinds or (b.kind and b.kind <= names)]


def branch_counts(facts: Traced) -> dict[Kind, float]:
    """The number of branches of each kind, with those that the output does not need, at the end of a second stream."""
    counts: dict[Kind, float] = {}
    for branch in facts.branches:
        counts[branch.kind] = counts.get(branch.kind, 0) + branch.times
    used, unused = Counter[str](), Counter[str]()
    for path, is_used in facts.used.items():
        (used if is_used else unused)[series(path)] += 1
    kinds_of = Counter(name for kind in counts for name in kind)
    for kind, count in counts.items():
        # A layer that lacks a branch lacks all parameters that are of this branch alone.
        lacking = {unused[name] * count / used[name] for name in kind if kinds_of[name] == 1}
        if len(lacking) == 1 and (more := lacking.pop()) == int(more):
            counts[kind] += more
    return counts
