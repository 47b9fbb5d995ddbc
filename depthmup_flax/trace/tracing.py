"""`trace` makes the graph of a forward pass, from shapes alone. Nothing is computed or compiled.

Calls (``jit``, ``remat``, custom derivatives, ``shard_map``) are inlined. The body of a loop occurs
once, and its nodes say how often they run. The body of a kernel is not read: what it computes is
known by its name, or not at all.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.extend import core

from depthmup_flax.trace.constants import OF_ENTRIES, entries, folded, modulus, uniform_value
from depthmup_flax.trace.equal_terms import EqualTerms, Multiple
from depthmup_flax.trace.equations import arrays_text, called_names, shapes_of
from depthmup_flax.trace.graph import CONST, INPUT, PARAM, STATE, Graph, Node
from depthmup_flax.trace.stand_ins import STAND_INS
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.jaxprs import Interpreter, JaxprLoop, opened
from depthmup_flax.util.primitives import ENTRYWISE, KEEPS_NUMBER, PARALLEL, PRODUCTS, SUMS
from depthmup_flax.util.types import ArrayTree

# Name of a function, kernel or primitive -> a function of the same arrays, which is traced in its
# place.
Known: TypeAlias = Mapping[str, Callable[..., Any]]


def trace(
    function: Callable[..., Any],
    params: Mapping[str, Any],
    state: ArrayTree,
    inputs: ArrayTree,
    known: Known,
    axis_name: str = "",
) -> Graph:
    """The graph of ``function(params, state, inputs)``, which returns one array.

    ``params`` maps paths to shapes; ``state`` (running averages) and ``inputs`` (the batch) are
    trees of shapes. ``axis_name`` is a mapped axis that the function sums over, as in a BatchNorm
    over devices. `Graph.replaced` are the names of ``known`` that are called.
    """
    called = _mapped(function, axis_name) if axis_name else function
    try:
        closed = jax.make_jaxpr(called)(dict(params), state, inputs)
    except NameError as error:  # JAX names the axis in a sentence
        unbound = re.search(r"unbound axis name:? *'?(\w+)", str(error))
        if unbound is None or axis_name:
            raise
        return trace(function, params, state, inputs, known, unbound.group(1))
    number = len(closed.jaxpr.outvars)
    if number != 1:
        raise InputError(
            f"the model returns {number} arrays: name those that the loss reads, such as of (logits, loss) output=0, "
            "output='logits', output=('policy', 'value') or a function of what the model returns."
        )
    graph = Graph()
    leaves: list[int] = []
    for path in sorted(params):  # dictionaries are flattened in the order of their keys
        of_path = {"path": path, "dtype": params[path].dtype}
        leaves.append(graph.add(PARAM, (), params[path].shape, of_path))
    for op, tree in ((STATE, state), (INPUT, inputs)):
        for leaf in jax.tree.leaves(tree):
            leaves.append(graph.add(op, (), leaf.shape, {"dtype": leaf.dtype}))
    inliner = _Inliner(graph, known)
    (graph.output,) = inliner.run(closed, leaves)
    graph.ends = _last_sums(graph, inliner.equal_terms.replaced)
    return graph


def _mapped(function: Callable[..., Any], axis_name: str) -> Callable[..., Any]:
    """A function under one device's share of an axis of this name."""

    def on_axis(*args: Any) -> Any:
        mapped = jax.vmap(function, in_axes=None, axis_size=1, axis_name=axis_name)
        return mapped(*args)[0]

    return on_axis


def _last_sums(graph: Graph, replaced: Collection[int]) -> tuple[int, ...]:
    """`Graph.ends`: the last sums of streams that the output does not depend on.

    A stream begins with an array that the output needs, and is changed entry by entry. Sums that
    are ``replaced`` have others in their place.
    """
    needed = graph.needed()
    of_batch: list[bool] = []
    of_stream: list[bool] = []
    for i, node in enumerate(graph.nodes):
        of_batch.append(node.op == INPUT or any(of_batch[j] for j in node.inputs))
        alike = [j for j in node.inputs if graph.nodes[j].shape == node.shape]
        continues = node.op in ENTRYWISE and any(of_stream[j] for j in alike)
        of_stream.append(of_batch[i] and (needed[i] or continues))
    ends: list[int] = []
    followed = needed  # by the output or by a sum
    for i in replaced:
        followed[i] = True
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        is_sum = of_stream[i] and _adds_whole_arrays(graph, node, of_batch)
        if is_sum and not followed[i] and not node.loops:
            ends.append(i)
        for j in node.inputs:
            followed[j] |= followed[i] or is_sum
    return tuple(ends)


def _adds_whole_arrays(graph: Graph, node: Node, of_batch: Sequence[bool]) -> bool:
    """Whether arrays of the batch are added. Norms subtract a mean, which is copied."""
    if node.op not in SUMS:
        return False
    operands = [graph.nodes[j] for j in node.inputs]
    are_whole = all(x.shape == node.shape and x.op != "broadcast_in_dim" for x in operands)
    return are_whole and all(of_batch[j] for j in node.inputs)


# Primitive -> the parameter that is its axis.
_STACKS = {"stack": "axis", "concatenate": "dimension"}


class _Inliner(Interpreter[int]):
    """Adds the operations of a jaxpr, and of those that it calls, to a graph.

    Its values are numbers of nodes.
    """

    def __init__(self, graph: Graph, known: Known):
        self.graph = graph
        self.known = known
        self.loop_ids = itertools.count()
        self.equal_terms = EqualTerms(graph, self.constant)
        self.callers: tuple[core.JaxprEqn, ...] = ()  # around the current equation, and itself

    def constant(self, array: Any) -> int:
        """One node per reader."""
        params = {"entries": entries(array), "modulus": modulus(array), "array": array}
        result = self.graph.add(CONST, (), np.shape(array), params, uniform_value(array))
        self.equal_terms.learn(result)
        return result

    def equation(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> Sequence[int]:
        """The results of any equation, which knows its callers."""
        outside = self.callers
        self.callers = (*outside, eqn)
        results = self._results(eqn, inputs)
        self.callers = outside
        return results

    def _results(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> Sequence[int]:
        """Those of a stand-in, of a part on one device, or as in `Interpreter`."""
        for name in called_names(eqn):
            if name in self.known:
                self.graph.replaced.add(name)
                return self._in_place(eqn, name, self.known[name], inputs)
            if name in STAND_INS:
                return self._in_place(eqn, name, STAND_INS[name](eqn.params), inputs)
        if eqn.primitive.name == "shard_map":
            return self._on_one_device(eqn, inputs)
        return super().equation(eqn, inputs)

    def _on_one_device(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> Sequence[int]:
        """The results of a ``shard_map``, inside of which shapes are those of one device."""
        body = eqn.params["jaxpr"]
        parts = list(map(self._part, inputs, shapes_of(opened(body)[0].invars)))
        outs = self.run(body, parts)
        return list(map(self._part, outs, shapes_of(eqn.outvars)))

    def _part(self, i: int, shape: tuple[int, ...]) -> int:
        """An array as one device sees it, or put together from these parts."""
        node = self.graph.nodes[i]
        if node.shape == shape:
            return i
        return self.graph.add("part", (i,), shape, value=node.value)

    def _in_place(
        self,
        eqn: core.JaxprEqn,
        name: str,
        function: Callable[..., Any],
        inputs: Sequence[int],
    ) -> list[int]:
        """The results of a function of the same arrays, traced in place of an equation."""
        avals: list[Any] = [var.aval for var in eqn.invars]
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        try:
            closed = jax.make_jaxpr(function)(*shapes)
        except TypeError as error:
            arrays = arrays_text(eqn.invars)
            text = f"known[{name!r}] fails on the arrays of {name}, {arrays}: {error}"
            raise InputError(text) from error
        if shapes_of(closed.jaxpr.outvars) != shapes_of(eqn.outvars):
            returned = arrays_text(closed.jaxpr.outvars)
            wanted = arrays_text(eqn.outvars)
            text = f"known[{name!r}] returns {returned}: it must return what {name} does, {wanted}."
            raise InputError(text)
        outside = self.known
        # The function may call one of the same name.
        self.known = {key: value for key, value in outside.items() if key != name}
        results = self.run(closed, inputs)
        self.known = outside
        return results

    def operation(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> list[int]:
        """One node for each result."""
        name = eqn.primitive.name
        shapes = shapes_of(eqn.outvars)
        if name in ("slice", "reduce_sum"):
            unstacked = self._of_stack(eqn, inputs[0], shapes[0])
            if unstacked is not None:
                return [unstacked]
        if len(shapes) == len(inputs) > 1 and name in PARALLEL:
            return self._each("copy", inputs, shapes)
        value = None
        if inputs and (len(shapes) == 1 or name in KEEPS_NUMBER):
            value = self._folded(eqn, inputs, shapes[0])
        if name in PRODUCTS and any(self.graph.nodes[i].value == 0 for i in inputs):
            # The state that a recurrent network starts from is read by no weight.
            return [self.constant(np.broadcast_to(np.float32(0), shapes[0]))]
        if name in SUMS and value is None:
            a, b = inputs
            return [self._sum(a, b, -1.0 if name == "sub" else 1.0)]
        params = {**eqn.params, "callers": self.callers}
        results = []
        for n, shape in enumerate(shapes):
            results.append(self.graph.add(name, inputs, shape, {**params, "result": n}, value))
            self.equal_terms.learn(results[-1])
        return results

    def _each(self, op: str, inputs: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> list[int]:
        """A node of one input for each of several arrays."""
        return [self.graph.add(op, (i,), shape) for i, shape in zip(inputs, shapes, strict=True)]

    def _folded(
        self,
        eqn: core.JaxprEqn,
        inputs: Sequence[int],
        shape: tuple[int, ...],
    ) -> float | None:
        """The number that an operation makes of constants, if it is one."""
        operands = [self.graph.nodes[i] for i in inputs]
        name = eqn.primitive.name
        known_entries = operands[0].params.get("entries")
        if known_entries and name in OF_ENTRIES:
            return float(OF_ENTRIES[name](known_entries))
        count = operands[0].size / max(math.prod(shape), 1)
        return folded(name, eqn.params, [node.value for node in operands], count)

    def _of_stack(self, eqn: core.JaxprEqn, i: int, shape: tuple[int, ...]) -> int | None:
        """The array that a slice takes out of a stack, or the sum over a stack, as sums.

        A norm over devices takes its mean so, and streams may be stacked and summed: in the stack,
        what is added to what would not be seen. ``None`` of other arrays.
        """
        stack = self.graph.nodes[self._not_divided(i)]
        axis = stack.params[_STACKS[stack.op]] if stack.op in _STACKS else -1
        if axis < 0 or stack.shape[axis] != len(stack.inputs):
            return None
        if eqn.primitive.name == "slice":
            if shape != (*stack.shape[:axis], 1, *stack.shape[axis + 1 :]):
                return None
            return self._reshaped(stack.inputs[eqn.params["start_indices"][axis]], shape)
        if tuple(eqn.params["axes"]) != (axis,):
            return None
        total = self._reshaped(stack.inputs[0], shape)
        for j in stack.inputs[1:]:
            total = self._sum(total, self._reshaped(j, shape))
        return total

    def _not_divided(self, i: int) -> int:
        """An array before it is divided by 1, as by the number of devices, and multiplied by 1."""
        nodes = self.graph.nodes
        while nodes[i].op == "div" and nodes[nodes[i].inputs[1]].value == 1:
            i = nodes[i].inputs[0]
        while nodes[i].op == "mul" and nodes[nodes[i].inputs[0]].value == 1:
            i = nodes[i].inputs[1]
        return i

    def _sum(self, a: int, b: int, sign: float = 1.0) -> int:
        """The sum or difference of two arrays, as the current equation has it."""
        params = {"callers": self.callers, "result": 0}
        return self.equal_terms.add(a, b, sign, self._dtype(0), params)

    def _dtype(self, n: int) -> Any:
        """The type of a result of the current equation."""
        aval: Any = self.callers[-1].outvars[n].aval
        return aval.dtype

    def _added_in_rounds(self, n: int, before: int, start: int, end: int, rounds: float) -> int:
        """The n-th array of a loop at last: what was before, if each round adds the same."""
        terms = self.equal_terms.of_rounds(start, end)
        if terms is None or not math.isfinite(rounds):
            return end
        params = {"callers": self.callers, "result": n}
        dtype = self._dtype(n)
        for term in terms:
            several = Multiple(rounds * term.number, term.node)
            product = self.equal_terms.product(several, dtype, params)
            before = self.equal_terms.add(before, product, 1.0, dtype, params)
        return before

    def _reshaped(self, i: int, shape: tuple[int, ...]) -> int:
        if self.graph.nodes[i].shape == shape:
            return i
        result = self.graph.add("reshape", (i,), shape, {"dimensions": None})
        self.equal_terms.learn(result)
        return result

    def cond(self, eqn: core.JaxprEqn, index: int, operands: Sequence[int]) -> list[int]:
        """One node for each result, which reads those of all branches."""
        results = [self.run(branch, operands) for branch in eqn.params["branches"]]
        shapes = shapes_of(eqn.outvars)
        several = zip(shapes, *results, strict=True)
        return [self.graph.add("cond", (index, *outs), shape) for shape, *outs in several]

    def loop(self, eqn: core.JaxprEqn, loop: JaxprLoop, inputs: Sequence[int]) -> list[int]:
        """One round; what is carried says which node the next round reads."""
        _, consts, carry, xs = loop.split(inputs)
        graph = self.graph
        nodes = graph.nodes
        number = next(self.loop_ids)
        outside = graph.loops
        graph.loops = (*outside, (number, loop.length))
        starts = self._each("carry", carry, [nodes[i].shape for i in carry])
        slices = []
        of_loop = {"loop": number, "reverse": eqn.params.get("reverse", False)}
        for i in xs:
            shape = nodes[i].shape[1:]
            slices.append(graph.add("scan_in", (i,), shape, of_loop, nodes[i].value))
        outs = self.run(loop.body, [*consts, *starts, *slices])
        graph.loops = outside
        for i, out in zip(starts, outs, strict=False):
            nodes[i] = dataclasses.replace(nodes[i], params={"next": out})
        last = outs[: len(carry)]
        for n, (start, out) in enumerate(zip(starts, last, strict=True)):
            last[n] = self._added_in_rounds(n, carry[n], start, out, loop.length)
        stacked = []
        for i, shape in zip(outs[len(carry) :], shapes_of(eqn.outvars[len(carry) :]), strict=True):
            stacked.append(graph.add("scan_out", (i,), shape, of_loop))
        return [*self._each("copy", last, [nodes[i].shape for i in last]), *stacked]
