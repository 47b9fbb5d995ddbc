"""How a forward pass uses each parameter: which axes are contracted, which go out, and where."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from depthmup_flax.infer.dataflow import CONST, INPUT, PARAM, STATE, Graph, Node

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
    loops: frozenset[int] = frozenset()  # loops that took a layer in each iteration
    picked: Axis = frozenset()  # axes along which one layer was taken by its number
    inner: Axis = frozenset()  # axes that were contracted with another parameter
    experts: Axis = frozenset()  # axes along which activations choose


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
    """What every array of a graph is made of."""

    kinds: Sequence[str]
    views: Sequence[tuple[View, ...]]  # of arrays made of parameters alone
    uses: Sequence[Use]

    def by_path(self) -> dict[str, list[Use]]:
        """Path -> uses."""
        return _grouped(self.uses, lambda use: use.path)

    def by_node(self) -> dict[int, list[Use]]:
        """Node -> uses."""
        return _grouped(self.uses, lambda use: use.node)


_Key = TypeVar("_Key")


def _grouped(uses: Iterable[Use], key: Callable[[Use], _Key]) -> dict[_Key, list[Use]]:
    groups: dict[_Key, list[Use]] = {}
    for use in uses:
        groups.setdefault(key(use), []).append(use)
    return groups


# Operations whose result has the entries of the first operand, in the same places.
SAME_PLACE = frozenset(
    {"convert_element_type", "copy", "copy_p", "carry", "neg", "stop_gradient", "reduce_precision", "name",
     "sharding_constraint", "optimization_barrier", "mesh_cast", "reshard", "pvary", "psum", "psum2",
     "psum_invariant", "pmax", "pmin", "real", "imag"}
)  # fmt: skip
MOVES = frozenset(
    {"transpose", "reshape", "broadcast_in_dim", "squeeze", "expand_dims", "rev", "slice", "scan_in", "scan_out",
     "stack", "pad", "split", "dynamic_slice", "all_gather"}
)  # fmt: skip
_LOOKUPS = frozenset({"gather", "dynamic_slice"})


def parameter_uses(graph: Graph, growing: Mapping[str, Collection[int]]) -> Uses:
    """The uses of every parameter that the output depends on.

    ``growing`` are the axes of each parameter that differ from the base model's; they tell a learned token, which a
    matrix multiplies, from one of two matrices whose product is a weight.
    """
    uses = _read(graph, growing, frozenset())
    tokens = {use.path for use in uses.uses if use.operand < 0 and not use.layers}
    # Tokens that are also added to activations start a stream, as the latents of a Perceiver do.
    streams = {path for path in tokens if len(uses.by_path()[path]) > 1}
    return _read(graph, growing, streams) if streams else uses


def _read(graph: Graph, growing: Mapping[str, Collection[int]], streams: Collection[str]) -> Uses:
    """The uses of parameters; those of ``streams`` are activations from the start."""
    needed, moving = graph.needed(), _moving(graph)
    kinds: list[str] = []
    views: list[tuple[View, ...]] = []
    uses: list[Use] = []
    has_params: list[bool] = []  # whether an activation depends on a parameter
    for i, node in enumerate(graph.nodes):
        ins = [kinds[j] for j in node.inputs]
        kind = ACTIVATION if i in moving else _kind(node, ins)
        if node.op == "gather" and ins[0] == PARAM and _takes_matrices(graph, node):
            kind = PARAM  # the matrices of some experts
        made_of: tuple[View, ...] = ()
        if node.op == PARAM and node.params["path"] in streams:
            (view,) = _views(graph, node, ins, views)
            kind, uses = ACTIVATION, [*uses, _token_use(i, node, view, i)]
        elif kind == PARAM and needed[i]:
            tokens = _tokens(graph, node, ins, views, growing)
            if tokens:
                uses += [_token_use(i, node, v, j) for j in tokens for v in views[j]]
                ins = [ACTIVATION if j in tokens else k for j, k in zip(node.inputs, ins, strict=True)]
            if tokens or (kind == PARAM and _is_lookup(graph, node, ins)):
                kind = ACTIVATION
            else:
                made_of = _views(graph, node, ins, views)
        if kind == ACTIVATION and needed[i] and node.inputs:
            uses += _meets(graph, i, node, ins, views, has_params)
        kinds.append(kind)
        views.append(made_of if kind == PARAM else ())
        has_params.append(kind == ACTIVATION and (PARAM in ins or any(has_params[j] for j in node.inputs)))
    return Uses(kinds, views, uses)


def _kind(node: Node, ins: Sequence[str]) -> str:
    if node.op in (PARAM, STATE, CONST):
        return node.op
    if node.op == INPUT or ACTIVATION in ins:
        return ACTIVATION
    return PARAM if PARAM in ins else STATE if STATE in ins else CONST


def _moving(graph: Graph) -> set[int]:
    """What loops carry and start from a constant, such as the zeros of a recurrent network, but become activations."""
    moving: set[int] = set()
    while True:
        kinds: list[str] = []
        for i, node in enumerate(graph.nodes):
            kinds.append(ACTIVATION if i in moving else _kind(node, [kinds[j] for j in node.inputs]))
        carried = {i for i, node in enumerate(graph.nodes) if node.op == "carry" and kinds[i] != ACTIVATION}
        more = {i for i in carried if kinds[graph.nodes[i].params["next"]] == ACTIVATION}
        if not more:
            return moving
        moving |= more


def _union(axes: Iterable[Axis]) -> Axis:
    return frozenset().union(*axes)


def _all(view: View) -> Axis:
    return _union(view.dims)


def _times(node: Node, view: View) -> float:
    return math.prod(length for number, length in node.loops if number not in view.loops)


def _is_lookup(graph: Graph, node: Node, ins: Sequence[str]) -> bool:
    """Whether rows of a table are taken, rather than one layer of a stack, or matrices of experts."""
    return node.op == "gather" and ins[0] == PARAM and not (_takes_a_layer(graph, node) or _takes_matrices(graph, node))


def _takes_matrices(graph: Graph, node: Node) -> bool:
    taken = _taken(graph, node)
    return len([n for k, n in enumerate(_window(node)) if k not in taken and n > 1]) > 1


def _takes_a_layer(graph: Graph, node: Node) -> bool:
    taken = _taken(graph, node)
    single = all(math.prod(graph.nodes[j].shape) <= max(len(taken), 1) for j in node.inputs[1:])
    return bool(taken) and single and all(_window(node)[k] == 1 for k in taken)


def _taken(graph: Graph, node: Node) -> list[int]:
    """The axes along which a look-up takes a part."""
    sizes = graph.nodes[node.inputs[0]].shape
    return [k for k, (size, left) in enumerate(zip(sizes, _window(node), strict=True)) if left < size]


def _token_use(i: int, node: Node, view: View, j: int) -> Use:
    at = _use_at(i, node, view)
    return at(kind=ENTRYWISE, out=_all(view), first=True, view=j)


def _use_at(i: int, node: Node, view: View) -> Callable[..., Use]:
    """Makes uses of a view by node ``i``."""
    return functools.partial(Use, view.path, node=i, times=_times(node, view), layers=view.layers, picked=view.picked)


def _tokens(
    graph: Graph,
    node: Node,
    ins: Sequence[str],
    views: Sequence[tuple[View, ...]],
    growing: Mapping[str, Collection[int]],
) -> list[int]:
    """Learned tokens that a matrix multiplies, such as a pooling head's query: all of their width is contracted."""
    if node.op != "dot_general" or ins.count(PARAM) != 2:
        return []
    for place, j in enumerate(node.inputs):
        contracted, _ = _sides(node, place)
        for v in views[j]:
            axes, grows = _union(v.dims[k] for k in contracted), set(growing.get(v.path, ()))
            if axes & grows and not (_all(v) - axes) & grows:
                return [j]
    return []


def _views(graph: Graph, node: Node, ins: Sequence[str], views: Sequence[tuple[View, ...]]) -> tuple[View, ...]:
    """What an array of parameters alone is made of."""
    if node.op == PARAM:
        return (View(node.params["path"], tuple(frozenset({k}) for k in range(len(node.shape)))),)
    first, shapes = node.inputs[0], [graph.nodes[j].shape for j in node.inputs]
    if node.op in _LOOKUPS and ins[0] == PARAM and (node.op == "gather" or _takes_a_layer(graph, node)):
        take = _layer if _takes_a_layer(graph, node) else _chosen
        return tuple(_moved(v, node, shapes[0], take(v, _taken(graph, node))) for v in views[first])
    if node.op in SAME_PLACE:
        return views[first]
    if node.op in MOVES:
        return tuple(
            _moved(v, node, graph.nodes[j].shape, v)
            for j, kind in zip(node.inputs, ins, strict=True)
            if kind == PARAM
            for v in views[j]
        )
    if node.op == "dot_general" and ins.count(PARAM) == 2:
        return _product_of_parameters(graph, node, views)
    unique: dict[str, View] = {}  # a matrix minus its mean is the matrix
    for j, kind, shape in zip(node.inputs, ins, shapes, strict=True):
        for v in views[j] if kind == PARAM else ():
            v = v if shape == node.shape else dataclasses.replace(v, dims=_reduced(v, node, shape))
            if v.path not in unique or len(_all(v)) > len(_all(unique[v.path])):
                unique[v.path] = v
    return tuple(unique.values())


def _window(node: Node) -> tuple[int, ...]:
    return tuple(node.params["slice_sizes"])


def _layer(view: View, taken: Collection[int]) -> View:
    """``view`` with one entry taken along axes of the array."""
    axes = _union(view.dims[k] for k in taken)
    dims = tuple(frozenset() if k in taken else axis for k, axis in enumerate(view.dims))
    return dataclasses.replace(view, dims=dims, layers=view.layers | axes, picked=view.picked | axes)


def _chosen(view: View, taken: Collection[int]) -> View:
    """``view`` of the matrices that activations choose along axes of the array."""
    chosen = view.experts | _union(view.dims[k] for k in taken)
    return dataclasses.replace(_layer(view, taken), layers=view.layers, picked=view.picked, experts=chosen)


def _moved(view: View, node: Node, shape: tuple[int, ...], now: View) -> View:
    """``view`` after an operation of `MOVES`, or after a layer was taken."""
    dims, p = list(now.dims), node.params
    if node.op == "gather":
        numbers = node.params["dimension_numbers"]
        gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
        kept = [d for k, d in enumerate(dims) if k not in gone]
        dims = [frozenset()] * len(node.shape)
        for k, d in zip(numbers.offset_dims, kept, strict=True):
            dims[k] = d
    elif node.op == "transpose":
        dims = [dims[k] for k in p["permutation"]]
    elif node.op == "broadcast_in_dim":
        spread: list[Axis] = [frozenset()] * len(node.shape)
        for k, to in enumerate(p["broadcast_dimensions"]):
            spread[to] = dims[k]
        dims = spread
    elif node.op == "scan_in":
        taken = _layer(now, [0])
        return dataclasses.replace(taken, dims=taken.dims[1:], loops=now.loops | {p["loop"]}, picked=now.picked)
    elif node.op in ("scan_out", "stack"):
        dims.insert(node.params.get("axis", 0), frozenset())
    elif node.op == "slice" and any(new == 1 < old for new, old in zip(node.shape, shape, strict=True)):
        now = _layer(now, [k for k, (new, old) in enumerate(zip(node.shape, shape, strict=True)) if new == 1 < old])
        dims = list(now.dims)
    elif len(node.shape) != len(shape) or node.op == "reshape":
        dims = regrouped(shape, node.shape, dims)
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
        union = _union(dims[k] for k in a[i:end_i])
        for k in b[j:end_j]:
            result[k] = union
        i, j = end_i, end_j
    return result


def _reduced(view: View, node: Node, shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """The axes of a reduction's result; unknown operations lose them."""
    if node.op.startswith(("reduce_", "arg")) and "axes" in node.params:
        return tuple(d for k, d in enumerate(view.dims) if k not in node.params["axes"])
    if node.op == "concatenate" or len(shape) == len(node.shape):
        return view.dims
    return tuple(frozenset() for _ in node.shape) if shape else (frozenset(),) * len(node.shape)


def _product_of_parameters(graph: Graph, node: Node, views: Sequence[tuple[View, ...]]) -> tuple[View, ...]:
    """A weight that is a product of two, such as LoRA's."""
    sides = []
    for place, j in enumerate(node.inputs):
        contracted, batched = _sides(node, place)
        free = [k for k in range(len(graph.nodes[j].shape)) if k not in contracted and k not in batched]
        sides.append((j, contracted, batched, free))
    made_of = []
    count = len(sides[0][2])
    for place, (j, contracted, batched, free) in enumerate(sides):
        before = 0 if place == 0 else len(sides[0][3])
        for v in views[j]:
            dims: list[Axis] = [frozenset()] * len(node.shape)
            for n, k in enumerate(batched):
                dims[n] = v.dims[k]
            for n, k in enumerate(free):
                dims[count + before + n] = v.dims[k]
            inner = v.inner | _union(v.dims[k] for k in contracted)
            made_of.append(dataclasses.replace(v, dims=tuple(dims), inner=inner))
    return tuple(made_of)


def _meets(
    graph: Graph, i: int, node: Node, ins: Sequence[str], views: Sequence[tuple[View, ...]], has_params: Sequence[bool]
) -> list[Use]:
    """The uses of parameters in an operation with activations."""
    others = [j for j, kind in zip(node.inputs, ins, strict=True) if kind == ACTIVATION]
    first = not any(has_params[j] for j in others)
    result = []
    for place, (j, kind) in enumerate(zip(node.inputs, ins, strict=True)):
        if kind != PARAM:
            continue
        for v in views[j]:
            operand = others[0] if others else -1
            at = functools.partial(_use_at(i, node, v), first=first, view=j, operand=operand)
            if node.op == "dot_general":
                result.append(_product(v, *_sides(node, place), at))
            elif node.op == "conv_general_dilated":
                _, *into = node.params["dimension_numbers"].rhs_spec  # all but the output: channels and window
                result.append(_product(v, into, [], at))
            elif node.op.startswith("ragged_dot") and place == 1:  # experts, input, output
                result.append(_product(v, [1], [0], at))
            elif node.op in _LOOKUPS and place == 0:
                axes = _union(v.dims[k] for k in _taken(graph, node))
                result.append(at(kind=LOOKUP, into=axes, out=_all(v) - axes))
            else:
                result.append(at(kind=ENTRYWISE, out=_all(v)))
    return result


def _sides(node: Node, place: int) -> tuple[Sequence[int], Sequence[int]]:
    """The contracted and the batch dimensions of one operand of a ``dot_general``."""
    contracted, batched = node.params["dimension_numbers"]
    return contracted[place], batched[place]


def _product(v: View, contracted: Sequence[int], batched: Sequence[int], at: Callable[..., Use]) -> Use:
    into = _union(v.dims[k] for k in contracted)
    batch = v.experts | _union(v.dims[k] for k in batched)
    out = _all(v) - into - batch
    # An axis between two parameters whose product is the weight: the output of the first, the input of the second.
    if into:
        out |= v.inner
    else:
        into = v.inner
    return at(kind=PRODUCT, into=into, out=out, batch=batch)
