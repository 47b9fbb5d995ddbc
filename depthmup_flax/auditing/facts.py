"""What the trace of a forward pass tells about one model."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from jax.extend import core

from depthmup_flax.auditing.factors import ForwardFactors, Homogeneity, Terms
from depthmup_flax.auditing.parameter_trees import series
from depthmup_flax.auditing.trace import INPUT, PARAM, Graph, Node, called_names, source_line
from depthmup_flax.auditing.uses import ACTIVATION, PRODUCT, Use
from depthmup_flax.util.primitives import is_understood


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


ROUNDING = "rounding to"  # the name of an operation that makes numbers of few bits


@dataclasses.dataclass(frozen=True)
class UnreadOperation:
    """An operation on activations or parameters that is not understood."""

    name: str  # of the kernel, function or primitive
    paths: frozenset[str]  # of the parameters whose products it reads, or that it reads itself
    source: str  # file.py:12


def unread_operations(
    graph: Graph, kinds: Collection[str], paths_of: Callable[[int], Iterable[str]]
) -> list[UnreadOperation]:
    """The operations that the output depends on and that are not understood; ``paths_of`` a node: its parameters."""
    result: dict[tuple[str, str], frozenset[str]] = {}
    needed = graph.needed()
    for i, (node, kind) in enumerate(zip(graph.nodes, kinds, strict=True)):
        if not needed[i] or kind not in (ACTIVATION, PARAM) or _is_read(node):
            continue
        callers: Sequence[core.JaxprEqn] = node.params["callers"]
        kernels = [eqn for eqn in callers if eqn.primitive.name == "pallas_call"]
        name = called_names((kernels or callers)[-1])[0]
        name = f"{ROUNDING} {node.params['new_dtype']}" if name == "convert_element_type" else name
        key = name, source_line(callers)
        result[key] = result.get(key, frozenset()).union(paths_of(i))
    return [UnreadOperation(name, paths, source) for (name, source), paths in result.items()]


def _is_read(node: Node) -> bool:
    """Whether an operation is understood. Rounding to few bits is not, as it comes between a scale and its inverse."""
    if node.op == "convert_element_type":
        eqn = node.params["callers"][-1]
        return _bits(eqn.outvars[0]) > 8 or _bits(eqn.invars[0]) <= 8
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

    @functools.cached_property
    def kind(self) -> frozenset[str]:
        """What equal branches of all layers have in common."""
        return frozenset(map(series, self.paths))


@dataclasses.dataclass(frozen=True)
class UnreadSums:
    """Sums with the stream that are no residual sums."""

    number: float  # the most that one stream has
    paths: frozenset[str]  # parameters in the last
    source: str  # file.py:12


@dataclasses.dataclass(frozen=True)
class Traced:
    """What the trace of one model tells."""

    uses: Mapping[str, Sequence[Use]]
    times: Mapping[str, float]
    inside: Mapping[str, bool]  # whether all uses are in branches
    branches: Sequence[Branch]
    branches_of: Mapping[str, frozenset[int]]  # path -> nodes of the sums
    readouts: OfPaths  # path -> factors up to the output
    factors: OfPaths  # path -> factors from the product to where it is used, outside branches
    before_readouts: OfPaths  # the same with the factors of what readouts read
    inputs: OfPaths  # path -> factors of the norm or the stream that its product reads
    at_output: Collection[str]  # parameters that make a product of two activations which is the output
    scores: Sequence[Scores]
    projections: Collection[str]  # parameters of projected shortcuts
    unread: Sequence[UnreadOperation]
    used: Mapping[str, bool]  # path -> whether the output depends on it
    shapes: Mapping[str, tuple[int, ...]]
    has_tokens: bool  # learned tokens may be multiplied by a matrix, so the facts depend on what grows
    unread_sums: UnreadSums
    links: frozenset[frozenset[str]]  # the last weights of branches that do not read their stream

    @property
    def depth(self) -> float:
        """The number of branches."""
        return sum(branch.times for branch in self.branches)

    def places(self) -> dict[str, Hashable]:
        """Path -> its place in the forward pass: the branch that it is in, up to its layer, and which weight it is."""
        way = {path: self._way(path) for path in sorted(self.uses, key=lambda path: self.uses[path][0].node)}
        of_branch: dict[int, list[str]] = {}
        for path in way:
            if self.inside[path] and self.branches_of[path]:
                of_branch.setdefault(min(self.branches_of[path]), []).append(path)
        result: dict[str, Hashable] = dict(way)
        for paths in of_branch.values():
            ways = tuple(way[path] for path in paths)
            result |= {path: (ways, n) for n, path in enumerate(paths)}
        return result

    def _way(self, path: str) -> Hashable:
        """How the forward pass uses a parameter, whatever its name and layer."""
        kinds = tuple(sorted({(use.kind, use.first) for use in self.uses[path]}))
        return self.inside[path], path in self.readouts, kinds

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
