"""What the trace of a forward pass tells about one model: uses of parameters, residual sums, constant factors."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from jax.extend import core

from depthmup_flax.trace.equations import called_names, source_line
from depthmup_flax.trace.factors import Homogeneity, Terms, common, forward_factors, scaled
from depthmup_flax.trace.graph import INPUT, PARAM, Graph, Node, Place
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.paths import new_paths
from depthmup_flax.trace.residual_sums import ResidualSum, find_sums
from depthmup_flax.trace.streams import residual_streams
from depthmup_flax.trace.uses import ENTRYWISE, LOOKUP, PRODUCT, Use, parameter_uses
from depthmup_flax.util.groups import grouped, series
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


class Traced:
    """What the trace of one model tells.

    ``plain`` are sums that are not residual, ``alike`` the `ends` of both models. Without the axes of each parameter
    that are ``growing``, a learned token that a matrix multiplies is taken for a weight.

    Attributes:
      uses: path -> uses of the parameters that the output depends on.
      shapes: path -> shape.
      has_tokens: learned tokens may be multiplied by a matrix, so the facts depend on what grows.
      kinds: of every node, see `uses`.
      nodes: all residual sums.
      ends: the last weights of branches.
      asked: those that would decide whether a sum is residual.
      inside: path -> whether all uses are in branches.
      branches_of: path -> nodes of the sums.
      branches: those of the main stream.
    """

    def __init__(
        self,
        graph: Graph,
        growing: Mapping[str, Collection[int]],
        plain: Collection[int],
        alike: Collection[frozenset[str]],
    ):
        self.graph, self._uses = graph, parameter_uses(graph, growing)
        self._shape = Homogeneity(graph, self._uses)
        normalized = {i: self._shape.roots[j] for i, j in self._shape.norms.items()}
        paths = new_paths(graph, self._uses, self._shape.degrees)
        finder = find_sums(paths, self._uses, normalized, plain, alike)
        self._streams = residual_streams(graph, finder)
        sums = self._streams.sums
        self._forward = forward_factors(graph, self._uses, {s.node: s for s in sums}, self._shape)
        self._at, self.uses, self._terms = self._uses.by_node, self._uses.by_path, self._forward.terms
        self.kinds, self.has_tokens, self.asked = self._uses.kinds, self._uses.has_tokens, self._streams.asked
        self.shapes = {node.params["path"]: node.shape for node in graph.nodes if node.op == PARAM}
        self.nodes, self.ends = {s.node for s in sums}, frozenset(s.ends for s in sums)
        self.inside, self.branches_of = self._inside, self._ends = self._places()
        of_sum = operator.itemgetter(0)
        self._paths_in = grouped(((node, path) for path, nodes in self._ends.items() for node in nodes), of_sum)
        self._within = grouped(((node, t) for t in sums for node in self._streams.nested.get(t.node, ())), of_sum)
        self.branches = [self._branch(s) for s in sums if s.node not in self._streams.nested]

    def without(self, branches: Collection[Branch]) -> Traced:
        """The facts with some branches taken for parts of the stream."""
        result, nodes = copy.copy(self), {branch.node for branch in branches}
        result.branches = [branch for branch in self.branches if branch.node not in nodes]
        result.branches_of = {path: sums - nodes for path, sums in self.branches_of.items()}
        result.inside = {path: inside and bool(result.branches_of[path]) for path, inside in self.inside.items()}
        return result

    @property
    def depth(self) -> float:
        """The number of branches."""
        return sum(branch.times for branch in self.branches)

    @functools.cached_property
    def times(self) -> dict[str, float]:
        """Path -> how often one layer of a stack, or a parameter without layers, is used."""
        times = lambda use: use.times / math.prod(self.shapes[use.path][k] for k in use.layers)
        return {path: sum(map(times, uses)) for path, uses in self.uses.items()}

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

    def _places(self) -> tuple[dict[str, bool], dict[str, frozenset[int]]]:
        """Whether each parameter is in branches alone, and the sums of the main stream that these end in."""
        streams, none = self._streams, frozenset[int]()
        count = Counter(map(series, self.uses))
        inside, ends = {}, {}
        for path, uses in self.uses.items():
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
        while inner := {node for node in sums if node in self._streams.nested}:
            outer = frozenset().union(*(self._streams.nested[node] for node in inner))
            sums = (sums - inner) | outer
        return sums

    def _paths_at(self, node: int) -> set[str]:
        """The parameters that an operation reads, and those of the latest products that reach it."""
        paths, is_product = set[str](), lambda use: use.kind != ENTRYWISE
        for i in self.graph.upstream(node, lambda i: i != node and any(map(is_product, self._at.get(i, ())))):
            paths.update(use.path for use in self._at.get(i, ()))
            if self.graph.nodes[i].op == PARAM:
                paths.add(self.graph.nodes[i].params["path"])
        return paths

    def _of_uses(self, *several: Terms, before: bool = False) -> OfPaths:
        """Factors of terms by the parameters that make them, or ""; ``before``: with the factors of their input."""
        pairs = []
        for i, factors in itertools.chain(*(terms.items() for terms in several)):
            if i not in self._at:
                pairs.append(("", factors))
            for use in self._at.get(i, ()):
                is_scale = use.kind == ENTRYWISE and self.graph.nodes[i].op in SCALES  # its terms have it
                extra = 1.0 if is_scale else self._forward.of_param.get(use.view, 1.0)
                if before and use.kind != ENTRYWISE:
                    extra *= self._forward.before.get(i, 1.0)
                pairs.append((use.path, frozenset(f * extra for f in factors)))
        return joined(pairs)

    def _branch(self, s: ResidualSum) -> Branch:
        terms, own = self._forward.deep(self._terms[s.branch]), self._terms[s.shortcut]
        norms = [self._terms[self._shape.norms[i]] for i in terms if i in self._shape.norms]
        times = math.prod(length for _, length in s.loops)
        sums = self.nodes | {s.start}
        (kept,) = self._terms[s.node][s.node]
        return Branch(
            factors=self._of_uses(terms),
            total=self._of_uses(terms, before=True),
            shortcut=self._of_uses(own if s.projected else {i: f for i, f in own.items() if i in sums}),
            kept=kept,
            carried=frozenset(f / kept for f in self._carried.get(s.node, ()) if kept),
            normalized=self._of_uses(*map(self._forward.deep, norms)),
            paths=frozenset(path for _, path in self._paths_in.get(s.node, ())),
            times=times,
            node=s.node,
            projected=s.projected,
            stream=self._streams.parallel[s.node],
            inner=sum(math.prod(length for _, length in t.loops) for _, t in self._within.get(s.node, ())) / times,
            end=s.branch,
            matrices=self._matrices(s),
        )

    def _matrices(self, s: ResidualSum) -> int:
        count: dict[int, int] = {}
        for i in sorted(self.graph.upstream(s.branch, lambda i: i <= s.start)):
            is_product = i > s.start and any(use.kind == PRODUCT for use in self._at.get(i, ()))
            count[i] = max((count.get(j, 0) for j in self.graph.nodes[i].inputs), default=0) + is_product
        return count[s.branch]

    @functools.cached_property
    def _carried(self) -> Terms:
        """Node of a sum -> its factors where it is read next.

        That is where the next layer of its stream or a loop's next round starts, or in a nonlinearity; not in a norm.
        """
        arrays, sums = {s.before for s in self._streams.sums}, {s.node for s in self._streams.sums}
        rounds = [node.params["next"] for node in self.graph.nodes if node.op == "carry"]
        bent = joined(
            term
            for i, terms, by_product in self._absorbed(())
            if not by_product and i not in sums
            for term in terms.items()
        )
        return {**bent, **joined(term for i in (*arrays, *rounds) for term in self._terms[i].items())}

    @functools.cached_property
    def readouts(self) -> OfPaths:
        """Path -> factors up to the output of products after which no other comes; "": of an output that none makes.

        The last product may be one of two networks' features, such as the similarity of images and texts.
        """
        result, shape, output = [], self._shape, self.graph.output
        stack: list[tuple[int, float]] = [(output, 1.0)]
        seen = {s.node for s in self._streams.sums}
        while stack:
            node, factor = stack.pop()
            for i, factors in self._terms[node].items():
                products = [u for u in self._at.get(i, ()) if u.kind == PRODUCT]
                paths = {u.path for u in products if not self._inside[u.path]}
                ended = self._of_uses({i: factors}, before=True)
                result += [(path, frozenset(f * factor for f in ended[path])) for path in paths]
                if node == output and i not in self._at:
                    result.append(("", frozenset(f * self._of_part(i) for f in factors)))
                is_softmax = i in shape.norms and self.graph.nodes[shape.norms[i]].op == "exp"
                is_own = self._terms[i].keys() == {i}  # not a bias, which is added to others
                if products or not is_own or i in seen or (i in shape.norms and not is_softmax):
                    continue
                seen.add(i)
                # A nonlinearity without a degree keeps no factor.
                degree = 0.0 if is_softmax or shape.roots[i] == i else shape.degrees[i]
                passed = factor * min(factors) if i in self._forward.parts else 1.0
                passed = (factor * min(factors)) ** (1 / degree) if degree else passed
                stack += [(j, passed) for j in self._activations(i) if j != i]
        return joined(result)

    def _activations(self, i: int) -> list[int]:
        return [j for j in self.graph.nodes[i].inputs if self._uses.kinds[j] == ACTIVATION]

    def _of_part(self, i: int) -> float:
        """The factors in a product of two activations that no parameter makes, and the number of terms that it sums."""
        if i not in self._forward.parts:
            return 1.0
        node, sides = self.graph.nodes[i], [self._terms[j] for j in self._activations(i)]
        size = 1
        if node.op == "dot_general":
            (left, _), _ = node.params["dimension_numbers"]
            size = math.prod(self.graph.nodes[node.inputs[0]].shape[k] for k in left)
        return size * math.prod(common(self._not_made(terms)) for terms in sides)

    def _not_made(self, terms: Terms) -> Terms:
        """Those that no parameter makes, such as a norm or the batch: what reads them has their factor."""
        return {i: factors for i, factors in terms.items() if i not in self._at}

    def own(self, readouts: Collection[str]) -> dict[str, frozenset[float]]:
        """Factors from each product to where it is used, outside the ends of branches; not in what readouts read."""
        # Shortcuts win: what a branch's first layer multiplies the stream with does not count.
        shortcuts = [self._terms[s.shortcut if s.projected else s.before] for s in self._streams.sums]
        own = self._of_uses(*shortcuts)
        read = []
        for _, terms, by_product in self._absorbed(readouts):
            front = common(self._not_made(terms)) if by_product else 1.0
            read.append(scaled(terms, 1 / front) if front and not math.isnan(front) else terms)
        return {**own, **self._of_uses(*read, *self._normalized_sums()), **own}

    @functools.cached_property
    def inputs(self) -> OfPaths:
        """Path -> factors of what its product reads and no parameter makes: a norm, the stream, the batch.

        Not of a table's, as a tied readout.
        """
        tables = {use.path for use in self._uses.uses if use.kind == LOOKUP}
        uses = (use for use in self._uses.uses if use.kind == PRODUCT and use.operand >= 0 and use.path not in tables)
        read = ((use.path, self._not_made(self._terms[use.operand]).values()) for use in uses)
        return joined((path, frozenset().union(*factors)) for path, factors in read if factors)

    def readers(self, nodes: Collection[int]) -> set[str]:
        """The parameters whose products read one of these arrays."""
        products = (use for use in self._uses.uses if use.kind == PRODUCT and use.operand >= 0)
        return {use.path for use in products if not self._terms[use.operand].keys().isdisjoint(nodes)}

    @functools.cached_property
    def bent(self) -> dict[tuple[str, str], frozenset[float]]:
        """Path and operation -> factors of what it makes of a product, in front of a nonlinearity or a gate."""
        ended = [self._terms[s.branch] for s in self._streams.sums]
        judged = self.nodes.union(*ended, *map(self._forward.deep, ended))
        judged |= {i for i, node in enumerate(self.graph.nodes) if node.op == "dot_general"}
        ends = lambda i: i in self.nodes or any(use.kind != ENTRYWISE for use in self._at.get(i, ()))
        pairs = []
        for i, terms, by_product in self._absorbed(()):
            read = {} if by_product or i in judged else self._not_made(terms)
            for j in read.keys() - judged:
                uses = (use for k in self.graph.upstream(j, ends) for use in self._at.get(k, ()))
                pairs += [((use.path, self.graph.nodes[j].op), read[j]) for use in uses if use.kind == PRODUCT]
        return joined(pairs)

    @functools.cached_property
    def biases(self) -> dict[str, list[Bias]]:
        """Path of a parameter -> what is added to its products."""
        result: dict[str, list[Bias]] = {}
        for use in (use for use in self._uses.uses if use.kind == ENTRYWISE and self.graph.nodes[use.node].op in SUMS):
            for i, factors in self._terms[use.operand].items():
                for maker in (maker for maker in self._at.get(i, ()) if maker.kind != ENTRYWISE):
                    in_front = common(self._not_made(self._terms[maker.operand])) if maker.operand >= 0 else 1.0
                    bias = Bias(use.path, (use.view, use.node), min(factors) * in_front)
                    result.setdefault(maker.path, []).append(bias)
        return result

    def _normalized_sums(self) -> Iterator[Terms]:
        """The terms of each sum that a norm reads, which keeps their ratios alone: over the least of their factors."""
        for i in self._shape.norms.values():
            terms = self._terms[i]
            least = min((f for factors in terms.values() for f in factors), default=0.0)
            if len(terms) > 1 and least and self.graph.nodes[i].op != "exp":
                yield scaled(terms, 1 / least)

    def _absorbed(self, readouts: Collection[str]) -> Iterator[tuple[int, Terms, bool]]:
        """The terms of what products of parameters and nonlinear operations read; and whether it is a product.

        What a norm reads beside the array that it normalizes, such as its squares, does not count.
        """
        sums, terms = {s.node: s for s in self._streams.sums}, self._terms
        needed = self.graph.needed()
        rounds = [n.params["next"] for i, n in enumerate(self.graph.nodes) if n.op == "carry" and needed[i]]
        stack, seen = [self.graph.output, *rounds], set[int]()
        while stack:
            for i in terms[stack.pop()].keys() - seen:
                seen.add(i)
                if i in sums:
                    stack += sums[i].shortcut, sums[i].branch
                elif i in self._shape.norms:
                    stack.append(self._shape.norms[i])
                elif terms[i].keys() == {i}:
                    products = [u for u in self._at.get(i, ()) if u.kind == PRODUCT]
                    reads = self._activations(i)
                    stack += reads
                    if not (products and products[0].path in readouts):
                        yield from ((i, terms[j], bool(products)) for j in reads)

    @functools.cached_property
    def scores(self) -> list[Scores]:
        """All products of two activations."""
        products = {j for j in self._forward.parts if self.graph.nodes[j].op == "dot_general"}
        entering = [
            self._through(node.inputs[0])
            for i, node in enumerate(self.graph.nodes)
            if node.op in ("exp", "exp2", "logistic") and self._terms[i]
        ]
        in_softmax = {j: terms for terms in entering for j in products & terms.keys()}
        others: dict[int, set[float]] = {j: set() for j in products - in_softmax.keys()}
        for terms in (*(terms for _, terms, _ in self._absorbed(())), self._terms[self.graph.output]):
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
        product, inner = self.graph.nodes[j], self._forward.deep(self._forward.parts[j])
        (left, _), _ = product.params["dimension_numbers"]
        size = math.prod(self.graph.nodes[product.inputs[0]].shape[k] for k in left)
        makers = [u for k in inner for u in self._makers(k)]
        paths = frozenset(u.path for u in makers if u.kind == PRODUCT)
        beside = {u.path for u in makers} | {u.path for k in softmax or () for u in self._at.get(k, ())}
        of_both = {f for several in inner.values() for f in several}
        factor = min(after) * min(of_both) if len(after) == len(of_both) == 1 else math.nan
        factor *= math.prod(self._forward.before.get(i, 1.0) for i in {u.node for u in makers if u.kind == PRODUCT})
        # A mean with the weights of a softmax is no sum over the width.
        norms = (self._shape.norms.get(k) for k in inner)
        is_mean = softmax is None and any(k is not None and self.graph.nodes[k].op == "exp" for k in norms)
        paths = frozenset() if is_mean else paths
        return Scores(paths, frozenset(beside - paths), size, factor, softmax is not None, j)

    def _through(self, node: int) -> Terms:
        """The terms of an array, and those inside a soft cap."""
        result = dict(self._terms[node])
        for i in list(result):
            if self.graph.nodes[i].op == "tanh":
                inner = self._through(self.graph.nodes[i].inputs[0])
                result |= {j: frozenset({f * g for f in fs for g in result[i]}) for j, fs in inner.items()}
        return result

    def _makers(self, node: int) -> Sequence[Use]:
        """The uses that make a term, looked for before norms."""
        while node in self._shape.norms and node not in self._at:
            terms = self._terms[self._shape.norms[node]]
            uses = [u for i in terms for u in self._at.get(i, ())]
            if uses or not terms:
                return uses
            node = min(terms)
        return self._at.get(node, [])

    @functools.cached_property
    def unread(self) -> list[Unread]:
        """The operations that the output depends on and that are not understood."""
        result: dict[tuple[str, str], set[str]] = {}
        needed = self.graph.needed()
        for i, (node, kind) in enumerate(zip(self.graph.nodes, self._uses.kinds, strict=True)):
            if not needed[i] or kind not in (ACTIVATION, PARAM) or _is_read(node):
                continue
            callers: Sequence[core.JaxprEqn] = node.params["callers"]
            kernels = [eqn for eqn in callers if eqn.primitive.name == "pallas_call"]
            name = called_names((kernels or callers)[-1])[0]
            name = f"{ROUNDING} {node.params['new_dtype']}" if name == "convert_element_type" else name
            result.setdefault((name, source_line(callers)), set()).update(self._paths_at(i))
        return [Unread(name, frozenset(paths), source) for (name, source), paths in result.items()]

    @functools.cached_property
    def unread_sums(self) -> Unread:
        """The sums of a stream that are no residual sums."""
        number, last = self._streams.unread_sums
        node, branch_of = self.graph.nodes[last], {s.node: s.branch for s in self._streams.sums}
        stack, paths, seen = list(node.inputs) if number else [], set[str](), set[int]()
        while stack:
            terms = self._forward.deep(self._terms[stack.pop()])
            paths |= self._of_uses(terms).keys() - {""}
            stack += [branch_of[i] for i in terms if i in branch_of and i not in seen]
            seen |= terms.keys()
        source = source_line(node.params.get("callers", ())) if number else ""
        return Unread("sum", frozenset(paths), source, number)

    @functools.cached_property
    def projections(self) -> set[str]:
        """The parameters between the start and the end of projected shortcuts."""
        result: set[str] = set()
        for s in (s for s in self._streams.sums if s.projected):
            for i in self.graph.upstream(s.shortcut, s.start.__ge__):
                result.update(use.path for use in self._at.get(i, ()) if i > s.start and not self._inside[use.path])
        return result


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
        lambda growing: Traced(graph, growing, plain, alike),
        lambda growing: Traced(base, growing, base_plain, alike),
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
