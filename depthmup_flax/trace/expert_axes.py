"""The axes of parameters that count matrices of their own, such as experts.

Heads and experts look alike where they are made, ``bd,edf->bef``: what becomes of them tells. Experts stay apart in the
next product (an axis that its activations have, too), or gates multiply them: numbers of a layer of their own, one for
each expert, or numbers that are compared with each other. Heads stay apart in products of two activations, as scores
are, whatever multiplies them; their axis and their size are one output of one matrix. Where a product sums over heads
or experts, ``bef,efd->bd``, only gates tell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from depthmup_flax.trace import views as view_of
from depthmup_flax.trace.axes import product_axes
from depthmup_flax.trace.graph import PARAM, Graph, Node
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.views import Axis, View
from depthmup_flax.util.primitives import ENTRYWISE, LOOKUPS, MOVES

# Numbers along an axis are compared: a softmax subtracts the largest, a router takes the first few.
_COMPARISONS = frozenset({"reduce_max", "argmax", "top_k", "sort"})


def expert_axes(graph: Graph, kinds: Sequence[str]) -> Mapping[str, Axis]:
    """Path -> the axes that count experts; ``kinds`` are those of the graph's nodes."""
    if all(len(node.shape) < 3 for node in graph.nodes if node.op == PARAM):
        return {}
    reader = _Reader(graph, kinds)
    reader.read()  # finds heads, which may follow gates
    reader.forget_experts()
    before = -1
    while sum(map(len, reader.experts.values())) > before:  # what follows tells of what precedes
        before = sum(map(len, reader.experts.values()))
        reader.read()
    return {path: frozenset(axes) for path, axes in reader.experts.items()}


class _Reader:
    """Which axes of parameters are where in each array, as far as products leave them."""

    def __init__(self, graph: Graph, kinds: Sequence[str]) -> None:
        self._graph = graph
        self._kinds = kinds
        self._views: list[tuple[View, ...]] = []
        self.experts: dict[str, set[int]] = defaultdict(set)
        self._routed: dict[str, set[int]] = defaultdict(set)  # those of them that gates multiply
        self._heads: dict[str, set[int]] = defaultdict(set)  # those that products of activations keep apart

    def read(self) -> None:
        """Reads the graph once."""
        self._views = []
        for node in self._graph.nodes:
            if node.op == "dot_general":
                self._read_product(node)
            elif node.op == "mul" and len(node.inputs) == 2:
                self._read_gates(node)
            elif node.op == "reduce_sum":
                self._read_sum_of_products(node)
            views = self._made_of(node)
            self._views.append(tuple(view for view in views if any(view.dims)))

    def forget_experts(self) -> None:
        """Forgets all but heads."""
        self.experts.clear()
        self._routed.clear()

    def _made_of(self, node: Node) -> tuple[View, ...]:
        """The axes of parameters in the array that a node makes."""
        if node.op == PARAM:
            return (view_of.whole(node),) if len(node.shape) > 1 else ()
        shapes = [self._graph.nodes[j].shape for j in node.inputs]
        views = [self._views[j] for j in node.inputs]
        if node.op == "dot_general":
            return view_of.of_product(node, views, shapes)
        if node.op in MOVES | LOOKUPS and views:
            return tuple(view_of.moved(view, node, shapes[0]) for view in views[0])
        if node.op in ENTRYWISE or node.op.startswith("reduce_"):
            pairs = zip(views, shapes, strict=True)
            return view_of.of_several(node, [(view, shape) for several, shape in pairs for view in several])
        return ()

    def _read_product(self, node: Node) -> None:
        """Axes that activations and a weight share, or that gates multiply."""
        for place, j in enumerate(node.inputs):
            other = node.inputs[1 - place]
            contracted, batched = product_axes(node, place)
            if self._kinds[j] == PARAM and self._kinds[other] == ACTIVATION:
                of_other, batched_of_other = product_axes(node, 1 - place)
                if contracted:
                    self._mark(self.experts, other, batched_of_other)
                    self._mark_routed(j, batched, other, batched_of_other)
                self._mark_summed(j, contracted, other, of_other)
            elif self._kinds[j] == self._kinds[other] == ACTIVATION and contracted:
                kept = set(range(len(self._graph.nodes[j].shape))) - set(contracted)
                self._mark(self._heads, j, kept)
            elif not contracted and len(batched) == len(self._graph.nodes[other].shape):
                self._mark_routed(j, batched, other, product_axes(node, 1 - place)[1])

    def _read_sum_of_products(self, node: Node) -> None:
        """Scores may be written entry by entry, as may what they multiply."""
        product = self._graph.nodes[node.inputs[0]]
        if product.op != "mul" or len(set(product.inputs)) == 1:
            return
        if all(self._kinds[j] == ACTIVATION for j in product.inputs):
            kept = set(range(len(product.shape))) - set(node.params["axes"])
            for j in product.inputs:
                self._mark(self._heads, j, kept)

    def _mark(self, axes_of: Mapping[str, set[int]], array: int, axes: Collection[int]) -> None:
        for view in self._views[array]:
            axes_of[view.path].update(view.axes(axes))

    def _mark_summed(self, weight: int, contracted: Sequence[int], activations: int, of_other: Sequence[int]) -> None:
        """The axes of a weight along which its products with experts' activations are summed."""
        if len(contracted) < 2:
            return
        for own_axis, other_axis in zip(contracted, of_other, strict=True):
            for view in self._views[activations]:
                if view.dims[other_axis] and view.dims[other_axis] <= self._routed[view.path]:
                    self._mark(self.experts, weight, [own_axis])
                    self._mark(self._routed, weight, [own_axis])

    def _read_gates(self, node: Node) -> None:
        """A product, entry by entry, with numbers for each expert that are the same for all of its features."""
        for place, j in enumerate(node.inputs):
            gates = node.inputs[1 - place]
            shape = self._graph.nodes[j].shape
            if len(self._graph.nodes[gates].shape) != len(shape):
                continue
            varying = [k for k in range(len(shape)) if not self._is_constant_along(gates, k)]
            if len(varying) < sum(size > 1 for size in shape):
                self._mark_routed(j, varying, gates, varying)

    def _mark_routed(self, array: int, axes: Sequence[int], gates: int, axes_of_gates: Sequence[int]) -> None:
        """The axes of an array that gates multiply, or along which gates have multiplied what they multiply."""
        if not self._views[array]:
            return
        compared = self._compared(gates)
        for axis, axis_of_gates in zip(axes, axes_of_gates, strict=True):
            size = self._graph.nodes[gates].shape[axis_of_gates]
            is_gated = not self._has_heads(array, axis) and self._are_of_a_layer(array, gates, axis_of_gates)
            if size in compared or is_gated:
                self._mark(self.experts, array, [axis])
                self._mark(self._routed, array, [axis])

    def _has_heads(self, array: int, axis: int) -> bool:
        return any(view.dims[axis] & self._heads[view.path] for view in self._views[array])

    def _are_of_a_layer(self, array: int, gates: int, axis: int) -> bool:
        """Whether an axis of gates is all that is left of a layer, which does not make the array that they multiply."""
        if self._kinds[gates] != ACTIVATION:
            return False
        of_array = {view.path for view in self._views[array]}
        of_gates = (view for view in self._views[gates] if view.dims[axis])
        return any(view.axes() == view.dims[axis] and view.path not in of_array for view in of_gates)

    def _is_constant_along(self, array: int, axis: int) -> bool:
        """Whether an array has one entry along an axis, which may be copied."""
        node = self._graph.nodes[array]
        if node.op != "broadcast_in_dim" or node.shape[axis] == 1:
            return node.shape[axis] == 1
        into = list(node.params["broadcast_dimensions"])
        if axis not in into:
            return True
        return self._graph.nodes[node.inputs[0]].shape[into.index(axis)] == 1

    def _compared(self, array: int) -> set[int]:
        """The sizes of the axes along which numbers behind an array are compared, up to a product that sums."""
        sizes = set[int]()
        for i in self._graph.upstream(array, self._is_product):
            node = self._graph.nodes[i]
            if node.op in _COMPARISONS:
                shape = self._graph.nodes[node.inputs[0]].shape
                axes = node.params.get("axes", (node.params.get("dimension", len(shape) - 1),))
                sizes |= {shape[k] for k in axes}
        return sizes

    def _is_product(self, i: int) -> bool:
        node = self._graph.nodes[i]
        return node.op == "conv_general_dilated" or (node.op == "dot_general" and bool(product_axes(node, 0)[0]))
