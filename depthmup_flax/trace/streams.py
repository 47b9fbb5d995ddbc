"""The streams of a forward pass, their branches, and which arrays are inside of branches.

A stream is what is carried from block to block. A model has several streams if it carries several
arrays, as an encoder and a decoder or the nodes and edges of a graph; a sum inside a branch is of
no stream that leaves the branch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from depthmup_flax.trace.graph import INPUT, Graph, Loop, rounds
from depthmup_flax.trace.paths import Paths, positions
from depthmup_flax.trace.residual_sums import ResidualSum, SumFinder
from depthmup_flax.util.primitives import CARRIES


@dataclasses.dataclass(frozen=True)
class Streams:
    """The residual sums of a graph, and what is inside their branches. Nodes of sums name them.

    Attributes:
      sums: in the order of the forward pass.
      nested: a sum inside branches -> the sums that these end in.
      inside: an array in branches -> the sums that these branches end in.
      shared: the same of arrays that several branches read, and that belong to none.
      read_by: an array -> the sums in whose branches it is read first, whatever else reads it.
      parallel: a sum -> the number of its stream; a stream that starts from another's end is that
        one.
      unread_sums: the most that one stream has outside of branches, and the last of them.
      asked: `ResidualSum.ends` of other layers that would decide.
    """

    sums: Sequence[ResidualSum]
    nested: Mapping[int, frozenset[int]]
    inside: Mapping[int, frozenset[int]]
    shared: Mapping[int, frozenset[int]]
    read_by: Mapping[int, frozenset[int]]
    parallel: Mapping[int, int]
    unread_sums: tuple[float, int]
    asked: Collection[frozenset[str]]


def residual_streams(graph: Graph, finder: SumFinder) -> Streams:
    """Decides which sums are residual, and what is inside their branches."""
    paths = finder.paths
    sums, avoid = _decided(graph, finder, {})
    unread = _unread_carries(graph, paths.needed, {residual.node for residual in sums})
    if unread:
        sums, avoid = _with_unread_carries(graph, finder, unread, (sums, avoid))
    nodes = {residual.node for residual in sums}
    ordered = sorted(sums, key=lambda residual: residual.node)
    nested = _nested(graph, paths, sums, avoid)
    outermost = [residual for residual in ordered if residual.node not in nested]
    inside, shared, read_by = _inside(graph, paths, ordered)
    return Streams(
        sums=ordered,
        nested=nested,
        inside=inside,
        shared=shared,
        read_by=read_by,
        parallel=_parallel(graph, outermost),
        unread_sums=_unread_sums(graph, paths, nodes, avoid),
        asked=finder.asked,
    )


def _unread_carries(graph: Graph, needed: Sequence[bool], sums: Collection[int]) -> dict[int, int]:
    """What loops carry and do not add to, and nothing reads behind them: its end -> its start."""
    ends = {end: start for start, end in graph.carries() if needed[start] and _last_of_several(graph, end) not in sums}
    for i, node in enumerate(graph.nodes):
        if needed[i]:
            for j in ends.keys() & set(node.inputs):
                if len(node.loops) < len(graph.nodes[j].loops):
                    del ends[j]
    return ends


def _last_of_several(graph: Graph, i: int) -> int:
    """The last node before ``i``, or itself, that has several inputs: a sum behind casts."""
    while len(graph.nodes[i].inputs) == 1:
        i = graph.nodes[i].inputs[0]
    return i


def _with_unread_carries(
    graph: Graph,
    finder: SumFinder,
    unread: Mapping[int, int],
    careful: tuple[list[ResidualSum], list[int]],
) -> tuple[list[ResidualSum], list[int]]:
    """`_decided`, where only the next round reads what loops carry, as the first layer's value.

    ``careful`` is what is known if the next layer's stream may read it, too.
    """
    once, avoid = _decided(graph, finder, dict.fromkeys(unread, 0))
    starts = {end: avoid[start] for end, start in unread.items()}
    sums, avoid = _decided(graph, finder, starts)
    numbers = [residual.node for residual in sums]
    if numbers != [residual.node for residual in once]:
        return careful
    return sums, avoid


def _decided(
    graph: Graph,
    finder: SumFinder,
    rounds_avoid: Mapping[int, int],
) -> tuple[list[ResidualSum], list[int]]:
    """The residual sums, the last first; and those whose branch a path from a node avoids.

    The second are sets of positions in the first, as bits; all bits of a node outside of branches
    are set. ``rounds_avoid``: the same of paths that start with the next round of a loop, of some
    ends of what it carries.
    """
    nodes = graph.nodes
    avoid = [0] * len(nodes)
    for i in graph.results:
        avoid[i] = -1
    sums: list[ResidualSum] = []
    starts: set[int] = set()  # of the sums
    leaving: dict[int, int] = {}  # loop -> what paths from its results avoid
    loops_of: dict[int, list[int]] = {}  # what a loop carries to its next round -> the loops
    for _, end in graph.carries():
        loops_of.setdefault(end, []).append(nodes[end].loops[-1][0])
    for i in reversed(range(len(nodes))):
        if not finder.paths.needed[i]:
            continue
        for loop in loops_of.get(i, ()):
            avoid[i] |= rounds_avoid.get(i, leaving.get(loop, 0))
        residual = finder.sums.get(i)
        if residual is None and avoid[i] == -1:
            residual = finder.later(i, starts)
        if residual is not None and finder.is_repeated(residual):
            residual = None
        if residual is not None:
            starts.add(residual.start)
            sums.append(residual)
        if nodes[i].op == "stop_gradient":
            continue
        for j in nodes[i].inputs:
            bits = avoid[i]
            if residual is not None and j == residual.branch:
                bits &= ~(1 << len(sums) - 1)
            avoid[j] |= bits
            for loop, _ in nodes[j].loops[len(nodes[i].loops) :]:
                leaving[loop] = leaving.get(loop, 0) | bits
    return sums, avoid


def _nested(
    graph: Graph,
    paths: Paths,
    sums: Sequence[ResidualSum],
    avoid: Sequence[int],
) -> dict[int, frozenset[int]]:
    """`Streams.nested`: the sums in whose branches a sum, or its stream, starts.

    These branches alone read it.
    """
    stream_of = _parallel(graph, sorted(sums, key=lambda residual: residual.node))
    seen_outside = dict.fromkeys(stream_of.values(), 0)  # what ``avoid`` is of all sums of a stream
    for node, stream in stream_of.items():
        seen_outside[stream] |= avoid[node]
    shortcut_of = {residual.node: residual.shortcut for residual in sums}
    batch = {i for i, node in enumerate(graph.nodes) if node.op == INPUT}
    all_sums = (1 << len(sums)) - 1
    result: dict[int, frozenset[int]] = {}
    for inner in sums:
        stream = stream_of[inner.node]
        # A stream of learned tokens; not one whose branches read others alone, which other layers
        # read, too.
        is_of_tokens = not inner.is_apart and not _sums_before(graph, shortcut_of[stream], batch)
        around = set()
        for n in positions(all_sums & ~avoid[inner.node]):
            outer = sums[n]
            if outer == inner:
                continue
            is_unseen = is_of_tokens and not seen_outside[stream] >> n & 1
            is_around = paths.is_after(inner.shortcut, outer.start)
            if is_around or (is_unseen and _starts_after(graph, stream, outer.start)):
                around.add(outer.node)
        if around:
            result[inner.node] = frozenset(around)
    return result


def _starts_after(graph: Graph, stream: int, start: int) -> bool:
    return start < stream and bool(_sums_before(graph, stream, {start}))


def _carries_sums(graph: Graph, paths: Paths, sums: Collection[int]) -> list[bool]:
    """Whether each node is a sum, or made of sums without a product, as by a norm."""
    result = [False] * len(graph.nodes)
    for i in range(len(graph.nodes)):
        reads = paths.activations.reads(i)
        is_made_of_sums = bool(reads) and i not in paths.products and all(result[j] for j in reads)
        result[i] = i in sums or is_made_of_sums
    return result


def _unread_sums(
    graph: Graph,
    paths: Paths,
    sums: Collection[int],
    avoid: Sequence[int],
) -> tuple[float, int]:
    """`Streams.unread_sums`: of gates, of stacked arrays, or of the stream's first value."""
    counts: list[Sequence[float]] = [(0.0,)] * len(graph.nodes)
    most = 0.0
    last = -1
    for i, node in enumerate(graph.nodes):
        reads = paths.activations.reads(i)
        if not paths.needed[i] or not reads or i in paths.products or node.op not in CARRIES:
            continue
        before = [_by_loop(counts[j], graph.nodes[j].loops, node.loops) for j in reads]
        count = max(before, key=lambda numbers: _by_loop(numbers, node.loops, ()))
        if i not in sums and avoid[i] == -1 and _adds_learned(paths, i):
            count[-1] += 1
            most, last = max((most, last), (sum(count), i))
        most = max(most, sum(count))
        counts[i] = count
    return most, last


def _by_loop(numbers: Sequence[float], loops: Sequence[Loop], here: Sequence[Loop]) -> list[float]:
    """Numbers of sums outside of loops, and in one round of each, for a node that is in ``here``.

    A loop that has ended counts with all its rounds; what it starts from counts once.
    """
    result = list(numbers)
    while len(result) > len(here) + 1:
        of_loop = result.pop()
        if of_loop:  # of a ``while``, the number of rounds is unknown
            result[-1] += of_loop * rounds([loops[len(result) - 1]])
    return result + [0.0] * (len(here) + 1 - len(result))


def _adds_learned(paths: Paths, i: int) -> bool:
    """Whether a node adds two arrays that depend on parameters; a norm's mean is not added."""
    terms = paths.activations.added(i)
    if not terms or not all(paths.learned[j] for j in terms):
        return False
    return not paths.activations.centers(i)


def _parallel(graph: Graph, sums: Sequence[ResidualSum]) -> dict[int, int]:
    """`Streams.parallel`: the number of a stream is the node of its first sum."""
    result: dict[int, int] = {}
    for residual in sums:
        before = _sums_before(graph, residual.shortcut, result)
        result[residual.node] = result[max(before)] if before else residual.node
    return result


def _sums_before(graph: Graph, node: int, sums: Collection[int]) -> set[int]:
    """The last sums, or other arrays, that an array depends on."""
    return {i for i in graph.upstream(node, sums.__contains__) if i in sums}


def _followed(graph: Graph, i: int) -> Sequence[int]:
    """The arrays that a node reads, without numbers of places, which have no gradient."""
    node = graph.nodes[i]
    if node.op == "gather":
        return node.inputs[:1]
    if node.op.startswith("scatter"):
        return (*node.inputs[:1], *node.inputs[2:])
    return node.inputs


def _inside(
    graph: Graph,
    paths: Paths,
    sums: Sequence[ResidualSum],
) -> tuple[dict[int, frozenset[int]], dict[int, frozenset[int]], dict[int, frozenset[int]]]:
    """`Streams.inside`, `shared` and `read_by`: an encoder's output, which many read, is shared."""
    reached = _reached(graph, paths, sums)
    carries_sums = _carries_sums(graph, paths, {residual.node for residual in sums})
    inside: dict[int, frozenset[int]] = {}
    shared: dict[int, frozenset[int]] = {}
    read_by: dict[int, frozenset[int]] = {}
    for i in reversed(range(len(graph.nodes))):
        if not paths.needed[i] or not reached.ends[i]:
            continue
        numbers = list(positions(reached.ends[i]))
        nodes = frozenset(sums[n].node for n in numbers)
        read_by[i] = nodes
        if reached.outside[i]:
            continue
        in_front = [n for n in numbers if reached.shortcuts[i] >> n & 1]  # of their shortcuts
        is_after = any(paths.is_after(i, sums[n].start) for n in numbers if n not in in_front)
        if is_after or (not in_front and _is_of_one_layer(graph, i, [sums[n] for n in numbers])):
            inside[i] = nodes
        elif not carries_sums[i]:  # an encoder's last norm is of its stream
            shared[i] = nodes
    return inside, shared, read_by


def _is_of_one_layer(graph: Graph, i: int, sums: Sequence[ResidualSum]) -> bool:
    """Whether the branches that read an array are in its loops, or one branch reads it alone."""
    loops = graph.nodes[i].loops
    for residual in sums:
        if loops[: len(residual.loops)] != residual.loops:
            return False
        if not residual.loops and len(sums) > 1:
            return False
    return True


@dataclasses.dataclass(frozen=True)
class _Reached:
    """What is reached from each node, downstream.

    Attributes:
      outside: whether the output is, without passing the end of a branch.
      ends: the branches whose end is reached first, as bits.
      shortcuts: the sums whose shortcut is, as bits.
    """

    outside: list[bool]
    ends: list[int]
    shortcuts: list[int]


def _reached(graph: Graph, paths: Paths, sums: Sequence[ResidualSum]) -> _Reached:
    size = len(graph.nodes)
    reached = _Reached([False] * size, [0] * size, [0] * size)
    for i in graph.results:
        reached.outside[i] = True
    number_of = {}
    for n, residual in enumerate(sums):
        number_of[residual.branch, residual.node] = n
        reached.shortcuts[residual.shortcut] |= 1 << n
    for i in reversed(range(size)):
        if not paths.needed[i]:
            continue
        for j in _followed(graph, i):
            if (j, i) in number_of:
                reached.ends[j] |= 1 << number_of[j, i]
            else:
                reached.ends[j] |= reached.ends[i]
                reached.outside[j] |= reached.outside[i]
            reached.shortcuts[j] |= reached.shortcuts[i]
    return reached
