"""The forward pass as a graph of array operations, traced with shapes alone. Nothing is computed or compiled.

Calls (``jit``, ``remat``, custom derivatives, ``shard_map``) are inlined. The body of a loop occurs once, and its nodes
say how often they run. The body of a kernel is not read: what it computes is known by its name, or not at all.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
import pathlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.jaxprs import Interpreter, JaxprLoop, opened
from depthmup_flax.util.primitives import ENTRYWISE, KEEPS_NUMBER, PARALLEL, SUMS
from depthmup_flax.util.types import ArrayTree

PARAM, STATE, INPUT, CONST = "param", "state", "input", "const"  # operations without inputs

# An array, and the node that reads it there; -1 for all that read it.
Place: TypeAlias = tuple[int, int]
# The number of a loop in the graph, and of its iterations; NaN is unknown (``while``).
Loop: TypeAlias = tuple[int, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One array: the operation that makes it, and the arrays that the operation reads (numbers of nodes)."""

    op: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    params: Mapping[str, Any]  # of the primitive, with its equations in "callers"; for `PARAM` its path
    loops: tuple[Loop, ...]  # that it runs in, the outermost first
    value: float | None = None  # of a constant whose entries are all equal


@dataclasses.dataclass
class Graph:
    """Nodes in an order in which they can be computed. The body of a loop occurs once."""

    nodes: list[Node] = dataclasses.field(default_factory=list)
    output: int = -1
    # The last sums of streams that the output does not depend on: that of a graph's edges, which nothing reads. As
    # traced, these are any last sums.
    ends: tuple[int, ...] = ()
    loops: tuple[Loop, ...] = ()  # that new nodes run in
    replaced: set[str] = dataclasses.field(default_factory=set)  # names of functions in whose place others are traced

    def add(
        self,
        op: str,
        inputs: Sequence[int],
        shape: tuple[int, ...],
        params: Mapping[str, Any] | None = None,
        value: float | None = None,
    ) -> int:
        """The number of a new node."""
        self.nodes.append(Node(op, tuple(inputs), tuple(shape), params or {}, self.loops, value))
        return len(self.nodes) - 1

    def upstream(self, node: int, ends: Callable[[int], bool]) -> Iterator[int]:
        """A node and those that it depends on, up to nodes that are ``ends``."""
        stack, seen = [node], {node}
        while stack:
            i = stack.pop()
            yield i
            new = set() if ends(i) else set(self.nodes[i].inputs) - seen
            seen |= new
            stack += new

    def needed(self, cut: Collection[Place] = ()) -> list[bool]:
        """Whether the output or an end depends on each node, by a path that passes none of the places ``cut``."""
        needed, stack = [False] * len(self.nodes), [i for i in (self.output, *self.ends) if (i, -1) not in cut]
        while stack:
            i = stack.pop()
            if not needed[i]:
                needed[i], node = True, self.nodes[i]
                # A carry is made by the other rounds of its loop, too.
                inputs = (*node.inputs, node.params["next"]) if node.op == "carry" else node.inputs
                stack += [j for j in inputs if (j, -1) not in cut and (j, i) not in cut] if cut else inputs
        return needed


_LARGEST = 100_000  # entries of a constant that are compared


def uniform_value(array: Any) -> float | None:
    """The number that all entries of a constant are, if they are."""
    if isinstance(array, (bool, int, float)):
        return float(array)
    if not 0 < math.prod(np.shape(array)) <= _LARGEST or isinstance(array, jax.ShapeDtypeStruct):
        return None
    try:
        entries = np.asarray(array).ravel()
        number = complex(entries[0])
        return number.real if not number.imag and (entries == entries[0]).all() else None
    except (TypeError, ValueError):  # a random key, or a number of another kind
        return None


_FEW = 8  # entries of a constant that are kept, such as the lengths of a Fourier transform
_REDUCED: Mapping[str, Callable[..., Any]] = {"reduce_prod": np.prod, "reduce_sum": np.sum}


def entries(array: Any) -> tuple[float, ...]:
    """The entries of a short list of numbers, else nothing."""
    is_short = len(np.shape(array)) == 1 and np.shape(array)[0] <= _FEW and not isinstance(array, jax.ShapeDtypeStruct)
    return tuple(map(float, np.real(np.asarray(array)))) if is_short and np.asarray(array).dtype.kind in "iufc" else ()


FOLDS: Mapping[str, Callable[..., float]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "pow": operator.pow,
    "max": max, "min": min, "neg": operator.neg, "abs": abs, "sqrt": math.sqrt, "rsqrt": lambda a: a**-0.5,
    "cbrt": math.cbrt, "exp": math.exp, "log": math.log, "square": lambda a: a * a,
}  # fmt: skip


def folded(op: str, params: Mapping[str, Any], values: Sequence[float | None], count: float) -> float | None:
    """The value of an operation on constants, or ``None``; ``count`` entries of the first are one of the result."""
    known = [value for value in values if value is not None]
    if not known or len(known) != len(values):
        return None
    try:
        if op in KEEPS_NUMBER:
            return known[0]
        if op in ("reduce_sum", "reduce_prod"):
            return known[0] * count if op == "reduce_sum" else known[0] ** count
        if op == "integer_pow":
            return float(known[0] ** params["y"])
        return float(FOLDS[op](*known)) if op in FOLDS else None
    except (ValueError, OverflowError, ZeroDivisionError, TypeError):  # such as log(-1), or a complex root
        return None


_JAXPRS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
# Directories of libraries, whose lines a user did not write.
_LIBRARIES = re.compile(r"[/\\](site-packages|dist-packages)[/\\]|[/\\]depthmup_flax[/\\]|^<")


def called_names(eqn: core.JaxprEqn) -> list[str]:
    """Names of a function, kernel, callback or foreign call, and of the primitive, the most telling first.

    A function also has the name ``file.py:function``, which tells apart functions of several libraries.
    """
    params = eqn.params
    callback = getattr(params.get("callback"), "callback_func", params.get("callback"))
    names = [params.get("name"), params.get("target_name"), getattr(callback, "__name__", None)]
    for inner in (params[key] for key in _JAXPRS if params.get(key) is not None):
        # "attention at /path/file.py:12"
        source = getattr(getattr(opened(inner)[0], "debug_info", None), "func_src_info", None) or ""
        name, _, place = source.partition(" at ")
        if name.isidentifier():
            names += [name, f"{pathlib.PurePath(place.rpartition(':')[0]).name}:{name}"]
    return [*dict.fromkeys(name for name in names if isinstance(name, str) and name), eqn.primitive.name]


def source_line(callers: Sequence[core.JaxprEqn]) -> str:
    """``file.py:12`` of the innermost line outside of libraries that made the last of these equations; "" if none is.

    An equation of a function that JAX has traced before does not know who called it.
    """
    for eqn in reversed(callers):
        for frame in getattr(getattr(eqn.source_info, "traceback", None), "frames", ()):
            if not _LIBRARIES.search(frame.file_name):
                return f"{pathlib.PurePath(frame.file_name).name}:{frame.line_num}"
    return ""


def _cudnn_attention(params: Mapping[str, Any]) -> Callable[..., Any]:
    """Attention of `jax.nn.dot_product_attention` with ``implementation="cudnn"``."""
    heads_first, has_bias = bool(params["layout"]), bool(params["variadic_args"][0])

    def attention(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array, *_: jax.Array) -> jax.Array:
        q, k, v = (x.swapaxes(1, 2) if heads_first else x for x in (q, k, v))  # [batch, length, heads, features]
        options = {"scale": params["scale"], "implementation": "xla"}
        out = jax.nn.dot_product_attention(q, k, v, bias if has_bias else None, **options)
        return out.swapaxes(1, 2) if heads_first else out

    return attention


# Name, or file:name -> (parameters of the equation) -> a function of the same arrays.
KNOWN: Mapping[str, Callable[[Mapping[str, Any]], Callable[..., Any]]] = {
    "dot_product_attention_fwd_wrapper": _cudnn_attention,
    # flax.linen.Fp8DotGeneralOp, Fp8DirectDotGeneralOp, Fp8Einsum
    "fp8_ops.py:in_qdq": lambda params: lambda x, scale, history: x,
    "fp8_ops.py:out_qdq": lambda params: lambda x, scale, history: x,
    "fp8_ops.py:in_q": lambda params: lambda x, scale, history: (x, jnp.ones_like(scale)),
    "fp8_ops.py:out_dq": lambda params: lambda scale, other_scale, x: x,
}


# Name of a function, kernel or primitive -> a function of the same arrays, which is traced in its place.
Known = Mapping[str, Callable[..., Any]]


def trace(
    function: Callable[..., Any],
    params: Mapping[str, Any],
    state: ArrayTree,
    inputs: ArrayTree,
    known: Known,
    axis_name: str = "",
) -> Graph:
    """The graph of ``function(params, state, inputs)``, which returns one array.

    ``params`` maps paths to shapes; ``state`` (running averages) and ``inputs`` (the batch) are trees of shapes.
    ``axis_name`` is a mapped axis that the function sums over, as in a BatchNorm over devices. `Graph.replaced` are the
    names of ``known`` that are called.
    """
    called = function
    if axis_name:
        called = lambda *args: jax.vmap(function, in_axes=None, axis_size=1, axis_name=axis_name)(*args)[0]
    try:
        closed = jax.make_jaxpr(called)(dict(params), state, inputs)
    except NameError as error:  # JAX names the axis in a sentence
        unbound = re.search(r"unbound axis name:? *'?(\w+)", str(error))
        if unbound is None or axis_name:
            raise
        return trace(function, params, state, inputs, known, unbound.group(1))
    if len(closed.jaxpr.outvars) != 1:
        raise InputError(
            f"the model returns {len(closed.jaxpr.outvars)} arrays: name those that the loss reads, such as output=0, "
            "output='logits', output=('policy', 'value') or a function of what the model returns."
        )
    graph = Graph()
    # Dictionaries are flattened in the order of their keys.
    leaves = [graph.add(PARAM, (), params[path].shape, {"path": path}) for path in sorted(params)]
    for op, tree in ((STATE, state), (INPUT, inputs)):
        leaves += [graph.add(op, (), leaf.shape, {"dtype": leaf.dtype}) for leaf in jax.tree.leaves(tree)]
    (graph.output,) = _Inliner(graph, known).run(closed, leaves)
    graph.ends = _ends(graph)
    return graph


def _ends(graph: Graph) -> tuple[int, ...]:
    """The last sums that the output does not depend on of what, entry by entry, begins with an array that it needs."""
    needed, of_batch, of_stream, ends = graph.needed(), list[bool](), list[bool](), list[int]()
    for i, node in enumerate(graph.nodes):
        of_batch.append(node.op == INPUT or any(of_batch[j] for j in node.inputs))
        alike = (j for j in node.inputs if node.op in ENTRYWISE and graph.nodes[j].shape == node.shape)
        of_stream.append(of_batch[i] and (needed[i] or any(of_stream[j] for j in alike)))
    followed = needed
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        is_whole = lambda j, shape=node.shape: graph.nodes[j].shape == shape and graph.nodes[j].op != "broadcast_in_dim"
        # Norms subtract a mean, which is no whole array.
        is_sum = node.op in SUMS and of_stream[i] and all(of_batch[j] and is_whole(j) for j in node.inputs)
        if is_sum and not followed[i] and not node.loops:
            ends.append(i)
        for j in node.inputs:
            followed[j] |= followed[i] or is_sum
    return tuple(ends)


_STACKS = {"stack": "axis", "concatenate": "dimension"}  # primitive -> the parameter that is its axis


class _Inliner(Interpreter[int]):
    """Adds the operations of a jaxpr, and of those that it calls, to a graph; values are numbers of nodes."""

    def __init__(self, graph: Graph, known: Known):
        self.graph, self.loop_ids = graph, itertools.count()
        self.known = known
        self.callers: tuple[core.JaxprEqn, ...] = ()  # the equations around the current one, and itself

    def constant(self, array: Any) -> int:
        """One node per reader."""
        modulus = abs(complex(array)) if np.iscomplexobj(array) and not np.shape(array) else None
        params = {"entries": entries(array), "modulus": modulus}
        return self.graph.add(CONST, (), np.shape(array), params, uniform_value(array))

    def equation(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> Sequence[int]:
        """The results of any equation, which knows its callers."""
        outside, self.callers = self.callers, (*self.callers, eqn)
        results = self._results(eqn, inputs)
        self.callers = outside
        return results

    def _results(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> Sequence[int]:
        """Those of a known function, of a part on one device, or as in `Interpreter`."""
        for called in called_names(eqn):
            if called in self.known:
                self.graph.replaced.add(called)
                return self._in_place(eqn, called, self.known[called], inputs)
            if called in KNOWN:
                return self._in_place(eqn, called, KNOWN[called](eqn.params), inputs)
        if eqn.primitive.name == "shard_map":  # shapes inside are those of one device
            body = eqn.params["jaxpr"]
            outs = self.run(body, list(map(self._part, inputs, shapes_of(opened(body)[0].invars))))
            return list(map(self._part, outs, shapes_of(eqn.outvars)))
        return super().equation(eqn, inputs)

    def _part(self, i: int, shape: tuple[int, ...]) -> int:
        """An array as one device sees it, or put together from these parts."""
        node = self.graph.nodes[i]
        return i if node.shape == shape else self.graph.add("part", (i,), shape, value=node.value)

    def _in_place(
        self, eqn: core.JaxprEqn, name: str, function: Callable[..., Any], inputs: Sequence[int]
    ) -> list[int]:
        """The results of a function of the same arrays, traced in place of an equation."""
        avals: list[Any] = [var.aval for var in eqn.invars]
        arrays = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        try:
            closed = jax.make_jaxpr(function)(*arrays)
        except TypeError as error:
            given = arrays_text(arrays)
            raise InputError(f"known[{name!r}] fails on the arrays of {name}, {given}: {error}") from error
        if shapes_of(closed.jaxpr.outvars) != shapes_of(eqn.outvars):
            returned, wanted = (arrays_text([var.aval for var in one.outvars]) for one in (closed.jaxpr, eqn))
            raise InputError(f"known[{name!r}] returns {returned}: it must return what {name} does, {wanted}.")
        known, self.known = self.known, {key: value for key, value in self.known.items() if key != name}
        results = self.run(closed, inputs)  # the function may call one of the same name
        self.known = known
        return results

    def operation(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> list[int]:
        """One node for each result."""
        name, shapes, add = eqn.primitive.name, shapes_of(eqn.outvars), self.graph.add
        if name in ("slice", "reduce_sum") and (found := self._of_stack(eqn, inputs[0], shapes[0])) is not None:
            return [found]
        if len(shapes) == len(inputs) > 1 and name in PARALLEL:
            return [add("copy", (i,), shape) for i, shape in zip(inputs, shapes, strict=True)]
        operands = [self.graph.nodes[i] for i in inputs]
        value = None
        if len(shapes) == 1 and operands:
            count = math.prod(operands[0].shape) / max(math.prod(shapes[0]), 1)
            value = folded(name, eqn.params, [node.value for node in operands], count)
            if name in _REDUCED and (known := operands[0].params.get("entries")):
                value = float(_REDUCED[name](known))
        params = {**eqn.params, "callers": self.callers}
        return [add(name, inputs, shape, {**params, "result": i}, value) for i, shape in enumerate(shapes)]

    def _of_stack(self, eqn: core.JaxprEqn, i: int, shape: tuple[int, ...]) -> int | None:
        """An array taken out of a stack, as a norm over devices takes its mean, or the sum over a stack, as sums."""
        nodes, sums = self.graph.nodes, eqn.primitive.name == "reduce_sum"
        while nodes[i].op == "div" and nodes[nodes[i].inputs[1]].value == 1:  # the number of devices
            i = nodes[i].inputs[0]
        while nodes[i].op == "mul" and nodes[nodes[i].inputs[0]].value == 1:
            i = nodes[i].inputs[1]
        stack = nodes[i]
        axis = stack.params[_STACKS[stack.op]] if stack.op in _STACKS else -1
        if axis < 0 or stack.shape[axis] != len(stack.inputs):
            return None
        of_shape = lambda j: (
            j if nodes[j].shape == shape else self.graph.add("reshape", (j,), shape, {"dimensions": None})
        )
        if sums and tuple(eqn.params["axes"]) == (axis,):
            params = {"callers": self.callers, "result": 0}
            add = lambda a, b: self.graph.add("add", (a, b), shape, params)
            return functools.reduce(add, map(of_shape, stack.inputs))
        if not sums and shape == (*stack.shape[:axis], 1, *stack.shape[axis + 1 :]):
            return of_shape(stack.inputs[eqn.params["start_indices"][axis]])
        return None

    def cond(self, eqn: core.JaxprEqn, index: int, operands: Sequence[int]) -> list[int]:
        """One node for each result, which reads those of all branches."""
        results = [self.run(branch, operands) for branch in eqn.params["branches"]]
        several = zip(shapes_of(eqn.outvars), *results, strict=True)
        return [self.graph.add("cond", (index, *outs), shape) for shape, *outs in several]

    def loop(self, eqn: core.JaxprEqn, loop: JaxprLoop, inputs: Sequence[int]) -> list[int]:
        """One round; what is carried says which node the next round reads."""
        _, consts, carry, xs = loop.split(inputs)
        graph, number = self.graph, next(self.loop_ids)
        nodes, outside = graph.nodes, graph.loops
        graph.loops = (*outside, (number, loop.length))
        enter = [graph.add("carry", (i,), nodes[i].shape) for i in carry]
        sliced = [graph.add("scan_in", (i,), nodes[i].shape[1:], {"loop": number}, nodes[i].value) for i in xs]
        outs = self.run(loop.body, [*consts, *enter, *sliced])
        graph.loops = outside
        for i, out in zip(enter, outs, strict=False):
            nodes[i] = dataclasses.replace(nodes[i], params={"next": out})
        stacked = zip(outs[len(carry) :], shapes_of(eqn.outvars[len(carry) :]), strict=True)
        collected = [graph.add("scan_out", (i,), shape) for i, shape in stacked]
        return [*(graph.add("copy", (i,), nodes[i].shape) for i in outs[: len(carry)]), *collected]


def shapes_of(variables: Sequence[Any]) -> list[tuple[int, ...]]:
    """The shapes of a jaxpr's variables; of what is no array, ``()``."""
    return [tuple(getattr(var.aval, "shape", ())) for var in variables]


def arrays_text(arrays: Sequence[Any]) -> str:
    """``float32[64, 8], int32[64]`` of arrays or their shapes."""
    return ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
