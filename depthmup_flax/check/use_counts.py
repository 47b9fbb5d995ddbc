"""How a forward pass uses its parameters, by its jaxpr."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend import core

from depthmup_flax.auditing.unread_places import is_known
from depthmup_flax.util.jaxprs import called_jaxpr, propagate, scan_counts

_NONE: frozenset[int] = frozenset()
_PRODUCTS = ("dot_general", "conv_general_dilated")
_OF_LOGITS = ("exp", "exp2", "logistic")  # turn products of queries and keys into weights


@dataclasses.dataclass(frozen=True)
class UseCounts:
    """Parameters by their position among the leaves.

    Attributes:
      counts: parameter -> the number of operations that read it; a loop of L rounds that all read it counts L times.
      queries_and_keys: weights that reach the outputs only by products of two activations, inside a softmax, or, as
        attention may be, inside an operation that is not read.
    """

    counts: Counter[int]
    queries_and_keys: frozenset[int]


@dataclasses.dataclass(frozen=True)
class _Value:
    """The parameters that one value is, or that reached it since the last product."""

    parameters: frozenset[tuple[int, int]] = frozenset()  # (parameter, uses that one use of this value counts)
    own: frozenset[int] = _NONE  # weights that made it
    pair: frozenset[int] = _NONE  # weights that made the factors of a product of activations

    def __or__(self, other: _Value) -> _Value:
        return _Value(self.parameters | other.parameters, self.own | other.own, self.pair | other.pair)

    def times(self, length: int) -> _Value:
        """The value of a constant that a loop of ``length`` rounds reads."""
        return dataclasses.replace(self, parameters=frozenset((i, n * length) for i, n in self.parameters))


def count_uses(closed: core.ClosedJaxpr, num_parameters: int) -> UseCounts:
    """The uses of the first ``num_parameters`` inputs of a jaxpr whose first result is the outputs."""
    reader = _Reader()
    inputs = [_Value(frozenset({(i, 1)}) if i < num_parameters else frozenset()) for i in range(len(closed.in_avals))]
    outputs = reader.read(closed, inputs)[0]
    reader.elsewhere |= outputs.own | outputs.pair
    return UseCounts(reader.counts, frozenset(reader.scored - reader.elsewhere))


class _Reader:
    """Reads equations in order; collects uses, and the places that products of activations reach."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.scored: set[int] = set()
        self.elsewhere: set[int] = set()

    def read(self, jaxpr: Any, inputs: Sequence[_Value]) -> list[_Value]:
        """The values of a jaxpr's outputs."""
        return propagate(jaxpr, inputs, self._equation, lambda constant: _Value())

    def _equation(self, eqn: core.JaxprEqn, inputs: Sequence[_Value]) -> Sequence[_Value]:
        name = eqn.primitive.name
        if name == "scan":
            consts, carry = scan_counts(eqn)
            # Every round reads the same constants, and its own slice of the scanned arrays.
            repeated = [value.times(eqn.params["length"]) for value in inputs[:consts]]
            return self._loop(eqn.params["jaxpr"], [*repeated, *inputs[consts:]], consts, carry)
        if name == "while":
            skipped, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
            return self._loop(eqn.params["body_jaxpr"], inputs[skipped:], consts, len(inputs) - skipped - consts)
        if name == "cond":
            branches = [self.read(branch, inputs[1:]) for branch in eqn.params["branches"]]
            return [_union(values) for values in zip(*branches, strict=True)]
        if (inner := called_jaxpr(eqn)) is not None:
            return self.read(inner, inputs)
        return [self._operation(name, eqn, inputs)] * len(eqn.outvars)

    def _operation(self, name: str, eqn: core.JaxprEqn, inputs: Sequence[_Value]) -> _Value:
        parameters = _union(value for value in inputs if value.parameters)
        is_scalar = lambda x: getattr(x.aval, "shape", None) == ()
        alone = all(v.parameters or is_scalar(x) for v, x in zip(inputs, eqn.invars, strict=True))
        if len(inputs) == 1 or (alone and name not in _PRODUCTS):
            if name not in _OF_LOGITS:
                return _union(inputs)
            self.scored |= inputs[0].pair
            return dataclasses.replace(inputs[0], pair=_NONE)
        for index, times in parameters.parameters:
            self.counts[index] += times
        read = frozenset(index for index, _ in parameters.parameters)
        rest = _union(value for value in inputs if not value.parameters)
        if name in _PRODUCTS and read:
            self.elsewhere |= rest.own | rest.pair
            return _Value(own=read)
        if not is_known(name):
            self.scored |= rest.own | rest.pair
            return _Value(own=read)
        if name in _PRODUCTS:
            both = all(value.own or value.pair for value in inputs)
            return _Value(pair=rest.own | rest.pair) if both else rest
        return _Value(own=rest.own | read, pair=rest.pair)

    def _loop(self, jaxpr: Any, inputs: Sequence[_Value], consts: int, carry: int) -> list[_Value]:
        """Repeats the body until the carry adds nothing; uses count once."""
        inputs = list(inputs)
        while True:
            counts = self.counts.copy()
            outputs = self.read(jaxpr, inputs)
            carried = [a | b for a, b in zip(inputs[consts : consts + carry], outputs[:carry], strict=True)]
            if carried == inputs[consts : consts + carry]:
                return [*carried, *outputs[carry:]]
            self.counts = counts
            inputs[consts : consts + carry] = carried


def _union(values: Iterable[_Value]) -> _Value:
    return functools.reduce(operator.or_, values, _Value())
