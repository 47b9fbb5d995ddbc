"""Products of two activations that are summed over a dimension: those of queries and keys, and others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from depthmup_flax.auditing.dataflow import Graph
from depthmup_flax.auditing.forward_factors import ForwardFactors, Homogeneity, Terms
from depthmup_flax.auditing.parameter_uses import PRODUCT, Use


@dataclasses.dataclass(frozen=True)
class Scores:
    """A product of two activations that is summed over a dimension, such as that of queries and keys."""

    paths: frozenset[str]  # parameters that make both
    beside: frozenset[str]  # other parameters in both or in the same sum: learned queries, biases, relative positions
    size: int  # of the dimension that is summed
    factor: float  # NaN is unknown
    in_softmax: bool  # or in a sigmoid


def read_scores(
    graph: Graph,
    at: Mapping[int, Sequence[Use]],
    shape: Homogeneity,
    factors: ForwardFactors,
    absorbed: Sequence[Terms],
) -> list[Scores]:
    """All products of two activations; ``absorbed`` are the terms of what nonlinear operations and products read."""
    return _Products(graph, at, shape, factors).result(absorbed)


class _Products:
    def __init__(self, graph: Graph, at: Mapping[int, Sequence[Use]], shape: Homogeneity, factors: ForwardFactors):
        self.graph, self.at, self.shape, self.factors = graph, at, shape, factors

    def result(self, absorbed: Sequence[Terms]) -> list[Scores]:
        products = {j for j in self.factors.parts if self.graph.nodes[j].op == "dot_general"}
        entering = [
            self._through(node.inputs[0])
            for i, node in enumerate(self.graph.nodes)
            if node.op in ("exp", "exp2", "logistic") and self.factors.terms[i]
        ]
        in_softmax = {j: terms for terms in entering for j in products & terms.keys()}
        others: dict[int, set[float]] = {j: set() for j in products - in_softmax.keys()}
        for terms in absorbed:
            for j in others.keys() & terms.keys():
                others[j] |= terms[j]
        scores = [self._scores(j, terms[j], terms) for j, terms in in_softmax.items()]
        scores += [self._scores(j, frozenset(factors)) for j, factors in others.items()]
        return [s for s in scores if s.in_softmax or s.paths]

    def _scores(self, j: int, after: frozenset[float], softmax: Terms | None = None) -> Scores:
        """The product at a node; ``after``: factors behind it, ``softmax``: the terms that it enters a softmax with."""
        product, inner = self.graph.nodes[j], self.factors.deep(self.factors.parts[j])
        (left, _), _ = product.params["dimension_numbers"]
        size = math.prod(self.graph.nodes[product.inputs[0]].shape[k] for k in left)
        makers = [u for k in inner for u in self._makers(k)]
        paths = frozenset(u.path for u in makers if u.kind == PRODUCT)
        beside = {u.path for u in makers} | {u.path for k in softmax or () for u in self.at.get(k, ())}
        of_both = {f for several in inner.values() for f in several}
        factor = min(after) * min(of_both) if len(after) == len(of_both) == 1 else math.nan
        factor *= math.prod(self.factors.before.get(i, 1.0) for i in {u.node for u in makers if u.kind == PRODUCT})
        # A mean with the weights of a softmax is no sum over the width.
        norms = (self.shape.norms.get(k) for k in inner)
        is_mean = softmax is None and any(k is not None and self.graph.nodes[k].op == "exp" for k in norms)
        return Scores(frozenset() if is_mean else paths, frozenset(beside - paths), size, factor, softmax is not None)

    def _through(self, node: int) -> Terms:
        """The terms of an array, and those inside a soft cap."""
        result = dict(self.factors.terms[node])
        for i in list(result):
            if self.graph.nodes[i].op == "tanh":
                inner = self._through(self.graph.nodes[i].inputs[0])
                result |= {j: frozenset({f * g for f in fs for g in result[i]}) for j, fs in inner.items()}
        return result

    def _makers(self, node: int) -> Sequence[Use]:
        """The uses that make a term, looked for before norms."""
        while node in self.shape.norms and node not in self.at:
            terms = self.factors.terms[self.shape.norms[node]]
            uses = [u for i in terms for u in self.at.get(i, ())]
            if uses or not terms:
                return uses
            node = min(terms)
        return self.at.get(node, [])
