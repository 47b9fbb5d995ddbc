"""What is read of one graph, step by step, and where parameters are in it.

All that `facts` tells follows from this.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from depthmup_flax.trace.factors import ForwardFactors, forward_factors
from depthmup_flax.trace.graph import PARAM, Graph
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.norms import Norms, find_norms
from depthmup_flax.trace.paths import new_paths
from depthmup_flax.trace.residual_sums import find_sums
from depthmup_flax.trace.streams import Streams, residual_streams
from depthmup_flax.trace.terms import Factors, Terms, joined
from depthmup_flax.trace.uses import ENTRYWISE, PRODUCT, Use, Uses, parameter_uses
from depthmup_flax.util.groups import grouped, series
from depthmup_flax.util.primitives import SCALES, SUMS

OfPaths: TypeAlias = Mapping[str, Factors]  # factors by the paths of parameters


class Read(NamedTuple):
    """What an operation reads that is not linear in it."""

    node: int
    terms: Terms
    by_product: bool  # with a parameter


@dataclasses.dataclass(frozen=True)
class Reading:
    """What is read of one graph.

    Attributes:
      inside: path -> whether all uses are in branches.
      branches_of: path -> the sums of the main stream whose branches the parameter is in.
    """

    graph: Graph
    uses: Uses
    norms: Norms
    streams: Streams
    factors: ForwardFactors
    inside: Mapping[str, bool]
    branches_of: Mapping[str, frozenset[int]]

    def __str__(self) -> str:
        """A line per array: number, operation, inputs, shape, kind, uses, terms with factors."""
        lines = []
        for i, node in enumerate(self.graph.nodes):
            inputs = ", ".join(map(str, node.inputs))
            uses = " ".join(f"{use.kind} {use.path}" for use in self.uses_at(i))
            terms = {j: sorted(factors) for j, factors in self.terms(i).items()}
            is_sum = "residual sum" if i in self.sums else ""
            line = f"{i} {node.op}({inputs}) {node.shape} {self.uses.kinds[i]} {uses} {is_sum}"
            lines.append(f"{line.strip()} {terms or ''}".strip())
        return "\n".join(lines)

    @functools.cached_property
    def sums(self) -> set[int]:
        """The nodes of all residual sums."""
        return {residual.node for residual in self.streams.sums}

    def terms(self, i: int) -> Terms:
        """The terms of an array."""
        return self.factors.terms[i]

    def uses_at(self, i: int) -> list[Use]:
        """The uses of parameters in an operation."""
        return self.uses.by_node.get(i, [])

    def products_at(self, i: int) -> list[Use]:
        """Those that contract a parameter."""
        return [use for use in self.uses_at(i) if use.kind == PRODUCT]

    def activations(self, i: int) -> list[int]:
        """The activations that an operation reads."""
        return [j for j in self.graph.nodes[i].inputs if self.uses.kinds[j] == ACTIVATION]

    def not_made(self, terms: Terms) -> Terms:
        """Those that no parameter makes, as a norm: what reads them has their factor."""
        return {i: factors for i, factors in terms.items() if i not in self.uses.by_node}

    def of_uses(self, *several: Terms, before: bool = False) -> dict[str, Factors]:
        """Factors of terms by the parameters that make them, or "".

        ``before``: with the factors of their input.
        """
        pairs = []
        for i, factors in itertools.chain(*(terms.items() for terms in several)):
            uses = self.uses_at(i)
            if not uses:
                pairs.append(("", factors))
            for use in uses:
                extra = self._inside_of(use)
                if before and use.kind != ENTRYWISE:
                    extra *= self.factors.before.get(i, 1.0)
                pairs.append((use.path, frozenset(factor * extra for factor in factors)))
        return joined(pairs)

    def _inside_of(self, use: Use) -> float:
        """The factor in the parameter's array; that of a scale or a bias is in its terms."""
        if use.kind == ENTRYWISE and self.graph.nodes[use.node].op in SCALES | SUMS:
            return 1.0
        return self.factors.of_param.get(use.view, 1.0)

    def paths_at(self, node: int) -> set[str]:
        """The parameters that an operation reads, and those of the latest products before it."""
        paths = set[str]()

        def is_end(i: int) -> bool:
            return i != node and any(use.kind != ENTRYWISE for use in self.uses_at(i))

        for i in self.graph.upstream(node, is_end):
            paths.update(use.path for use in self.uses_at(i))
            if self.graph.nodes[i].op == PARAM:
                paths.add(self.graph.nodes[i].params["path"])
        return paths

    def absorbed(self, readouts: Collection[str] = ()) -> Iterator[Read]:
        """What products of parameters, other than ``readouts``, and nonlinear operations read.

        What a norm reads beside the array that it normalizes, such as its squares, does not count.
        """
        sums = {residual.node: residual for residual in self.streams.sums}
        needed = self.graph.needed()
        stack = [self.graph.output, *(end for start, end in self.graph.carries() if needed[start])]
        seen: set[int] = set()
        while stack:
            for i in self.terms(stack.pop()).keys() - seen:
                seen.add(i)
                if i in sums:
                    stack += [sums[i].shortcut, sums[i].branch]
                elif i in self.norms.reads:
                    stack.append(self.norms.reads[i])
                elif self.terms(i).keys() == {i}:
                    products = self.products_at(i)
                    reads = self.activations(i)
                    stack += reads
                    if not (products and products[0].path in readouts):
                        yield from (Read(i, self.terms(j), bool(products)) for j in reads)


def read(
    graph: Graph,
    growing: Mapping[str, Collection[int]],
    plain: Collection[int],
    alike: Collection[frozenset[str]],
) -> Reading:
    """Reads a graph; the arguments are those of `facts.traced`."""
    uses = parameter_uses(graph, growing)
    norms = find_norms(graph, uses)
    normalized = {i: norms.roots[j] for i, j in norms.reads.items()}
    finder = find_sums(new_paths(graph, uses, norms.degrees), uses, normalized, plain, alike)
    streams = residual_streams(graph, finder)
    factors = forward_factors(graph, uses, {s.node: s for s in streams.sums}, norms)
    inside, branches_of = _places(uses, streams)
    return Reading(graph, uses, norms, streams, factors, inside, branches_of)


def _places(uses: Uses, streams: Streams) -> tuple[dict[str, bool], dict[str, frozenset[int]]]:
    """`Reading.inside` and `Reading.branches_of`."""
    in_blocks = _in_blocks(uses, streams)
    inside = {}
    branches_of = {}
    for path, uses_of in uses.by_path.items():
        sums = [streams.inside.get(use.node, frozenset()) for use in uses_of]
        shared = [streams.shared.get(use.node, frozenset()) for use in uses_of]
        if all(shared) and path in in_blocks:
            sums = shared
        inside[path] = all(sums)
        branches_of[path] = _outermost(streams, _union(sums))
    return inside, branches_of


def _in_blocks(uses: Uses, streams: Streams) -> set[str]:
    """The layers that each block has, and of which the branches of one block read each.

    Such as those that embed a condition and modulate the block's branches. What an encoder returns
    is read by all blocks.
    """
    result: set[str] = set()
    for paths in grouped(uses.by_path, series).values():
        blocks = set()
        for path in paths:
            reads = [streams.read_by.get(use.node, frozenset()) for use in uses.by_path[path]]
            blocks.add(_union(reads))
        blocks.discard(frozenset())
        are_apart = sum(map(len, blocks)) == len(_union(blocks))
        if len(blocks) > 1 and are_apart:
            result.update(paths)
    return result


def _union(several: Collection[frozenset[int]]) -> frozenset[int]:
    return frozenset[int]().union(*several)


def _outermost(streams: Streams, sums: frozenset[int]) -> frozenset[int]:
    """The sums of the main stream whose branches contain these, or are these."""
    while inner := {node for node in sums if node in streams.nested}:
        sums = (sums - inner).union(*(streams.nested[node] for node in inner))
    return sums
