"""Where a forward pass adds a branch to a stream, and which parameters are inside branches.

A stream is what is carried from block to block. A residual sum adds two arrays of one shape: the shortcut, an array of
the stream that no parameter and no nonlinearity changed, and the branch, what a block returns. A shortcut may also be
projected, by products without a nonlinearity. A model has several streams if it carries several arrays, as an encoder
and a decoder or the nodes and edges of a graph; a sum inside a branch is of no stream that leaves the branch.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from depthmup_flax.trace.graph import INPUT, PARAM, Graph, Loop, Node
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.uses import PRODUCT, Uses
from depthmup_flax.util.groups import series
from depthmup_flax.util.primitives import CARRIES, ENTRYWISE, KEEPS_STREAM, MOVES, NONLINEAR, SAME_PLACE, SCALES, SUMS


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


class StreamPaths:
    """For every array, sets of earlier arrays (as bits) by the paths on which it depends on them.

    An array that two others read may be of a stream: a branch and a shortcut read it. A sum continues the stream of its
    shortcut, so paths end where they enter it by its branch. What is no branch for sure is one if other layers end in
    the same weights: ``alike`` are their `ResidualSum.ends`, and `asked` those that would decide.
    ``degrees`` are those of `factors.Homogeneity`, ``normalized`` is what each norm reads.
    """

    def __init__(
        self,
        graph: Graph,
        uses: Uses,
        degrees: Sequence[float],
        normalized: Mapping[int, int],
        plain: Collection[int],
        alike: Collection[frozenset[str]],
    ):
        self.graph, self.kinds, self.needed, self._normalized = graph, uses.kinds, graph.needed(), normalized
        self.alike, self._at = alike, uses.by_node
        self.products, size = {use.node for use in uses.uses if use.kind == PRODUCT}, len(graph.nodes)
        self.after = [0] * size  # on any path
        self.same = [0] * size  # on a path that keeps the stream
        self.exact = [0] * size  # on a path that keeps every entry in its place, up to a factor
        self.summed = [0] * size  # the same, or with something added
        self.by_product, self.by_nonlinearity, self.by_mixing = [0] * size, [0] * size, [0] * size
        self.asked: set[frozenset[str]] = set()
        self._again = 0  # arrays that a stream has, and that are added to it again with something new: velocities
        self.learned = [False] * size  # depends on a parameter
        self.weighted = [False] * size  # depends on a product with a parameter
        self.of_batch = [False] * size  # depends on the batch
        # Node -> the residual sum of an unchanged array and a branch with a product that reads that array.
        self.sums: dict[int, ResidualSum] = {}
        self._beside: dict[int, list[int]] = {}  # array -> what is added to it
        for i in self._nodes():
            for one, other in self._sides(i) if graph.nodes[i].op in SUMS else ():
                self._beside.setdefault(self._source(one), []).append(other)
        self.starts: list[int] = []  # the node of each bit
        self.bit_of: dict[int, int] = {}
        readers = [int(node.op == "carry") for node in graph.nodes]  # the next round reads it, too
        for i in self._nodes():
            for j in set(graph.nodes[i].inputs):
                readers[j] += 1
        for i in self._nodes():
            self._extend(i, degrees, i in plain)
            if readers[i] > 1:
                for paths in (self.after, self.same, self.exact, self.summed):
                    paths[i] |= 1 << len(self.starts)
                self.bit_of[i] = len(self.starts)
                self.starts.append(i)

    def _nodes(self) -> Iterator[int]:
        return (i for i in range(len(self.graph.nodes)) if self.needed[i] and self.kinds[i] == ACTIVATION)

    def added(self, i: int) -> list[int]:
        """The two arrays that a node adds, or nothing. Zeros are one: a stream may start from them."""
        nodes, node = self.graph.nodes, self.graph.nodes[i]
        inputs = node.inputs if node.op in SUMS else node.inputs[::2] if node.op == "scatter-add" else ()
        terms = [j for j in inputs if self.kinds[j] == ACTIVATION or (nodes[j].value == 0 and nodes[j].shape)]
        return terms if len(set(terms)) == 2 else []

    def _sides(self, i: int) -> Sequence[Sequence[int]]:
        """The two arrays that a node adds, as a shortcut and a branch may be, and the other way round."""
        terms = self.added(i)
        return (terms, terms[::-1]) if terms else ()

    def _extend(self, i: int, degrees: Sequence[float], is_plain: bool) -> None:
        node = self.graph.nodes[i]
        reads = [j for j in node.inputs if self.kinds[j] == ACTIVATION]
        is_product = i in self.products
        # The largest of the variance and zero, in a norm, has degree 2, and the inverse of its root is multiplied.
        bends = node.op in NONLINEAR and not (node.op in ("max", "min", "abs") and reads and degrees[reads[0]] != 1)
        is_bilinear = node.op in ("mul", "dot_general") and len(set(reads)) == 2
        bends |= is_bilinear and all(self.learned[j] and degrees[j] > 0 for j in reads)
        for j in reads:
            self.after[i] |= self.after[j]
            self.by_product[i] |= self.after[j] if is_product else self.by_product[j]
            self.by_nonlinearity[i] |= self.after[j] if bends else self.by_nonlinearity[j]
            self.by_mixing[i] |= self.by_mixing[j] if node.op in ENTRYWISE else self.after[j]
        starts_empty = node.op == "carry" and not reads  # but becomes an activation
        self.learned[i] = starts_empty or any(self.kinds[j] == PARAM or self.learned[j] for j in node.inputs)
        self.weighted[i] = is_product or any(self.weighted[j] for j in reads)
        self.of_batch[i] = node.op == INPUT or any(self.of_batch[j] for j in reads)
        is_sum = bool(self.added(i)) and not is_plain
        found = (self._identity(i, *self.added(i)) or self.link(i, None)) if is_sum else None
        scales = self._scales(i, reads)
        if node.op in SAME_PLACE | SUMS or scales:
            self.summed[i] = functools.reduce(operator.or_, (self.summed[j] for j in reads), 0)
        if found is not None:
            self.sums[i], reads = found, [found.shortcut]
            self.after[i] = self.after[found.shortcut]
        elif is_product or self._spreads(node) or not (node.op in KEEPS_STREAM | SUMS or scales):
            return
        common = lambda paths: functools.reduce(operator.and_, (paths[j] for j in reads)) if reads else 0
        self.same[i] = common(self.same)
        if found is not None or node.op in SAME_PLACE or scales:
            self.exact[i] = common(self.exact)

    def _spreads(self, node: Node) -> bool:
        """Whether one array is copied to many places, as a condition that modulates a stream is, but no stream."""
        of = self.graph.nodes[node.inputs[0]] if node.op == "broadcast_in_dim" else node
        return math.prod(node.shape) > math.prod(of.shape)

    def _scales(self, i: int, reads: Sequence[int]) -> bool:
        """Whether an operation multiplies the stream by something else, or adds something to it."""
        node = self.graph.nodes[i]
        divides = node.op == "div" and node.inputs[0] in reads
        return len(reads) == 1 and (divides or node.op in ("mul", "add", "sub"))

    def _identity(self, node: int, a: int, b: int) -> ResidualSum | None:
        forward, backward = self._reads(a, b), self._reads(b, a)
        if bool(forward) == bool(backward):
            return None
        shortcut, branch = (a, b) if forward else (b, a)
        start = self._array(forward or backward)
        is_copied = self.graph.nodes[shortcut].shape != self.graph.nodes[node].shape
        is_none = is_copied and self.of_batch[shortcut]  # a condition, rather than learned tokens
        is_none = is_none or self._goes_on(node, branch) or bool(self._old(branch, start))
        return None if is_none else self._sum(node, shortcut, branch, start)

    def _array(self, bits: int) -> int:
        """The latest of arrays, or -1."""
        return self.starts[bits.bit_length() - 1] if bits else -1

    def _sum(self, node: int, shortcut: int, branch: int, start: int, **others: Any) -> ResidualSum:
        before, loops = max(start, self._array(self.exact[shortcut])), self.graph.nodes[node].loops
        return ResidualSum(node, shortcut, branch, start, before, loops, ends=self._ends(branch), **others)

    def _old(self, branch: int, start: int) -> int:
        """The arrays in what is added, up to a factor, that the branch starts from, or that are no later; as bits.

        Such as the velocity that a stream follows, or the first value of the stream: it is added again in each layer.
        """
        old = 0
        # Such as a pooling minus what it reads, which has no weight.
        mixed = self.by_mixing[branch] & ~self.by_product[branch] & 1 << self.bit_of.get(start, len(self.starts))
        for n in _positions(self.summed[branch]):
            array = self._stream_array(branch, 1 << n)
            if (array == start and not mixed) or (array >= 0 and not self.is_after(array, start)):
                old |= 1 << n
        return old

    def _reads(self, shortcut: int, branch: int) -> int:
        """The latest array that both read, if the shortcut keeps it and the branch multiplies it; as a bit."""
        return _highest(self.same[shortcut] & self.after[branch]) & self.by_product[branch] & ~self.same[branch]

    def _goes_on(self, node: int, branch: int) -> bool:
        """Whether later branches are added to the branch, which is the stream, or no gradient passes through it."""
        source = self._source(branch)
        is_constant = self.graph.nodes[source].op == "stop_gradient"
        streams = {source, self._source(self._normalized.get(source, source))}  # or a norm of the stream
        return is_constant or any(other > node for i in streams for other in self._beside.get(i, ()))

    def _source(self, i: int) -> int:
        """The array that an array is a copy of, up to a factor."""
        return [*self._copied(i)][-1]

    def _copied(self, i: int) -> Iterator[int]:
        """An array, and those that it is a copy of, up to a factor."""
        yield i
        reads = [j for j in self.graph.nodes[i].inputs if self.kinds[j] == ACTIVATION]
        is_copy = self.graph.nodes[i].op in SAME_PLACE - {"carry", "stop_gradient"} or self._scales(i, reads)
        if len(reads) == 1 and is_copy:
            yield from self._copied(*reads)

    def is_after(self, node: int, start: int) -> bool:
        """Whether an array depends on the array that a shortcut keeps, or is it."""
        return start in self.bit_of and bool(self.after[node] >> self.bit_of[start] & 1)

    def projection(self, node: int) -> ResidualSum | None:
        """The sum of a branch and a projected shortcut, which is linear, as the branch is not, or ends like others."""
        for shortcut, branch in self._sides(node) if self.graph.nodes[node].op in ("add", "add_any") else ():
            latest = _highest(self.after[shortcut] & self.after[branch])  # the latest array that both depend on
            start = self._array(latest & self.by_product[shortcut] & self.by_product[branch])
            # Otherwise two networks that read the batch are added.
            if start < 0 or not self.learned[start] or self.by_nonlinearity[shortcut] & latest:
                continue
            if self.by_nonlinearity[branch] & latest or self._is_alike(branch, shortcut):
                return self._sum(node, shortcut, branch, start, projected=True)
        return None

    def link(self, node: int, kept: Collection[int] | None) -> ResidualSum | None:
        """The sum of an array of a stream and what has no product with it: a pooling, or another stream's array.

        An array of a stream is unchanged in the shortcut, entry by entry. ``kept`` are the arrays that the shortcuts of
        later sums keep: what does not read the stream is added to it if the stream goes on, before or after, or if it
        ends like others, which counts alone where ``kept`` is not known (``None``): the last sum of a stream may be in
        a branch of another.
        """
        for shortcut, branch in self._sides(node):
            bit = _highest(self.exact[shortcut] & ~self.exact[branch])
            start = self._stream_array(node, bit)
            if start < 0 or self._goes_on(node, branch):
                continue
            is_apart = not self.after[branch] & bit
            if old := self._old(branch, start):
                if kept is not None and self._array(old) not in self._copied(branch):
                    self._again |= old & ~bit & self.summed[shortcut] & ~self.exact[shortcut]
                continue
            if not is_apart:
                mixes = bool(self.by_mixing[branch] & bit) and not self.centers(node)
                is_sum = self.graph.nodes[node].op != "sub"  # not what a straight-through estimator adds
                is_branch = mixes and (kept is not None or (is_sum and self._is_alike(branch)))
            else:  # an array that several read, as the stream's first value, is no branch
                first = self.graph.nodes[start]  # a loop carries the sum to its next round in place of this array
                goes_on = kept is not None and (node in kept or self._continues(start))
                goes_on |= kept is not None and first.op == "carry" and node in self._copied(first.params["next"])
                is_branch = self.weighted[branch] and not self.exact[branch] and (goes_on or self._is_alike(branch))
            if is_branch:
                return self._sum(node, shortcut, branch, start, is_apart=is_apart)
        return None

    def _is_alike(self, branch: int, other: int = -1) -> bool:
        """Whether an array, and not the other, ends in the weights that branches of other layers end in."""
        ends, others = (self._ends(i) if i >= 0 else frozenset() for i in (branch, other))
        self.asked |= {ends} if ends and ends != others else set()
        return ends in self.alike and others not in self.alike

    def _ends(self, node: int) -> frozenset[str]:
        """The weights of the last products that an array is made of, without numbers."""
        weights = lambda i: {series(use.path) for use in self._at.get(i, ()) if use.kind == PRODUCT}
        ends = lambda i: self.kinds[i] != ACTIVATION or bool(weights(i))
        return frozenset().union(*map(weights, self.graph.upstream(node, ends)))

    def first(self, node: int, kept: Collection[int]) -> ResidualSum | None:
        """The first sum of a stream, whose stem, or zeros, no other operation reads; its branch ends like others."""
        for stem, branch in self._sides(node) if node in kept else ():
            if self._is_first(stem, branch) and not self._old(branch, stem):
                return self._sum(node, stem, branch, stem)
        return None

    def _is_first(self, stem: int, branch: int) -> bool:
        is_stem = self.kinds[stem] != ACTIVATION or (self.learned[stem] and not self.by_nonlinearity[stem])
        return self.weighted[branch] and is_stem and self._is_alike(branch, stem)

    def _stream_array(self, node: int, bit: int) -> int:
        """The array of this bit, if it has the shape of the sum and is learned; else -1."""
        start = self._array(bit)
        fits = start >= 0 and self.learned[start] and self.graph.nodes[start].shape == self.graph.nodes[node].shape
        return start if fits else -1

    def _continues(self, start: int) -> bool:
        """Whether an array is itself a sum of an array of a stream, or of a stem."""
        keeps = lambda array: self._stream_array(start, _highest(self.exact[array])) >= 0
        return any(keeps(a) or self._is_first(a, b) for a, b in self._sides(start))

    def is_again(self, s: ResidualSum) -> bool:
        """Whether later layers add the branch, or the array that it is added to, again."""
        return bool(self._again & (self.summed[s.branch] | 1 << self.bit_of.get(s.start, len(self.starts))))

    def centers(self, i: int) -> bool:
        """Whether a mean, a maximum or the like of an array, spread over it, is subtracted from it, as by norms."""
        nodes, size = self.graph.nodes, math.prod(self.graph.nodes[i].shape)
        if nodes[i].op != "sub":
            return False
        j = nodes[i].inputs[1]
        while math.prod(nodes[j].shape) == size and nodes[j].op in SAME_PLACE | MOVES | SCALES | {"gather"}:
            j = next((k for k in nodes[j].inputs if self.kinds[k] == ACTIVATION), i)
        return math.prod(nodes[j].shape) < size


def _highest(bits: int) -> int:
    return 1 << bits.bit_length() - 1 if bits else 0


def _positions(bits: int) -> Iterator[int]:
    """The highest first."""
    while bits:
        yield bits.bit_length() - 1
        bits ^= _highest(bits)


@dataclasses.dataclass(frozen=True)
class Streams:
    """The residual sums of a graph, and what is inside their branches."""

    sums: Sequence[ResidualSum]
    nested: Mapping[int, frozenset[int]]  # node of a sum inside branches -> the nodes of the sums that these end in
    inside: Mapping[int, frozenset[int]]  # nodes in branches -> the nodes of the sums that these branches end in
    shared: Mapping[int, frozenset[int]]  # the same of nodes that several branches read, and that belong to none
    parallel: Mapping[int, int]  # node of a sum -> the number of its stream; one that starts from another's end is it
    unread_sums: tuple[float, int]  # the most that one stream has outside of branches, and the last of them
    asked: Collection[frozenset[str]]  # `ResidualSum.ends` of other layers that would decide


def residual_streams(graph: Graph, paths: StreamPaths, plain: Collection[int]) -> Streams:
    """Finds the residual sums, other than ``plain`` ones."""
    sums, avoid = _decided(graph, paths, plain)
    nodes = {s.node for s in sums}
    ordered = sorted(sums, key=lambda s: s.node)
    nested = _nested(graph, paths, sums, avoid)
    inside, shared = _inside(graph, paths, ordered, _carried(graph, paths, nodes))
    parallel = _parallel(graph, [s for s in ordered if s.node not in nested])
    return Streams(ordered, nested, inside, shared, parallel, _unread_sums(graph, paths, nodes, avoid), paths.asked)


def _nested(
    graph: Graph, paths: StreamPaths, sums: Sequence[ResidualSum], avoid: Sequence[int]
) -> dict[int, frozenset[int]]:
    """`Streams.nested`: the sums whose branches a sum, or its stream, starts in and whose branches alone read it."""
    stream_of = _parallel(graph, sorted(sums, key=lambda s: s.node))
    seen_outside = dict.fromkeys(stream_of.values(), 0)  # the same as ``avoid`` of all sums of a stream
    for node, stream in stream_of.items():
        seen_outside[stream] |= avoid[node]
    result: dict[int, frozenset[int]] = {}
    shortcut_of = {s.node: s.shortcut for s in sums}
    batch = {i for i, one in enumerate(graph.nodes) if one.op == INPUT}
    depends, every = lambda node, on: bool(_sums_before(graph, node, on)), (1 << len(sums)) - 1
    for t in sums:
        stream = stream_of[t.node]
        only = [sums[n] for n in _positions(every & ~avoid[t.node]) if sums[n] != t]
        # Learned tokens; not a stream whose branches read others alone, which other layers read, too.
        is_own = not (t.is_apart or depends(shortcut_of[stream], batch))
        own = {sums[n].node for n in _positions(every & ~seen_outside[stream])} if is_own else set()
        reads = lambda s, own=own, stream=stream: s.node in own and s.start < stream and depends(stream, {s.start})
        around = [s for s in only if paths.is_after(t.shortcut, s.start) or reads(s)]
        if around:
            result[t.node] = frozenset(s.node for s in around)
    return result


def _decided(graph: Graph, paths: StreamPaths, plain: Collection[int]) -> tuple[list[ResidualSum], list[int]]:
    """The residual sums, the last first; and, for each node, those that a path to the output avoids the branch of.

    The second are sets of positions in the first, as bits; all bits of a node outside of branches are set.
    """
    nodes, avoid = graph.nodes, [0] * len(graph.nodes)
    for i in (graph.output, *graph.ends):
        avoid[i] = -1
    sums: list[ResidualSum] = []
    kept: set[int] = set()
    leaving: dict[int, int] = {}  # loop -> the same of its results
    rounds: dict[int, list[int]] = {}  # what a loop carries to its next round -> the loops
    for node in nodes:
        if node.op == "carry":
            rounds.setdefault(node.params["next"], []).append(nodes[node.params["next"]].loops[-1][0])
    for i in reversed(range(len(nodes))):
        if not paths.needed[i]:
            continue
        for number in rounds.get(i, ()):
            avoid[i] |= leaving.get(number, 0)
        found = paths.sums.get(i)
        if found is None and avoid[i] == -1 and i not in plain:
            found = paths.link(i, kept) or paths.projection(i) or paths.first(i, kept)
        found = None if found is not None and paths.is_again(found) else found
        if found is not None:
            kept.add(found.start)
            sums.append(found)
        for j in nodes[i].inputs if nodes[i].op != "stop_gradient" else ():
            bits = avoid[i] & ~(1 << len(sums) - 1) if found is not None and j == found.branch else avoid[i]
            avoid[j] |= bits
            for number, _ in nodes[j].loops[len(nodes[i].loops) :]:
                leaving[number] = leaving.get(number, 0) | bits
    return sums, avoid


def _carried(graph: Graph, paths: StreamPaths, sums: Collection[int]) -> list[bool]:
    """Whether each node is a sum, or made of sums without a product, as by a norm."""
    carried = [False] * len(graph.nodes)
    for i, node in enumerate(graph.nodes):
        reads = [j for j in node.inputs if paths.kinds[j] == ACTIVATION]
        carried[i] = i in sums or (bool(reads) and i not in paths.products and all(carried[j] for j in reads))
    return carried


def _unread_sums(graph: Graph, paths: StreamPaths, sums: Collection[int], avoid: Sequence[int]) -> tuple[float, int]:
    """`Streams.unread_sums`: such as those of gates, of stacked arrays, or of the stream's first value."""
    nodes, count = graph.nodes, [0.0] * len(graph.nodes)
    most, last = 0.0, -1
    for i, node in enumerate(nodes):
        reads = [j for j in node.inputs if paths.kinds[j] == ACTIVATION]
        if not paths.needed[i] or not reads or i in paths.products or node.op not in CARRIES:
            continue
        times = lambda j, node=node: math.prod(length for _, length in nodes[j].loops[len(node.loops) :])
        before = [count[j] * times(j) for j in reads]
        terms = paths.added(i)
        is_unread = terms and i not in sums and avoid[i] == -1 and all(paths.learned[j] for j in terms)
        count[i] = max(before)
        if is_unread and not paths.centers(i):
            count[i] += 1
            most, last = max((most, last), (count[i], i))
        most = max(most, count[i])
    return most, last


def _parallel(graph: Graph, main: Sequence[ResidualSum]) -> dict[int, int]:
    """`Streams.parallel`: the number of a stream is the node of its first sum."""
    result: dict[int, int] = {}
    for s in main:
        before = _sums_before(graph, s.shortcut, result)
        result[s.node] = result[max(before)] if before else s.node
    return result


def _sums_before(graph: Graph, node: int, sums: Collection[int]) -> set[int]:
    """The last sums that an array depends on."""
    return {i for i in graph.upstream(node, sums.__contains__) if i in sums}


def _followed(graph: Graph, i: int) -> Sequence[int]:
    """The arrays that a node reads, without numbers of places, which have no gradient."""
    node = graph.nodes[i]
    places = slice(1, 2) if node.op.startswith("scatter") else slice(1, None) if node.op == "gather" else slice(0)
    return [j for n, j in enumerate(node.inputs) if n not in range(len(node.inputs))[places]]


def _inside(
    graph: Graph, paths: StreamPaths, sums: Sequence[ResidualSum], carried: Sequence[bool]
) -> tuple[dict[int, frozenset[int]], dict[int, frozenset[int]]]:
    """`Streams.inside` and `Streams.shared`: what many branches read, such as an encoder's output, is shared."""
    number_of = {(s.branch, s.node): n for n, s in enumerate(sums)}
    outside = [False] * len(graph.nodes)  # the output is reached without passing the end of a branch
    for i in (graph.output, *graph.ends):
        outside[i] = True
    ends = [0] * len(graph.nodes)  # the branches whose end is reached first, as bits
    to_shortcut = [0] * len(graph.nodes)  # the sums whose shortcut is reached
    for n, s in enumerate(sums):
        to_shortcut[s.shortcut] |= 1 << n
    inside: dict[int, frozenset[int]] = {}
    shared: dict[int, frozenset[int]] = {}
    for i in reversed(range(len(graph.nodes))):
        if not paths.needed[i]:
            continue
        for j in _followed(graph, i):
            ends[j] |= 1 << number_of[j, i] if (j, i) in number_of else ends[i]
            outside[j] |= outside[i] and (j, i) not in number_of
            to_shortcut[j] |= to_shortcut[i]
        if outside[i] or not ends[i]:
            continue
        reached = [(n, sums[n]) for n in _positions(ends[i])]
        after = any(paths.is_after(i, s.start) and not to_shortcut[i] >> n & 1 for n, s in reached)
        loops = graph.nodes[i].loops
        alone = all(loops[: len(s.loops)] == s.loops and (s.loops or len(reached) == 1) for _, s in reached)
        belongs = after or (alone and not any(to_shortcut[i] >> n & 1 for n, _ in reached))
        if belongs or not carried[i]:  # an encoder's last norm is of its stream
            (inside if belongs else shared)[i] = frozenset(s.node for _, s in reached)
    return inside, shared
