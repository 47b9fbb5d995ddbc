"""The memory that the body of a Pallas kernel reads and writes, as nodes of a graph.

A kernel runs once for each block of its arrays. One run is read: what it loads is a part of an input, what it stores
last is a part of an output. So a kernel's mathematics, with its constants, is read like that of any other function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.extend import core

from depthmup_flax.auditing.dataflow import CONST, Graph

# Operations on semaphores, and others that change no array.
_NO_EFFECT = frozenset(
    {"dma_wait", "semaphore_signal", "semaphore_wait", "semaphore_read", "get_barrier_semaphore", "delay",
     "debug_print", "trace_start", "trace_stop", "touch"}
)  # fmt: skip
_LOADS, _STORES = ("get", "masked_load"), ("swap", "masked_swap", "addupdate")


class KernelMemory:
    """What references to memory hold.

    Attributes:
      held: node of a reference -> the node last stored there, or itself.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.held: dict[int, int] = {}

    def new(self, shape: tuple[int, ...], holds: int | None = None) -> int:
        """A reference; memory that nothing was stored in counts as zeros."""
        reference = self.graph.add(CONST, (), shape, value=0.0)
        self.held[reference] = reference if holds is None else holds
        return reference

    def part(self, i: int, shape: tuple[int, ...]) -> int:
        """An array as a device or a block of a kernel sees it, or put together from these."""
        if self.graph.nodes[i].shape == shape:
            return i
        return self.graph.add("part", (i,), shape, value=self.graph.nodes[i].value)

    def enter(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> list[int]:
        """The references that the body of a ``pallas_call`` takes."""
        grid, body = eqn.params["grid_mapping"], eqn.params["jaxpr"]
        arrays = list(inputs[grid.num_dynamic_grid_bounds :])
        shapes = shapes_of(body.invars)
        blocks = [None] * grid.num_index_operands + list(grid.block_mappings)
        aliases = {out: i for i, out in dict(eqn.params["input_output_aliases"]).items()}
        references = []
        for k, shape in enumerate(shapes):
            alias = aliases.get(k - len(arrays))  # an output that starts as an input
            array = arrays[k] if k < len(arrays) else None if alias is None else inputs[alias]
            references.append(self.new(shape, None if array is None else self._block(array, shape, blocks[k])))
        return references

    def _block(self, i: int, shape: tuple[int, ...], mapping: Any) -> int:
        """The part of an array that one run of a kernel reads: of a block without its squeezed axes."""
        full = self.graph.nodes[i].shape
        if len(shape) == len(full) or mapping is None:
            return self.part(i, shape)
        sizes = iter(shape)
        whole = tuple(1 if _is_squeezed(size) else next(sizes) for size in mapping.block_shape)
        return self.graph.add("reshape", (self.part(i, whole),), shape)

    def leave(self, eqn: core.JaxprEqn, references: Sequence[int]) -> list[int]:
        """The results of a ``pallas_call`` whose body has run."""
        first = len(eqn.invars) - eqn.params["grid_mapping"].num_dynamic_grid_bounds
        outputs = zip(references[first:], shapes_of(eqn.outvars), strict=False)
        return [self.part(self.held[reference], shape) for reference, shape in outputs]

    def operation(
        self, name: str, params: Mapping[str, Any], inputs: Sequence[int], shapes: Sequence[tuple[int, ...]]
    ) -> list[int] | None:
        """The results of an operation that reads or writes memory; ``None`` if it is no known one."""
        if name in ("new_ref", "ref", "mutable_array", "array_ref"):
            return [self.new(shapes[0], inputs[0])]
        references = [i for i in inputs if i in self.held]
        if not references:
            return None
        if name in _NO_EFFECT:
            return [self.new(shape) for shape in shapes]
        if name in ("freeze", "free_ref"):
            return [self.held[inputs[0]] for _ in shapes]
        if name in _LOADS:
            return [self._loaded(inputs[0], shapes[0])]
        if name in _STORES:
            old = self._loaded(inputs[0], shapes[0] if shapes else self.graph.nodes[inputs[1]].shape)
            self._store(name, params, inputs)
            return [old] if shapes else []
        if name == "dma_start":
            source, target, *_ = references  # the others are semaphores
            self._put(target, self.held[source])
            return []
        return None

    def _loaded(self, reference: int, shape: tuple[int, ...]) -> int:
        held = self.graph.nodes[self.held[reference]]
        if held.shape == shape:
            return self.held[reference]
        same_rank = len(held.shape) == len(shape)
        return self.graph.add("part" if same_rank else "reshape", (self.held[reference],), shape, value=held.value)

    def _store(self, name: str, params: Mapping[str, Any], inputs: Sequence[int]) -> None:
        reference, value = inputs[0], inputs[1]
        if name == "masked_swap":
            reference, _, value, *_ = jax.tree.unflatten(params["args_tree"], inputs)
        if name == "addupdate":
            value = self.graph.add("add", (self.held[reference], value), self.graph.nodes[reference].shape)
        self._put(reference, value)

    def _put(self, reference: int, value: int) -> None:
        """Stores an array, or a part of one beside what is held."""
        nodes, held = self.graph.nodes, self.held[reference]
        size = lambda shape: [n for n in shape if n != 1]
        whole = size(nodes[value].shape) == size(nodes[reference].shape)
        if not whole and held != reference:
            value = self.graph.add("dynamic_update_slice", (held, value), nodes[reference].shape)
        self.held[reference] = value

    def read(self, inputs: Sequence[int]) -> Sequence[int]:
        """``inputs`` with what references hold in their place."""
        return [self.held.get(i, i) for i in inputs] if self.held else inputs

    def store_in_all(self, inputs: Sequence[int], value: int) -> None:
        """Stores one array in all references among ``inputs``."""
        for reference in self.held.keys() & set(inputs):
            self.held[reference] = value

    def join(self, index: int, after: Sequence[dict[int, int]]) -> None:
        """What memory holds after one of several branches, given what it holds after each."""
        self.held = {r: i for held in after for r, i in held.items()}
        for reference in self.held:
            # Zeros are what was there before the kernel's first store.
            stored = list(dict.fromkeys(held.get(reference, reference) for held in after))
            stored = [i for i in stored if i != reference] or stored
            shape = self.graph.nodes[reference].shape
            self.held[reference] = stored[0] if len(stored) == 1 else self.graph.add("cond", (index, *stored), shape)


def shapes_of(variables: Sequence[Any]) -> list[tuple[int, ...]]:
    """The shapes of a jaxpr's variables; of what is no array, ``()``."""
    return [tuple(getattr(var.aval, "shape", ())) for var in variables]


def _is_squeezed(size: Any) -> bool:
    """Whether an axis of a block has one entry and is left out."""
    return size is None or type(size).__name__ == "Squeezed"
