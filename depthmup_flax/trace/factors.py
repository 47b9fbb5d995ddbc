"""The constant factors of a forward pass, from each product with a parameter to where it is used.

An array is, up to constants, a sum of *terms*: products with parameters, normalized arrays, arrays after a
nonlinearity, the stream. A term's factor is the product of the constants that multiply it. Signs are ignored. A sum
over ``n`` entries counts as ``n``, so a mean has the factor 1.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from depthmup_flax.trace.constants import folded
from depthmup_flax.trace.graph import CONST, INPUT, PARAM, STATE, Graph, Node
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.residual_sums import ResidualSum
from depthmup_flax.trace.uses import ENTRYWISE, Uses
from depthmup_flax.util import primitives


class Numbers:
    """The numbers of a graph. Those that are unknown are drawn between 0.3 and 0.7, so a keep rate is one, too.

    A random mask is the mean of its entries, its keep rate, so a mask over its keep rate is 1.

    Attributes:
      drawn: whether a number is unknown.
    """

    def __init__(self, graph: Graph, kinds: Sequence[str], seed: int):
        self._nodes, self._kinds, self._seed = graph.nodes, kinds, seed
        self._known: dict[int, float | None] = {}
        self._random: set[int] = set()
        self.drawn = False

    def of(self, i: int) -> float | None:
        """The number that all entries of a constant are, or the mean of a random mask; else ``None``.

        It is called for all constants of a graph, in its order.
        """
        node = self._nodes[i]
        result = node.value
        if node.params.get("modulus"):
            return node.params["modulus"]  # of a complex number, which folds otherwise
        if node.op in primitives.DRAWS or any(j in self._random for j in node.inputs):
            self._random.add(i)
            result = self._mean(node)
        elif result is None and self._kinds[i] in (CONST, STATE):
            result = self._folded(node)
            if result is None and math.prod(node.shape) == 1:
                result, self.drawn = random.Random(f"{self._seed} {i}").uniform(0.3, 0.7), True
        self._known[i] = result
        return result

    def is_mask(self, i: int) -> bool:
        """Whether an array is a random mask of a known mean."""
        return i in self._random and self._known[i] is not None

    def number(self, i: int) -> float | None:
        """The number of an array that `of` was called for, or of any other constant."""
        return self._known.get(i, self._nodes[i].value)

    def _folded(self, node: Node) -> float | None:
        count = math.prod(self._nodes[node.inputs[0]].shape) / max(math.prod(node.shape), 1) if node.inputs else 1.0
        return folded(node.op, node.params, list(map(self.number, node.inputs)), count)

    def _mean(self, node: Node) -> float | None:
        """The mean of a mask that compares uniform random numbers with a number, or is made of such masks."""
        if node.op in primitives.LESS | primitives.GREATER:
            place = next((k for k, j in enumerate(node.inputs) if j not in self._random), None)
            bound = None if place is None else self.number(node.inputs[place])
            is_below = (node.op in primitives.LESS) == (place == 1)  # the mask is where the random number is less
            return bound if bound is None or is_below else 1 - bound
        if node.op == "floor":  # of a keep rate plus a random number
            inner = self._nodes[node.inputs[0]]
            rates = [self.number(j) for j in inner.inputs if j not in self._random]
            return rates[0] if inner.op == "add" and rates else None
        mean = self.number(node.inputs[0]) if node.op == "not" else None
        if mean is not None:
            return 1 - mean
        mean = (
            self._folded(node)
            if node.op in primitives.SAME_PLACE | primitives.MOVES | primitives.SCALES | primitives.SUMS
            else None
        )
        return mean or None  # of random signs, it is no size


# Node of a term -> its factors; several if it is added to itself with different ones.
Terms: TypeAlias = Mapping[int, frozenset[float]]

_SMALL = 1e-2  # the largest epsilon in a norm
_MOST_TERMS = 64


class Homogeneity:
    """Where activations are normalized, whatever the norm: where they do not grow with their root.

    Attributes:
      roots: for each node, the node that it is compared with.
      degrees: the power with which the node grows if its root is multiplied by a number.
      norms: a normalized array, whose degree is 0 -> the array that is normalized.
      sizes: a normalized array -> the root mean square of its entries, up to what all models share.
    """

    def __init__(self, graph: Graph, uses: Uses):
        self.graph, size = graph, len(graph.nodes)
        self.roots, self.degrees, self.norms = list(range(size)), [1.0] * size, dict[int, int]()
        self.sizes: dict[int, float] = {}
        self._size = [1.0] * size  # of entries, in powers of their root's
        products = {use.node for use in uses.uses if use.kind != ENTRYWISE}
        rooted: set[int] = set()  # square roots of running averages
        for i, node in enumerate(graph.nodes):
            reads_root = any(j in rooted for j in node.inputs)
            if uses.kinds[i] != ACTIVATION:
                if reads_root or (node.op in ("sqrt", "rsqrt") and uses.kinds[i] == STATE):
                    rooted.add(i)
                continue
            reads = [j for j in node.inputs if uses.kinds[j] == ACTIVATION]
            if node.op in primitives.SCALES and len(reads) == 1 and reads_root:
                self.norms[i] = reads[0]
            elif i not in products and reads:
                self._read(i, reads)

    def _read(self, i: int, reads: Sequence[int]) -> None:
        degree = self._degree(i, reads)
        if degree is None:
            return
        size = self._size_of(i, reads)
        if degree == 0:
            self.norms[i], self.sizes[i] = max(reads, key=lambda j: self.degrees[j]), size
        else:
            self.roots[i], self.degrees[i], self._size[i] = self.roots[reads[0]], degree, size

    def _size_of(self, i: int, reads: Sequence[int]) -> float:
        """How large entries are in powers of their root's: a sum of ``n`` squares is ``n`` times a square."""
        node, first, degree = self.graph.nodes[i], self._size[reads[0]], self.degrees[reads[0]]
        values = [self.graph.nodes[j].value for j in node.inputs if j not in reads]
        constant = abs(values[0]) if values and values[0] else 1.0
        if node.op == "reduce_sum" and degree == 2:
            return first * _summed(self.graph, i, reads[0])
        if node.op == "mul":
            return math.prod(self._size[j] for j in node.inputs if j in reads) * constant
        if node.op == "div":
            top, bottom = (self._size[j] if j in reads else constant for j in node.inputs)
            # The number of terms of a mean of squares cancels that of the sum; other means are not counted.
            return top / bottom if len(reads) == 2 or degree != 1 else first
        return first ** _power(node, 1.0)

    def _degree(self, i: int, reads: Sequence[int]) -> float | None:
        """The degree in the root of the first operand, or ``None`` if there is none."""
        node, degree = self.graph.nodes[i], self.degrees[reads[0]]
        op, others = node.op, [self.graph.nodes[j].value for j in node.inputs if j not in reads]
        if len({self.roots[j] for j in reads}) > 1:
            return None
        if (
            op in primitives.SAME_PLACE | primitives.MOVES
            or op in ("abs", "cumsum", "reduce_window_sum")
            or op.startswith("reduce_")
        ):
            return degree
        if op == "mul":
            return sum(self.degrees[j] for j in node.inputs if j in reads)
        if op == "div":
            top, bottom = (self.degrees[j] if j in reads else 0.0 for j in node.inputs)
            return top - bottom
        if op in primitives.SUMS or op in ("complex", "max", "min", "select_n", "concatenate"):
            small = all(v is not None and (abs(v) <= _SMALL or math.isinf(v)) for v in others)
            equal = len({self.degrees[j] for j in reads}) == 1
            return degree if equal and (small or op == "select_n") else None
        power = _power(node, math.nan)
        return None if math.isnan(power) else power * degree


def _power(node: Node, otherwise: float) -> float:
    return node.params["y"] if node.op == "integer_pow" else primitives.POWERS.get(node.op, otherwise)


def _summed(graph: Graph, i: int, j: int) -> float:
    """How many entries of node ``j`` are summed into one of node ``i``."""
    return math.prod(graph.nodes[j].shape) / max(math.prod(graph.nodes[i].shape), 1)


def forward_factors(graph: Graph, uses: Uses, sums: Mapping[int, ResidualSum], shape: Homogeneity) -> ForwardFactors:
    """The factors of a graph. Unknown numbers, such as rates that differ by layer, are drawn.

    They are drawn twice: a factor in which they do not cancel differs between the draws, and is NaN.
    """
    first = ForwardFactors(graph, uses, sums, shape, seed=0)
    if first.numbers.drawn:
        first.forget_what_differs(ForwardFactors(graph, uses, sums, shape, seed=1))
    return first


class ForwardFactors:
    """The terms of every array, and the factors around products.

    ``sums`` are the residual sums by their nodes, which are terms of what follows, with the factor of their shortcut;
    ``seed`` draws unknown numbers.

    Attributes:
      terms: of every array.
      before: node of a product -> the factor of its input, if all terms of that have one.
      parts: a product of two activations -> the terms of both with their factors.
      of_param: an array of parameters or constants -> the constant factor in it; NaN for one unknown number.
      numbers: of constants and random masks.
    """

    def __init__(self, graph: Graph, uses: Uses, sums: Mapping[int, ResidualSum], shape: Homogeneity, seed: int):
        self.graph, self.shape, self.numbers = graph, shape, Numbers(graph, uses.kinds, seed)
        self._sums = sums
        self.terms: list[Terms] = [{}] * len(graph.nodes)
        self.before: dict[int, float] = {}
        self.parts: dict[int, Terms] = {}
        self.of_param: dict[int, float] = {}
        needed, at = graph.needed(), uses.by_node
        for i, node in enumerate(graph.nodes):
            if not needed[i]:
                continue
            if uses.kinds[i] != ACTIVATION:
                number = self.numbers.of(i)
                self.of_param[i] = self._inside(node, uses.kinds[i]) if number is None else abs(number)
                continue
            reads = [j for j in node.inputs if uses.kinds[j] == ACTIVATION]
            products = [use for use in at.get(i, ()) if use.kind != ENTRYWISE]
            if products:
                # A weight of each example that a norm keeps at 1/sqrt(fan_in) has the size that it should have.
                kept = {use.view for use in products if self.terms[use.view].keys() <= shape.norms.keys()}
                self.before[i] = math.prod(common(self.terms[j]) for j in reads if j not in kept)
            if products or i in sums or i in shape.norms or node.op == INPUT or not reads:
                own = self._of_shortcut(sums[i]) if i in sums else shape.sizes.get(i, 1.0)
                self.terms[i] = {i: frozenset({own})}
                continue
            result = self._of_operation(i, reads)
            if result is None or len(result) > _MOST_TERMS:
                result = {i: frozenset({1.0})}
            elif i in at:  # a scale, which is multiplied with its array; or a bias or a position, which is not
                result = _union([result, {i: frozenset({common(result) if node.op in primitives.SCALES else 1.0})}])
            self.terms[i] = result

    def forget_what_differs(self, other: ForwardFactors) -> None:
        """Lets factors be NaN that ``other``, of another draw, does not have."""
        for mine, theirs in ((self.before, other.before), (self.of_param, other.of_param)):
            mine.update({i: x if _equal(x, theirs[i]) else math.nan for i, x in mine.items()})
        self.parts = {i: _common_factors(terms, other.parts[i]) for i, terms in self.parts.items()}
        self.terms = list(map(_common_factors, self.terms, other.terms))

    def _of_shortcut(self, s: ResidualSum) -> float:
        """The factor of the stream in a sum, relative to the layer before; 1 if the shortcut is projected."""
        before, now = self.terms[s.before], self.terms[s.shortcut]
        factors = [(now[i], before[i]) for i in now.keys() & before.keys()]
        # What this layer added, as the first of two parallel branches.
        own = [i for i in now if i in self._sums and self._sums[i].before == s.before]
        factors += [(now[i], frozenset({1.0})) for i in own]
        ratios = _distinct(x / y if y else math.nan for a, b in factors for x, y in itertools.product(a, b))
        return next(iter(ratios)) if len(ratios) == 1 and not s.projected else 1.0

    def deep(self, terms: Terms) -> Terms:
        """``terms`` with products of two activations replaced by the terms of their factors."""
        result: Terms = {}
        for i, factors in terms.items():
            inner = {i: factors}
            if i in self.parts:
                inner = {j: _times(f, factors) for j, f in self.deep(self.parts[i]).items()}
            result = _union([result, inner])
        return result

    def _of_operation(self, i: int, reads: Sequence[int]) -> Terms | None:
        """The terms of an operation's result; ``None`` if the result is a term of its own."""
        node, terms, roots = self.graph.nodes[i], [self.terms[j] for j in reads], self.shape.roots
        others = [j for j in node.inputs if j not in reads]
        if node.op in ("select_n", "cond") and len(reads) == 1 and self.numbers.is_mask(node.inputs[0]):
            kept = self.of_param[node.inputs[0]]
            return scaled(terms[0], kept if reads[0] == node.inputs[-1] else 1 - kept)
        if node.op in primitives.SUMS or node.op in primitives.LINEAR:
            return _union(terms)
        if node.op == "reduce_sum":
            return scaled(terms[0], _summed(self.graph, i, reads[0]))
        if node.op == "fft":  # sqrt(n) times a rotation; its inverse is divided by n
            size, is_inverse = math.prod(node.params["fft_lengths"]), "I" in str(node.params["fft_type"])
            return scaled(terms[0], size**-0.5 if is_inverse else size**0.5)
        if node.op in ("max", "min") and len(reads) == 1:
            bound = self.graph.nodes[others[0]].value if others else None
            return terms[0] if bound is not None and (bound == 0 or math.isinf(bound)) else None
        if len(reads) == 1 and node.op in primitives.SCALES | primitives.PRODUCTS:
            value = self.of_param[others[-1]] if others else 1.0
            if value == 0 or math.isinf(value) or (node.op == "div" and node.inputs[0] != reads[0]):
                return None
            return scaled(terms[0], 1 / value if node.op == "div" else value)
        # Queries and keys may be parts of one product.
        different = node.op == "dot_general" or (node.op == "mul" and roots[reads[0]] != roots[reads[1]])
        if len(reads) == 2 and reads[0] != reads[1] and different:
            a, b = terms
            self.parts[i] = _union([scaled(a, common(b)), scaled(b, common(a))])
        return None

    def _inside(self, node: Node, kind: str) -> float:
        """The constant factor in an array of parameters or constants."""
        nodes, known = self.graph.nodes, [self.of_param.get(j, 1.0) for j in node.inputs]
        is_vector = sum(n > 1 for n in node.shape) == 1
        if node.op in primitives.SCALES and is_vector and math.isnan(sum(known)) and kind == PARAM:
            return 1.0  # a vector over its own norm, which makes a matrix's spectral norm
        if node.op in ("mul", "dot_general"):
            return math.prod(known)
        if node.op == "div":
            return known[0] / known[1] if known[1] else math.nan
        if known and node.op in primitives.SAME_PLACE | primitives.MOVES | {"gather"}:
            return known[0]
        factors = {f for j, f in zip(node.inputs, known, strict=True) if nodes[j].value is None}
        if node.op in primitives.SUMS | {"select_n", "concatenate"} and len(factors) == 1:
            return factors.pop()
        is_norm = node.op == "reduce_sum" and math.prod(node.shape) == 1 < math.prod(nodes[node.inputs[0]].shape)
        return math.nan if is_norm or any(map(math.isnan, known)) else 1.0


def _equal(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-5) or math.isnan(a)


def _common_factors(mine: Terms, theirs: Terms) -> Terms:
    """The factors of ``mine``; NaN for a term whose factors ``theirs`` has not."""
    equal = lambda a, b: len(a) == len(b) and all(map(_equal, sorted(a), sorted(b)))
    return {i: f if equal(f, theirs.get(i, frozenset())) else frozenset({math.nan}) for i, f in mine.items()}


def common(terms: Terms) -> float:
    """The factor of all terms, or 1 if they differ."""
    factors = _distinct(f for several in terms.values() for f in several)
    return next(iter(factors)) if len(factors) == 1 else 1.0


def scaled(terms: Terms, factor: float) -> Terms:
    """``terms`` times a number."""
    return terms if factor == 1 else {i: _times(factors, frozenset({factor})) for i, factors in terms.items()}


def _times(a: frozenset[float], b: frozenset[float]) -> frozenset[float]:
    return _distinct(x * y for x in a for y in b)


def _distinct(factors: Iterable[float]) -> frozenset[float]:
    """Without those that differ by rounding; constants are stored in float32."""
    kept: list[float] = []
    for x in sorted(factors):
        if math.isnan(x):
            return frozenset({math.nan})
        if not kept or not math.isclose(x, kept[-1], rel_tol=1e-5):
            kept.append(x)
    return frozenset(kept)


def _union(several: Sequence[Terms]) -> Terms:
    result = dict(several[0])
    for terms in several[1:]:
        for i, factors in terms.items():
            result[i] = _distinct(result[i] | factors) if i in result else factors
    return result
