"""Which sums add a branch to a stream.

A residual sum adds two arrays of one shape: the shortcut, an array of the stream that no parameter
and no nonlinearity changed, and the branch, what a block returns. There are four kinds, in the
order in which they are looked for:

* `SumFinder.identity`: the branch reads, through a product, the very array that the shortcut keeps.
  It is always one.
* `SumFinder.link`: the branch has no product (a pooling), or does not read the stream (another
  stream's array).
* `SumFinder.projection`: the shortcut is projected, by products without a nonlinearity.
* `SumFinder.first`: the first of a stream, whose stem nothing else reads.

The last three are sums of a stream only if it goes on, or if other layers end in the same weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from depthmup_flax.trace.graph import Loop
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.paths import Paths, highest, positions
from depthmup_flax.trace.uses import PRODUCT, Use, Uses
from depthmup_flax.util.groups import series
from depthmup_flax.util.primitives import SUMS


@dataclasses.dataclass(frozen=True)
class ResidualSum:
    """One sum of a shortcut and a branch; the numbers are of nodes."""

    node: int
    shortcut: int
    branch: int
    start: int  # the array of the stream that the shortcut keeps and the branch reads
    before: int  # the latest array of the stream that the shortcut keeps
    loops: tuple[Loop, ...]
    projected: bool = False
    ends: frozenset[str] = frozenset()  # the branch's last weights, without numbers
    is_apart: bool = False  # the branch does not read its stream


@dataclasses.dataclass
class SumFinder:
    """Tells whether a sum is residual.

    Attributes:
      normalized: what each norm reads.
      alike: the `ResidualSum.ends` of other layers: what is no branch for sure is one if it ends
        like them.
      beside: array -> what is added to it, up to a factor.
      sums: node -> the sums that are residual whatever comes later.
      asked: the ends that would have decided, had they been in ``alike``.
      repeated: arrays that a stream has, and that are added to it again with something new, as
        velocities are; bits.
    """

    paths: Paths
    uses_at: Mapping[int, Sequence[Use]]
    normalized: Mapping[int, int]
    plain: Collection[int]
    alike: Collection[frozenset[str]]
    beside: Mapping[int, Sequence[int]]
    sums: dict[int, ResidualSum] = dataclasses.field(default_factory=dict)
    asked: set[frozenset[str]] = dataclasses.field(default_factory=set)
    repeated: int = 0

    def later(self, node: int, starts: Collection[int]) -> ResidualSum | None:
        """The residual sum at a node, given the arrays that the shortcuts of later sums keep."""
        if node in self.plain:
            return None
        return self.link(node, starts) or self.projection(node) or self.first(node, starts)

    def certain(self, node: int) -> ResidualSum | None:
        """The residual sum at a node, whatever comes later."""
        terms = self.paths.activations.added(node)
        if not terms or node in self.plain:
            return None
        return self.identity(node, *terms) or self.link(node, None)

    def identity(self, node: int, a: int, b: int) -> ResidualSum | None:
        """The sum of an array and a branch that multiplies it; either of the two is the branch."""
        paths = self.paths
        forward = self._read_by_both(a, b)
        backward = self._read_by_both(b, a)
        if bool(forward) == bool(backward):
            return None
        shortcut, branch = (a, b) if forward else (b, a)
        start = paths.array(forward or backward)
        is_copied = paths.graph.nodes[shortcut].shape != paths.graph.nodes[node].shape
        if is_copied and paths.of_batch[shortcut]:  # a condition, rather than learned tokens
            return None
        if self._goes_on(node, branch) or self._old(branch, start):
            return None
        return self._sum(node, shortcut, branch, start)

    def _read_by_both(self, shortcut: int, branch: int) -> int:
        """The latest array of both, if the shortcut keeps it and the branch multiplies it."""
        paths = self.paths
        latest = highest(paths.same[shortcut] & paths.after[branch])
        return latest & paths.by_product[branch] & ~paths.same[branch]

    def link(self, node: int, later_starts: Collection[int] | None) -> ResidualSum | None:
        """The sum of an array of a stream and a pooling, or another stream's array.

        An array of a stream is unchanged in the shortcut, entry by entry. ``later_starts`` are the
        arrays that the shortcuts of later sums keep: what does not read the stream is added to it
        if the stream goes on, before or after, or if it ends like others, which counts alone where
        they are not known (``None``): the last sum of a stream may be in a branch of another.
        """
        paths = self.paths
        for shortcut, branch in paths.activations.sides(node):
            latest = highest(paths.exact[shortcut] & ~paths.exact[branch])
            start = self._stream_array(node, latest)
            if start < 0 or self._goes_on(node, branch):
                continue
            old = self._old(branch, start)
            if old:
                is_copy = paths.array(old) in paths.activations.copied(branch)
                if later_starts is not None and not is_copy:
                    added = paths.summed[shortcut] & ~paths.exact[shortcut]
                    self.repeated |= old & ~latest & added
                continue
            is_apart = not paths.after[branch] & latest
            is_branch = self._joins if is_apart else self._mixes
            if is_branch(node, branch, start, later_starts):
                return self._sum(node, shortcut, branch, start, is_apart=is_apart)
        return None

    def _mixes(
        self,
        node: int,
        branch: int,
        start: int,
        later_starts: Collection[int] | None,
    ) -> bool:
        """Whether a branch without a product mixes entries of the array that it starts from."""
        activations = self.paths.activations
        is_mixed = self.paths.by_mixing[branch] & self.paths.bit(start)
        if not is_mixed or activations.centers(node):
            return False
        if later_starts is not None:
            return True
        # A straight-through estimator subtracts what it adds again.
        return activations.graph.nodes[node].op != "sub" and self._is_alike(branch)

    def _joins(
        self,
        node: int,
        branch: int,
        start: int,
        later_starts: Collection[int] | None,
    ) -> bool:
        """Whether an array that does not read the stream is added to it.

        An array that several read, as the stream's first value, is no branch.
        """
        goes_on = later_starts is not None and (
            node in later_starts or self._continues(start) or self._is_next(node, start)
        )
        if not self.paths.weighted[branch] or self.paths.exact[branch]:
            return False
        return goes_on or self._is_alike(branch)

    def _is_next(self, node: int, start: int) -> bool:
        """Whether a loop carries an array to its next round in place of another."""
        first = self.paths.graph.nodes[start]
        if first.op != "carry":
            return False
        return node in self.paths.activations.copied(first.params["next"])

    def projection(self, node: int) -> ResidualSum | None:
        """The sum of a branch and a projected shortcut.

        The shortcut is linear, as the branch is not, unless the branch ends like others.
        """
        paths = self.paths
        if paths.graph.nodes[node].op not in ("add", "add_any"):
            return None
        for shortcut, branch in paths.activations.sides(node):
            latest = highest(paths.after[shortcut] & paths.after[branch])
            start = paths.array(latest & paths.by_product[shortcut] & paths.by_product[branch])
            # Otherwise two networks that read the batch are added.
            if start < 0 or not paths.learned[start] or paths.by_nonlinearity[shortcut] & latest:
                continue
            if paths.by_part[shortcut] & paths.by_part[branch] & latest:
                continue  # of different times, in a recurrent network
            if paths.by_nonlinearity[branch] & latest or self._is_alike(branch, shortcut):
                return self._sum(node, shortcut, branch, start, projected=True)
        return None

    def first(self, node: int, later_starts: Collection[int]) -> ResidualSum | None:
        """The first sum of a stream, to a stem, or zeros, that no other operation reads.

        Its branch ends like others.
        """
        if node not in later_starts:
            return None
        for stem, branch in self.paths.activations.sides(node):
            if self._is_first(stem, branch) and not self._old(branch, stem):
                return self._sum(node, stem, branch, stem)
        return None

    def is_repeated(self, residual: ResidualSum) -> bool:
        """Whether later layers add the branch, or the array that it is added to, again."""
        branch = self.paths.summed[residual.branch] | self.paths.bit(residual.start)
        return bool(self.repeated & branch)

    def _sum(
        self,
        node: int,
        shortcut: int,
        branch: int,
        start: int,
        projected: bool = False,
        is_apart: bool = False,
    ) -> ResidualSum:
        before = max(start, self.paths.array(self.paths.exact[shortcut]))
        loops = self.paths.graph.nodes[node].loops
        ends = self._ends(branch)
        return ResidualSum(node, shortcut, branch, start, before, loops, projected, ends, is_apart)

    def _old(self, branch: int, start: int) -> int:
        """The arrays in what is added that are no later than what the branch starts from, as bits.

        Such as the velocity that a stream follows, or the first value of the stream: it is added
        again in each layer.
        """
        paths = self.paths
        old = 0
        # Such as a pooling minus what it reads, which has no weight.
        mixed = paths.by_mixing[branch] & ~paths.by_product[branch] & paths.bit(start)
        for n in positions(paths.summed[branch]):
            array = self._stream_array(branch, 1 << n)
            if array < 0:
                continue
            if (array == start and not mixed) or not paths.is_after(array, start):
                old |= 1 << n
        return old

    def _goes_on(self, node: int, branch: int) -> bool:
        """Whether later branches are added to the branch, or no gradient passes through it."""
        activations = self.paths.activations
        source = activations.source(branch)
        if activations.graph.nodes[source].op == "stop_gradient":
            return True
        unnormalized = activations.source(self.normalized.get(source, source))
        terms = [*self.beside.get(source, ()), *self.beside.get(unnormalized, ())]
        return any(j > node for j in terms)

    def _is_alike(self, branch: int, shortcut: int | None = None) -> bool:
        """Whether a branch, and not its shortcut, ends in the weights of other layers' branches."""
        ends = self._ends(branch)
        shortcut_ends = frozenset[str]() if shortcut is None else self._ends(shortcut)
        if ends and ends != shortcut_ends:
            self.asked.add(ends)
        return ends in self.alike and shortcut_ends not in self.alike

    def _ends(self, node: int) -> frozenset[str]:
        """The weights of the last products that an array is made of, without numbers."""
        kinds = self.paths.activations.kinds
        is_end = lambda i: kinds[i] != ACTIVATION or i in self.paths.products
        result: set[str] = set()
        for i in self.paths.graph.upstream(node, is_end):
            for use in self.uses_at.get(i, ()):
                if use.kind == PRODUCT:
                    result.add(series(use.path))
        return frozenset(result)

    def _is_first(self, stem: int, branch: int) -> bool:
        """Whether a branch with weights is added to a stem, which is linear, or zeros."""
        paths = self.paths
        is_zeros = paths.activations.kinds[stem] != ACTIVATION
        is_stem = is_zeros or (paths.learned[stem] and not paths.by_nonlinearity[stem])
        return paths.weighted[branch] and is_stem and self._is_alike(branch, stem)

    def _stream_array(self, node: int, bit: int) -> int:
        """The array of this bit, if it has the shape of the sum and is learned; else -1."""
        start = self.paths.array(bit)
        if start < 0 or not self.paths.learned[start]:
            return -1
        nodes = self.paths.graph.nodes
        return start if nodes[start].shape == nodes[node].shape else -1

    def _continues(self, start: int) -> bool:
        """Whether an array is itself a sum of an array of a stream, or of a stem."""
        for a, b in self.paths.activations.sides(start):
            before = highest(self.paths.exact[a])
            if self._stream_array(start, before) >= 0 or self._is_first(a, b):
                return True
        return False


def find_sums(
    paths: Paths,
    uses: Uses,
    normalized: Mapping[int, int],
    plain: Collection[int],
    alike: Collection[frozenset[str]],
) -> SumFinder:
    """Finds the sums that are residual for sure, and extends empty ``paths`` over a graph."""
    activations = paths.activations
    beside: dict[int, list[int]] = {}
    # The next round of a loop reads what it carries, too.
    number_of_readers = [int(node.op == "carry") for node in paths.graph.nodes]
    for i in paths.nodes():
        if paths.graph.nodes[i].op in SUMS:
            for a, b in activations.sides(i):
                beside.setdefault(activations.source(a), []).append(b)
        for j in set(paths.graph.nodes[i].inputs):
            number_of_readers[j] += 1
    finder = SumFinder(paths, uses.by_node, normalized, plain, alike, beside)
    for i in paths.nodes():
        residual = finder.certain(i)
        if residual is not None:
            finder.sums[i] = residual
        paths.extend(i, None if residual is None else residual.shortcut)
        if number_of_readers[i] > 1:
            paths.mark(i)
    return finder
