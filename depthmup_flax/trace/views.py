"""Arrays that are made of parameters alone: which axes of a parameter are where.

A row of `_MOVES` tells where a primitive moves axes to; without one, axes stay, or are regrouped if
their number changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from depthmup_flax.trace.axes import axis_groups, product_axes
from depthmup_flax.trace.graph import Node

Axis: TypeAlias = frozenset[int]  # axes of a parameter that an array's axis is made of
Shape: TypeAlias = tuple[int, ...]
_NONE: Axis = frozenset()


@dataclasses.dataclass(frozen=True)
class View:
    """Which axes of a parameter are where in an array that is made of it.

    The operations between them keep the entries of the parameter apart.
    """

    path: str
    dims: tuple[Axis, ...]  # one for each axis of the array
    layers: Axis = _NONE  # axes along which one layer was taken
    picked: Axis = _NONE  # axes along which one layer was taken by its number
    inner: Axis = _NONE  # axes that were contracted with another parameter
    experts: Axis = _NONE  # axes along which activations choose

    def axes(self, of: Iterable[int] | None = None) -> Axis:
        """The parameter's axes that these axes of the array, or all, are made of."""
        if of is None:
            return _NONE.union(*self.dims)
        return _NONE.union(*(self.dims[k] for k in of))

    def with_dims(self, dims: Iterable[Axis]) -> View:
        """The same with other axes."""
        return dataclasses.replace(self, dims=tuple(dims))


def joined_axes(views: Iterable[View], of: Collection[int]) -> Axis:
    """The parameter's axes that these axes of an array are made of, in one of several views."""
    return _NONE.union(*(view.axes(of) for view in views))


def whole(node: Node) -> View:
    """A parameter itself."""
    return View(node.params["path"], tuple(frozenset({k}) for k in range(len(node.shape))))


def one_layer(view: View, taken: Collection[int]) -> View:
    """``view`` with one entry taken along axes of the array."""
    axes = view.axes(taken)
    dims = tuple(_NONE if k in taken else axis for k, axis in enumerate(view.dims))
    layers = view.layers | axes
    return dataclasses.replace(view, dims=dims, layers=layers, picked=view.picked | axes)


def chosen(view: View, taken: Collection[int]) -> View:
    """``view`` of the matrices, such as experts, that activations choose along axes."""
    experts = view.experts | view.axes(taken)
    return dataclasses.replace(view, dims=one_layer(view, taken).dims, experts=experts)


def moved(view: View, node: Node, shape: Shape) -> View:
    """``view`` after an operation of `primitives.MOVES`, or a look-up, made ``node`` of an array.

    ``shape`` is that of the array.
    """
    if node.op in _MOVES:
        return _MOVES[node.op](view, node, shape)
    if len(node.shape) != len(shape):
        return _regrouped(view, node, shape)
    return view


def _gathered(view: View, node: Node, shape: Shape) -> View:
    """Without the axes along which one place is taken; ``offset_dims`` says where others go."""
    numbers = node.params["dimension_numbers"]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    left = [axis for k, axis in enumerate(view.dims) if k not in gone]
    dims = [_NONE] * len(node.shape)
    for k, axis in zip(numbers.offset_dims, left, strict=True):
        dims[k] = axis
    return view.with_dims(dims)


def _transposed(view: View, node: Node, shape: Shape) -> View:
    return view.with_dims(view.dims[k] for k in node.params["permutation"])


def _broadcast(view: View, node: Node, shape: Shape) -> View:
    dims = [_NONE] * len(node.shape)
    for k, to in enumerate(node.params["broadcast_dimensions"]):
        dims[to] = view.dims[k]
    return view.with_dims(dims)


def _scanned(view: View, node: Node, shape: Shape) -> View:
    """One layer, which a loop takes rather than a number."""
    layer = one_layer(view, [0])
    return dataclasses.replace(layer, dims=layer.dims[1:], picked=view.picked)


def _stacked(view: View, node: Node, shape: Shape) -> View:
    """A new axis counts the arrays of a stack, or the rounds of a loop."""
    dims = list(view.dims)
    dims.insert(node.params.get("axis", 0), _NONE)
    return view.with_dims(dims)


def _unstacked(view: View, node: Node, shape: Shape) -> View:
    axis = node.params["axis"]
    layer = one_layer(view, [axis])
    return layer.with_dims(dim for k, dim in enumerate(layer.dims) if k != axis)


def _cut(view: View, node: Node, shape: Shape) -> View:
    """A part; where it is one entry, it is a layer."""
    single = [k for k, size in enumerate(node.shape) if size == 1 < shape[k]]
    return one_layer(view, single) if single else view


def _regrouped(view: View, node: Node, shape: Shape) -> View:
    """Where axes are merged or split, each new one is made of all of the old ones."""
    order = list(range(len(shape)))
    if node.op == "reshape" and node.params["dimensions"]:  # it transposes first
        order = node.params["dimensions"]
    old_dims = [view.dims[k] for k in order]
    dims = [_NONE] * len(node.shape)
    for before, after in axis_groups([shape[k] for k in order], node.shape):
        for k in after:
            dims[k] = _NONE.union(*(old_dims[n] for n in before))
    return view.with_dims(dims)


_MOVES: Mapping[str, Callable[[View, Node, Shape], View]] = {
    "broadcast_in_dim": _broadcast,
    "gather": _gathered,
    "reshape": _regrouped,
    "scan_in": _scanned,
    "scan_out": _stacked,
    "slice": _cut,
    "split": _cut,
    "stack": _stacked,
    "transpose": _transposed,
    "unstack": _unstacked,
}


def of_several(node: Node, operands: Iterable[tuple[View, Shape]]) -> tuple[View, ...]:
    """What an operation on several arrays is made of, given their views and shapes.

    Of a parameter that is in two of them, as a matrix minus its mean, it is the larger part.
    """
    largest: dict[str, View] = {}
    for view, shape in operands:
        result = _reduced(view, node, shape)
        before = largest.get(view.path)
        if before is None or len(result.axes()) > len(before.axes()):
            largest[view.path] = result
    return tuple(largest.values())


def _reduced(view: View, node: Node, shape: Shape) -> View:
    """``view`` after a reduction or an operation on several arrays.

    What unknown operations do to its axes is not known: they are lost.
    """
    if shape == node.shape:
        return view
    if node.op.startswith(("reduce_", "arg")) and "axes" in node.params:
        axes = node.params["axes"]
        return view.with_dims(dim for k, dim in enumerate(view.dims) if k not in axes)
    if node.op == "concatenate" or len(shape) == len(node.shape):
        return view
    return view.with_dims(_NONE for _ in node.shape)


def of_product(
    node: Node,
    views: Sequence[Sequence[View]],
    shapes: Sequence[Shape],
) -> tuple[View, ...]:
    """A weight that is a product of two, as LoRA's, or of a parameter with constants.

    ``views`` and ``shapes`` are those of both operands.
    """
    result = []
    number_before = 0  # of axes that come from the first operand
    for place, shape in enumerate(shapes):
        contracted, batched = product_axes(node, place)
        free = [k for k in range(len(shape)) if k not in contracted and k not in batched]
        for view in views[place]:
            dims = [_NONE] * len(node.shape)
            for n, k in enumerate(batched):
                dims[n] = view.dims[k]
            for n, k in enumerate(free, start=len(batched) + number_before):
                dims[n] = view.dims[k]
            inner = view.inner | view.axes(contracted)
            result.append(dataclasses.replace(view, dims=tuple(dims), inner=inner))
        number_before = len(free)
    return tuple(result)
