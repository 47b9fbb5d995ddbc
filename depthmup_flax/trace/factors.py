"""The constant factors of a forward pass, from each product with a parameter to where it is used.

Every array is a sum of terms (see `terms`); signs are ignored, and a sum over ``n`` entries counts
as ``n``, so a mean has the factor 1. A row of `_OPERATIONS` tells what a primitive makes of the
terms of activations; without one, its result is a term of its own. A row of `_INSIDE` does the same
for arrays of parameters and constants.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from depthmup_flax.trace import terms as of_terms
from depthmup_flax.trace.axes import contracted_size, summed_size
from depthmup_flax.trace.constant_numbers import ConstantNumbers, constant_numbers
from depthmup_flax.trace.graph import INPUT, PARAM, Graph, Node
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.norms import Norms
from depthmup_flax.trace.residual_sums import ResidualSum
from depthmup_flax.trace.terms import Terms, common, scaled
from depthmup_flax.trace.uses import ENTRYWISE, Use, Uses
from depthmup_flax.util import primitives

_MOST_TERMS = 64


@dataclasses.dataclass(frozen=True)
class ForwardFactors:
    """The terms of every array, and the factors around products.

    Attributes:
      terms: of every array.
      before: node of a product -> the factor of its input, if all terms of that have one.
      parts: a product of two activations -> the terms of both with their factors.
      of_param: an array of parameters or constants -> the constant factor in it; NaN for one
        unknown number.
    """

    terms: Sequence[Terms]
    before: Mapping[int, float]
    parts: Mapping[int, Terms]
    of_param: Mapping[int, float]

    def deep(self, terms: Terms) -> Terms:
        """``terms`` with products of two activations replaced by the terms of their factors."""
        result: Terms = {}
        for i, factors in terms.items():
            inner: Terms = {i: factors}
            if i in self.parts:
                parts = self.deep(self.parts[i])
                inner = {j: of_terms.times(of_part, factors) for j, of_part in parts.items()}
            result = of_terms.added([result, inner])
        return result


def forward_factors(
    graph: Graph,
    uses: Uses,
    sums: Mapping[int, ResidualSum],
    norms: Norms,
) -> ForwardFactors:
    """The factors of a graph, given its residual sums by their nodes.

    Residual sums are terms of what follows, with the factor of their shortcut. Unknown numbers are
    drawn twice: a factor in which they do not cancel differs between the draws, and is NaN.
    """
    needed = graph.needed()
    numbers = constant_numbers(graph, uses.kinds, needed, seed=0)
    factors = _read(graph, uses, sums, norms, needed, numbers)
    if not numbers.are_drawn:
        return factors
    numbers = constant_numbers(graph, uses.kinds, needed, seed=1)
    return _agreeing(factors, _read(graph, uses, sums, norms, needed, numbers))


def _agreeing(factors: ForwardFactors, others: ForwardFactors) -> ForwardFactors:
    """``factors``; NaN where another draw of unknown numbers has others."""

    parts = factors.parts.items()
    return ForwardFactors(
        terms=list(map(of_terms.agreeing, factors.terms, others.terms)),
        before=_agreeing_numbers(factors.before, others.before),
        parts={i: of_terms.agreeing(terms, others.parts[i]) for i, terms in parts},
        of_param=_agreeing_numbers(factors.of_param, others.of_param),
    )


def _agreeing_numbers(
    numbers: Mapping[int, float],
    others: Mapping[int, float],
) -> dict[int, float]:
    result = {}
    for i, number in numbers.items():
        result[i] = number if of_terms.is_equal(number, others[i]) else math.nan
    return result


def _read(
    graph: Graph,
    uses: Uses,
    sums: Mapping[int, ResidualSum],
    norms: Norms,
    needed: Sequence[bool],
    numbers: ConstantNumbers,
) -> ForwardFactors:
    reader = _Reader(graph, uses, sums, norms, numbers, [{}] * len(graph.nodes))
    for i, node in enumerate(graph.nodes):
        if not needed[i]:
            continue
        if uses.kinds[i] == ACTIVATION:
            reader.terms[i] = reader.terms_of(i, node)
        else:
            reader.of_param[i] = reader.factor_of(i, node)
    return ForwardFactors(reader.terms, reader.before, reader.parts, reader.of_param)


@dataclasses.dataclass
class _Reader:
    """What is known of the arrays up to the current one; see `ForwardFactors`."""

    graph: Graph
    uses: Uses
    sums: Mapping[int, ResidualSum]
    norms: Norms
    numbers: ConstantNumbers
    terms: list[Terms]
    before: dict[int, float] = dataclasses.field(default_factory=dict)
    parts: dict[int, Terms] = dataclasses.field(default_factory=dict)
    of_param: dict[int, float] = dataclasses.field(default_factory=dict)

    def terms_of(self, i: int, node: Node) -> Terms:
        """The terms of an activation."""
        uses = self.uses.by_node.get(i, ())
        reads = [j for j in node.inputs if self.uses.kinds[j] == ACTIVATION]
        products = [use for use in uses if use.kind != ENTRYWISE]
        if products:
            self.before[i] = self._in_front(products, reads)
        if i in self.sums:
            return {i: frozenset({self._of_shortcut(self.sums[i])})}
        if products or i in self.norms.reads or node.op == INPUT or not reads:
            return {i: frozenset({self.norms.sizes.get(i, 1.0)})}
        read = _OPERATIONS.get(node.op)
        result = None if read is None else read(self, i, node, reads)
        if result is None or len(result) > _MOST_TERMS:
            return {i: frozenset({1.0})}
        if not uses:
            return result
        return of_terms.added([result, {i: frozenset({self._of_entrywise(node, uses, result)})}])

    def _of_entrywise(self, node: Node, uses: Sequence[Use], result: Terms) -> float:
        """A scale is multiplied with its array; a bias or a position has the factor in its own."""
        if node.op in primitives.SCALES:
            return common(result)
        if node.op in primitives.SUMS:
            return self.of_param.get(uses[0].view, 1.0)
        return 1.0

    def _in_front(self, products: Sequence[Use], reads: Sequence[int]) -> float:
        """The factor of what a product with a parameter reads."""
        # A weight of each example that a norm keeps at 1/sqrt(fan_in) has the size that it should
        # have.
        normalized = self.norms.reads.keys()
        weights = {use.view for use in products if self.terms[use.view].keys() <= normalized}
        return math.prod(common(self.terms[j]) for j in reads if j not in weights)

    def _of_shortcut(self, residual: ResidualSum) -> float:
        """The factor of the stream in a sum, relative to the layer before; 1 of a projection."""
        if residual.projected:
            return 1.0
        before = self.terms[residual.before]
        now = self.terms[residual.shortcut]
        factors = [(now[i], before[i]) for i in now.keys() & before.keys()]
        for i in now:
            # What this layer added, as the first of two parallel branches.
            if i in self.sums and self.sums[i].before == residual.before:
                factors.append((now[i], frozenset({1.0})))
        ratios = []
        for numerators, denominators in factors:
            for x, y in itertools.product(numerators, denominators):
                ratios.append(x / y if y else math.nan)
        several = of_terms.distinct(ratios)
        return next(iter(several)) if len(several) == 1 else 1.0

    def factor_of(self, i: int, node: Node) -> float:
        """The constant factor in an array of parameters or constants."""
        number = self.numbers.factor(i)
        if number is not None:
            return number
        factors = [self.of_param.get(j, 1.0) for j in node.inputs]
        is_vector = self.uses.kinds[i] == PARAM and sum(size > 1 for size in node.shape) == 1
        if is_vector and node.op in primitives.SCALES and math.isnan(sum(factors)):
            return 1.0  # a vector over its own norm, which makes a matrix's spectral norm
        read = _INSIDE.get(node.op, _of_others)
        return read(self, node, factors)


def _of_choice(reader: _Reader, i: int, node: Node, reads: Sequence[int]) -> Terms | None:
    """Of an array where a random mask says so, and a number elsewhere; or of any choice."""
    mask = node.inputs[0]
    if len(reads) > 1 or reader.numbers.mask_rate(mask) is None:
        return _of_sum(reader, i, node, reads)
    rate = reader.of_param[mask]
    is_chosen = reads[0] == node.inputs[-1]  # where the mask is true
    return scaled(reader.terms[reads[0]], rate if is_chosen else 1 - rate)


def _of_sum(reader: _Reader, i: int, node: Node, reads: Sequence[int]) -> Terms | None:
    """Of a sum of arrays, or of one of them, or of its entries in other places."""
    return of_terms.added([reader.terms[j] for j in reads])


def _of_a_sum_of_entries(reader: _Reader, i: int, node: Node, reads: Sequence[int]) -> Terms | None:
    (j,) = reads
    return scaled(reader.terms[j], summed_size(reader.graph.nodes[j], node))


def _of_a_transform(reader: _Reader, i: int, node: Node, reads: Sequence[int]) -> Terms | None:
    return scaled(reader.terms[reads[0]], transform_factor(node))


def transform_factor(node: Node) -> float:
    """A Fourier transform is sqrt(n) times a rotation; its inverse is divided by n."""
    size = math.prod(node.params["fft_lengths"])
    is_inverse = node.params["fft_type"].name.startswith("I")  # FFT, IFFT, RFFT or IRFFT
    return size**-0.5 if is_inverse else size**0.5


def _of_a_bound(reader: _Reader, i: int, node: Node, reads: Sequence[int]) -> Terms | None:
    """A bound of zero (a ReLU) or infinity keeps a factor; others are nonlinearities."""
    bounds = [reader.graph.nodes[j].value for j in node.inputs if j not in reads]
    if len(reads) > 1 or not bounds or bounds[0] is None:
        return None
    return reader.terms[reads[0]] if bounds[0] == 0 or math.isinf(bounds[0]) else None


def _of_a_product(reader: _Reader, i: int, node: Node, reads: Sequence[int]) -> Terms | None:
    """Times a constant; a product of two activations is a term, whose parts are remembered."""
    if len(reads) == 1:
        return _times_a_number(reader, node, reads[0])
    first, second = reads
    # Queries and keys may be parts of one product.
    roots = reader.norms.roots
    if first == second or (node.op == "mul" and roots[first] == roots[second]):
        return None
    if node.op in ("mul", "dot_general"):
        a = reader.terms[first]
        b = reader.terms[second]
        reader.parts[i] = of_terms.added([scaled(a, common(b)), scaled(b, common(a))])
    return None


def _times_a_number(reader: _Reader, node: Node, j: int) -> Terms | None:
    """A mask of zeros or infinities is no factor; a number over an array is a nonlinearity."""
    others = [k for k in node.inputs if k != j]
    number = reader.of_param[others[-1]] if others else 1.0
    if node.op == "dot_general" and others and reader.graph.nodes[others[-1]].value is not None:
        number *= contracted_size(reader.graph, node)  # a sum over equal numbers
    is_divisor = node.op == "div" and node.inputs[0] != j
    if number == 0 or math.isinf(number) or is_divisor:
        return None
    return scaled(reader.terms[j], 1 / number if node.op == "div" else number)


# Primitive -> (reader, node's number, node, activations that it reads) -> the terms of its result;
# ``None`` if the result is a term of its own.
_OPERATIONS: Mapping[str, Callable[[_Reader, int, Node, Sequence[int]], Terms | None]] = {
    **dict.fromkeys(primitives.SUMS | primitives.LINEAR, _of_sum),
    **dict.fromkeys(primitives.SCALES | primitives.PRODUCTS, _of_a_product),
    "select_n": _of_choice,
    "cond": _of_choice,
    "reduce_sum": _of_a_sum_of_entries,
    "fft": _of_a_transform,
    "max": _of_a_bound,
    "min": _of_a_bound,
}


def _inside_product(reader: _Reader, node: Node, factors: Sequence[float]) -> float:
    return math.prod(factors)


def _inside_quotient(reader: _Reader, node: Node, factors: Sequence[float]) -> float:
    top, bottom = factors
    return top / bottom if bottom else math.nan


def _inside_the_first(reader: _Reader, node: Node, factors: Sequence[float]) -> float:
    return factors[0]


def _inside_sum(reader: _Reader, node: Node, factors: Sequence[float]) -> float:
    """That of all arrays that are no numbers."""
    nodes = reader.graph.nodes
    pairs = zip(node.inputs, factors, strict=True)
    of_arrays = {factor for j, factor in pairs if nodes[j].value is None}
    return of_arrays.pop() if len(of_arrays) == 1 else _of_others(reader, node, factors)


def _inside_sum_of_entries(reader: _Reader, node: Node, factors: Sequence[float]) -> float:
    """A sum of everything, as of squares, is one unknown number."""
    is_norm = node.size == 1 < reader.graph.nodes[node.inputs[0]].size
    return math.nan if is_norm else _of_others(reader, node, factors)


def _of_others(reader: _Reader, node: Node, factors: Sequence[float]) -> float:
    """What another operation makes has no factor of its own, unless it reads what is unknown."""
    return math.nan if any(map(math.isnan, factors)) else 1.0


# Primitive -> (reader, node, factors in its inputs) -> the factor in an array of parameters or
# constants.
_INSIDE: Mapping[str, Callable[[_Reader, Node, Sequence[float]], float]] = {
    **dict.fromkeys(primitives.SAME_PLACE | primitives.MOVES | {"gather"}, _inside_the_first),
    **dict.fromkeys(primitives.SUMS | {"select_n", "concatenate"}, _inside_sum),
    "mul": _inside_product,
    "dot_general": _inside_product,
    "div": _inside_quotient,
    "reduce_sum": _inside_sum_of_entries,
}
