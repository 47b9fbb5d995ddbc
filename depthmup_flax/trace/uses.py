"""How a forward pass uses each parameter: which axes are contracted, which go out, and where."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from depthmup_flax.trace.graph import CONST, INPUT, PARAM, STATE, Graph, Node
from depthmup_flax.util.groups import grouped
from depthmup_flax.util.primitives import EXPERT_PRODUCTS, LOOKUPS, MOVES, PRODUCTS, SAME_PLACE, SCALES

# Kinds of arrays, by what they depend on. Activations depend on the batch, or are looked up or learned tokens.
ACTIVATION = "activation"
# Ways to use a parameter.
PRODUCT, LOOKUP, ENTRYWISE = "product", "lookup", "entrywise"

Axis: TypeAlias = frozenset[int]  # axes of a parameter that an array's axis is made of


@dataclasses.dataclass(frozen=True)
class View:
    """An array made of one parameter by operations that keep its entries apart: which axes are where."""

    path: str
    dims: tuple[Axis, ...]  # one for each axis of the array
    layers: Axis = frozenset()  # axes along which one layer was taken
    picked: Axis = frozenset()  # axes along which one layer was taken by its number
    inner: Axis = frozenset()  # axes that were contracted with another parameter
    experts: Axis = frozenset()  # axes along which activations choose

    def axes(self, of: Iterable[int] | None = None) -> Axis:
        """The parameter's axes that these axes of the array, or all, are made of."""
        return frozenset().union(*(self.dims if of is None else (self.dims[k] for k in of)))


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


def parameter_uses(graph: Graph, growing: Mapping[str, Collection[int]]) -> Uses:
    """The uses of every parameter that the output depends on.

    ``growing`` are the axes of each parameter that differ from the base model's; they tell a learned token, which a
    matrix multiplies, from one of two matrices whose product is a weight.
    """
    uses = Uses(graph, growing, frozenset())
    tokens = {use.path for use in uses.uses if use.operand < 0 and not use.layers}
    # Tokens that are also added to activations start a stream, as the latents of a Perceiver do.
    streams = {path for path in tokens if len(uses.by_path()[path]) > 1}
    return Uses(graph, growing, streams) if streams else uses


class Uses:
    """The kind of every array of a graph, and the uses of parameters; those of ``streams`` are activations."""

    def __init__(self, graph: Graph, growing: Mapping[str, Collection[int]], streams: Collection[str]):
        self._graph, self._growing, needed, moving = graph, growing, graph.needed(), _moving(graph)
        self.kinds: list[str] = []
        self.has_tokens = False  # two arrays of parameters are multiplied: one may be a token, by what grows
        self.uses: list[Use] = []
        self._views: list[tuple[View, ...]] = []  # of arrays made of parameters alone
        self._has_params: list[bool] = []  # whether an activation depends on a parameter
        modulated: list[Use] = []  # of weights of each example, for parameters that nothing contracts
        for i, node in enumerate(graph.nodes):
            ins = [self.kinds[j] for j in node.inputs]
            kind = ACTIVATION if i in moving else _kind(graph, node, ins)
            takes_matrices = node.op == "gather" and ins[0] == PARAM and self._takes_matrices(node)
            if takes_matrices:
                kind = PARAM  # the matrices of some experts
            made_of: tuple[View, ...] = ()
            if node.op == PARAM and node.params["path"] in streams:
                kind = ACTIVATION
                self.uses.append(_token_use(i, node, _whole(node), i))
            elif kind == PARAM and needed[i]:
                tokens = self._tokens(node, ins)
                if tokens:
                    self.uses += [_token_use(i, node, v, j) for j in tokens for v in self._views[j]]
                    ins = [ACTIVATION if j in tokens else k for j, k in zip(node.inputs, ins, strict=True)]
                # Rows of a table are taken, rather than one layer of a stack.
                is_taken = node.op == "gather" and ins[0] == PARAM and not takes_matrices
                if tokens or (is_taken and not self._takes_a_layer(node)):
                    kind = ACTIVATION
                else:
                    made_of = self._made_of(node, ins)
            if kind == ACTIVATION and needed[i] and node.inputs:
                made_of, found = self._of_example(node, ins), self._meets(i, node, ins)
                (modulated if made_of else self.uses).extend(found)
            self.kinds.append(kind)
            self._views.append(made_of)
            depends = PARAM in ins or any(self._has_params[j] for j in node.inputs)
            self._has_params.append(kind == ACTIVATION and depends)
        products = {use.path for use in self.uses if use.kind == PRODUCT}
        self.uses += [use for use in modulated if use.path not in products]

    def by_path(self) -> dict[str, list[Use]]:
        """Path -> uses."""
        return grouped(self.uses, lambda use: use.path)

    def by_node(self) -> dict[int, list[Use]]:
        """Node -> uses."""
        return grouped(self.uses, lambda use: use.node)

    def _takes_matrices(self, node: Node) -> bool:
        taken = self._taken(node)
        return len([n for k, n in enumerate(node.params["slice_sizes"]) if k not in taken and n > 1]) > 1

    def _takes_a_layer(self, node: Node) -> bool:
        taken = self._taken(node)
        single = all(math.prod(self._graph.nodes[j].shape) <= max(len(taken), 1) for j in node.inputs[1:])
        return bool(taken) and single and all(node.params["slice_sizes"][k] == 1 for k in taken)

    def _taken(self, node: Node) -> list[int]:
        """The axes along which a look-up takes a part."""
        sizes = self._graph.nodes[node.inputs[0]].shape
        return [k for k, (size, left) in enumerate(zip(sizes, node.params["slice_sizes"], strict=True)) if left < size]

    def _tokens(self, node: Node, ins: Sequence[str]) -> list[int]:
        """Learned tokens that a matrix multiplies, such as a pooling head's query: all of their width is contracted."""
        if node.op != "dot_general" or ins.count(PARAM) != 2:
            return []
        self.has_tokens = True
        for place, j in enumerate(node.inputs):
            other = {v.path for v in self._views[node.inputs[1 - place]]}
            for v in (v for v in self._views[j] if v.path not in other):  # a matrix times itself is of one size
                axes, grows = v.axes(_sides(node, place)[0]), set(self._growing.get(v.path, ()))
                if axes & grows and not (v.axes() - axes) & grows:
                    return [j]
        return []

    def _of_example(self, node: Node, ins: Sequence[str]) -> tuple[View, ...]:
        """What a weight of each example is made of: activations multiply its rows or columns, and it is moved."""
        if len(node.inputs) == 1:
            (j,) = node.inputs
            moves = node.op in MOVES | SAME_PLACE and ins[0] == ACTIVATION
            return tuple(_moved(v, node, self._graph.nodes[j].shape, v) for v in self._views[j]) if moves else ()
        if node.op not in SCALES or len(node.inputs) != 2:
            return ()
        for weight, other in (node.inputs, node.inputs[::-1])[: 2 if node.op == "mul" else 1]:
            views, shape = self._views[weight], self._graph.nodes[weight].shape
            if not views or self._views[other] or len(self._graph.nodes[other].shape) != len(shape):
                continue
            apart = [
                k for k, n in enumerate(shape) if n > 1 and self._lacks(other, k) and any(v.dims[k] for v in views)
            ]
            joint = [k for k, n in enumerate(shape) if n > 1 and not self._lacks(other, k)]
            if self.kinds[other] == ACTIVATION and apart and joint:
                return views
        return ()

    def _lacks(self, j: int, k: int) -> bool:
        """Whether an array has one entry along an axis, which may be copied."""
        node = self._graph.nodes[j]
        if node.op != "broadcast_in_dim" or node.shape[k] == 1:
            return node.shape[k] == 1
        into = list(node.params["broadcast_dimensions"])
        return k not in into or self._graph.nodes[node.inputs[0]].shape[into.index(k)] == 1

    def _made_of(self, node: Node, ins: Sequence[str]) -> tuple[View, ...]:
        """What an array of parameters alone is made of."""
        if node.op == PARAM:
            return (_whole(node),)
        first, shapes = node.inputs[0], [self._graph.nodes[j].shape for j in node.inputs]
        takes_a_layer = node.op in LOOKUPS and ins[0] == PARAM and self._takes_a_layer(node)
        if takes_a_layer or (node.op == "gather" and ins[0] == PARAM):
            take = _layer if takes_a_layer else _chosen
            return tuple(_moved(v, node, shapes[0], take(v, self._taken(node))) for v in self._views[first])
        if node.op in SAME_PLACE:
            return self._views[first]
        of_params = [
            (v, shape)
            for j, kind, shape in zip(node.inputs, ins, shapes, strict=True)
            for v in (self._views[j] if kind == PARAM else ())
        ]
        if node.op in MOVES:
            return tuple(_moved(v, node, shape, v) for v, shape in of_params)
        if node.op == "dot_general":
            return self._product_of_parameters(node)
        unique: dict[str, View] = {}  # a matrix minus its mean is the matrix
        for v, shape in of_params:
            v = v if shape == node.shape else dataclasses.replace(v, dims=_reduced(v, node, shape))
            if v.path not in unique or len(v.axes()) > len(unique[v.path].axes()):
                unique[v.path] = v
        return tuple(unique.values())

    def _product_of_parameters(self, node: Node) -> tuple[View, ...]:
        """A weight that is a product of two, such as LoRA's, or of a parameter with constants, such as positions."""
        made_of, before = [], 0
        for place, j in enumerate(node.inputs):
            contracted, batched = _sides(node, place)
            free = [k for k in range(len(self._graph.nodes[j].shape)) if k not in contracted and k not in batched]
            for v in self._views[j]:
                dims: list[Axis] = [frozenset()] * len(node.shape)
                for n, k in enumerate(batched):
                    dims[n] = v.dims[k]
                for n, k in enumerate(free, start=len(batched) + before):
                    dims[n] = v.dims[k]
                made_of.append(dataclasses.replace(v, dims=tuple(dims), inner=v.inner | v.axes(contracted)))
            before = len(free)
        return tuple(made_of)

    def _meets(self, i: int, node: Node, ins: Sequence[str]) -> list[Use]:
        """The uses of parameters in an operation with activations."""
        others = [j for j, kind in zip(node.inputs, ins, strict=True) if kind == ACTIVATION]
        first, operand = not any(self._has_params[j] for j in others), others[0] if others else -1
        result = []
        of_params = [(place, j) for place, (j, kind) in enumerate(zip(node.inputs, ins, strict=True)) if kind == PARAM]
        if node.op in PRODUCTS:
            of_example = [
                (place, j) for place, j in enumerate(node.inputs) if ins[place] == ACTIVATION and self._views[j]
            ]
            if of_example:  # what it multiplies is no weight, but a learned token
                result += [_token_use(i, node, v, j) for _, j in of_params for v in self._views[j]]
                of_params = of_example
                operand = next((j for j in others if not self._views[j]), -1)
        for place, j in of_params:
            for v in self._views[j]:
                at = functools.partial(_use_at(i, node, v), first=first, view=j, operand=operand)
                sides = _sides(node, place) if node.op == "dot_general" else ((), ())
                # Not entry by entry, as a scale by einsum("...k,k->...k").
                if node.op == "dot_general" and (sides[0] or len(sides[1]) < len(self._graph.nodes[j].shape)):
                    result.append(_product(v, *sides, at))
                elif node.op == "conv_general_dilated":
                    _, *into = node.params["dimension_numbers"].rhs_spec  # all but the output: channels and window
                    result.append(_product(v, into, [], at))
                elif node.op in EXPERT_PRODUCTS and place == 1:  # experts, input, output
                    result.append(_product(v, [1], [0], at))
                elif node.op in LOOKUPS and place == 0:
                    axes = v.axes(self._taken(node))
                    result.append(at(kind=LOOKUP, into=axes, out=v.axes() - axes))
                else:
                    result.append(at(kind=ENTRYWISE, out=v.axes()))
        return result


def _kind(graph: Graph, node: Node, ins: Sequence[str]) -> str:
    if node.op in (PARAM, STATE, CONST):
        return node.op
    if node.op == INPUT or ACTIVATION in ins or _reads_positions(graph, node, ins):
        return ACTIVATION
    return PARAM if PARAM in ins else STATE if STATE in ins else CONST


def _reads_positions(graph: Graph, node: Node, ins: Sequence[str]) -> bool:
    """Whether a layer reads fixed features of several places, as a network of positions does."""
    if node.op != "dot_general" or sorted(ins) != [CONST, PARAM]:
        return False
    place = ins.index(CONST)
    shape, (contracted, _) = graph.nodes[node.inputs[place]].shape, _sides(node, place)
    return math.prod(n for k, n in enumerate(shape) if k not in contracted) > 1


def _moving(graph: Graph) -> set[int]:
    """What loops carry and start from a constant, such as the zeros of a recurrent network, but become activations."""
    moving: set[int] = set()
    while True:
        kinds: list[str] = []
        for i, node in enumerate(graph.nodes):
            kinds.append(ACTIVATION if i in moving else _kind(graph, node, [kinds[j] for j in node.inputs]))
        carried = {i for i, node in enumerate(graph.nodes) if node.op == "carry" and kinds[i] != ACTIVATION}
        more = {i for i in carried if kinds[graph.nodes[i].params["next"]] == ACTIVATION}
        if not more:
            return moving
        moving |= more


def _whole(node: Node) -> View:
    return View(node.params["path"], tuple(frozenset({k}) for k in range(len(node.shape))))


def _token_use(i: int, node: Node, view: View, j: int) -> Use:
    return _use_at(i, node, view)(kind=ENTRYWISE, out=view.axes(), first=True, view=j)


def _use_at(i: int, node: Node, view: View) -> Callable[..., Use]:
    times = math.prod(length for _, length in node.loops)
    return functools.partial(Use, view.path, node=i, times=times, layers=view.layers, picked=view.picked)


def _layer(view: View, taken: Collection[int]) -> View:
    """``view`` with one entry taken along axes of the array."""
    axes = view.axes(taken)
    dims = tuple(frozenset() if k in taken else axis for k, axis in enumerate(view.dims))
    return dataclasses.replace(view, dims=dims, layers=view.layers | axes, picked=view.picked | axes)


def _chosen(view: View, taken: Collection[int]) -> View:
    """``view`` of the matrices that activations choose along axes of the array."""
    chosen = view.experts | view.axes(taken)
    return dataclasses.replace(_layer(view, taken), layers=view.layers, picked=view.picked, experts=chosen)


def _moved(view: View, node: Node, shape: tuple[int, ...], now: View) -> View:
    """``view`` after an operation of `MOVES`, or after a layer was taken."""
    dims, p = list(now.dims), node.params
    blank: list[Axis] = [frozenset()] * len(node.shape)
    if node.op == "gather":
        numbers = p["dimension_numbers"]
        gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
        kept = [d for k, d in enumerate(dims) if k not in gone]
        dims = blank
        for k, d in zip(numbers.offset_dims, kept, strict=True):
            dims[k] = d
    elif node.op == "transpose":
        dims = [dims[k] for k in p["permutation"]]
    elif node.op == "broadcast_in_dim":
        for k, to in enumerate(p["broadcast_dimensions"]):
            blank[to] = dims[k]
        dims = blank
    elif node.op == "scan_in":
        taken = _layer(now, [0])
        return dataclasses.replace(taken, dims=taken.dims[1:], picked=now.picked)
    elif node.op in ("scan_out", "stack"):
        dims.insert(p.get("axis", 0), frozenset())
    elif node.op == "unstack":
        now = _layer(now, [p["axis"]])
        dims = [d for k, d in enumerate(now.dims) if k != p["axis"]]
    elif node.op in ("slice", "split") and any(new == 1 < old for new, old in zip(node.shape, shape, strict=True)):
        now = _layer(now, [k for k, (new, old) in enumerate(zip(node.shape, shape, strict=True)) if new == 1 < old])
        dims = list(now.dims)
    elif len(node.shape) != len(shape) or node.op == "reshape":
        order = (p["dimensions"] if node.op == "reshape" else None) or range(len(shape))  # it may transpose first
        dims = regrouped([shape[k] for k in order], node.shape, [dims[k] for k in order])
    return dataclasses.replace(now, dims=tuple(dims))


def regrouped(old: Sequence[int], new: Sequence[int], dims: Sequence[Axis]) -> list[Axis]:
    """The axes of a reshaped array: where axes are merged or split, each new one is made of all of the old ones."""
    result: list[Axis] = [frozenset()] * len(new)
    a = [k for k, size in enumerate(old) if size != 1]
    b = [k for k, size in enumerate(new) if size != 1]
    i = j = 0
    while i < len(a) and j < len(b):
        end_i, end_j, left, right = i + 1, j + 1, old[a[i]], new[b[j]]
        while left != right:
            if left < right and end_i < len(a):
                left, end_i = left * old[a[end_i]], end_i + 1
            elif end_j < len(b):
                right, end_j = right * new[b[end_j]], end_j + 1
            else:
                break
        for k in b[j:end_j]:
            result[k] = frozenset().union(*(dims[n] for n in a[i:end_i]))
        i, j = end_i, end_j
    return result


def _reduced(view: View, node: Node, shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """The axes of a reduction's result; unknown operations lose them."""
    if node.op.startswith(("reduce_", "arg")) and "axes" in node.params:
        return tuple(d for k, d in enumerate(view.dims) if k not in node.params["axes"])
    if node.op == "concatenate" or len(shape) == len(node.shape):
        return view.dims
    return (frozenset(),) * len(node.shape)


def _sides(node: Node, place: int) -> tuple[Sequence[int], Sequence[int]]:
    """The contracted and the batch dimensions of one operand of a ``dot_general``."""
    contracted, batched = node.params["dimension_numbers"]
    return contracted[place], batched[place]


def _product(v: View, contracted: Sequence[int], batched: Sequence[int], at: Callable[..., Use]) -> Use:
    into = v.axes(contracted)
    batch = (v.experts | v.axes(batched)) - into  # heads and their size may be one axis of the parameter
    out = v.axes() - into - batch
    # An axis between two parameters whose product is the weight: the output of the first, the input of the second.
    if into:
        out |= v.inner
    else:
        into = v.inner
    return at(kind=PRODUCT, into=into, out=out, batch=batch)
