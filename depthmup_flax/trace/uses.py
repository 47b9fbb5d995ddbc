"""How a forward pass uses each parameter: which axes are contracted, which go out, and where.

A row of `_USES` tells how a primitive uses a parameter that meets activations; without one, entry
by entry.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from depthmup_flax.trace import views as view_of
from depthmup_flax.trace.axes import product_axes, taken_axes
from depthmup_flax.trace.graph import PARAM, Graph, Node, rounds
from depthmup_flax.trace.kinds import ACTIVATION, kind_of, moving
from depthmup_flax.trace.views import Axis, View
from depthmup_flax.util.groups import grouped
from depthmup_flax.util.primitives import (
    EXPERT_PRODUCTS,
    LOOKUPS,
    MOVES,
    PRODUCTS,
    SAME_PLACE,
    SCALES,
)

# Ways to use a parameter.
PRODUCT = "product"
LOOKUP = "lookup"
ENTRYWISE = "entrywise"


@dataclasses.dataclass(frozen=True)
class Use:
    """One place where a parameter meets activations."""

    path: str
    kind: str
    node: int
    times: float  # how often in one forward pass; NaN is unknown
    into: Axis = frozenset()  # axes that are contracted with activations, or looked up
    out: Axis = frozenset()
    batch: Axis = frozenset()  # axes that the activations have too, such as experts
    layers: Axis = frozenset()  # axes along which one layer was taken
    picked: Axis = frozenset()  # those of them where its number was given, rather than a loop
    first: bool = False  # the activations depend on no parameter: a stem or an embedding
    view: int = -1  # the node of the parameter's array
    operand: int = -1  # the node of the activations


@dataclasses.dataclass(frozen=True)
class Uses:
    """The kind of every array of a graph, and the uses of parameters."""

    kinds: Sequence[str]
    uses: Sequence[Use]
    # Two arrays of parameters are multiplied: one may be a learned token, by what grows.
    has_tokens: bool

    @functools.cached_property
    def by_path(self) -> dict[str, list[Use]]:
        """Path -> uses."""
        return grouped(self.uses, lambda use: use.path)

    @functools.cached_property
    def by_node(self) -> dict[int, list[Use]]:
        """Node -> uses."""
        return grouped(self.uses, lambda use: use.node)


def parameter_uses(graph: Graph, growing: Mapping[str, Collection[int]]) -> Uses:
    """The uses of every parameter that the output depends on.

    ``growing`` are the axes of each parameter that differ from the base model's; they tell a
    learned token, which a matrix multiplies, from one of two matrices whose product is a weight.
    """
    result = _uses(graph, growing, frozenset())
    # A product with numbers, such as fixed features of positions, has no other operand, either.
    alone = [use for use in result.uses if use.operand < 0 and use.kind != PRODUCT]
    tokens = {use.path for use in alone if not use.layers}
    # Tokens that are also added to activations start a stream, as the latents of a Perceiver do.
    streams = {path for path in tokens if len(result.by_path[path]) > 1}
    return _uses(graph, growing, streams) if streams else result


def _uses(
    graph: Graph,
    growing: Mapping[str, Collection[int]],
    streams: Collection[str],
) -> Uses:
    needed = graph.needed()
    readers = Counter(j for i, node in enumerate(graph.nodes) if needed[i] for j in node.inputs)
    reader = _Reader(graph, growing, streams, needed, moving(graph), readers)
    for i, node in enumerate(graph.nodes):
        reader.read(i, node)
    products = {use.path for use in reader.uses if use.kind == PRODUCT}
    not_contracted = [use for use in reader.modulated if use.path not in products]
    return Uses(reader.kinds, [*reader.uses, *not_contracted], reader.has_tokens)


@dataclasses.dataclass
class _Reader:
    """What is known of the nodes up to the current one.

    Parameters of ``streams`` are activations.
    """

    graph: Graph
    growing: Mapping[str, Collection[int]]
    streams: Collection[str]
    needed: Sequence[bool]
    moving: Collection[int]
    readers: Mapping[int, int]  # how many nodes read each
    kinds: list[str] = dataclasses.field(default_factory=list)
    has_tokens: bool = False
    uses: list[Use] = dataclasses.field(default_factory=list)
    # Uses in weights of each example: they count for parameters that nothing contracts.
    modulated: list[Use] = dataclasses.field(default_factory=list)
    # Of arrays made of parameters alone, and of weights of each example.
    views: list[tuple[View, ...]] = dataclasses.field(default_factory=list)
    # Whether an activation depends on a parameter.
    has_params: list[bool] = dataclasses.field(default_factory=list)

    def read(self, i: int, node: Node) -> None:
        """Appends what is known of the next node."""
        kinds = [self.kinds[j] for j in node.inputs]
        kind = self._kind(i, node, kinds)
        if node.op == PARAM and kind == ACTIVATION:
            self.uses.append(_token_use(i, node, view_of.whole(node), i))
        views: tuple[View, ...] = ()
        if kind == PARAM and self.needed[i]:
            token = self._token(node, kinds)
            if token is not None:
                self.uses += [_token_use(i, node, view, token) for view in self.views[token]]
                kinds = self._with_token(node, kinds, token)
            if token is not None or self._takes_rows(node, kinds):
                kind = ACTIVATION
            else:
                views = self._made_of(node, kinds)
        if node.op == "reduce_sum" and self.needed[i]:
            self._contract(i, node)
        if kind == ACTIVATION and self.needed[i] and node.inputs:
            views = self._of_example(node, kinds)
            uses = self.modulated if views else self.uses
            uses += self._meetings(i, node, kinds)
        depends = PARAM in kinds or any(self.has_params[j] for j in node.inputs)
        self.kinds.append(kind)
        self.views.append(views)
        self.has_params.append(kind == ACTIVATION and depends)

    def _contract(self, i: int, node: Node) -> None:
        """Makes a product of a scale whose growing axis is summed and that nothing else reads."""
        (scaled,) = node.inputs
        if self.graph.nodes[scaled].op != "mul" or self.readers[scaled] > 1:
            return
        for n, use in enumerate(self.uses):
            if use.node != scaled or use.kind != ENTRYWISE or use.view < 0:
                continue
            views = [view for view in self.views[use.view] if view.path == use.path]
            summed = view_of.joined_axes(views, node.params["axes"])
            self.has_tokens |= bool(summed)
            if summed & set(self.growing.get(use.path, ())):
                kept = [k for k in range(len(self.graph.nodes[scaled].shape)) if not self._lacks(use.operand, k)]
                batch = view_of.joined_axes(views, kept) - summed
                self.uses[n] = dataclasses.replace(
                    use, kind=PRODUCT, node=i, into=summed, out=use.out - summed - batch, batch=batch
                )

    def _with_token(self, node: Node, kinds: Sequence[str], token: int) -> list[str]:
        """The kinds of a node's inputs, of which a token is an activation."""
        pairs = zip(node.inputs, kinds, strict=True)
        return [ACTIVATION if j == token else kind for j, kind in pairs]

    def _kind(self, i: int, node: Node, kinds: Sequence[str]) -> str:
        if node.op == PARAM and node.params["path"] in self.streams:
            return ACTIVATION
        if self._takes_matrices(node, kinds):
            return PARAM  # the matrices of some experts, whoever chooses them
        return ACTIVATION if i in self.moving else kind_of(self.graph, node, kinds)

    def _takes_matrices(self, node: Node, kinds: Sequence[str]) -> bool:
        """Whether a look-up takes whole matrices of a parameter."""
        if node.op != "gather" or kinds[0] != PARAM:
            return False
        taken = taken_axes(self.graph, node)
        sizes = node.params["slice_sizes"]
        return len([k for k, size in enumerate(sizes) if k not in taken and size > 1]) > 1

    def _takes_rows(self, node: Node, kinds: Sequence[str]) -> bool:
        """Whether rows of a table are taken, rather than one layer of a stack, or matrices."""
        if node.op != "gather" or kinds[0] != PARAM or self._takes_matrices(node, kinds):
            return False
        return not self._takes_a_layer(node)

    def _takes_a_layer(self, node: Node) -> bool:
        """Whether a look-up takes one entry along some axes, at one place: a layer of a stack."""
        taken = taken_axes(self.graph, node)
        number = max(len(taken), 1)
        is_one = all(self.graph.nodes[j].size <= number for j in node.inputs[1:])
        return bool(taken) and is_one and all(node.params["slice_sizes"][k] == 1 for k in taken)

    def _token(self, node: Node, kinds: Sequence[str]) -> int | None:
        """A learned token that a matrix multiplies, such as a pooling head's query.

        All of its width is contracted.
        """
        if node.op != "dot_general" or kinds.count(PARAM) != 2:
            return None
        self.has_tokens = True
        for place, j in enumerate(node.inputs):
            beside = {view.path for view in self.views[node.inputs[1 - place]]}
            for view in self.views[j]:
                if view.path in beside:  # a matrix times itself is of one size
                    continue
                contracted = view.axes(product_axes(node, place)[0])
                growing = set(self.growing.get(view.path, ()))
                if contracted & growing and not (view.axes() - contracted) & growing:
                    return j
        return None

    def _of_example(self, node: Node, kinds: Sequence[str]) -> tuple[View, ...]:
        """What a weight of each example is made of: activations multiply its rows or columns."""
        if len(node.inputs) == 1:
            (j,) = node.inputs
            if node.op not in MOVES | SAME_PLACE or kinds[0] != ACTIVATION:
                return ()
            shape = self.graph.nodes[j].shape
            return tuple(view_of.moved(view, node, shape) for view in self.views[j])
        if node.op not in SCALES or len(node.inputs) != 2:
            return ()
        first, second = node.inputs
        if self._multiplies_rows(first, second):
            return self.views[first]
        if node.op == "mul" and self._multiplies_rows(second, first):
            return self.views[second]
        return ()

    def _multiplies_rows(self, weight: int, factor: int) -> bool:
        """Whether activations multiply the rows or columns of a weight, and differ elsewhere."""
        views = self.views[weight]
        if not views or self.views[factor] or self.kinds[factor] != ACTIVATION:
            return False
        shape = self.graph.nodes[weight].shape
        if len(self.graph.nodes[factor].shape) != len(shape):
            return False
        is_apart = False
        is_joint = False
        for k, size in enumerate(shape):
            if size > 1 and self._lacks(factor, k):
                is_apart |= any(view.dims[k] for view in views)
            elif size > 1:
                is_joint = True
        return is_apart and is_joint

    def _lacks(self, j: int, k: int) -> bool:
        """Whether an array has one entry along an axis, which may be copied."""
        node = self.graph.nodes[j]
        if node.op != "broadcast_in_dim" or node.shape[k] == 1:
            return node.shape[k] == 1
        into = list(node.params["broadcast_dimensions"])
        return k not in into or self.graph.nodes[node.inputs[0]].shape[into.index(k)] == 1

    def _made_of(self, node: Node, kinds: Sequence[str]) -> tuple[View, ...]:
        """What an array of parameters alone is made of."""
        if node.op == PARAM:
            return (view_of.whole(node),)
        shapes = [self.graph.nodes[j].shape for j in node.inputs]
        if node.op in LOOKUPS and kinds[0] == PARAM:
            if self._takes_a_layer(node):
                return self._taken(node, view_of.one_layer)
            if node.op == "gather":
                return self._taken(node, view_of.chosen)
        if node.op in SAME_PLACE:
            return self.views[node.inputs[0]]
        if node.op == "dot_general":
            return view_of.of_product(node, [self.views[j] for j in node.inputs], shapes)
        of_params = []
        for j, kind, shape in zip(node.inputs, kinds, shapes, strict=True):
            if kind == PARAM:
                of_params += [(view, shape) for view in self.views[j]]
        if node.op in MOVES:
            return tuple(view_of.moved(view, node, shape) for view, shape in of_params)
        return view_of.of_several(node, of_params)

    def _taken(
        self,
        node: Node,
        take: Callable[[View, Collection[int]], View],
    ) -> tuple[View, ...]:
        """What a look-up of parameters is made of."""
        (array, *_) = node.inputs
        shape = self.graph.nodes[array].shape
        axes = taken_axes(self.graph, node)
        return tuple(view_of.moved(take(view, axes), node, shape) for view in self.views[array])

    def _meetings(self, i: int, node: Node, kinds: Sequence[str]) -> list[Use]:
        """The uses of parameters in an operation with activations."""
        activations = []
        of_params = []
        of_example = []
        for place, (j, kind) in enumerate(zip(node.inputs, kinds, strict=True)):
            if kind == PARAM:
                of_params.append(place)
            elif kind == ACTIVATION:
                activations.append(j)
                if self.views[j]:
                    of_example.append(place)
        is_first = not any(self.has_params[j] for j in activations)
        operand = activations[0] if activations else -1
        weights = of_params
        result = []
        if of_example and node.op in PRODUCTS:  # what it multiplies is a learned token
            for place in of_params:
                j = node.inputs[place]
                result += [_token_use(i, node, view, j) for view in self.views[j]]
            weights = of_example
            operand = next((j for j in activations if not self.views[j]), -1)
        for place in weights:
            j = node.inputs[place]
            for view in self.views[j]:
                use = dataclasses.replace(_use(i, node, view, j), first=is_first, operand=operand)
                read = _USES.get(node.op, _entry_by_entry)
                result.append(read(self.graph, node, place, view, use))
        return result


def _use(i: int, node: Node, view: View, j: int) -> Use:
    """An entry-by-entry use of a view, the array ``j``, in the node ``i``."""
    return Use(
        view.path,
        ENTRYWISE,
        i,
        rounds(node.loops),
        out=view.axes(),
        layers=view.layers,
        picked=view.picked,
        view=j,
    )


def _token_use(i: int, node: Node, view: View, j: int) -> Use:
    """A learned token is the first of its activations."""
    return dataclasses.replace(_use(i, node, view, j), first=True)


def _entry_by_entry(graph: Graph, node: Node, place: int, view: View, use: Use) -> Use:
    return use


def _in_product(graph: Graph, node: Node, place: int, view: View, use: Use) -> Use:
    """A product without sums is entry by entry, as a scale by einsum("...k,k->...k")."""
    contracted, batched = product_axes(node, place)
    if not contracted and len(batched) == len(graph.nodes[node.inputs[place]].shape):
        return use
    return _contracted(view, contracted, batched, use)


def _in_convolution(graph: Graph, node: Node, place: int, view: View, use: Use) -> Use:
    _, *into = node.params["dimension_numbers"].rhs_spec  # all but the output: channels and window
    return _contracted(view, into, [], use)


def _in_expert_product(graph: Graph, node: Node, place: int, view: View, use: Use) -> Use:
    """The second operand has the axes experts, input, output."""
    return _contracted(view, [1], [0], use) if place == 1 else use


def _in_lookup(graph: Graph, node: Node, place: int, view: View, use: Use) -> Use:
    if place != 0:
        return use
    axes = view.axes(taken_axes(graph, node))
    return dataclasses.replace(use, kind=LOOKUP, into=axes, out=use.out - axes)


def _contracted(view: View, contracted: Sequence[int], batched: Sequence[int], use: Use) -> Use:
    """The use of a view of which some axes are contracted, and some are those of a batch."""
    into = view.axes(contracted)
    batch = (view.experts | view.axes(batched)) - into  # heads and their size may be one axis
    out = use.out - into - batch
    # An axis between two parameters whose product is the weight: the output of the first, the input
    # of the second.
    if into:
        out |= view.inner
    else:
        into = view.inner
    return dataclasses.replace(use, kind=PRODUCT, into=into, out=out, batch=batch)


# Primitive -> (graph, node, place of the parameter among its inputs, view, use entry by entry) ->
# the use.
_USES: Mapping[str, Callable[[Graph, Node, int, View, Use], Use]] = {
    "dot_general": _in_product,
    "conv_general_dilated": _in_convolution,
    **dict.fromkeys(EXPERT_PRODUCTS, _in_expert_product),
    **dict.fromkeys(LOOKUPS, _in_lookup),
}
