"""Where a forward pass adds a branch to a stream, and which parameters are inside branches.

A stream is what is carried from block to block. A residual sum adds two arrays of one shape: the shortcut, an array of
the stream that no parameter and no nonlinearity changed, and the branch, what a block returns. A shortcut may also be
projected, by products without a nonlinearity. A model has several streams if it carries several arrays, as an encoder
and a decoder or the nodes and edges of a graph; a sum inside a branch is of no stream that leaves the branch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

from depthmup_flax.auditing.stream_paths import ResidualSum, StreamPaths, stacked
from depthmup_flax.auditing.trace import INPUT, Graph
from depthmup_flax.auditing.uses import ACTIVATION, Uses
from depthmup_flax.util.primitives import CARRIES


@dataclasses.dataclass(frozen=True)
class Streams:
    """The residual sums of a graph, and what is inside their branches."""

    sums: Sequence[ResidualSum]
    nested: Mapping[int, frozenset[int]]  # node of a sum inside branches -> the nodes of the sums that these end in
    inside: Mapping[int, frozenset[int]]  # nodes in branches -> the nodes of the sums that these branches end in
    shared: Mapping[int, frozenset[int]]  # the same of nodes that several branches read, and that belong to none
    parallel: Mapping[int, int]  # node of a sum -> the number of its stream; one that starts from another's end is it
    unread_sums: tuple[float, int]  # the most that one stream has outside of branches, and the last of them

    @property
    def main(self) -> list[ResidualSum]:
        """The sums that are not inside another's branch."""
        return [s for s in self.sums if s.node not in self.nested]

    def around(self, s: ResidualSum) -> frozenset[int]:
        """The nodes of the sums whose branches a sum is inside."""
        return self.nested.get(s.node, frozenset())


def residual_streams(
    graph: Graph,
    uses: Uses,
    degrees: Sequence[float],
    plain: Collection[int] = (),
    alike: Collection[frozenset[str]] = (),
) -> Streams:
    """Finds the residual sums, other than ``plain`` ones; ``degrees`` are those of `forward_factors.Homogeneity`.

    ``alike`` are the `ResidualSum.ends` that other layers of the two models have.
    """
    paths = StreamPaths(graph, uses, degrees, plain, alike)
    sums, avoid = _decided(graph, paths, plain)
    nodes = {s.node for s in sums}
    ordered = sorted(sums, key=lambda s: s.node)
    nested = _nested(graph, paths, sums, avoid)
    inside, shared = _inside(graph, paths, ordered, _carried(graph, paths, nodes))
    parallel = _parallel(graph, [s for s in ordered if s.node not in nested])
    return Streams(ordered, nested, inside, shared, parallel, _unread_sums(graph, paths, nodes, avoid))


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
    for t in sums:
        stream = stream_of[t.node]
        only = [s for n, s in enumerate(sums) if not avoid[t.node] >> n & 1 and s.node != t.node]
        # Such as a stream of learned tokens; not one whose branches read others alone, which other layers read, too.
        own = set[int]() if t.ends else {s.node for n, s in enumerate(sums) if not seen_outside[stream] >> n & 1}
        around = [
            s
            for s in only
            if paths.is_after(t.shortcut, s.start)
            or (s.node in own and _is_learned(graph, shortcut_of[stream]) and _reads(graph, stream, s))
        ]
        if around:
            result[t.node] = frozenset(s.node for s in around)
    return result


def _is_learned(graph: Graph, node: int) -> bool:
    """Whether an array does not depend on the batch, as learned tokens."""
    return not _sums_before(graph, node, {i for i, one in enumerate(graph.nodes) if one.op == INPUT})


def _reads(graph: Graph, node: int, s: ResidualSum) -> bool:
    """Whether an array depends on the array that a sum's shortcut keeps."""
    return s.start < node and bool(_sums_before(graph, node, {s.start}))


def _decided(graph: Graph, paths: StreamPaths, plain: Collection[int]) -> tuple[list[ResidualSum], list[int]]:
    """The residual sums, the last first; and, for each node, those that a path to the output avoids the branch of.

    The second are sets of positions in the first, as bits; all bits of a node outside of branches are set.
    """
    nodes, avoid = graph.nodes, [0] * len(graph.nodes)
    avoid[graph.output] = -1
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
        elif found is None and i not in plain:  # the last sum of a stream that only another's branch reads
            found = paths.known(i)
        found = None if found is not None and paths.is_again(found) else found
        if found is not None:
            kept.add(found.start)
            sums.append(found)
        for j in _reads_of(graph, i) if nodes[i].op != "stop_gradient" else ():
            bits = avoid[i] & ~(1 << len(sums) - 1) if found is not None and j == found.branch else avoid[i]
            avoid[j] |= bits
            for number, _ in nodes[j].loops[len(nodes[i].loops) :]:
                leaving[number] = leaving.get(number, 0) | bits
    return sums, avoid


def _reads_of(graph: Graph, i: int) -> Sequence[int]:
    """What a node reads; of a sum over a stack, the arrays in the stack."""
    return stacked(graph, graph.nodes[i]) or graph.nodes[i].inputs


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
        terms = paths.added(i) or stacked(graph, node)
        is_unread = terms and i not in sums and avoid[i] == -1 and all(paths.learned[j] for j in terms)
        count[i] = max(before)
        if is_unread and not paths.centers(i, paths.latest(terms[0])):
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
    node, reads = graph.nodes[i], _reads_of(graph, i)
    places = slice(1, 2) if node.op.startswith("scatter") else slice(1, None) if node.op == "gather" else slice(0)
    return [j for n, j in enumerate(reads) if n not in range(len(reads))[places]]


def _inside(
    graph: Graph, paths: StreamPaths, sums: Sequence[ResidualSum], carried: Sequence[bool]
) -> tuple[dict[int, frozenset[int]], dict[int, frozenset[int]]]:
    """`Streams.inside` and `Streams.shared`: what many branches read, such as an encoder's output, is shared."""
    number_of = {(s.branch, s.node): n for n, s in enumerate(sums)}
    outside = [False] * len(graph.nodes)  # the output is reached without passing the end of a branch
    outside[graph.output] = True
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
        reached = [(n, s) for n, s in enumerate(sums) if ends[i] >> n & 1]
        after = any(paths.is_after(i, s.start) and not to_shortcut[i] >> n & 1 for n, s in reached)
        loops = graph.nodes[i].loops
        alone = all(loops[: len(s.loops)] == s.loops and (s.loops or len(reached) == 1) for _, s in reached)
        belongs = after or (alone and not any(to_shortcut[i] >> n & 1 for n, _ in reached))
        if belongs or not carried[i]:  # an encoder's last norm is of its stream
            (inside if belongs else shared)[i] = frozenset(s.node for _, s in reached)
    return inside, shared
