"""The slices of parameters that a forward pass reads apart, as those of a fused matrix.

A slice of a product is the product with a slice of its weights, and a slice of a sum is a sum of
slices. So what is read of each array is followed up to the parameters. A row of `_READS` tells
which parts of its inputs a primitive makes a part of its result of; without one, a part is taken of
the whole result.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from depthmup_flax.trace.axes import axis_groups
from depthmup_flax.trace.graph import PARAM, Graph, Node, Place
from depthmup_flax.util.primitives import ENTRYWISE

# Which entries are read along an axis, a byte for each, 0 or 1; ``None``: all.
PartOfAxis: TypeAlias = "bytes | None"
Part: TypeAlias = tuple[PartOfAxis, ...]
Shape: TypeAlias = tuple[int, ...]
_MOST = 4  # parts of an array on average: written-out loops over positions have more


@dataclasses.dataclass(frozen=True)
class Slices:
    """A graph in which slices of parameters are parameters.

    Attributes:
      graph: in the order of the original one, with the parts of each array in its place.
      origin: the array of the original graph that each is a part of.
      slices: path of a parameter that is a slice -> the path of the whole, and which entries.
    """

    graph: Graph
    origin: Sequence[int]
    slices: Mapping[str, tuple[str, Part]]

    def places(self, places: Collection[Place]) -> list[Place]:
        """Those of all parts of the arrays, and of their readers."""
        parts: dict[int, list[int]] = collections.defaultdict(list, {-1: [-1]})
        for new, i in enumerate(self.origin):
            parts[i].append(new)
        return [pair for i, reader in places for pair in itertools.product(parts[i], parts[reader])]

    def together(self, factors: Mapping[str, float]) -> dict[str, np.ndarray]:
        """Path -> factors that broadcast against the parameter, from those of slices."""
        result: dict[str, np.ndarray] = {}
        for name, factor in factors.items():
            path, part = self.slices[name]
            is_inside = _outer([_entries_of(1, axis) for axis in part])
            result[path] = result.get(path, 1.0) * np.where(is_inside, factor, 1.0)
        return result


def sliced(graph: Graph) -> Slices | None:
    """The graph with the slices of parameters apart; ``None`` if there are none, or too many."""
    parts = _parts_read(graph)
    if parts is None:
        return None
    is_sliced = [node.op == PARAM and len(parts[i]) > 1 for i, node in enumerate(graph.nodes)]
    if not any(is_sliced):
        return None
    builder = _Builder(graph, Graph(replaced=graph.replaced))
    for i, of_array in enumerate(parts):
        if is_sliced[i]:
            builder.add_slices(i, of_array)
        else:
            for part in _in_order(of_array):
                builder.add_part(i, part)
    builder.end()
    return Slices(builder.result, builder.origin, builder.slices)


def _parts_read(graph: Graph) -> list[set[Part]] | None:
    """The parts of each array that others read; ``None`` if there are too many."""
    parts: list[set[Part]] = [set() for _ in graph.nodes]
    stack = [(i, _whole(graph.nodes[i])) for i in graph.results]
    number = 0
    while stack:
        i, part = stack.pop()
        if part in parts[i]:
            continue
        parts[i].add(part)
        number += 1
        if number > _MOST * len(parts):
            return None
        node = graph.nodes[i]
        reads = _reads(graph, node, part)
        stack += [(i, _whole(node))] if reads is None else zip(node.inputs, reads, strict=True)
        if node.op == "carry":
            stack.append((node.params["next"], part))
    return parts


def _in_order(parts: Collection[Part]) -> list[Part]:
    """The whole first, of which others may be slices."""
    return sorted(parts, key=any)


@dataclasses.dataclass
class _Builder:
    """Adds the parts of a graph's arrays to another graph; see `Slices`."""

    graph: Graph
    result: Graph
    origin: list[int] = dataclasses.field(default_factory=list)
    slices: dict[str, tuple[str, Part]] = dataclasses.field(default_factory=dict)
    number_of: dict[tuple[int, Part], int] = dataclasses.field(default_factory=dict)

    def _add(self, i: int, op: str, inputs: Sequence[int], params: Mapping[str, Any]) -> int:
        node = dataclasses.replace(self.graph.nodes[i], op=op, inputs=tuple(inputs), params=params)
        self.origin.append(i)
        self.result.nodes.append(node)
        return len(self.origin) - 1

    def add_slices(self, i: int, parts: Collection[Part]) -> None:
        """Makes a parameter of each slice; what reads several of them reads them together."""
        path = self.graph.nodes[i].params["path"]
        pieces: dict[Part, int] = {}
        for piece in _pieces(parts):
            name = f"{path} {'i' * len(pieces)}"  # a number would be a layer
            self.slices[name] = (path, piece)
            pieces[piece] = self._add(i, PARAM, (), {"path": name})
        for part in _in_order(parts):
            inside = [k for piece, k in pieces.items() if _contains(part, piece)]
            if len(inside) == 1:
                self.number_of[i, part] = inside[0]
            else:
                self.number_of[i, part] = self._add(i, "concatenate", inside, {})

    def add_part(self, i: int, part: Part) -> None:
        """Makes a part of an array of parts of its inputs, or takes it of the whole."""
        node = self.graph.nodes[i]
        reads = _reads(self.graph, node, part)
        if reads is None:
            whole = self.number_of[i, _whole(node)]
            self.number_of[i, part] = self._add(i, "slice", [whole], {})
        else:
            inputs = [self.number_of[pair] for pair in zip(node.inputs, reads, strict=True)]
            self.number_of[i, part] = self._add(i, node.op, inputs, node.params)

    def end(self) -> None:
        """Tells loops what they carry, and the graph what it returns."""
        nodes = self.graph.nodes
        for (i, part), k in self.number_of.items():
            if nodes[i].op == "carry":
                params = {"next": self.number_of[nodes[i].params["next"], part]}
                self.result.nodes[k] = dataclasses.replace(self.result.nodes[k], params=params)
        wholes = [self.number_of[i, _whole(nodes[i])] for i in self.graph.results]
        self.result.output = wholes[0]
        self.result.ends = tuple(wholes[1:])


def _whole(node: Node) -> Part:
    return (None,) * len(node.shape)


def _entries(axis: bytes) -> np.ndarray:
    return np.frombuffer(axis, bool)


def _entries_of(size: int, axis: PartOfAxis) -> np.ndarray:
    return np.ones(size, bool) if axis is None else _entries(axis)


def _axis(entries: np.ndarray) -> PartOfAxis:
    return None if entries.all() else entries.tobytes()


def _outer(axes: Sequence[np.ndarray]) -> np.ndarray:
    return functools.reduce(np.logical_and.outer, axes)


def _contains(part: Part, piece: Part) -> bool:
    for axis, of_piece in zip(part, piece, strict=True):
        if axis is None:
            continue
        if of_piece is None or not (_entries(axis) | ~_entries(of_piece)).all():
            return False
    return True


def _pieces(parts: Collection[Part]) -> Iterator[Part]:
    """The largest parts that are inside of or outside of each of ``parts``."""
    columns: list[list[PartOfAxis]] = []
    for axes in zip(*parts, strict=True):
        entries = [_entries(axis) for axis in axes if axis is not None]
        kinds = np.zeros(1, int)
        if entries:
            kinds = np.unique(entries, axis=1, return_inverse=True)[1].ravel()
        columns.append([_axis(kinds == kind) for kind in range(kinds.max() + 1)])
    return itertools.product(*columns)


def _reads(graph: Graph, node: Node, part: Part) -> list[Part] | None:
    """The parts of the inputs that a part of an array is made of, or ``None``."""
    inputs = [graph.nodes[j] for j in node.inputs]
    if not any(part) and node.op not in _CUTS:
        return list(map(_whole, inputs))
    read = _READS.get(node.op)
    return None if read is None else read(node, [array.shape for array in inputs], part)


def _of_first(axes: Sequence[PartOfAxis], shapes: Sequence[Shape]) -> list[Part]:
    """A part of the first input, and the whole of the others, such as numbers of places."""
    return [tuple(axes), *((None,) * len(shape) for shape in shapes[1:])]


def _of_entrywise(node: Node, shapes: Sequence[Shape], part: Part) -> list[Part]:
    """Axes of size 1 are broadcast; so are numbers."""
    result: list[Part] = []
    for shape in shapes:
        axes = []
        for size, new, axis in zip(shape, node.shape, part, strict=bool(shape)):
            axes.append(axis if size == new else None)
        result.append(tuple(axes))
    return result


def _of_broadcast(node: Node, shapes: Sequence[Shape], part: Part) -> list[Part]:
    axes = []
    for size, k in zip(shapes[0], node.params["broadcast_dimensions"], strict=True):
        axes.append(part[k] if size == node.shape[k] else None)
    return _of_first(axes, shapes)


def _of_transpose(node: Node, shapes: Sequence[Shape], part: Part) -> list[Part]:
    order = node.params["permutation"]
    return _of_first([part[order.index(k)] for k in range(len(part))], shapes)


def _of_layer(node: Node, shapes: Sequence[Shape], part: Part) -> list[Part]:
    return _of_first([None, *part], shapes)


def _of_slice(node: Node, shapes: Sequence[Shape], part: Part) -> list[Part]:
    params = node.params
    steps = params["strides"] or (1,) * len(part)
    slices = map(slice, params["start_indices"], params["limit_indices"], steps)
    return _of_first(list(map(_embedded, shapes[0], slices, part)), shapes)


def _of_split(node: Node, shapes: Sequence[Shape], part: Part) -> list[Part]:
    """One of several parts along an axis; ``unstack`` takes the axis away."""
    k = node.params["axis"]
    number = node.params["result"]
    size = shapes[0][k]
    sizes = node.params.get("sizes", (1,) * size)
    where = slice(sum(sizes[:number]), sum(sizes[: number + 1]))
    if node.op == "unstack":
        axes = [*part[:k], _embedded(size, where, None), *part[k:]]
    else:
        axes = [*part[:k], _embedded(size, where, part[k]), *part[k + 1 :]]
    return _of_first(axes, shapes)


def _embedded(size: int, where: slice, axis: PartOfAxis) -> PartOfAxis:
    """What is read along an axis, if ``axis`` is read of a slice of it."""
    entries = np.zeros(size, bool)
    entries[where] = True if axis is None else _entries(axis)
    return _axis(entries)


def _of_product(node: Node, shapes: Sequence[Shape], part: Part) -> list[Part]:
    """Axes of the result are those of the batch, of the first operand, then of the second."""
    contracted, batched = node.params["dimension_numbers"]
    outer = list(part[len(batched[0]) :])
    result: list[Part] = []
    for place, shape in enumerate(shapes):
        axes: list[PartOfAxis] = []
        for k in range(len(shape)):
            if k in contracted[place]:
                axes.append(None)
            elif k in batched[place]:
                axes.append(part[batched[place].index(k)])
            else:
                axes.append(outer.pop(0))
        result.append(tuple(axes))
    return result


def _of_convolution(node: Node, shapes: Sequence[Shape], part: Part) -> list[Part] | None:
    """A part of the output's features is made of a part of the kernel."""
    spec = node.params["dimension_numbers"]
    features = spec.out_spec[1]
    is_of_places = any(axis for k, axis in enumerate(part) if k != features)
    if is_of_places or node.params["feature_group_count"] != 1:
        return None
    kernel: list[PartOfAxis] = [None] * len(shapes[1])
    kernel[spec.rhs_spec[0]] = part[features]
    return [(None,) * len(shapes[0]), tuple(kernel)]


def _of_reshape(node: Node, shapes: Sequence[Shape], part: Part) -> list[Part] | None:
    """In groups of axes that have the same entries.

    ``None`` if what is read of a group is no part of its axes.
    """
    old = shapes[0]
    axes: list[PartOfAxis] = [None] * len(old)
    for before, after in axis_groups(old, node.shape):
        if not any(part[k] for k in after):
            continue
        entries = _outer([_entries_of(node.shape[k], part[k]) for k in after])
        entries = entries.reshape([old[k] for k in before])
        along = []
        for n in range(len(before)):
            others = tuple({*range(len(before))} - {n})
            along.append(np.asarray(entries.any(others)))
        if (_outer(along) != entries).any():
            return None
        for k, of_axis in zip(before, along, strict=True):
            axes[k] = _axis(of_axis)
    return _of_first(axes, shapes)


# The whole of their result is a part of their input.
_CUTS = ("slice", "split", "unstack")
# Primitive -> (node, shapes of its inputs, part of its result) -> the parts of its inputs that this
# is made of; ``None`` if it is made of no parts.
_READS: Mapping[str, Callable[[Node, Sequence[Shape], Part], list[Part] | None]] = {
    **dict.fromkeys(ENTRYWISE, _of_entrywise),
    "cond": _of_entrywise,
    "broadcast_in_dim": _of_broadcast,
    "transpose": _of_transpose,
    "scan_in": _of_layer,
    "reshape": _of_reshape,
    "squeeze": _of_reshape,
    "expand_dims": _of_reshape,
    "slice": _of_slice,
    "split": _of_split,
    "unstack": _of_split,
    "dot_general": _of_product,
    "conv_general_dilated": _of_convolution,
}
