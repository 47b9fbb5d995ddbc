"""Reads the facts of a model from its graph: uses of parameters, residual sums, constant factors."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from depthmup_flax.auditing.factors import Homogeneity, Terms, forward_factors, scaled
from depthmup_flax.auditing.facts import Branch, OfPaths, Traced, UnreadSums, joined, read_scores, unread_operations
from depthmup_flax.auditing.parameter_trees import grouped, series
from depthmup_flax.auditing.residual_sums import residual_streams
from depthmup_flax.auditing.stream_paths import ResidualSum
from depthmup_flax.auditing.trace import PARAM, Graph, source_line
from depthmup_flax.auditing.uses import ACTIVATION, ENTRYWISE, PRODUCT, Use, parameter_uses

_MOST_SKIPS = 8  # connections around each other


def traced(
    graph: Graph,
    growing: Mapping[str, Collection[int]],
    plain: Collection[int] = (),
    alike: Collection[frozenset[str]] = (),
) -> Traced:
    """The facts of a graph; ``growing`` are the axes of each parameter that grow, ``plain`` sums that are not residual.

    ``alike`` are the `Traced.links` of other models. Without ``growing``, a learned token that a matrix multiplies is
    taken for a weight.
    """
    return _Reader(graph, growing, plain, alike).result()


# Axes that grow -> the facts of one model of a pair.
Again: TypeAlias = Callable[[Mapping[str, Collection[int]]], Traced]


def traced_pair(graph: Graph, base: Graph) -> tuple[Traced, Traced, tuple[Again, Again]]:
    """The facts of two models of different depths, without ``growing``; and functions that return them with it.

    A skip connection around a stream that grows with depth, as in a U-Net, is no residual branch of a layer. A sum that
    is residual in the deeper model is so in the other, whose stream it may be all of.
    """
    plain, base_plain, alike = set[int](), set[int](), set[frozenset[str]]()
    for _ in range(_MOST_SKIPS):
        facts, base_facts = traced(graph, {}, plain, alike), traced(base, {}, base_plain, alike)
        inner, base_inner = (
            {kind: max(b.inner for b in branches) for kind, branches in grouped(f.branches, lambda b: b.kind).items()}
            for f in (facts, base_facts)
        )
        skips = {kind for kind, number in inner.items() if number > base_inner.get(kind, number)}
        links = facts.links | base_facts.links
        if not skips and links <= alike:
            break
        alike |= links
        plain |= {b.node for b in facts.branches if b.kind in skips and b.inner}
        base_plain |= {b.node for b in base_facts.branches if b.kind in skips and b.inner}
    again = lambda graph, plain: functools.partial(traced, graph, plain=plain, alike=alike)
    return facts, base_facts, (again(graph, plain), again(base, base_plain))


class _Reader:
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
        inside, ends = self._places(by_path)
        readouts = self._readouts(inside)
        absorbed = [*(terms for _, terms, _ in self._absorbed(())), self.factors.terms[self.graph.output]]
        return Traced(
            uses=by_path,
            times={path: sum(map(self._times, uses)) for path, uses in by_path.items()},
            inside=inside,
            branches=[self._branch(s, ends) for s in self.streams.main],
            branches_of=ends,
            readouts=readouts,
            factors=self._own(readouts),
            before_readouts=self._own(()),
            inputs=self._inputs(),
            scores=read_scores(self.graph, self.at, self.shape, self.factors, absorbed),
            at_output=self._at_output(),
            projections=self._projections(inside),
            unread=unread_operations(self.graph, self.uses.kinds, self._paths_at),
            has_tokens=self.uses.has_tokens,
            used={path: path in by_path for path in self.shapes},
            shapes=self.shapes,
            unread_sums=self._unread_sums(),
            links=frozenset(s.ends for s in self.streams.sums if s.ends),
        )

    def _times(self, use: Use) -> float:
        """How often one layer of a stack, or a parameter without layers, is used."""
        return use.times / math.prod(self.shapes[use.path][k] for k in use.picked)

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
                extra = self.factors.of_param.get(use.view, 1.0)
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
        within = [t.loops for t in self.streams.sums if s.node in self.streams.around(t)]
        inner = sum(math.prod(length for _, length in loops) for loops in within) / times
        return Branch(
            after, total, shortcut, kept, carried, normalized, paths, times, s.node, s.projected, stream, inner
        )

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
        """Products after which no other product with a parameter or between activations comes.

        The last product may be one of two networks' features, such as the similarity of images and texts.
        """
        result = []
        stack: list[tuple[int, float]] = [(self.graph.output, 1.0)]
        seen: set[int] = set()
        while stack:
            node, factor = stack.pop()
            for i, factors in self.factors.terms[node].items():
                if node == self.graph.output and self._is_similarity(i):
                    stack += [(j, 1.0) for j in self.graph.nodes[i].inputs]  # each with the factor of its own
                    continue
                ended = self._of_uses({i: factors}, before=True)
                products = [u for u in self.at.get(i, ()) if u.kind == PRODUCT]
                paths = [u.path for u in products if not inside[u.path]]
                result += [(path, frozenset(f * factor for f in ended[path])) for path in paths]
                stops = products or i in self.factors.parts or i in seen
                softmax = i in self.shape.norms and self.graph.nodes[self.shape.norms[i]].op == "exp"
                stops = stops or (i in self.shape.norms and not softmax)
                if not stops and not any(i == s.node for s in self.streams.sums):
                    seen.add(i)
                    reads = [j for j in self.graph.nodes[i].inputs if self.uses.kinds[j] == ACTIVATION]
                    stack += [(j, factor * min(factors)) for j in reads if j != i]
        return joined(result)

    def _at_output(self) -> frozenset[str]:
        """`Traced.at_output`."""
        products = {i: f for i, f in self.factors.terms[self.graph.output].items() if i in self.factors.parts}
        return frozenset(self._of_uses(self.factors.deep(products))) - {""}

    def _is_similarity(self, i: int) -> bool:
        """Whether a node is a product of two activations that both end in products with parameters."""
        node, at = self.graph.nodes[i], self.at
        ends = lambda j: all(any(u.kind == PRODUCT for u in at.get(k, ())) for k in self.factors.terms[j])
        return i in self.factors.parts and all(map(ends, node.inputs))

    def _own(self, readouts: Collection[str]) -> OfPaths:
        """Factors between each product outside the ends of branches and the array that reads it."""
        # Shortcuts win: what a branch's first layer multiplies the stream with does not count.
        shortcuts = [self.factors.terms[s.shortcut if s.projected else s.before] for s in self.streams.sums]
        own = self._of_uses(*shortcuts)
        return {**own, **self._of_uses(*self._read_terms(readouts), *self._normalized_sums()), **own}

    def _inputs(self) -> OfPaths:
        """`Traced.inputs`: of products that read no others and no tokens, which have factors of their own."""
        streams, pairs = {s.node for s in self.streams.sums}, []
        for use in (use for uses in self.at.values() for use in uses if use.kind == PRODUCT and use.operand >= 0):
            terms = self.factors.terms[use.operand]
            makers = {i: {other.kind for other in self.at.get(i, ())} for i in terms}
            is_read = lambda i, makers=makers: i in self.shape.norms or i in streams or makers[i] == {ENTRYWISE}
            if all(map(is_read, terms)) and any(not makers[i] for i in terms):
                pairs.append((use.path, frozenset().union(*terms.values())))
        return joined(pairs)

    def _normalized_sums(self) -> Iterator[Terms]:
        """The terms of each sum that a norm reads, which keeps their ratios alone: over the least of their factors."""
        for i in self.shape.norms.values():
            terms = self.factors.terms[i]
            least = min((f for factors in terms.values() for f in factors), default=0.0)
            if len(terms) > 1 and least and self.graph.nodes[i].op != "exp":
                yield scaled(terms, 1 / least)

    def _read_terms(self, readouts: Collection[str]) -> list[Terms]:
        """The terms of what products of parameters and nonlinear operations read."""
        return [self.factors.deep(terms) if by_product else terms for _, terms, by_product in self._absorbed(readouts)]

    def _absorbed(self, readouts: Collection[str]) -> Iterator[tuple[int, Terms, bool]]:
        """The same, of each activation that a node reads, and whether that is a product of a parameter."""
        for i, node in enumerate(self.graph.nodes):
            if self.uses.kinds[i] != ACTIVATION:
                continue
            products = [u for u in self.at.get(i, ()) if u.kind == PRODUCT]
            is_new = self.factors.terms[i].keys() == {i} and self.shape.roots[i] == i and i not in self.shape.norms
            if products[0].path not in readouts if products else is_new:
                reads = (j for j in node.inputs if self.uses.kinds[j] == ACTIVATION)
                yield from ((i, self.factors.terms[j], bool(products)) for j in reads)

    def _unread_sums(self) -> UnreadSums:
        number, last = self.streams.unread_sums
        node, branch_of = self.graph.nodes[last], {s.node: s.branch for s in self.streams.sums}
        stack, paths, seen = list(node.inputs) if number else [], set[str](), set[int]()
        while stack:
            terms = self.factors.deep(self.factors.terms[stack.pop()])
            paths |= self._of_uses(terms).keys() - {""}
            stack += [branch_of[i] for i in terms if i in branch_of and i not in seen]
            seen |= terms.keys()
        return UnreadSums(number, frozenset(paths), source_line(node.params.get("callers", ())) if number else "")

    def _projections(self, inside: Mapping[str, bool]) -> set[str]:
        """The parameters between the start and the end of projected shortcuts."""
        result: set[str] = set()
        for s in (s for s in self.streams.sums if s.projected):
            for i in self.graph.upstream(s.shortcut, s.start.__ge__):
                result.update(use.path for use in self.at.get(i, ()) if i > s.start and not inside[use.path])
        return result
