"""The numbers that the code of a forward pass multiplies with, and the same of another model.

Both models are made by the same code, so an expression of one is the same expression of the other,
whatever multiplies with it and wherever it stands.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
from collections.abc import Collection, Hashable, Sequence
from typing import TypeAlias

from jax.extend import core

from depthmup_flax.trace import tracing
from depthmup_flax.trace.axes import contracted_size, summed_size
from depthmup_flax.trace.factors import transform_factor
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.graph import CONST, PARAM, Graph, Node
from depthmup_flax.trace.kinds import ACTIVATION
from depthmup_flax.trace.uses import PRODUCT
from depthmup_flax.util.primitives import RAISED, SCALES

_Key: TypeAlias = Hashable  # an expression of the code
_Frame: TypeAlias = tuple[types.CodeType, Hashable]  # a function, and where in its source


@dataclasses.dataclass(frozen=True)
class CodeNumber:
    """A number that the code multiplies an array with, and that of the base model's code."""

    node: int
    number: float
    base: float


def code_numbers(facts: Traced, base: Traced, judged: Collection[int]) -> list[CodeNumber]:
    """The numbers that differ, but for products that are ``judged`` elsewhere.

    A sum over n entries multiplies by n, so a mean by 1; so does a product of two activations.
    """
    numbers = _numbers(facts)
    by_place: dict[_Key, list[float]] = {}
    for i, number in _numbers(base).items():
        for key in _keys(base.graph.nodes[i]):
            by_place.setdefault(key, []).append(number)
    alike: dict[_Key, list[int]] = {}
    for i in numbers:
        known = [key for key in _keys(facts.graph.nodes[i]) if key in by_place]
        alike.setdefault(known[0] if known else (), []).append(i)
    result = []
    for key, nodes in alike.items():
        of_base = by_place.get(key, [1.0])
        for n, i in enumerate(nodes):
            number = _counterpart(n, len(nodes), of_base)
            if i not in judged and not math.isclose(number, numbers[i], rel_tol=1e-5):
                result.append(CodeNumber(i, numbers[i], number))
    return result


def _counterpart(n: int, count: int, of_base: Sequence[float]) -> float:
    """The base model's number for the n-th of several, which may be those of more layers."""
    if count == len(of_base):
        return of_base[n]
    place = n * (len(of_base) - 1) / max(count - 1, 1)
    return of_base[round(place)]


def _numbers(facts: Traced) -> dict[int, float]:
    """Node -> the number that it multiplies an array with, which is neither zero nor infinite.

    None in weights that are normalized, as by their variance: these have the size that they should
    have.
    """
    graph = facts.graph
    needed = graph.needed()
    of_examples = _normalized_weights_of_examples(facts)
    normalized: set[int] = set()
    result: dict[int, float] = {}
    for i, node in enumerate(graph.nodes):
        is_sum = node.op == "reduce_sum"
        if facts.kinds[i] == PARAM and (is_sum or not normalized.isdisjoint(node.inputs)):
            normalized.add(i)
        elif is_sum and _squared(graph, node.inputs[0]) in of_examples:
            continue
        elif needed[i] and facts.kinds[i] in (ACTIVATION, PARAM):
            number = _number(facts, i, node)
            if number and math.isfinite(number):
                result[i] = abs(number)
    return result


def _normalized_weights_of_examples(facts: Traced) -> set[int]:
    """The arrays that norms read, of weights that activations have multiplied."""
    reading = facts.reading
    result: set[int] = set()
    for use in reading.uses.uses:
        if use.kind == PRODUCT and use.view >= 0 and facts.kinds[use.view] == ACTIVATION:
            terms = reading.terms(use.view).keys()
            if terms <= reading.norms.reads.keys():
                result.update(reading.norms.reads[i] for i in terms)
    return result


def _squared(graph: Graph, i: int) -> int:
    """The array that an array of squares is made of."""
    node = graph.nodes[i]
    is_square = node.op in RAISED or (node.op == "mul" and len(set(node.inputs)) == 1)
    return node.inputs[0] if is_square else i


def _number(facts: Traced, i: int, node: Node) -> float | None:
    if node.op == "reduce_sum":
        return _of_a_sum(facts, i, node)
    if node.op == "fft":
        return transform_factor(node)
    if node.op == "dot_general":
        return _of_a_score(facts, i, node)
    factors = [_factor(facts, j) for j in node.inputs]
    if node.op in ("select_n", "cond") and len(factors) == 3 and factors[0] is not None:
        return _of_choice(facts, node, factors[0])
    if node.op not in SCALES:
        return None
    left, right = factors
    number = right if left is None else left
    if node.op == "div" and right:
        number = 1 / right
    return number


def _of_a_sum(facts: Traced, i: int, node: Node) -> float | None:
    """Over how many entries it is; ``None`` of a softmax, a mean by its weights, or a product."""
    summed = node.inputs[0]
    if facts.reading.products_at(i) or facts.graph.nodes[summed].op == "exp" or _has_softmax(facts, summed):
        return None
    return summed_size(facts.graph.nodes[summed], node)


def _of_a_score(facts: Traced, i: int, node: Node) -> float | None:
    """Over how many entries a product sums, of two activations or with equal numbers."""
    size = float(contracted_size(facts.graph, node))
    for j in node.inputs:
        number = facts.graph.nodes[j].value
        if number is not None:
            return size * number
    if _has_softmax(facts, i) or any(facts.kinds[j] != ACTIVATION for j in node.inputs):
        return None
    return size


def _has_softmax(facts: Traced, i: int) -> bool:
    """Whether a softmax makes one side of a product of two activations."""
    reading = facts.reading
    inner = reading.factors.deep(reading.factors.parts.get(i, {}))
    reads = [reading.norms.reads[j] for j in inner if j in reading.norms.reads]
    return any(facts.graph.nodes[j].op == "exp" for j in reads)


def _of_choice(facts: Traced, node: Node, rate: float) -> float | None:
    """Of an array where a random mask says so, and a number elsewhere."""
    _, below, above = (facts.kinds[j] == ACTIVATION for j in node.inputs)
    if below == above:
        return None
    return rate if above else 1 - rate


def _factor(facts: Traced, i: int) -> float | None:
    """The number that a constant is, or the rate of a random mask; ``None`` of other arrays."""
    return facts.reading.factors.of_param.get(i) if facts.kinds[i] == CONST else None


def _keys(node: Node) -> list[_Key]:
    """The expression with all calls around it; with the innermost of each loop and call; and alone.

    A function that JAX has traced before does not know who called it, and a deeper model may have
    loops, or recompute, where the base model does not.
    """
    stacks = [_frames(eqn) for eqn in node.params.get("callers", ())]
    innermost = tuple(map(_innermost, stacks))
    return [(node.op, tuple(stacks)), (node.op, innermost), (node.op, innermost[-1:])]


def _frames(eqn: core.JaxprEqn) -> tuple[_Frame, ...]:
    """Who made an equation, up to who traced it."""
    traceback = eqn.source_info.traceback
    if traceback is None:
        return ()
    codes, places = traceback.raw_frames()
    end = codes.index(_TRACED) if _TRACED in codes else len(codes)
    return tuple(map(_frame, codes[:end], places[:end]))


def _frame(code: types.CodeType, instruction: int) -> _Frame:
    """A place in a function's source.

    Python may make a call by another instruction than before, once a function has run some times.
    """
    return code, _positions(code)[max(instruction, 0) // 2]


@functools.cache
def _positions(code: types.CodeType) -> tuple[Hashable, ...]:
    """The place in the source of each instruction."""
    return tuple(code.co_positions())


def _innermost(stack: Sequence[_Frame]) -> _Frame | None:
    """The innermost frame that is not of all operations."""
    return next((frame for frame in stack if not _is_of_jax(frame[0].co_filename)), None)


@functools.cache
def _is_of_jax(file: str) -> bool:
    return bool(_OF_JAX.search(file))


_TRACED = tracing.trace.__code__
# What all operations have in common.
_OF_JAX = re.compile(r"[/\\]jax[/\\]_src[/\\]((interpreters|lax|numpy)[/\\])?[^/\\]*$")
