"""The slices of parameters that a forward pass reads apart, as queries, keys and values of one fused matrix.

A slice of a product is the product with a slice of its weights, and a slice of a sum is a sum of slices. So what is
read of each array is followed up to the parameters.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from depthmup_flax.trace.graph import PARAM, Graph, Node, Place
from depthmup_flax.util.primitives import ENTRYWISE

# Which entries are read along each axis, a byte for each, 0 or 1; ``None``: all.
Part: TypeAlias = tuple[bytes | None, ...]
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
            is_inside = _outer([np.ones(1, bool) if axis is None else _entries(axis) for axis in part])
            result[path] = result.get(path, 1.0) * np.where(is_inside, factor, 1.0)
        return result


def sliced(graph: Graph) -> Slices | None:
    """The graph with the slices of parameters apart; ``None`` if there are none, or too many."""
    parts = _parts_read(graph)
    if parts is None or not any(len(parts[i]) > 1 for i, node in enumerate(graph.nodes) if node.op == PARAM):
        return None
    result, origin, slices = Graph(replaced=graph.replaced), list[int](), dict[str, tuple[str, Part]]()
    new: dict[tuple[int, Part], int] = {}

    def add(i: int, op: str, inputs: Sequence[int], params: Mapping) -> int:
        node = graph.nodes[i]
        origin.append(i)
        result.nodes.append(dataclasses.replace(node, op=op, inputs=tuple(inputs), params=params))
        return len(origin) - 1

    for i, node in enumerate(graph.nodes):
        pieces: dict[Part, int] = {}
        for piece in _pieces(parts[i]) if node.op == PARAM and len(parts[i]) > 1 else ():
            path = f"{node.params['path']} {'i' * len(pieces)}"  # a number would be a layer
            slices[path] = node.params["path"], piece
            pieces[piece] = add(i, PARAM, (), {"path": path})
        for part in sorted(parts[i], key=any):  # the whole first
            reads = _reads(node, [graph.nodes[j].shape for j in node.inputs], part)
            if pieces:
                inside = [k for piece, k in pieces.items() if _contains(part, piece)]
                new[i, part] = inside[0] if len(inside) == 1 else add(i, "concatenate", inside, {})
            elif reads is None:
                new[i, part] = add(i, "slice", [new[i, _whole(node)]], {})
            else:
                new[i, part] = add(
                    i, node.op, [new[pair] for pair in zip(node.inputs, reads, strict=True)], node.params
                )
    for (i, part), k in new.items():
        if graph.nodes[i].op == "carry":
            result.nodes[k] = dataclasses.replace(
                result.nodes[k], params={"next": new[graph.nodes[i].params["next"], part]}
            )
    whole = lambda i: new[i, _whole(graph.nodes[i])]
    result.output, result.ends = whole(graph.output), tuple(map(whole, graph.ends))
    return Slices(result, origin, slices)


def _parts_read(graph: Graph) -> list[set[Part]] | None:
    """The parts of each array that others read."""
    parts: list[set[Part]] = [set() for _ in graph.nodes]
    stack, found = [(i, _whole(graph.nodes[i])) for i in (graph.output, *graph.ends)], 0
    while stack:
        i, part = stack.pop()
        if part in parts[i]:
            continue
        parts[i].add(part)
        found += 1
        if found > _MOST * len(parts):
            return None
        node = graph.nodes[i]
        reads = _reads(node, [graph.nodes[j].shape for j in node.inputs], part)
        stack += [(i, _whole(node))] if reads is None else zip(node.inputs, reads, strict=True)
        stack += [(node.params["next"], part)] if node.op == "carry" else []
    return parts


def _whole(node: Node) -> Part:
    return (None,) * len(node.shape)


def _entries(axis: bytes) -> np.ndarray:
    return np.frombuffer(axis, bool)


def _axis(entries: np.ndarray) -> bytes | None:
    return None if entries.all() else entries.tobytes()


def _outer(axes: Sequence[np.ndarray]) -> np.ndarray:
    return functools.reduce(np.logical_and.outer, axes)


def _contains(part: Part, piece: Part) -> bool:
    pairs = [(p, q) for p, q in zip(part, piece, strict=True) if p is not None]
    return all(q is not None and (_entries(p) | ~_entries(q)).all() for p, q in pairs)


def _pieces(parts: Collection[Part]) -> Iterator[Part]:
    """The largest parts that are inside of or outside of each of ``parts``."""
    columns: list[list[bytes | None]] = []
    for axes in zip(*parts, strict=True):
        entries = [_entries(axis) for axis in axes if axis is not None]
        kinds = np.unique(entries, axis=1, return_inverse=True)[1].ravel() if entries else np.zeros(1, int)
        columns.append([_axis(kinds == kind) for kind in range(kinds.max() + 1)])
    return itertools.product(*columns)


def _reads(node: Node, shapes: Sequence[tuple[int, ...]], part: Part) -> list[Part] | None:
    """The parts of the inputs that a part of an array is made of; ``None``: it is not made of parts."""
    wholes: list[Part] = [(None,) * len(shape) for shape in shapes]
    first: list[bytes | None] | None = None
    params = node.params
    match node.op:
        case op if op in ENTRYWISE | {"cond"}:
            of = lambda shape: zip(shape, node.shape, part, strict=bool(shape))  # sizes of 1 are broadcast
            return [tuple(axis if n == size else None for n, size, axis in of(shape)) for shape in shapes]
        case "broadcast_in_dim":
            into = params["broadcast_dimensions"]
            first = [part[k] if n == node.shape[k] else None for n, k in zip(shapes[0], into, strict=True)]
        case "transpose":
            first = [part[params["permutation"].index(k)] for k in range(len(part))]
        case "scan_in":
            first = [None, *part]
        case "reshape" | "squeeze" | "expand_dims":
            first = _before_reshape(shapes[0], node.shape, part)
        case "slice":
            steps = params["strides"] or (1,) * len(part)
            several = map(slice, params["start_indices"], params["limit_indices"], steps)
            first = list(map(_embedded, shapes[0], several, part))
        case "split" | "unstack":
            k, number, axes = params["axis"], params["result"], list(part)
            sizes = params.get("sizes", (1,) * shapes[0][k])
            where = slice(sum(sizes[:number]), sum(sizes[: number + 1]))
            first = [*part[:k], _embedded(shapes[0][k], where, axes.pop(k) if node.op == "split" else None), *axes[k:]]
        case "dot_general":
            return _before_product(shapes, params["dimension_numbers"], part)
        case "conv_general_dilated" if params["feature_group_count"] == 1:
            spec = params["dimension_numbers"]
            if not any(axis for k, axis in enumerate(part) if k != spec.out_spec[1]):
                of_kernel = list(wholes[1])
                of_kernel[spec.rhs_spec[0]] = part[spec.out_spec[1]]
                return [wholes[0], tuple(of_kernel)]
    if first is not None:
        return [tuple(first), *wholes[1:]]
    return None if any(part) else wholes


def _embedded(size: int, where: slice, axis: bytes | None) -> bytes | None:
    """What is read along an axis, if ``axis`` is read of a slice of it."""
    entries = np.zeros(size, bool)
    entries[where] = True if axis is None else _entries(axis)
    return _axis(entries)


def _before_product(
    shapes: Sequence[tuple[int, ...]], dimension_numbers: Sequence[Sequence[Sequence[int]]], part: Part
) -> list[Part]:
    """Axes of the result are those of the batch, then the other ones of the first operand, then of the second."""
    result, outer = list[Part](), list(part[len(dimension_numbers[1][0]) :])
    for shape, inner, batch in zip(shapes, *dimension_numbers, strict=True):
        of_batch = dict(zip(batch, part, strict=False))
        result.append(
            tuple(None if k in inner else of_batch[k] if k in of_batch else outer.pop(0) for k in range(len(shape)))
        )
    return result


def _before_reshape(old: Sequence[int], new: Sequence[int], part: Part) -> list[bytes | None] | None:
    """In groups of axes that have the same entries; ``None`` if what is read of a group is no part of its axes."""
    result: list[bytes | None] = []
    k = n = 0
    while k < len(old) or n < len(new):
        k_end, n_end = min(k + 1, len(old)), min(n + 1, len(new))
        while (difference := math.prod(old[k:k_end]) - math.prod(new[n:n_end])) != 0:
            k_end, n_end = k_end + (difference < 0), n_end + (difference > 0)
        group = old[k:k_end]
        axes: list[bytes | None] = [None] * len(group)
        if any(part[n:n_end]):
            of_new = zip(new[n:n_end], part[n:n_end], strict=True)
            entries = _outer([np.ones(size, bool) if axis is None else _entries(axis) for size, axis in of_new])
            entries = entries.reshape(group)
            along = [np.asarray(entries.any(tuple({*range(len(group))} - {axis}))) for axis in range(len(group))]
            if (_outer(along) != entries).any():
                return None
            axes = list(map(_axis, along))
        result += axes
        k, n = k_end, n_end
    return result
