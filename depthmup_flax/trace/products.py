"""The factors in front of each product with a parameter, and behind it up to what reads it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from depthmup_flax.trace.axes import contracted_size
from depthmup_flax.trace.graph import Place
from depthmup_flax.trace.reading import Reading
from depthmup_flax.trace.terms import Factors, Terms, common, joined, scaled
from depthmup_flax.trace.uses import ENTRYWISE, LOOKUP, PRODUCT, Use
from depthmup_flax.util.primitives import SUMS


@dataclasses.dataclass(frozen=True)
class Bias:
    """A parameter that is added to the product of another."""

    path: str
    place: Place
    factor: float  # of the product there, and of what the product reads


def readouts(reading: Reading) -> dict[str, Factors]:
    """`Traced.readouts`: factors up to the output of products after which no other comes.

    The last product may be one of two networks' features, such as the similarity of images and
    texts. Readouts that are multiplied with each other share the factor of all equally.
    """
    output = reading.graph.output
    pairs = _readouts_of(reading, output, 1.0, set(reading.sums)).pairs
    for i, factors in reading.terms(output).items():
        if not reading.uses_at(i):
            of_part = _of_part(reading, i)
            pairs.append(("", frozenset(f * of_part for f in factors)))
    return joined(pairs)


class _Readouts(NamedTuple):
    """The readouts that an array is made of, and how many of them are multiplied in a term.

    None if they are in a nonlinearity that keeps no factor.
    """

    pairs: list[tuple[str, Factors]]
    number: float


def _readouts_of(reading: Reading, node: int, factor: float, seen: set[int]) -> _Readouts:
    pairs: list[tuple[str, Factors]] = []
    number = 0.0
    for i, factors in reading.terms(node).items():
        ended = _ended(reading, i, factors, factor)
        pairs += ended
        number = max(number, float(bool(ended)))
        if i in seen or not _is_looked_through(reading, i):
            continue
        seen.add(i)
        passed = _passed(reading, i, factor * min(factors))
        reads = [j for j in reading.activations(i) if j != i]
        if i in reading.factors.parts and len(reads) == 2:
            inner = _shared(passed, [_readouts_of(reading, j, 1.0, seen) for j in reads])
            pairs += inner.pairs
            number = max(number, inner.number)
            continue
        for j in reads:
            inner = _readouts_of(reading, j, passed, seen)
            pairs += inner.pairs
            number = max(number, inner.number * _degree(reading, i))
    return _Readouts(pairs, number)


def _shared(factor: float, sides: Sequence[_Readouts]) -> _Readouts:
    """The readouts of a product of two arrays, which share its factor."""
    number = sum(side.number for side in sides)
    pairs: list[tuple[str, Factors]] = []
    for side in sides:
        if side.number:
            factor *= common(dict(enumerate(factors for _, factors in side.pairs))) ** side.number
        else:
            pairs += side.pairs
    for side in sides:
        if side.number:
            share = frozenset({factor ** (1 / number)})
            pairs += [(path, share) for path, _ in side.pairs]
    return _Readouts(pairs, number)


def _ended(reading: Reading, i: int, factors: Factors, factor: float) -> list[tuple[str, Factors]]:
    """The products outside of branches that end in a term."""
    paths = {use.path for use in reading.products_at(i) if not reading.inside[use.path]}
    if not paths:
        return []
    of_paths = reading.of_uses({i: factors}, before=True)
    return [(path, frozenset(f * factor for f in of_paths[path])) for path in paths]


def _is_softmax(reading: Reading, i: int) -> bool:
    reads = reading.norms.reads
    return i in reads and reading.graph.nodes[reads[i]].op == "exp"


def _is_looked_through(reading: Reading, i: int) -> bool:
    """Whether products may come before a term: it is no product, no norm, and no bias."""
    if reading.products_at(i) or reading.terms(i).keys() != {i}:
        return False
    return i not in reading.norms.reads or _is_softmax(reading, i)


def _passed(reading: Reading, i: int, factor: float) -> float:
    """The factor of what a term is made of, given that of the term."""
    degree = _degree(reading, i)
    if degree:
        return factor ** (1 / degree)
    return factor if i in reading.factors.parts else 1.0


def _degree(reading: Reading, i: int) -> float:
    """The power of its input that a term is; 0 of a nonlinearity without one."""
    has_degree = not _is_softmax(reading, i) and reading.norms.roots[i] != i
    return reading.norms.degrees[i] if has_degree else 0.0


def _of_part(reading: Reading, i: int) -> float:
    """The factors in a product of two activations that no parameter makes.

    The number of terms that it sums is one.
    """
    if i not in reading.factors.parts:
        return 1.0
    node = reading.graph.nodes[i]
    size = contracted_size(reading.graph, node) if node.op == "dot_general" else 1
    sides = [reading.not_made(reading.terms(j)) for j in reading.activations(i)]
    return size * math.prod(map(common, sides))


def between_products(reading: Reading, readouts: Collection[str]) -> dict[str, Factors]:
    """`Traced.own`: factors from each product to where it is used, outside the ends of branches."""
    # Shortcuts win: what a branch's first layer multiplies the stream with does not count.
    sums = reading.streams.sums
    shortcuts = [residual.shortcut if residual.projected else residual.before for residual in sums]
    of_streams = reading.of_uses(*map(reading.terms, shortcuts))
    absorbed = []
    for read in reading.absorbed(readouts):
        front = common(reading.not_made(read.terms)) if read.by_product else 1.0
        is_known = front and not math.isnan(front)
        absorbed.append(scaled(read.terms, 1 / front) if is_known else read.terms)
    others = reading.of_uses(*absorbed, *_normalized_sums(reading))
    return {**of_streams, **others, **of_streams}


def _normalized_sums(reading: Reading) -> Iterator[Terms]:
    """The terms of each sum that a norm reads, over the least factor: a norm keeps their ratios."""
    for i in reading.norms.reads.values():
        terms = reading.terms(i)
        least = min((f for factors in terms.values() for f in factors), default=0.0)
        if len(terms) > 1 and least and reading.graph.nodes[i].op != "exp":
            yield scaled(terms, 1 / least)


def _products(reading: Reading) -> list[Use]:
    """The products of parameters with activations."""
    return [use for use in reading.uses.uses if use.kind == PRODUCT and use.operand >= 0]


def in_front(reading: Reading) -> dict[str, Factors]:
    """`Traced.inputs`: factors of what a product reads and no parameter makes, as a norm.

    Not of a table's, as a tied readout.
    """
    tables = {use.path for use in reading.uses.uses if use.kind == LOOKUP}
    pairs = []
    for use in _products(reading):
        if use.path not in tables:
            terms = reading.not_made(reading.terms(use.operand))
            pairs += [(use.path, factors) for factors in terms.values()]
    return joined(pairs)


def readers(reading: Reading, nodes: Collection[int]) -> set[str]:
    """`Traced.readers`: the parameters whose products read one of these arrays."""
    products = _products(reading)
    return {use.path for use in products if not reading.terms(use.operand).keys().isdisjoint(nodes)}


def in_front_of_nonlinearities(reading: Reading) -> dict[tuple[str, str], Factors]:
    """`Traced.bent`: path and operation -> factors of what it makes of a product.

    A gate or a nonlinearity reads that.
    """
    sums = reading.sums
    judged = set(sums)  # elsewhere
    for residual in reading.streams.sums:
        terms = reading.terms(residual.branch)
        judged.update(terms, reading.factors.deep(terms))
    nodes = reading.graph.nodes
    judged.update(i for i, node in enumerate(nodes) if node.op == "dot_general")

    def is_end(i: int) -> bool:
        return i in sums or any(use.kind != ENTRYWISE for use in reading.uses_at(i))

    pairs = []
    for read in reading.absorbed():
        if read.by_product or read.node in judged:
            continue
        terms = reading.not_made(read.terms)
        for j in terms.keys() - judged:
            for k in reading.graph.upstream(j, is_end):
                for use in reading.products_at(k):
                    pairs.append(((use.path, nodes[j].op), terms[j]))
    return joined(pairs)


def biases(reading: Reading) -> dict[str, list[Bias]]:
    """`Traced.biases`: path of a parameter -> what is added to its products."""
    result: dict[str, list[Bias]] = {}
    for use in reading.uses.uses:
        if use.kind != ENTRYWISE or reading.graph.nodes[use.node].op not in SUMS:
            continue
        for i, factors in reading.terms(use.operand).items():
            for maker in reading.uses_at(i):
                if maker.kind == ENTRYWISE:
                    continue
                front = 1.0
                if maker.operand >= 0:
                    front = common(reading.not_made(reading.terms(maker.operand)))
                bias = Bias(use.path, (use.view, use.node), min(factors) * front)
                result.setdefault(maker.path, []).append(bias)
    return result


def projections(reading: Reading) -> set[str]:
    """`Traced.projections`: the parameters between the start and the end of projected shortcuts."""
    result: set[str] = set()
    for residual in reading.streams.sums:
        if not residual.projected:
            continue
        start = residual.start
        for i in reading.graph.upstream(residual.shortcut, start.__ge__):
            paths = {use.path for use in reading.uses_at(i) if i > start}
            result |= {path for path in paths if not reading.inside[path]}
    return result
