"""The branches of the main stream: what multiplies each, its shortcut, and the sum."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from depthmup_flax.trace.graph import rounds
from depthmup_flax.trace.reading import OfPaths, Reading
from depthmup_flax.trace.residual_sums import ResidualSum
from depthmup_flax.trace.terms import Factors, joined
from depthmup_flax.util.groups import series


@dataclasses.dataclass(frozen=True)
class Branch:
    """A branch of the main stream.

    Attributes:
      factors: path of a parameter of the sum's terms, or "" -> factors after it.
      total: the same with factors of its input.
      shortcut: factors of the stream behind other sums, or of its projection.
      kept: the factor of the stream in the sum, relative to the layer before.
      carried: factors of the sum where the next layer or a loop's next round starts.
      bent: factors of the sum where a nonlinearity reads it, but for norms; those inside of the
        nonlinearity, such as GELU's, are among them.
      normalized: those of ``factors`` of what a norm at the branch's end normalizes.
      paths: parameters inside.
      times: how often it runs.
      node: the sum.
      projected: whether its shortcut is.
      stream: of parallel ones, such as an encoder's and a decoder's.
      inner: the number of sums inside it.
      end: the node that the sum adds.
      matrices: the most products with parameters that follow one another inside.
    """

    factors: OfPaths
    total: OfPaths
    shortcut: OfPaths
    kept: float
    carried: Factors
    bent: Factors
    normalized: OfPaths
    paths: frozenset[str]
    times: float
    node: int
    projected: bool
    stream: int
    inner: float
    end: int
    matrices: int

    @functools.cached_property
    def kind(self) -> frozenset[str]:
        """What equal branches of all layers have in common: what they end in.

        The last layer may read something else.
        """
        return frozenset(map(series, self.factors.keys() - {""} or self.paths))


def branches(reading: Reading, *, nested: bool = False) -> list[Branch]:
    """The branches of the main stream, or those ``nested`` in them, in the order of the graph."""
    streams = reading.streams
    paths_in: dict[int, set[str]] = {}
    for path, nodes in reading.branches_of.items():
        for node in nodes:
            paths_in.setdefault(node, set()).add(path)
    inner: dict[int, float] = {}
    for residual in streams.sums:
        for node in streams.nested.get(residual.node, ()):
            inner[node] = inner.get(node, 0) + rounds(residual.loops)
    carried = _carried(reading)
    bent = _bent(reading)
    result = []
    for residual in streams.sums:
        node = residual.node
        if (node in streams.nested) != nested:
            continue
        times = rounds(residual.loops)
        branch = _branch(
            reading,
            residual,
            carried=carried.get(node, frozenset()),
            bent=bent.get(node, frozenset()),
            paths=frozenset(paths_in.get(node, ())),
            times=times,
            inner=inner.get(node, 0) / times,
        )
        result.append(branch)
    return result


def _branch(
    reading: Reading,
    residual: ResidualSum,
    carried: Factors,
    bent: Factors,
    paths: frozenset[str],
    times: float,
    inner: float,
) -> Branch:
    deep = reading.factors.deep
    normalized = reading.norms.reads
    terms = deep(reading.terms(residual.branch))
    behind_norms = [deep(reading.terms(normalized[i])) for i in terms if i in normalized]
    shortcut = reading.terms(residual.shortcut)
    if not residual.projected:
        is_of_stream = lambda i: i in reading.sums or i == residual.start
        shortcut = {i: factors for i, factors in shortcut.items() if is_of_stream(i)}
    (kept,) = reading.terms(residual.node)[residual.node]
    return Branch(
        factors=reading.of_uses(terms),
        total=reading.of_uses(terms, before=True),
        shortcut=reading.of_uses(shortcut),
        kept=kept,
        carried=frozenset(factor / kept for factor in carried if kept),
        bent=frozenset(factor / kept for factor in bent if kept),
        normalized=reading.of_uses(*behind_norms),
        paths=paths,
        times=times,
        node=residual.node,
        projected=residual.projected,
        stream=reading.streams.parallel.get(residual.node, 0),
        inner=inner,
        end=residual.branch,
        matrices=_matrices(reading, residual),
    )


def _matrices(reading: Reading, residual: ResidualSum) -> int:
    """`Branch.matrices`."""
    count: dict[int, int] = {}
    for i in sorted(reading.graph.upstream(residual.branch, lambda i: i <= residual.start)):
        before = [count.get(j, 0) for j in reading.graph.nodes[i].inputs]
        is_product = i > residual.start and bool(reading.products_at(i))
        count[i] = max(before, default=0) + is_product
    return count[residual.branch]


def _carried(reading: Reading) -> Mapping[int, Factors]:
    """Node of a sum -> `Branch.carried`, before it is divided by what is kept."""
    starts = {residual.before for residual in reading.streams.sums}
    ends = [end for _, end in reading.graph.carries()]
    pairs: list[tuple[int, Factors]] = []
    for i in (*starts, *ends):
        pairs += reading.terms(i).items()
    return joined(pairs)


def _bent(reading: Reading) -> Mapping[int, Factors]:
    """Node of a sum -> `Branch.bent`, before it is divided by what is kept."""
    pairs: list[tuple[int, Factors]] = []
    for read in reading.absorbed():
        if not read.by_product and read.node not in reading.sums:
            pairs += read.terms.items()
    return joined(pairs)
