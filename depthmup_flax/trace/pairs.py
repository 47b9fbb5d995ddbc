"""The facts of a model and its base model: what is residual in one is so in the other."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from depthmup_flax.trace.branches import Branch
from depthmup_flax.trace.facts import Traced, traced
from depthmup_flax.trace.graph import PARAM, Graph
from depthmup_flax.util.groups import grouped, series

_MOST_ROUNDS = 8  # as many as skips around each other

# Axes of each parameter that grow -> the facts of one model of a pair.
Again: TypeAlias = Callable[[Mapping[str, Collection[int]]], Traced]
_Kind: TypeAlias = frozenset[str]  # see `Branch.kind`


def traced_pair(graph: Graph, base: Graph) -> tuple[Traced, Traced, tuple[Again, Again]]:
    """The facts of two models without ``growing``; and functions that return them with it.

    A skip connection around a stream that grows with depth, as in a U-Net, is no residual branch of
    a layer; nor is a sum of the batch's size, such as that of a prediction and the batch, if it
    does not occur more often in deeper models: what a readout returns is added there. A sum that is
    residual in the deeper model is so in the other, whose stream it may be all of.
    """
    plain: set[int] = set()
    base_plain: set[int] = set()
    alike: set[frozenset[str]] = set()
    # All sets are those of the last round.
    again = functools.partial(traced, graph, plain=plain, alike=alike)
    base_again = functools.partial(traced, base, plain=base_plain, alike=alike)
    is_wider = _weights(graph) != _weights(base)
    for _ in range(_MOST_ROUNDS):
        facts = again({})
        base_facts = base_again({})
        kinds = _of_kinds(facts)
        base_kinds = _of_kinds(base_facts)
        skips = _skips(kinds, base_kinds)
        of_batch = _of_batch(facts, base_facts) if is_wider else set()
        for nodes, branches in ((plain, facts.branches), (base_plain, base_facts.branches)):
            for branch in branches:
                if branch.kind in of_batch or (branch.kind in skips and branch.inner):
                    nodes.add(branch.node)
        asked = {*facts.asked, *base_facts.asked}
        more = ((facts.ends | base_facts.ends) & asked) - alike
        alike |= more
        if skips or of_batch or more:
            continue
        ends = [i for i in graph.ends if i in facts.nodes]
        base_ends = [i for i in base.ends if i in base_facts.nodes]
        if len(ends) == len(graph.ends) and len(base_ends) == len(base.ends):
            break
        graph.ends = tuple(ends)
        base.ends = tuple(base_ends)
    return facts, base_facts, (again, base_again)


def _weights(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Path without numbers -> shape without the first axis, which may count layers."""
    nodes = (node for node in graph.nodes if node.op == PARAM)
    return {series(node.params["path"]): node.shape[1:] for node in nodes}


def _of_kinds(facts: Traced) -> dict[_Kind, list[Branch]]:
    return grouped(facts.branches, lambda branch: branch.kind)


def _skips(
    kinds: Mapping[_Kind, Sequence[Branch]],
    base_kinds: Mapping[_Kind, Sequence[Branch]],
) -> set[_Kind]:
    """The kinds of branches around a stream: in the deeper model, more sums are inside."""

    result = set()
    for kind, branches in kinds.items():
        if _sums_inside(branches) > _sums_inside(base_kinds.get(kind, ())):
            result.add(kind)
    return result


def _sums_inside(branches: Sequence[Branch]) -> float:
    return max((branch.inner for branch in branches), default=math.inf)


def _of_batch(facts: Traced, base: Traced) -> set[_Kind]:
    """The kinds of branches that are as large and as many in both models."""
    base_kinds = _of_kinds(base)
    result = set()
    for kind, branches in _of_kinds(facts).items():
        if _sizes(facts, branches) == _sizes(base, base_kinds.get(kind, ())):
            result.add(kind)
    return result


def _sizes(facts: Traced, branches: Sequence[Branch]) -> list[tuple[tuple[int, ...], float]]:
    return [(facts.graph.nodes[branch.node].shape, branch.times) for branch in branches]
