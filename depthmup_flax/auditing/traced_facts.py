"""What the trace of a forward pass tells about one model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

from depthmup_flax.auditing.activation_products import Scores
from depthmup_flax.auditing.parameter_trees import series
from depthmup_flax.auditing.parameter_uses import Use
from depthmup_flax.auditing.unread_places import UnreadOperation

OfPaths: TypeAlias = Mapping[str, frozenset[float]]  # factors by the paths of parameters


def joined(pairs: Iterable[tuple[str, frozenset[float]]]) -> OfPaths:
    """Path -> all of its factors."""
    result: dict[str, frozenset[float]] = {}
    for path, factors in pairs:
        result[path] = result.get(path, frozenset()) | factors
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
