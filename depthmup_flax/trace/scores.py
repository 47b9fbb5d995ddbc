"""Products of two activations, such as those of queries and keys, and the factors in them."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Hashable, Sequence

from depthmup_flax.trace.axes import contracted_size
from depthmup_flax.trace.reading import Reading
from depthmup_flax.trace.terms import Factors, Terms
from depthmup_flax.trace.uses import PRODUCT, Use


@dataclasses.dataclass(frozen=True)
class Scores:
    """A product of two activations that is summed over a dimension."""

    paths: frozenset[str]  # parameters that make both
    # Other parameters in both or in the same sum: learned queries, biases, relative positions.
    beside: frozenset[str]
    size: int  # of the dimension that is summed
    factor: float  # NaN is unknown
    in_softmax: bool  # or in a sigmoid
    node: int
    # Of those that the same weights make, as queries do that read relative positions, too.
    nth: int = 0


def scores(reading: Reading) -> list[Scores]:
    """All products of two activations, in the order of the forward pass."""
    products = {j for j in reading.factors.parts if reading.graph.nodes[j].op == "dot_general"}
    in_softmax: dict[int, Terms] = {}  # product -> the terms that it enters a softmax with
    for i, node in enumerate(reading.graph.nodes):
        if node.op in ("exp", "exp2", "logistic") and reading.terms(i):
            terms = _through_soft_caps(reading, node.inputs[0])
            in_softmax.update(dict.fromkeys(products & terms.keys(), terms))
    others: dict[int, set[float]] = {j: set() for j in products - in_softmax.keys()}
    read_terms = [read.terms for read in reading.absorbed()]
    for terms in (*read_terms, reading.terms(reading.graph.output)):
        for j in others.keys() & terms.keys():
            others[j] |= terms[j]
    several = [_of_softmax(reading, j, terms) for j, terms in in_softmax.items()]
    several += [_of_sum(reading, j, frozenset(factors)) for j, factors in others.items()]
    return _numbered([product for product in several if product.in_softmax or product.paths])


def _numbered(several: Sequence[Scores]) -> list[Scores]:
    """In the order of the forward pass, with `Scores.nth`."""
    count = Counter[Hashable]()
    result = []
    for product in sorted(several, key=lambda product: product.node):
        weights = (product.in_softmax, product.paths)
        result.append(dataclasses.replace(product, nth=count[weights]))
        count[weights] += 1
    return result


def _of_softmax(reading: Reading, j: int, terms: Terms) -> Scores:
    """The product at a node, given the terms that it enters a softmax with."""
    paths, beside, factor = _parameters(reading, j, terms[j])
    for i in terms:
        beside |= {use.path for use in reading.uses_at(i)}
    size = contracted_size(reading.graph, reading.graph.nodes[j])
    return Scores(paths, beside - paths, size, factor, True, j)


def _of_sum(reading: Reading, j: int, after: Factors) -> Scores:
    """The product at a node that enters no softmax, given the factors behind it."""
    paths, beside, factor = _parameters(reading, j, after)
    norms = reading.norms.reads
    read = [norms[i] for i in reading.factors.deep(reading.factors.parts[j]) if i in norms]
    if any(reading.graph.nodes[i].op == "exp" for i in read):
        paths = frozenset()  # a mean with the weights of a softmax is no sum over the width
    size = contracted_size(reading.graph, reading.graph.nodes[j])
    return Scores(paths, beside - paths, size, factor, False, j)


def _parameters(
    reading: Reading,
    j: int,
    after: Factors,
) -> tuple[frozenset[str], frozenset[str], float]:
    """The weights that make a product of two activations, all parameters in it, and its factor."""
    inner = reading.factors.deep(reading.factors.parts[j])
    makers = [use for i in inner for use in _makers(reading, i)]
    of_both = {factor for factors in inner.values() for factor in factors}
    factor = math.nan
    if len(after) == len(of_both) == 1:
        factor = min(after) * min(of_both)
    products = [use for use in makers if use.kind == PRODUCT]
    for node in {use.node for use in products}:
        factor *= reading.factors.before.get(node, 1.0)
    paths = frozenset(use.path for use in products)
    return paths, frozenset(use.path for use in makers), factor


def _through_soft_caps(reading: Reading, node: int) -> Terms:
    """The terms of an array, and those inside a soft cap."""
    result = dict(reading.terms(node))
    for i in list(result):
        if reading.graph.nodes[i].op != "tanh":
            continue
        inner = _through_soft_caps(reading, reading.graph.nodes[i].inputs[0])
        for j, factors in inner.items():
            result[j] = frozenset(f * g for f in factors for g in result[i])
    return result


def _makers(reading: Reading, node: int) -> Sequence[Use]:
    """The uses that make a term, looked for before norms."""
    while node in reading.norms.reads and not reading.uses_at(node):
        terms = reading.terms(reading.norms.reads[node])
        uses = [use for i in terms for use in reading.uses_at(i)]
        if uses or not terms:
            return uses
        node = min(terms)
    return reading.uses_at(node)
