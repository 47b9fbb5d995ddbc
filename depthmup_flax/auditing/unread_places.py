"""The operations of a forward pass that an audit does not understand, and the parameters that meet there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
from jax.extend import core

from depthmup_flax.auditing.called_names import called_names, source_line
from depthmup_flax.auditing.dataflow import CONST, FOLDS, INPUT, KEEPS_VALUE, PARAM, STATE, Graph, Node
from depthmup_flax.auditing.parameter_uses import ACTIVATION, MOVES, SAME_PLACE, SUMS
from depthmup_flax.auditing.stream_paths import NONLINEAR

# What is understood. All other operations, those of future versions of JAX too, are places that are not read.
_READ = (
    SAME_PLACE
    | MOVES
    | SUMS
    | NONLINEAR
    | KEEPS_VALUE
    | FOLDS.keys()
    | {PARAM, STATE, INPUT, CONST, "cond"}
    | {"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general", "fft"}
    # entrywise
    | {"integer_pow", "select_n", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "floor", "round", "rem",
       "nextafter", "is_finite", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "shift_left",
       "shift_right_logical", "shift_right_arithmetic", "population_count", "clz", "mulhi", "lgamma", "digamma",
       "polygamma", "igamma", "igammac", "bessel_i0e", "bessel_i1e", "complex", "conj", "bitcast_convert_type"}
    # selection and order
    | {"gather", "scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub",
       "dynamic_update_slice", "concatenate", "sort", "top_k", "approx_top_k", "select_and_scatter",
       "select_and_scatter_add", "select_and_gather_add", "iota"}
    # between devices
    | {"all_to_all", "ragged_all_to_all", "ppermute", "pbroadcast", "reduce_scatter", "axis_index"}
    # random numbers
    | {"random_seed", "random_wrap", "random_unwrap", "random_fold_in", "random_split", "random_bits", "random_clone",
       "random_gamma", "threefry2x32", "rng_bit_generator", "rng_uniform"}
)  # fmt: skip
_READ_PREFIXES = ("reduce_", "arg", "cum")  # reductions
ROUNDING = "rounding to"  # the name of an operation that makes numbers of few bits


@dataclasses.dataclass(frozen=True)
class UnreadOperation:
    """An operation on activations or parameters that is not understood."""

    name: str  # of the kernel, function or primitive
    paths: frozenset[str]  # of the parameters whose products it reads, or that it reads itself
    source: str  # file.py:12


def unread_operations(
    graph: Graph, kinds: Collection[str], paths_of: Callable[[int], Iterable[str]]
) -> list[UnreadOperation]:
    """The operations that the output depends on and that are not understood; ``paths_of`` a node: its parameters."""
    result: dict[tuple[str, str], frozenset[str]] = {}
    needed = graph.needed()
    for i, (node, kind) in enumerate(zip(graph.nodes, kinds, strict=True)):
        if not needed[i] or kind not in (ACTIVATION, PARAM) or _is_read(node):
            continue
        callers: Sequence[core.JaxprEqn] = node.params["callers"]
        kernels = [eqn for eqn in callers if eqn.primitive.name == "pallas_call"]
        name = called_names((kernels or callers)[-1])[0]
        name = f"{ROUNDING} {node.params['new_dtype']}" if name == "convert_element_type" else name
        key = name, source_line(callers)
        result[key] = result.get(key, frozenset()).union(paths_of(i))
    return [UnreadOperation(name, paths, source) for (name, source), paths in result.items()]


def is_known(primitive: str) -> bool:
    """Whether what a primitive of this name computes is understood."""
    return primitive in _READ or primitive.startswith(_READ_PREFIXES)


def _is_read(node: Node) -> bool:
    """Whether an operation is understood. Rounding to few bits is not, as it comes between a scale and its inverse."""
    if node.op == "convert_element_type":
        eqn = node.params["callers"][-1]
        return _bits(eqn.outvars[0]) > 8 or _bits(eqn.invars[0]) <= 8
    if is_known(node.op):
        return True
    results = node.params["callers"][-1].outvars[node.params["result"] :]
    return bool(results) and _bits(results[0]) == 1  # a boolean has no factor


def _bits(variable: Any) -> int:
    """How many bits a number of an array has; of a boolean, 1."""
    dtype = getattr(variable.aval, "dtype", None)
    if not isinstance(dtype, np.dtype):  # a random key
        return 32
    return 1 if dtype == np.bool_ else 8 * dtype.itemsize
