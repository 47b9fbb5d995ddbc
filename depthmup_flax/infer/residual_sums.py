"""Where a forward pass adds a branch to its stream, and which parameters are inside branches.

A residual sum adds two arrays. One, the shortcut, is an earlier array of the stream that no parameter and no
nonlinearity changed. The other, the branch, depends on that array by a product with a parameter. A shortcut may also
be projected, by products without a nonlinearity.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence

from depthmup_flax.infer.dataflow import PARAM, Graph, Loop
from depthmup_flax.infer.parameter_uses import ACTIVATION, MOVES, PRODUCT, SAME_PLACE, SUMS, Uses

# Linear operations without parameters: what they make of the stream is still the stream.
_KEEPS_STREAM = SAME_PLACE | MOVES | {"reduce_window_sum", "select_n", "concatenate", "cond", "gather"}
NONLINEAR = frozenset(
    {"exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erfc", "erf_inv", "sin", "cos", "tan", "atan2",
     "sinh", "cosh", "asinh", "sign", "clamp", "max", "min", "abs", "pow", "reduce_window_max"}
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ResidualSum:
    """One sum of a shortcut and a branch; the numbers are of nodes."""

    node: int
    shortcut: int
    branch: int
    start: int  # the array of the stream that the branch reads
    loops: tuple[Loop, ...]
    projected: bool


@dataclasses.dataclass(frozen=True)
class Streams:
    """The residual sums of a graph, and what is inside their branches."""

    sums: Sequence[ResidualSum]
    main: Sequence[ResidualSum]  # those that are not inside another's branch
    inside: Mapping[int, frozenset[int]]  # nodes in branches -> the nodes of the sums that these branches end in
    shared: Mapping[int, frozenset[int]]  # the same of nodes that several branches read, and that belong to none


def residual_streams(graph: Graph, uses: Uses, degrees: Sequence[float]) -> Streams:
    """Finds the residual sums; ``degrees`` are those of `forward_factors.homogeneity`."""
    paths = _Paths(graph, uses, degrees)
    sums = {s.node: s for s in paths.sums}
    for node in reversed(range(len(graph.nodes))):  # projections are sums that all paths to the output pass
        found = paths.projection(node)
        if found is not None and node in _outside(graph, sums.values()):
            sums[node] = found
    ordered = [sums[node] for node in sorted(sums)]
    inside, shared = _inside(graph, paths, ordered)
    return Streams(ordered, [s for s in ordered if s.node not in inside], inside, shared)


class _Paths:
    """For every array, sets of earlier arrays (as bits) by the paths on which it depends on them."""

    def __init__(self, graph: Graph, uses: Uses, degrees: Sequence[float]):
        self.graph, self.kinds, self.needed = graph, uses.kinds, graph.needed()
        self.products, size = {use.node for use in uses.uses if use.kind == PRODUCT}, len(graph.nodes)
        self.after = [0] * size  # on any path
        self.same = [0] * size  # on a path that keeps the stream
        self.by_product, self.by_nonlinearity = [0] * size, [0] * size
        self.learned = [False] * size  # depends on a parameter
        self.sums: list[ResidualSum] = []
        self.starts: list[int] = []  # the node of each bit
        readers = [0] * size
        for i in self._nodes():
            for j in set(graph.nodes[i].inputs):
                readers[j] += 1
        for i in self._nodes():
            self._extend(i, degrees)
            if readers[i] > 1:  # a stream is read by a branch and by a shortcut
                self.after[i] |= 1 << len(self.starts)
                self.same[i] |= 1 << len(self.starts)
                self.starts.append(i)
        self.bit_of = {node: bit for bit, node in enumerate(self.starts)}

    def _nodes(self) -> Iterator[int]:
        return (i for i in range(len(self.graph.nodes)) if self.needed[i] and self.kinds[i] == ACTIVATION)

    def _extend(self, i: int, degrees: Sequence[float]) -> None:
        node = self.graph.nodes[i]
        reads = [j for j in node.inputs if self.kinds[j] == ACTIVATION]
        is_product = i in self.products
        # The largest of the variance and zero, in a norm, has degree 2.
        bends = node.op in NONLINEAR and not (node.op in ("max", "min", "abs") and reads and degrees[reads[0]] != 1)
        for j in reads:
            self.after[i] |= self.after[j]
            self.by_product[i] |= self.after[j] if is_product else self.by_product[j]
            self.by_nonlinearity[i] |= self.after[j] if bends else self.by_nonlinearity[j]
        self.learned[i] = any(self.kinds[j] == PARAM or self.learned[j] for j in node.inputs)
        if node.op in SUMS and len(reads) == 2 and reads[0] != reads[1]:
            found = self._identity(i, *reads) or self._identity(i, *reversed(reads))
            if found is not None:
                self.sums.append(found)
                reads = [found.shortcut]
        elif is_product or not (node.op in _KEEPS_STREAM or self._scales(i, reads)):
            return
        self.same[i] = functools.reduce(operator.and_, (self.same[j] for j in reads)) if reads else 0

    def _scales(self, i: int, reads: Sequence[int]) -> bool:
        """Whether an operation multiplies the stream by something else, or adds something to it."""
        node = self.graph.nodes[i]
        divides = node.op == "div" and node.inputs[0] in reads
        return len(reads) == 1 and (divides or node.op in ("mul", "add", "sub"))

    def _identity(self, node: int, shortcut: int, branch: int) -> ResidualSum | None:
        starts = self._starts(shortcut, branch)
        if not starts or self._starts(branch, shortcut):
            return None
        start = self.starts[starts.bit_length() - 1]
        return ResidualSum(node, shortcut, branch, start, self.graph.nodes[node].loops, False)

    def _starts(self, shortcut: int, branch: int) -> int:
        """The latest array that both read, if the shortcut keeps it and the branch multiplies it; as a bit."""
        return _highest(self.same[shortcut] & self.after[branch]) & self.by_product[branch] & ~self.same[branch]

    def is_after(self, node: int, start: int) -> bool:
        """Whether an array depends on the array that a branch reads, or is it."""
        return bool(self.after[node] >> self.bit_of[start] & 1)

    def projection(self, node: int) -> ResidualSum | None:
        """The sum at ``node`` of a branch and a projected shortcut, if it looks like one."""
        known = {s.node for s in self.sums}
        reads = [j for j in self.graph.nodes[node].inputs if self.kinds[j] == ACTIVATION]
        is_sum = self.graph.nodes[node].op in ("add", "add_any") and len(reads) == 2
        if not is_sum or node in known or not self.needed[node]:
            return None
        latest = _highest(self.after[reads[0]] & self.after[reads[1]])  # the latest array that both depend on
        for shortcut, branch in (reads, reads[::-1]):
            starts = latest & self.by_product[shortcut] & self.by_product[branch]
            starts &= self.by_nonlinearity[branch] & ~self.by_nonlinearity[shortcut]
            start = self.starts[starts.bit_length() - 1] if starts else -1
            # Otherwise two networks that read the batch are added.
            if starts and self.learned[start]:
                return ResidualSum(node, shortcut, branch, start, self.graph.nodes[node].loops, True)
        return None


def _highest(bits: int) -> int:
    return 1 << bits.bit_length() - 1 if bits else 0


def _outside(graph: Graph, sums: Collection[ResidualSum]) -> set[int]:
    """The nodes from which the output is reached without passing the end of a branch."""
    cut, outside = {(s.branch, s.node) for s in sums}, {graph.output}
    for i in reversed(range(len(graph.nodes))):
        if i in outside:
            outside.update(j for j in graph.nodes[i].inputs if (j, i) not in cut)
    return outside


def _inside(
    graph: Graph, paths: _Paths, sums: Sequence[ResidualSum]
) -> tuple[dict[int, frozenset[int]], dict[int, frozenset[int]]]:
    """`Streams.inside` and `Streams.shared`: what many branches read, such as an encoder's output, is shared."""
    outside = _outside(graph, sums)
    number_of = {(s.branch, s.node): n for n, s in enumerate(sums)}
    ends = [0] * len(graph.nodes)  # the branches whose end is reached first, as bits
    to_shortcut = [0] * len(graph.nodes)  # the sums whose shortcut is reached
    for n, s in enumerate(sums):
        to_shortcut[s.shortcut] |= 1 << n
    inside: dict[int, frozenset[int]] = {}
    shared: dict[int, frozenset[int]] = {}
    for i in reversed(range(len(graph.nodes))):
        if not paths.needed[i]:
            continue
        for j in graph.nodes[i].inputs:
            ends[j] |= 1 << number_of[j, i] if (j, i) in number_of else ends[i]
            to_shortcut[j] |= to_shortcut[i]
        if i in outside or not ends[i]:
            continue
        reached = [(n, s) for n, s in enumerate(sums) if ends[i] >> n & 1]
        after = any(paths.is_after(i, s.start) and not to_shortcut[i] >> n & 1 for n, s in reached)
        loops = graph.nodes[i].loops
        alone = all(loops[: len(s.loops)] == s.loops and (s.loops or len(reached) == 1) for _, s in reached)
        belongs = after or (alone and not any(to_shortcut[i] >> n & 1 for n, _ in reached))
        (inside if belongs else shared)[i] = frozenset(s.node for _, s in reached)
    return inside, shared
