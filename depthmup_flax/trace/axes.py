"""Which axes of arrays an operation contracts, takes a part of, or joins and splits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from depthmup_flax.trace.graph import Graph, Node


def product_axes(node: Node, place: int) -> tuple[Sequence[int], Sequence[int]]:
    """The contracted and the batch axes of one operand of a ``dot_general``."""
    contracted, batched = node.params["dimension_numbers"]
    return contracted[place], batched[place]


def contracted_size(graph: Graph, node: Node) -> int:
    """How many products a ``dot_general`` sums into one entry."""
    contracted, _ = product_axes(node, 0)
    shape = graph.nodes[node.inputs[0]].shape
    return math.prod(shape[k] for k in contracted)


def taken_axes(graph: Graph, node: Node) -> list[int]:
    """The axes along which a look-up takes a part."""
    sizes = graph.nodes[node.inputs[0]].shape
    left = node.params["slice_sizes"]
    return [k for k, size in enumerate(sizes) if left[k] < size]


def axis_groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The axes of an array before and after it is reshaped, in the smallest groups of equal sizes.

    ``(6, 4) -> (2, 3, 4)`` has the groups ``([0], [0, 1])`` and ``([1], [2])``. Axes of size 1 are
    in none. If the sizes do not match, as where devices put an array together, the last group is
    what remains.
    """
    old_axes = [k for k, size in enumerate(old) if size != 1]
    new_axes = [k for k, size in enumerate(new) if size != 1]
    groups = []
    while old_axes and new_axes:
        before = [old_axes.pop(0)]
        after = [new_axes.pop(0)]
        before_size = old[before[0]]
        after_size = new[after[0]]
        while before_size != after_size:
            if before_size < after_size and old_axes:
                before.append(old_axes.pop(0))
                before_size *= old[before[-1]]
            elif new_axes:
                after.append(new_axes.pop(0))
                after_size *= new[after[-1]]
            else:
                break
        groups.append((before, after))
    return groups


def summed_size(before: Node, after: Node) -> float:
    """How many entries of an array are summed into one of another."""
    return before.size / max(after.size, 1)
