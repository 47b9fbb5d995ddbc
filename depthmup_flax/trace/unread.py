"""What of a graph is not understood: unknown operations, and sums that are not residual."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend import core

from depthmup_flax.trace.equations import called_names, source_line
from depthmup_flax.trace.graph import INPUT, PARAM, Node
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.reading import Reading
from depthmup_flax.util.primitives import is_understood

ROUNDING = "rounding to"  # the name of an operation that makes numbers of few bits


@dataclasses.dataclass(frozen=True)
class Unread:
    """An operation that is not understood, or the sums with a stream that are no residual sums."""

    name: str  # of the kernel, function or primitive
    # Of the parameters whose products it reads, or that it reads itself; or in the last sum.
    paths: frozenset[str]
    source: str  # file.py:12
    number: float = 1.0  # the most sums that one stream has


def unread_operations(reading: Reading) -> list[Unread]:
    """The operations that the output depends on and that are not understood."""
    paths: dict[tuple[str, str], set[str]] = {}
    needed = reading.graph.needed()
    for i, node in enumerate(reading.graph.nodes):
        if not needed[i] or reading.uses.kinds[i] not in (ACTIVATION, PARAM) or _is_read(node):
            continue
        callers: Sequence[core.JaxprEqn] = node.params["callers"]
        key = _name(node, callers), source_line(callers)
        paths.setdefault(key, set()).update(reading.paths_at(i))
    return [Unread(name, frozenset(of), source) for (name, source), of in paths.items()]


def _name(node: Node, callers: Sequence[core.JaxprEqn]) -> str:
    """That of the innermost function, or of the outermost kernel."""
    kernels = [eqn for eqn in callers if eqn.primitive.name == "pallas_call"]
    name = called_names((kernels or callers)[-1])[0]
    return f"{ROUNDING} {node.params['new_dtype']}" if name == "convert_element_type" else name


def _is_read(node: Node) -> bool:
    """Whether an operation is understood.

    Rounding to few bits is not, as it comes between a scale and its inverse.
    """
    if node.op == "convert_element_type":
        eqn = node.params["callers"][-1]
        bits = _bits(eqn.outvars[0])
        is_rounded = 1 < bits <= 8 < _bits(eqn.invars[0])  # to a boolean, it is a comparison
        return not is_rounded
    if node.op in (PARAM, INPUT) or is_understood(node.op):
        return True
    results = node.params["callers"][-1].outvars[node.params["result"] :]
    return bool(results) and _bits(results[0]) == 1  # a boolean has no factor


def _bits(variable: Any) -> int:
    """How many bits a number of an array has; of a boolean, 1."""
    dtype = getattr(variable.aval, "dtype", None)
    if not isinstance(dtype, np.dtype):  # a random key
        return 32
    return 1 if dtype == np.bool_ else 8 * dtype.itemsize


def unread_sums(reading: Reading) -> Unread:
    """The sums of a stream that are no residual sums; their number is 0 if there are none."""
    number, last = reading.streams.unread_sums
    if not number:
        return Unread("sum", frozenset(), "", number)
    node = reading.graph.nodes[last]
    branch_of = {residual.node: residual.branch for residual in reading.streams.sums}
    paths: set[str] = set()
    stack = list(node.inputs)
    seen: set[int] = set()
    while stack:
        terms = reading.factors.deep(reading.terms(stack.pop()))
        paths |= reading.of_uses(terms).keys() - {""}
        stack += [branch_of[i] for i in terms.keys() & branch_of.keys() - seen]
        seen |= terms.keys()
    return Unread("sum", frozenset(paths), source_line(node.params.get("callers", ())), number)
