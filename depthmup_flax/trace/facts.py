"""What the trace of a forward pass tells about one model: uses, branches, factors."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Hashable, Mapping, Sequence

from depthmup_flax.trace import products
from depthmup_flax.trace.branches import Branch, branches
from depthmup_flax.trace.graph import PARAM, Graph
from depthmup_flax.trace.products import Bias
from depthmup_flax.trace.reading import OfPaths, Reading, read
from depthmup_flax.trace.scores import Scores, scores
from depthmup_flax.trace.terms import Factors
from depthmup_flax.trace.unread import Unread, unread_operations, unread_sums
from depthmup_flax.trace.uses import Use


@dataclasses.dataclass(frozen=True)
class Traced:
    """What the trace of one model tells.

    What is a property is read from the graph when it is asked for.

    Attributes:
      uses: path -> uses of the parameters that the output depends on.
      shapes: path -> shape.
      inside: path -> whether all uses are in branches.
      branches_of: path -> nodes of the sums.
      branches: those of the main stream.
    """

    reading: Reading
    uses: Mapping[str, Sequence[Use]]
    shapes: Mapping[str, tuple[int, ...]]
    inside: Mapping[str, bool]
    branches_of: Mapping[str, frozenset[int]]
    branches: Sequence[Branch]

    def without(self, branches: Collection[Branch]) -> Traced:
        """The facts with some branches taken for parts of the stream."""
        nodes = {branch.node for branch in branches}
        branches_of = {path: sums - nodes for path, sums in self.branches_of.items()}
        inside = self.inside.items()
        return dataclasses.replace(
            self,
            inside={path: is_inside and bool(branches_of[path]) for path, is_inside in inside},
            branches_of=branches_of,
            branches=[branch for branch in self.branches if branch.node not in nodes],
        )

    def of_inner_branches(self) -> Traced:
        """The facts with the branches inside of others, as of sums with their own input."""
        return dataclasses.replace(self, branches=branches(self.reading, nested=True))

    @property
    def graph(self) -> Graph:
        """The forward pass."""
        return self.reading.graph

    @property
    def kinds(self) -> Sequence[str]:
        """Of every node, see `trace.kinds`."""
        return self.reading.uses.kinds

    @property
    def has_tokens(self) -> bool:
        """Whether a matrix may multiply learned tokens, so the facts depend on what grows."""
        return self.reading.uses.has_tokens

    @property
    def nodes(self) -> Collection[int]:
        """All residual sums."""
        return self.reading.sums

    @property
    def ends(self) -> frozenset[frozenset[str]]:
        """The last weights of branches."""
        return frozenset(residual.ends for residual in self.reading.streams.sums)

    @property
    def asked(self) -> Collection[frozenset[str]]:
        """Those that would decide whether a sum is residual."""
        return self.reading.streams.asked

    @property
    def depth(self) -> float:
        """The number of branches."""
        return sum(branch.times for branch in self.branches)

    @functools.cached_property
    def times(self) -> dict[str, float]:
        """Path -> how often one layer of a stack, or a parameter without layers, is used."""
        result = {}
        for path, uses in self.uses.items():
            shape = self.shapes[path]
            result[path] = sum(use.times / math.prod(shape[k] for k in use.layers) for use in uses)
        return result

    def places(self) -> dict[str, Hashable]:
        """Path -> its place in the forward pass, whatever the parameter's name.

        In a branch, it is what the whole branch is, whatever its layer, and which weight of it this
        is.
        """
        ways: dict[str, Hashable] = {}  # how the forward pass uses each parameter
        of_branch: dict[int, list[str]] = {}
        for path, uses in sorted(self.uses.items(), key=lambda item: item[1][0].node):
            kinds = tuple(sorted({(use.kind, use.first) for use in uses}))
            ways[path] = self.inside[path], path in self.readouts, kinds
            if self.inside[path] and self.branches_of[path]:
                of_branch.setdefault(min(self.branches_of[path]), []).append(path)
        result = dict(ways)
        for paths in of_branch.values():
            layer = tuple(ways[path] for path in paths)
            for n, path in enumerate(paths):
                result[path] = layer, n
        return result

    @functools.cached_property
    def readouts(self) -> OfPaths:
        """Path -> factors up to the output of products after which no other comes.

        "" has those of an output that no parameter makes.
        """
        return products.readouts(self.reading)

    def own(self, readouts: Collection[str]) -> dict[str, Factors]:
        """Path -> factors from each product to where it is used, outside the ends of branches.

        What ``readouts`` read does not count.
        """
        return products.between_products(self.reading, readouts)

    @functools.cached_property
    def inputs(self) -> OfPaths:
        """Path -> factors of what its product reads and no parameter makes, such as the stream."""
        return products.in_front(self.reading)

    def readers(self, nodes: Collection[int]) -> set[str]:
        """The parameters whose products read one of these arrays."""
        return products.readers(self.reading, nodes)

    @functools.cached_property
    def bent(self) -> dict[tuple[str, str], Factors]:
        """Path, operation -> factors of what it makes of a product, in front of a nonlinearity."""
        return products.in_front_of_nonlinearities(self.reading)

    @functools.cached_property
    def biases(self) -> dict[str, list[Bias]]:
        """Path of a parameter -> what is added to its products."""
        return products.biases(self.reading)

    @functools.cached_property
    def projections(self) -> set[str]:
        """The parameters between the start and the end of projected shortcuts."""
        return products.projections(self.reading)

    @functools.cached_property
    def scores(self) -> list[Scores]:
        """All products of two activations."""
        return scores(self.reading)

    @functools.cached_property
    def unread(self) -> list[Unread]:
        """The operations that the output depends on and that are not understood."""
        return unread_operations(self.reading)

    @functools.cached_property
    def unread_sums(self) -> Unread:
        """The sums of a stream that are no residual sums."""
        return unread_sums(self.reading)


def traced(
    graph: Graph,
    growing: Mapping[str, Collection[int]],
    plain: Collection[int],
    alike: Collection[frozenset[str]],
) -> Traced:
    """Reads a graph.

    Without the axes of each parameter that are ``growing``, a learned token that a matrix
    multiplies is taken for a weight. ``plain`` are sums that are not residual, ``alike`` the
    `Traced.ends` of this and other models.
    """
    reading = read(graph, growing, plain, alike)
    return Traced(
        reading=reading,
        uses=reading.uses.by_path,
        shapes={node.params["path"]: node.shape for node in graph.nodes if node.op == PARAM},
        inside=reading.inside,
        branches_of=reading.branches_of,
        branches=branches(reading),
    )
