"""The power with which each array grows if some parameters are multiplied by a number."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from depthmup_flax.trace.graph import PARAM, Graph, Node, Place
from depthmup_flax.util import primitives

# NaN: no power; infinite: an offset must be added first; ``None``: any power, that of zero.
Degree: TypeAlias = "float | None"

_VIEWS = primitives.SAME_PLACE | primitives.MOVES | primitives.LOOKUPS  # of an array
_ADDITIONS = ("add", "add_any")


@dataclasses.dataclass(frozen=True)
class Degrees:
    """The degree of each array, and the same as its readers see it.

    The places of a factor are replaced by what the code has there, so readers see degree 0.
    """

    of: Sequence[Degree]
    seen: Sequence[Degree]


@dataclasses.dataclass(frozen=True)
class Carried:
    """Parameters that are multiplied, and the places behind which nothing must change."""

    graph: Graph
    needed: Sequence[bool]  # nodes that the output depends on
    offsets: Mapping[int, float]  # node of a parameter -> what is added to it before it multiplies
    cut: frozenset[Place]


def degrees(carried: Carried) -> Degrees:
    """The degrees of all arrays that the output depends on.

    A loop is read once. If it starts from zeros, whose degree is any, it has the degree of its
    second round; and what it carries must have one degree in all rounds.
    """
    once = _of_one_round(carried, {})
    starts = _starts_from_zeros(carried, once)
    result = _of_one_round(carried, starts) if starts else once
    return _without_uneven_loops(carried, result)


def _of_one_round(carried: Carried, starts: Mapping[int, Degree]) -> Degrees:
    """The degrees in the order of the graph; ``starts``: those of what loops carry."""
    size = len(carried.graph.nodes)
    of: list[Degree] = [0.0] * size
    seen: list[Degree] = [0.0] * size
    for i, node in enumerate(carried.graph.nodes):
        if carried.needed[i]:
            of[i] = starts[i] if i in starts else _degree(carried, seen, i, node)
            seen[i] = _cut(carried, (i, -1), of[i])
    return Degrees(of, seen)


def _starts_from_zeros(carried: Carried, once: Degrees) -> dict[int, Degree]:
    """What a loop carries from zeros -> its degree after a round."""
    result: dict[int, Degree] = {}
    for i, node in _carries(carried):
        if once.of[i] is None:
            result[i] = _read(carried, once.seen, node.params["next"], i)
    return result


def _without_uneven_loops(carried: Carried, result: Degrees) -> Degrees:
    """The degrees, with none for what loops carry with another degree in each round."""
    of = list(result.of)
    seen = list(result.seen)
    for i, node in _carries(carried):
        after = _read(carried, seen, node.params["next"], i)
        if _of_sum([of[i], after]) != of[i]:
            of[i] = math.nan
            seen[i] = math.nan
    return Degrees(of, seen)


def _carries(carried: Carried) -> list[tuple[int, Node]]:
    """The nodes that loops carry, and that the output depends on."""
    nodes = enumerate(carried.graph.nodes)
    return [(i, node) for i, node in nodes if node.op == "carry" and carried.needed[i]]


def _read(carried: Carried, seen: Sequence[Degree], i: int, reader: int) -> Degree:
    """The degree of an array as one of its readers sees it."""
    return _cut(carried, (i, reader), seen[i])


def _cut(carried: Carried, place: Place, degree: Degree) -> Degree:
    """The degree behind a place: 0 if the place has the factor, and lacks it in the code."""
    return 0.0 if place in carried.cut and degree in (1.0, None) else degree


def _degree(carried: Carried, seen: Sequence[Degree], i: int, node: Node) -> Degree:
    if node.value == 0:
        return None
    if node.op == PARAM:
        return _of_parameter(carried.offsets.get(i))
    inputs = [_read(carried, seen, j, i) for j in node.inputs]
    if any(degree == math.inf for degree in inputs):
        return _behind_offset(carried, node, inputs)
    if all(degree == 0 for degree in inputs):
        return 0.0
    if any(degree is not None and math.isnan(degree) for degree in inputs):
        return math.nan
    rule = _RULES.get(node.op)
    if rule is not None:
        return rule(node, inputs)
    return _of_operands(node, inputs)


def _of_parameter(offset: float | None) -> Degree:
    """The degree of a parameter: 0 if it is not multiplied."""
    if offset is None:
        return 0.0
    return 1.0 if offset == 0 else math.inf


def _behind_offset(carried: Carried, node: Node, inputs: Sequence[Degree]) -> Degree:
    """The degree of a view of such a parameter, or of the sum with its offset."""
    if node.op in _VIEWS and not any(inputs[1:]):
        return math.inf
    if node.op not in _ADDITIONS or set(inputs) != {math.inf, 0.0}:
        return math.nan
    values = {carried.graph.nodes[j].value for j in node.inputs}
    return math.nan if values.isdisjoint(carried.offsets.values()) else 1.0


# --- what operations do


def _of_quotient(node: Node, inputs: Sequence[Degree]) -> Degree:
    top, bottom = inputs
    if top is None:
        return None
    return math.nan if bottom is None else top - bottom


def _of_power(node: Node, inputs: Sequence[Degree], *, power: float) -> Degree:
    return None if inputs[0] is None else power * inputs[0]


def _of_integer_power(node: Node, inputs: Sequence[Degree]) -> Degree:
    return _of_power(node, inputs, power=node.params["y"])


def _of_product(inputs: Sequence[Degree]) -> Degree:
    total = 0.0
    for degree in inputs:
        if degree is None:
            return None
        total += degree
    return total


def _of_sum(inputs: Sequence[Degree]) -> Degree:
    known = {degree for degree in inputs if degree is not None}
    if len(known) > 1:
        return math.nan
    return known.pop() if known else None


def _of_operands(node: Node, inputs: Sequence[Degree]) -> Degree:
    """The degree of a sum or a product of operands; any other operand must have degree 0."""
    roles = operands(node)
    if any(inputs[k] not in (0.0, None) for k in roles.others):
        return math.nan
    if roles.factors:
        return _of_product([inputs[k] for k in roles.factors])
    if roles.terms:
        return _of_sum([inputs[k] for k in roles.terms])
    return 0.0


# Primitive -> its degree from those of its operands. Others are sums or products, see `operands`.
_RULES: dict[str, Callable[[Node, Sequence[Degree]], Degree]] = {
    "div": _of_quotient,
    "abs": functools.partial(_of_power, power=1.0),
    **{name: functools.partial(_of_power, power=p) for name, p in primitives.POWERS.items()},
    "integer_pow": _of_integer_power,
}


# --- operands


@dataclasses.dataclass(frozen=True)
class Operands:
    """Which inputs the result is a sum of, or one of; which it is a product of; and the others."""

    terms: Sequence[int] = ()
    factors: Sequence[int] = ()
    others: Sequence[int] = ()


def operands(node: Node) -> Operands:
    """The operands of an operation, by the first row that has its name."""
    every = range(len(node.inputs))
    for names, sides in _OPERANDS:
        if node.op in names:
            return sides(every)
    if node.op.startswith(("reduce_", "cum")) and "prod" not in node.op:
        return _of_first(every)
    return Operands(others=every)


def _of_two_factors(every: Sequence[int]) -> Operands:
    return Operands(factors=every[:2], others=every[2:])


def _of_all(every: Sequence[int]) -> Operands:
    return Operands(terms=every)


def _of_choice(every: Sequence[int]) -> Operands:
    return Operands(terms=every[1:], others=every[:1])


def _of_update(every: Sequence[int]) -> Operands:
    """What is written, and not where."""
    return Operands(terms=(0, 1))


def _of_scatter(every: Sequence[int]) -> Operands:
    return Operands(terms=(0, every[-1]))


def _of_first(every: Sequence[int]) -> Operands:
    return Operands(terms=every[:1], others=every[1:])


_Names: TypeAlias = Collection[str]
_OPERANDS: Sequence[tuple[_Names, Callable[[Sequence[int]], Operands]]] = (
    (primitives.PRODUCTS | primitives.EXPERT_PRODUCTS | {"mul"}, _of_two_factors),
    (primitives.SUMS | {"complex", "concatenate", "stack", "max", "min"}, _of_all),
    ({"select_n", "cond"}, _of_choice),
    ({"dynamic_update_slice"}, _of_update),
    (primitives.WRITES, _of_scatter),
    (primitives.LINEAR | primitives.SUMMED | primitives.ROTATIONS | {"div"}, _of_first),
)
