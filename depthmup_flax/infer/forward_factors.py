"""The constant factors of a forward pass, from each product with a parameter to where it is used.

An array is, up to constants, a sum of *terms*: products with parameters, normalized arrays, arrays after a
nonlinearity, the stream. A term's factor is the product of the constants that multiply it. Signs are ignored. A sum
over ``n`` entries counts as ``n``, so a mean has the factor 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from depthmup_flax.infer.dataflow import INPUT, PARAM, STATE, Graph, Node
from depthmup_flax.infer.parameter_uses import ACTIVATION, ENTRYWISE, MOVES, SAME_PLACE, Uses

# Node of a term -> its factors; several if it is added to itself with different ones.
Terms: TypeAlias = Mapping[int, frozenset[float]]

_SUMS = frozenset({"add", "sub", "add_any"})
_LINEAR = (
    SAME_PLACE
    | MOVES
    | {"concatenate", "select_n", "reduce_max", "reduce_min", "reduce_window_sum", "cumsum", "sort", "cond", "gather",
       "scatter", "scatter-add", "dynamic_update_slice"}
)  # fmt: skip
_SMALL = 1e-2  # the largest epsilon in a norm
_MOST_TERMS = 64


@dataclasses.dataclass(frozen=True)
class Homogeneity:
    """Of each activation, the power with which it grows if its root is multiplied by a number."""

    roots: Sequence[int]
    degrees: Sequence[float]
    norms: Mapping[int, int]  # a normalized array, which no factor of its input changes -> that input
    sizes: Mapping[int, float]  # a normalized array -> the root mean square of its entries, up to what all models share


def homogeneity(graph: Graph, uses: Uses) -> Homogeneity:
    """Where an array is normalized, whatever the norm: there the degree is zero."""
    roots, degrees, norms = list(range(len(graph.nodes))), [1.0] * len(graph.nodes), {}
    products = {use.node for use in uses.uses if use.kind != ENTRYWISE}
    rooted: set[int] = set()  # square roots of running averages
    mixed: dict[int, _Pieces] = {}
    size, sizes = [1.0] * len(graph.nodes), {}
    for i, node in enumerate(graph.nodes):
        if node.op in ("sqrt", "rsqrt") and uses.kinds[i] == STATE:
            rooted.add(i)
        elif uses.kinds[i] != ACTIVATION:
            if any(j in rooted for j in node.inputs):
                rooted.add(i)
            continue
        if uses.kinds[i] != ACTIVATION:
            continue
        reads = [j for j in node.inputs if uses.kinds[j] == ACTIVATION]
        if node.op in ("mul", "div") and len(reads) == 1 and any(j in rooted for j in node.inputs):
            norms[i] = reads[0]
            continue
        if i in products or not reads:
            continue
        pieces = _pieces(graph, i, reads, roots, degrees, mixed)
        if pieces is not None:
            mixed[i], roots[i] = pieces, roots[reads[0]]
            continue
        piece = mixed.get(reads[0])
        degree = _degree(graph, i, reads, roots, degrees) if piece is None else _of_piece(node, piece)
        if degree is None:
            continue
        size[i] = _size(graph, i, reads, size, degrees)
        if degree == 0:
            norms[i] = max(reads, key=lambda j: degrees[j])
            sizes[i], size[i] = size[i], 1.0
        else:
            roots[i], degrees[i] = roots[reads[0]], degree
    return Homogeneity(roots, degrees, norms, sizes)


def _size(graph: Graph, i: int, reads: Sequence[int], size: Sequence[float], degrees: Sequence[float]) -> float:
    """How large entries are in powers of their root's: a sum of ``n`` squares is ``n`` times a square."""
    node, first = graph.nodes[i], size[reads[0]]
    values = [graph.nodes[j].value for j in node.inputs if j not in reads]
    constant = abs(values[0]) if values and values[0] is not None and values[0] != 0 else 1.0
    if node.op == "reduce_sum" and degrees[reads[0]] == 2:
        return first * math.prod(graph.nodes[reads[0]].shape) / max(math.prod(node.shape), 1)
    if node.op == "mul":
        return math.prod(size[j] for j in node.inputs if j in reads) * constant
    if node.op == "div":
        top, bottom = (size[j] if j in reads else constant for j in node.inputs)
        # The number of terms of a mean of squares cancels that of the sum; other means are not counted.
        return top / bottom if len(reads) == 2 or degrees[reads[0]] != 1 else first
    powers = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "integer_pow": node.params.get("y", 1)}
    return first ** powers.get(node.op, 1.0)


# The axis of a concatenation, and where each part ends with its degree: a BatchNorm over devices sums its means and its
# means of squares together.
_Pieces: TypeAlias = tuple[int, tuple[tuple[int, float], ...]]


def _pieces(
    graph: Graph,
    i: int,
    reads: Sequence[int],
    roots: Sequence[int],
    degrees: Sequence[float],
    mixed: Mapping[int, _Pieces],
) -> _Pieces | None:
    node = graph.nodes[i]
    if len(reads) == 1 and reads[0] in mixed:
        return mixed[reads[0]] if node.op in SAME_PLACE or node.op in ("mul", "div") else None
    all_read = len(reads) == len(node.inputs) and len({roots[j] for j in reads}) == 1
    if node.op not in ("concatenate", "stack") or not all_read or len({degrees[j] for j in reads}) == 1:
        return None
    axis = node.params["dimension"] if node.op == "concatenate" else node.params["axis"]
    sizes = [graph.nodes[j].shape[axis] if node.op == "concatenate" else 1 for j in reads]
    return axis, tuple((sum(sizes[: k + 1]), degrees[j]) for k, j in enumerate(reads))


def _of_piece(node: Node, pieces: _Pieces) -> float | None:
    """The degree of a slice of one part, or ``None``."""
    axis, ends = pieces
    if node.op != "slice":
        return None
    start, stop = node.params["start_indices"][axis], node.params["limit_indices"][axis]
    for end, degree in ends:
        if start < end:
            return degree if stop <= end else None
    return None


def _degree(graph: Graph, i: int, reads: Sequence[int], roots: Sequence[int], degrees: Sequence[float]) -> float | None:
    """The degree in the root of the first operand, or ``None`` if there is none."""
    node, degree = graph.nodes[i], degrees[reads[0]]
    op, others = node.op, [graph.nodes[j].value for j in node.inputs if j not in reads]
    if len({roots[j] for j in reads}) > 1:
        return None
    if op in SAME_PLACE | MOVES or op in ("abs", "cumsum", "reduce_window_sum") or op.startswith("reduce_"):
        return degree
    if op == "mul":
        return sum(degrees[j] for j in node.inputs if j in reads)
    if op == "div":
        top, bottom = (degrees[j] if j in reads else 0.0 for j in node.inputs)
        return top - bottom
    powers = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "integer_pow": node.params.get("y", 1)}
    if op in powers:
        return powers[op] * degree
    if op in ("add", "sub", "max", "min", "add_any", "select_n", "concatenate"):
        small = all(v is not None and (abs(v) <= _SMALL or math.isinf(v)) for v in others)
        masks = op == "select_n"
        return degree if len({degrees[j] for j in reads}) == 1 and (small or masks) else None
    return None


@dataclasses.dataclass(frozen=True)
class Factors:
    """The terms of every array, and the factors around products."""

    terms: Sequence[Terms]
    before: Mapping[int, float]  # node of a product -> the factor of its input, if all terms of that have one
    parts: Mapping[int, Terms]  # a product of two activations -> the terms of both with their factors
    of_param: Mapping[int, float]  # an array of parameters or constants -> the constant factor in it

    def deep(self, terms: Terms) -> Terms:
        """``terms`` with products of two activations replaced by the terms of their factors."""
        result: dict[int, frozenset[float]] = {}
        for i, factors in terms.items():
            if i in self.parts:
                inner = {j: _times(f, factors) for j, f in self.deep(self.parts[i]).items()}
                result = dict(_union([result, inner]))
            else:
                result = dict(_union([result, {i: factors}]))
        return result


def forward_factors(graph: Graph, uses: Uses, sums: Collection[int], shape: Homogeneity) -> Factors:
    """The factors of every term; ``sums`` are the nodes of residual sums, which are terms of what follows."""
    needed, at = graph.needed(), uses.by_node()
    terms: list[Terms] = [{}] * len(graph.nodes)
    before: dict[int, float] = {}
    parts: dict[int, Terms] = {}
    of_param: dict[int, float] = {}
    for i, node in enumerate(graph.nodes):
        if not needed[i]:
            continue
        if uses.kinds[i] != ACTIVATION:
            of_param[i] = _factor_inside(graph, i, of_param)
            continue
        reads = [j for j in node.inputs if uses.kinds[j] == ACTIVATION]
        products = [use for use in at.get(i, ()) if use.kind != ENTRYWISE]
        if products:
            before[i] = math.prod(common(terms[j]) for j in reads)
        if products or i in sums or i in shape.norms or node.op == INPUT or not reads:
            terms[i] = {i: frozenset({shape.sizes.get(i, 1.0)})}
            continue
        result = _terms(graph, i, reads, terms, shape, parts, of_param)
        if result is None or len(result) > _MOST_TERMS:
            result = {i: frozenset({1.0})}
        elif i in at:  # a bias, a position, a scale
            result = _union([result, {i: frozenset({1.0})}])
        terms[i] = result
    return Factors(terms, before, parts, of_param)


def common(terms: Terms) -> float:
    """The factor of all terms, or 1 if they differ."""
    factors = _distinct(f for several in terms.values() for f in several)
    return next(iter(factors)) if len(factors) == 1 else 1.0


def _terms(
    graph: Graph,
    i: int,
    reads: Sequence[int],
    terms: Sequence[Terms],
    shape: Homogeneity,
    parts: dict[int, Terms],
    of_param: Mapping[int, float],
) -> Terms | None:
    """The terms of an operation's result; ``None`` if the result is a term of its own."""
    node = graph.nodes[i]
    if node.op in _SUMS or node.op in _LINEAR:
        return _union([terms[j] for j in reads])
    if node.op == "reduce_sum":
        size = math.prod(graph.nodes[reads[0]].shape) / max(math.prod(node.shape), 1)
        return scaled(terms[reads[0]], size)
    if node.op in ("max", "min") and len(reads) == 1:
        (bound,) = [graph.nodes[j].value for j in node.inputs if j not in reads] or [None]
        return terms[reads[0]] if bound is not None and (bound == 0 or math.isinf(bound)) else None
    if len(reads) == 1 and node.op in ("mul", "div", "dot_general", "conv_general_dilated"):
        if node.op == "div" and node.inputs[0] != reads[0]:
            return None
        value = 1.0
        for j in node.inputs:
            if j != reads[0]:
                value = of_param[j]
        if value == 0 or math.isinf(value):
            return None
        return scaled(terms[reads[0]], 1 / value if node.op == "div" else value)
    # Queries and keys may be parts of one product.
    different = node.op == "dot_general" or (node.op == "mul" and shape.roots[reads[0]] != shape.roots[reads[1]])
    if len(reads) == 2 and reads[0] != reads[1] and different:
        a, b = (terms[j] for j in reads)
        parts[i] = _union([scaled(a, common(b)), scaled(b, common(a))])
    return None


def _factor_inside(graph: Graph, i: int, known: Mapping[int, float]) -> float:
    """The constant factor in an array of parameters or constants; NaN for one unknown number."""
    node = graph.nodes[i]
    if node.value is not None:
        return abs(node.value)
    if node.op in ("mul", "dot_general"):
        return math.prod(known[j] for j in node.inputs)
    if node.op == "div":
        return known[node.inputs[0]] / known[node.inputs[1]] if known[node.inputs[1]] else math.nan
    if node.inputs and node.op in SAME_PLACE | MOVES | {"gather"}:
        return known[node.inputs[0]]
    factors = {known[j] for j in node.inputs if graph.nodes[j].value is None}
    if node.op in _SUMS | {"select_n", "concatenate"} and len(factors) == 1:
        return factors.pop()
    return math.nan if math.prod(node.shape) == 1 and node.op != PARAM else 1.0


def scaled(terms: Terms, factor: float) -> Terms:
    """``terms`` times a number."""
    return terms if factor == 1 else {i: _times(factors, frozenset({factor})) for i, factors in terms.items()}


def _times(a: frozenset[float], b: frozenset[float]) -> frozenset[float]:
    return _distinct(x * y for x in a for y in b)


def _distinct(factors: Iterable[float]) -> frozenset[float]:
    """Without those that differ by rounding; constants are stored in float32."""
    kept: list[float] = []
    factors = list(factors)
    if any(map(math.isnan, factors)):
        return frozenset({math.nan})
    for x in sorted(factors):
        if not kept or not math.isclose(x, kept[-1], rel_tol=1e-5):
            kept.append(x)
    return frozenset(kept)


def _union(several: Sequence[Terms]) -> Terms:
    result = dict(several[0])
    for terms in several[1:]:
        for i, factors in terms.items():
            result[i] = _distinct(result[i] | factors) if i in result else factors
    return result
