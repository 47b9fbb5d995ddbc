"""What the trace of a forward pass tells about one model: uses of parameters, residual sums, constant factors."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from jax.extend import core

from depthmup_flax.auditing.factors import Homogeneity, Terms, common, forward_factors, scaled
from depthmup_flax.auditing.graph import INPUT, PARAM, Graph, Node, Place, called_names, source_line
from depthmup_flax.auditing.parameter_trees import grouped, series
from depthmup_flax.auditing.streams import ResidualSum, residual_streams
from depthmup_flax.auditing.uses import ACTIVATION, ENTRYWISE, LOOKUP, PRODUCT, Use, parameter_uses
from depthmup_flax.util.primitives import SCALES, SUMS, is_understood


@dataclasses.dataclass(frozen=True)
class Scores:
    """A product of two activations that is summed over a dimension, such as that of queries and keys."""

    paths: frozenset[str]  # parameters that make both
    beside: frozenset[str]  # other parameters in both or in the same sum: learned queries, biases, relative positions
    size: int  # of the dimension that is summed
    factor: float  # NaN is unknown
    in_softmax: bool  # or in a sigmoid
    node: int
    nth: int = 0  # of those that the same weights make, as queries do that read relative positions, too


ROUNDING = "rounding to"  # the name of an operation that makes numbers of few bits


@dataclasses.dataclass(frozen=True)
class Unread:
    """An operation that is not understood, or the sums with a stream that are no residual sums."""

    name: str  # of the kernel, function or primitive
    paths: frozenset[str]  # of the parameters whose products it reads, or that it reads itself; or in the last sum
    source: str  # file.py:12
    number: float = 1.0  # the most sums that one stream has


def _is_read(node: Node) -> bool:
    """Whether an operation is understood. Rounding to few bits is not, as it comes between a scale and its inverse."""
    if node.op == "convert_element_type":
        eqn = node.params["callers"][-1]
        return not 1 < _bits(eqn.outvars[0]) <= 8 or _bits(eqn.invars[0]) <= 8  # to a boolean, it is a comparison
    if node.op in (PARAM, INPUT) or is_understood(node.op):
        return True
    results = node.params["callers"][-1].outvars[node.params["result"] :]
    return bool(results) and _bits(results[0]) == 1  # a boolean has no factor


def _bits(variable: Any) -> int:
    """How many bits a number of an array has; of a boolean, 1."""
    dtype = getattr(variable.aval, "dtype", None)
    if not isinstance(dtype, np.dtype):  # a random key
        return 32
    return 1 if dtype == np.bool_ else 8 * dtype.itemsize


OfPaths: TypeAlias = Mapping[str, frozenset[float]]  # factors by the paths of parameters
_Key = TypeVar("_Key")


def joined(pairs: Iterable[tuple[_Key, frozenset[float]]]) -> dict[_Key, frozenset[float]]:
    """Path or term -> all of its factors."""
    result: dict[_Key, frozenset[float]] = {}
    for key, factors in pairs:
        result[key] = result.get(key, frozenset()) | factors
    return result


@dataclasses.dataclass(frozen=True)
class Bias:
    """A parameter that is added to the product of another."""

    path: str
    place: Place
    factor: float  # of the product there, and of what the product reads


@dataclasses.dataclass(frozen=True)
class Branch:
    """A branch of the main stream."""

    factors: OfPaths  # path of a parameter of the sum's terms, or "" -> factors after it
    total: OfPaths  # the same with factors of its input
    shortcut: OfPaths  # factors of the stream behind other sums, or of its projection
    kept: float  # the factor of the stream in the sum, relative to the layer before
    carried: frozenset[float]  # factors of the sum where it is read next; none if that is a norm or the readout
    normalized: OfPaths  # the same of what a norm at the branch's end normalizes
    paths: frozenset[str]  # parameters inside
    times: float
    node: int
    projected: bool  # its shortcut is
    stream: int  # of parallel ones, such as an encoder's and a decoder's
    inner: float  # the number of sums inside it
    end: int  # the node that the sum adds
    matrices: int  # the most products with parameters that follow one another inside

    @functools.cached_property
    def kind(self) -> frozenset[str]:
        """What equal branches of all layers have in common: what they end in, whatever else the last one reads."""
        return frozenset(map(series, self.factors.keys() - {""} or self.paths))


@dataclasses.dataclass(frozen=True)
class Traced:
    """What the trace of one model tells."""

    uses: Mapping[str, Sequence[Use]]  # of parameters that the output depends on
    times: Mapping[str, float]
    inside: Mapping[str, bool]  # whether all uses are in branches
    branches: Sequence[Branch]
    branches_of: Mapping[str, frozenset[int]]  # path -> nodes of the sums
    readouts: OfPaths  # path -> factors up to the output; "" -> those of an output that no parameter makes
    factors: OfPaths  # path -> factors from the product to where it is used, outside branches
    before_readouts: OfPaths  # the same with the factors of what readouts read
    inputs: OfPaths  # path -> factors of what its product reads and no parameter makes: a norm, the stream, the batch
    biases: Mapping[str, Sequence[Bias]]  # path of a parameter -> what is added to its products
    scores: Sequence[Scores]
    projections: Collection[str]  # parameters of projected shortcuts
    unread: Sequence[Unread]
    shapes: Mapping[str, tuple[int, ...]]
    has_tokens: bool  # learned tokens may be multiplied by a matrix, so the facts depend on what grows
    unread_sums: Unread
    nodes: Collection[int]  # all residual sums
    ends: frozenset[frozenset[str]]  # the last weights of branches
    asked: Collection[frozenset[str]]  # those that would decide whether a sum is residual
    kinds: Sequence[str]  # of every node, see `uses`

    @property
    def depth(self) -> float:
        """The number of branches."""
        return sum(branch.times for branch in self.branches)

    def places(self) -> dict[str, Hashable]:
        """Path -> its place in the forward pass: the branch that it is in, up to its layer, and which weight it is."""
        way: dict[str, Hashable] = {}  # how the forward pass uses each parameter, whatever its name and layer
        for path, uses in sorted(self.uses.items(), key=lambda item: item[1][0].node):
            kinds = tuple(sorted({(use.kind, use.first) for use in uses}))
            way[path] = self.inside[path], path in self.readouts, kinds
        of_branch: dict[int, list[str]] = {}
        for path in way:
            if self.inside[path] and self.branches_of[path]:
                of_branch.setdefault(min(self.branches_of[path]), []).append(path)
        result: dict[str, Hashable] = dict(way)
        for paths in of_branch.values():
            ways = tuple(way[path] for path in paths)
            result |= {path: (ways, n) for n, path in enumerate(paths)}
        return result

    def without(self, branches: Collection[Branch]) -> Traced:
        """The facts with some branches taken for parts of the stream."""
        nodes = {branch.node for branch in branches}
        ends = {path: sums - nodes for path, sums in self.branches_of.items()}
        return dataclasses.replace(
            self,
            branches=[branch for branch in self.branches if branch.node not in nodes],
            branches_of=ends,
            inside={path: inside and bool(ends[path]) for path, inside in self.inside.items()},
        )


_MOST_ROUNDS = 8  # as many as skips around each other


# Axes of each parameter that grow -> the facts of one model of a pair.
Again: TypeAlias = Callable[[Mapping[str, Collection[int]]], Traced]


def traced_pair(graph: Graph, base: Graph) -> tuple[Traced, Traced, tuple[Again, Again]]:
    """The facts of two models of different depths, without ``growing``; and functions that return them with it.

    A skip connection around a stream that grows with depth, as in a U-Net, is no residual branch of a layer; nor is a
    sum of the batch's size, such as that of a prediction and the batch, if it does not occur more often in deeper
    models: what a readout returns is added there. A sum that is residual in the deeper model is so in the other, whose
    stream it may be all of.
    """
    plain, base_plain, alike = set[int](), set[int](), set[frozenset[str]]()
    again = (  # all sets are those of the last round
        lambda growing: _Reader(graph, growing, plain, alike).result(),
        lambda growing: _Reader(base, growing, base_plain, alike).result(),
    )
    # Without the first axis, which may count layers.
    shapes = ({series(n.params["path"]): n.shape[1:] for n in g.nodes if n.op == PARAM} for g in (graph, base))
    is_wider = next(shapes) != next(shapes)
    for _ in range(_MOST_ROUNDS):
        facts, base_facts = (read({}) for read in again)
        kinds, base_kinds = (grouped(f.branches, lambda b: b.kind) for f in (facts, base_facts))
        inner = lambda several: max((b.inner for b in several), default=math.inf)
        skips = {kind for kind, several in kinds.items() if inner(several) > inner(base_kinds.get(kind, ()))}
        sizes = lambda g, branches: [(g.nodes[b.node].shape, b.times) for b in branches]
        given = {
            kind
            for kind, branches in kinds.items()
            if is_wider and sizes(graph, branches) == sizes(base, base_kinds.get(kind, ()))
        }
        for nodes, f in ((plain, facts), (base_plain, base_facts)):
            nodes |= {b.node for b in f.branches if b.kind in given or (b.kind in skips and b.inner)}
        more = ((facts.ends | base_facts.ends) & {*facts.asked, *base_facts.asked}) - alike
        alike |= more
        if skips or given or more:
            continue
        ends = [tuple(i for i in g.ends if i in f.nodes) for g, f in ((graph, facts), (base, base_facts))]
        if ends == [graph.ends, base.ends]:
            break
        graph.ends, base.ends = ends
    return facts, base_facts, again


class _Reader:
    """Reads the facts of a graph; ``plain`` are sums that are not residual, ``alike`` the `Traced.ends` of both models.

    Without the axes of each parameter that are ``growing``, a learned token that a matrix multiplies is taken for a
    weight.
    """

    def __init__(
        self,
        graph: Graph,
        growing: Mapping[str, Collection[int]],
        plain: Collection[int],
        alike: Collection[frozenset[str]],
    ):
        self.graph, self.uses = graph, parameter_uses(graph, growing)
        self.shape = Homogeneity(graph, self.uses)
        self.streams = residual_streams(graph, self.uses, self.shape.degrees, plain, alike)
        self.factors = forward_factors(graph, self.uses, {s.node: s for s in self.streams.sums}, self.shape)
        self.shapes = {node.params["path"]: node.shape for node in graph.nodes if node.op == PARAM}
        self.at = self.uses.by_node()

    def result(self) -> Traced:
        by_path = self.uses.by_path()
        # How often one layer of a stack, or a parameter without layers, is used.
        times = lambda use: use.times / math.prod(self.shapes[use.path][k] for k in use.layers)
        inside, ends = self._places(by_path)
        readouts = self._readouts(inside)
        absorbed = [*(terms for _, terms, _ in self._absorbed(())), self.factors.terms[self.graph.output]]
        return Traced(
            uses=by_path,
            times={path: sum(map(times, uses)) for path, uses in by_path.items()},
            inside=inside,
            branches=[self._branch(s, ends) for s in self.streams.sums if s.node not in self.streams.nested],
            branches_of=ends,
            readouts=readouts,
            factors=self._own(readouts),
            before_readouts=self._own(()),
            inputs=self._inputs(),
            biases=self._biases(),
            scores=self._scores(absorbed),
            projections=self._projections(inside),
            unread=self._unread_operations(),
            has_tokens=self.uses.has_tokens,
            shapes=self.shapes,
            unread_sums=self._unread_sums(),
            nodes={s.node for s in self.streams.sums},
            ends=frozenset(s.ends for s in self.streams.sums),
            asked=self.streams.asked,
            kinds=self.uses.kinds,
        )

    def _places(self, by_path: Mapping[str, Sequence[Use]]) -> tuple[dict[str, bool], dict[str, frozenset[int]]]:
        """Whether each parameter is in branches alone, and the sums of the main stream that these end in."""
        streams, none = self.streams, frozenset[int]()
        count = Counter(map(series, by_path))
        inside, ends = {}, {}
        for path, uses in by_path.items():
            sums = [streams.inside.get(u.node, none) for u in uses]
            ends[path] = self._outermost(none.union(*sums))
            # A layer of each block that several branches of the block read, such as one that modulates them.
            shared = [streams.shared.get(u.node, none) for u in uses]
            blocks = count[series(path)] if count[series(path)] > 1 else math.inf
            if all(shared) and len(none.union(*shared)) * blocks <= len(streams.sums):
                ends[path], sums = self._outermost(none.union(*shared)), shared
            inside[path] = all(sums)
        return inside, ends

    def _outermost(self, sums: frozenset[int]) -> frozenset[int]:
        """The sums of the main stream whose branches contain these, or are these."""
        while inner := {node for node in sums if node in self.streams.nested}:
            outer = frozenset().union(*(self.streams.nested[node] for node in inner))
            sums = (sums - inner) | outer
        return sums

    def _paths_at(self, node: int) -> set[str]:
        """The parameters that an operation reads, and those of the latest products that reach it."""
        paths, is_product = set[str](), lambda use: use.kind != ENTRYWISE
        for i in self.graph.upstream(node, lambda i: i != node and any(map(is_product, self.at.get(i, ())))):
            paths.update(use.path for use in self.at.get(i, ()))
            if self.graph.nodes[i].op == PARAM:
                paths.add(self.graph.nodes[i].params["path"])
        return paths

    def _of_uses(self, *several: Terms, before: bool = False) -> OfPaths:
        """Factors of terms by the parameters that make them, or ""; ``before``: with the factors of their input."""
        pairs = []
        for i, factors in itertools.chain(*(terms.items() for terms in several)):
            if i not in self.at:
                pairs.append(("", factors))
            for use in self.at.get(i, ()):
                is_scale = use.kind == ENTRYWISE and self.graph.nodes[i].op in SCALES  # its terms have it
                extra = 1.0 if is_scale else self.factors.of_param.get(use.view, 1.0)
                if before and use.kind != ENTRYWISE:
                    extra *= self.factors.before.get(i, 1.0)
                pairs.append((use.path, frozenset(f * extra for f in factors)))
        return joined(pairs)

    def _branch(self, s: ResidualSum, ends: Mapping[str, frozenset[int]]) -> Branch:
        terms = self.factors.deep(self.factors.terms[s.branch])
        norms = [self.factors.terms[self.shape.norms[i]] for i in terms if i in self.shape.norms]
        normalized = self._of_uses(*map(self.factors.deep, norms))
        paths = frozenset(path for path, sums in ends.items() if s.node in sums)
        times = math.prod(length for _, length in s.loops)
        after, total = (self._of_uses(terms, before=before) for before in (False, True))
        sums = {t.node for t in self.streams.sums} | {s.start}
        own = self.factors.terms[s.shortcut]
        shortcut = self._of_uses(own if s.projected else {i: f for i, f in own.items() if i in sums})
        (kept,) = self.factors.terms[s.node][s.node]
        carried = frozenset(f / kept for f in self._carried.get(s.node, ()) if kept)
        stream = self.streams.parallel[s.node]
        within = [t.loops for t in self.streams.sums if s.node in self.streams.nested.get(t.node, ())]
        inner = sum(math.prod(length for _, length in loops) for loops in within) / times
        return Branch(
            after,
            total,
            shortcut,
            kept,
            carried,
            normalized,
            paths,
            times,
            s.node,
            s.projected,
            stream,
            inner,
            s.branch,
            self._matrices(s),
        )

    def _matrices(self, s: ResidualSum) -> int:
        """`Branch.matrices`."""
        count: dict[int, int] = {}
        for i in sorted(self.graph.upstream(s.branch, lambda i: i <= s.start)):
            is_product = i > s.start and any(use.kind == PRODUCT for use in self.at.get(i, ()))
            count[i] = max((count.get(j, 0) for j in self.graph.nodes[i].inputs), default=0) + is_product
        return count[s.branch]

    @functools.cached_property
    def _carried(self) -> Terms:
        """Node of a sum -> its factors where it is read next.

        That is where the next layer of its stream or a loop's next round starts, or in a nonlinearity; not in a norm.
        """
        arrays, sums = {s.before for s in self.streams.sums}, {s.node for s in self.streams.sums}
        rounds = [node.params["next"] for node in self.graph.nodes if node.op == "carry"]
        bent = joined(
            term
            for i, terms, by_product in self._absorbed(())
            if not by_product and i not in sums
            for term in terms.items()
        )
        return {**bent, **joined(term for i in (*arrays, *rounds) for term in self.factors.terms[i].items())}

    def _readouts(self, inside: Mapping[str, bool]) -> OfPaths:
        """Products after which no other product with a parameter comes; "": of an output that none makes.

        The last product may be one of two networks' features, such as the similarity of images and texts.
        """
        result, shape, output = [], self.shape, self.graph.output
        stack: list[tuple[int, float]] = [(output, 1.0)]
        seen = {s.node for s in self.streams.sums}
        while stack:
            node, factor = stack.pop()
            for i, factors in self.factors.terms[node].items():
                products = [u for u in self.at.get(i, ()) if u.kind == PRODUCT]
                paths = {u.path for u in products if not inside[u.path]}
                ended = self._of_uses({i: factors}, before=True)
                result += [(path, frozenset(f * factor for f in ended[path])) for path in paths]
                if node == output and i not in self.at:
                    result.append(("", frozenset(f * self._of_part(i) for f in factors)))
                is_softmax = i in shape.norms and self.graph.nodes[shape.norms[i]].op == "exp"
                is_own = self.factors.terms[i].keys() == {i}  # not a bias, which is added to others
                if products or not is_own or i in seen or (i in shape.norms and not is_softmax):
                    continue
                seen.add(i)
                # A nonlinearity without a degree keeps no factor.
                degree = 0.0 if is_softmax or shape.roots[i] == i else shape.degrees[i]
                passed = factor * min(factors) if i in self.factors.parts else 1.0
                passed = (factor * min(factors)) ** (1 / degree) if degree else passed
                stack += [(j, passed) for j in self._activations(i) if j != i]
        return joined(result)

    def _activations(self, i: int) -> list[int]:
        """The activations that a node reads."""
        return [j for j in self.graph.nodes[i].inputs if self.uses.kinds[j] == ACTIVATION]

    def _of_part(self, i: int) -> float:
        """The factors in a product of two activations that no parameter makes, and the number of terms that it sums."""
        if i not in self.factors.parts:
            return 1.0
        node, sides = self.graph.nodes[i], [self.factors.terms[j] for j in self._activations(i)]
        size = 1
        if node.op == "dot_general":
            (left, _), _ = node.params["dimension_numbers"]
            size = math.prod(self.graph.nodes[node.inputs[0]].shape[k] for k in left)
        return size * math.prod(common(self._not_made(terms)) for terms in sides)

    def _not_made(self, terms: Terms) -> Terms:
        """Those that no parameter makes, such as a norm or the batch: what reads them has their factor."""
        return {i: factors for i, factors in terms.items() if i not in self.at}

    def _own(self, readouts: Collection[str]) -> OfPaths:
        """Factors between each product outside the ends of branches and the array that reads it."""
        # Shortcuts win: what a branch's first layer multiplies the stream with does not count.
        shortcuts = [self.factors.terms[s.shortcut if s.projected else s.before] for s in self.streams.sums]
        own = self._of_uses(*shortcuts)
        read = []
        for _, terms, by_product in self._absorbed(readouts):
            front = common(self._not_made(terms)) if by_product else 1.0
            read.append(scaled(terms, 1 / front) if front and not math.isnan(front) else terms)
        return {**own, **self._of_uses(*read, *self._normalized_sums()), **own}

    def _inputs(self) -> OfPaths:
        """`Traced.inputs`: of products that read what no other product makes; not of a table's, as a tied readout."""
        tables = {use.path for use in self.uses.uses if use.kind == LOOKUP}
        uses = (use for use in self.uses.uses if use.kind == PRODUCT and use.operand >= 0 and use.path not in tables)
        read = ((use.path, self._not_made(self.factors.terms[use.operand]).values()) for use in uses)
        return joined((path, frozenset().union(*factors)) for path, factors in read if factors)

    def _biases(self) -> dict[str, list[Bias]]:
        """`Traced.biases`."""
        result: dict[str, list[Bias]] = {}
        for use in (use for use in self.uses.uses if use.kind == ENTRYWISE and self.graph.nodes[use.node].op in SUMS):
            for i, factors in self.factors.terms[use.operand].items():
                for maker in (maker for maker in self.at.get(i, ()) if maker.kind != ENTRYWISE):
                    in_front = common(self._not_made(self.factors.terms[maker.operand])) if maker.operand >= 0 else 1.0
                    bias = Bias(use.path, (use.view, use.node), min(factors) * in_front)
                    result.setdefault(maker.path, []).append(bias)
        return result

    def _normalized_sums(self) -> Iterator[Terms]:
        """The terms of each sum that a norm reads, which keeps their ratios alone: over the least of their factors."""
        for i in self.shape.norms.values():
            terms = self.factors.terms[i]
            least = min((f for factors in terms.values() for f in factors), default=0.0)
            if len(terms) > 1 and least and self.graph.nodes[i].op != "exp":
                yield scaled(terms, 1 / least)

    def _absorbed(self, readouts: Collection[str]) -> Iterator[tuple[int, Terms, bool]]:
        """The terms of what products of parameters and nonlinear operations read; and whether it is a product.

        What a norm reads beside the array that it normalizes, such as its squares, does not count.
        """
        sums, terms = {s.node: s for s in self.streams.sums}, self.factors.terms
        needed = self.graph.needed()
        rounds = [n.params["next"] for i, n in enumerate(self.graph.nodes) if n.op == "carry" and needed[i]]
        stack, seen = [self.graph.output, *rounds], set[int]()
        while stack:
            for i in terms[stack.pop()].keys() - seen:
                seen.add(i)
                if i in sums:
                    stack += sums[i].shortcut, sums[i].branch
                elif i in self.shape.norms:
                    stack.append(self.shape.norms[i])
                elif terms[i].keys() == {i}:
                    products = [u for u in self.at.get(i, ()) if u.kind == PRODUCT]
                    reads = self._activations(i)
                    stack += reads
                    if not (products and products[0].path in readouts):
                        yield from ((i, terms[j], bool(products)) for j in reads)

    def _scores(self, absorbed: Sequence[Terms]) -> list[Scores]:
        """All products of two activations; ``absorbed`` are terms of what nonlinear operations and products read."""
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
        scores = [self._product(j, terms[j], terms) for j, terms in in_softmax.items()]
        scores += [self._product(j, frozenset(factors)) for j, factors in others.items()]
        count, result = Counter[Hashable](), []
        for s in sorted((s for s in scores if s.in_softmax or s.paths), key=lambda s: s.node):
            result.append(dataclasses.replace(s, nth=count[s.in_softmax, s.paths]))
            count[s.in_softmax, s.paths] += 1
        return result

    def _product(self, j: int, after: frozenset[float], softmax: Terms | None = None) -> Scores:
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
        paths = frozenset() if is_mean else paths
        return Scores(paths, frozenset(beside - paths), size, factor, softmax is not None, j)

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

    def _unread_operations(self) -> list[Unread]:
        """The operations that the output depends on and that are not understood."""
        result: dict[tuple[str, str], set[str]] = {}
        needed = self.graph.needed()
        for i, (node, kind) in enumerate(zip(self.graph.nodes, self.uses.kinds, strict=True)):
            if not needed[i] or kind not in (ACTIVATION, PARAM) or _is_read(node):
                continue
            callers: Sequence[core.JaxprEqn] = node.params["callers"]
            kernels = [eqn for eqn in callers if eqn.primitive.name == "pallas_call"]
            name = called_names((kernels or callers)[-1])[0]
            name = f"{ROUNDING} {node.params['new_dtype']}" if name == "convert_element_type" else name
            result.setdefault((name, source_line(callers)), set()).update(self._paths_at(i))
        return [Unread(name, frozenset(paths), source) for (name, source), paths in result.items()]

    def _unread_sums(self) -> Unread:
        number, last = self.streams.unread_sums
        node, branch_of = self.graph.nodes[last], {s.node: s.branch for s in self.streams.sums}
        stack, paths, seen = list(node.inputs) if number else [], set[str](), set[int]()
        while stack:
            terms = self.factors.deep(self.factors.terms[stack.pop()])
            paths |= self._of_uses(terms).keys() - {""}
            stack += [branch_of[i] for i in terms if i in branch_of and i not in seen]
            seen |= terms.keys()
        source = source_line(node.params.get("callers", ())) if number else ""
        return Unread("sum", frozenset(paths), source, number)

    def _projections(self, inside: Mapping[str, bool]) -> set[str]:
        """The parameters between the start and the end of projected shortcuts."""
        result: set[str] = set()
        for s in (s for s in self.streams.sums if s.projected):
            for i in self.graph.upstream(s.shortcut, s.start.__ge__):
                result.update(use.path for use in self.at.get(i, ()) if i > s.start and not inside[use.path])
        return result
