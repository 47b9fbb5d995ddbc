"""How equations of a jaxpr hold others, and an interpreter for all who read jaxprs.

JAX changes what equations are called and how they hold other jaxprs: what depends on its version is here alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from jax.extend import core

Value = TypeVar("Value")


def opened(jaxpr: Any) -> tuple[core.Jaxpr, Sequence[Any]]:
    """The jaxpr and the constants of an open or closed jaxpr."""
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "jaxpr") else (jaxpr, ())


def called_jaxpr(eqn: core.JaxprEqn) -> Any | None:
    """The jaxpr of an equation that calls one with its own inputs (``jit``, ``checkpoint``, ``custom_vjp``)."""
    if eqn.primitive.name in ("reduce", "reduce_window"):  # whose jaxpr joins two entries
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(name)
        if inner is not None and len(opened(inner)[0].invars) == len(eqn.invars):
            return inner
    return None


def repeated_jaxprs(eqn: core.JaxprEqn) -> Iterator[tuple[core.Jaxpr, int]]:
    """The jaxprs inside an equation, and how often each is computed; once if that is unknown (``while``)."""
    params, times = eqn.params, 1
    if eqn.primitive.name == "scan":
        times = params["length"]
    elif eqn.primitive.name == "shard_map":
        times = params["mesh"].size  # shapes inside are those of one device
    elif eqn.primitive.name == "pallas_call":
        times = math.prod(params["grid_mapping"].grid)  # those of one block
    for value in params.values():
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, core.Jaxpr | core.ClosedJaxpr):
                yield opened(inner)[0], times


def all_equations(jaxpr: Any) -> Iterator[core.JaxprEqn]:
    """Every equation of a jaxpr and of those that it calls."""
    for eqn in opened(jaxpr)[0].eqns:
        yield eqn
        for inner, _ in repeated_jaxprs(eqn):
            yield from all_equations(inner)


@dataclasses.dataclass(frozen=True)
class JaxprLoop:
    """A ``scan`` or ``while``: the jaxpr of one round, and how many of the equation's inputs are what."""

    body: Any
    consts: int  # that every round reads
    carry: int
    length: float  # rounds; NaN is unknown
    condition: Any = None  # of a ``while``
    condition_consts: int = 0  # that the condition alone reads

    def split(self, inputs: Sequence[Value]) -> tuple[list[Value], list[Value], list[Value], list[Value]]:
        """Inputs of the condition, constants, what is carried, and what is scanned over."""
        rest, parts = list(inputs), []
        for count in (self.condition_consts, self.consts, self.carry):
            parts.append(rest[:count])
            rest = rest[count:]
        return parts[0], parts[1], parts[2], rest


def loop_of(eqn: core.JaxprEqn) -> JaxprLoop | None:
    """The loop of a ``scan`` or ``while`` equation."""
    params = eqn.params
    if eqn.primitive.name == "scan":
        if "num_consts" in params:
            consts, carry = params["num_consts"], params["num_carry"]
        else:  # since JAX 0.11
            consts, carry = (len(part) for part in params["ft_in"].unpack()[:2])
        return JaxprLoop(params["jaxpr"], consts, carry, float(params["length"]))
    if eqn.primitive.name == "while":
        first, consts = params["cond_nconsts"], params["body_nconsts"]
        carry = len(eqn.invars) - first - consts
        return JaxprLoop(params["body_jaxpr"], consts, carry, math.nan, params["cond_jaxpr"], first)
    return None


class Interpreter(Generic[Value]):
    """Evaluates jaxprs on values of any kind: on arrays, or on what is known of arrays.

    A subclass says what a constant is worth and what an operation makes of its inputs. Calls are entered. The results
    of branches, and of the rounds of a loop until nothing changes, are joined; all methods may be overridden.
    """

    def constant(self, array: Any) -> Value:
        """The value of a literal or constant."""
        raise NotImplementedError

    def operation(self, eqn: core.JaxprEqn, inputs: Sequence[Value]) -> Sequence[Value]:
        """The results of an equation that holds no other jaxpr, or an unknown one."""
        raise NotImplementedError

    def join(self, one: Value, other: Value) -> Value:
        """A value that covers both."""
        raise NotImplementedError

    def run(self, jaxpr: Any, inputs: Sequence[Value]) -> list[Value]:
        """The results of an open or closed jaxpr, given the value of each input."""
        inner, consts = opened(jaxpr)
        known = dict(zip([*inner.constvars, *inner.invars], [*map(self.constant, consts), *inputs], strict=True))
        value = lambda x: self.constant(x.val) if isinstance(x, core.Literal) else known[x]
        for eqn in inner.eqns:
            known.update(zip(eqn.outvars, self.equation(eqn, [value(x) for x in eqn.invars]), strict=True))
        return [value(x) for x in inner.outvars]

    def equation(self, eqn: core.JaxprEqn, inputs: Sequence[Value]) -> Sequence[Value]:
        """The results of any equation."""
        if (loop := loop_of(eqn)) is not None:
            return self.loop(eqn, loop, inputs)
        if eqn.primitive.name == "cond":
            return self.cond(eqn, inputs[0], inputs[1:])
        if (inner := called_jaxpr(eqn)) is not None:
            return self.run(inner, inputs)
        return self.operation(eqn, inputs)

    def cond(self, eqn: core.JaxprEqn, index: Value, operands: Sequence[Value]) -> Sequence[Value]:
        """The results of one of several branches; ``index`` says which."""
        del index
        first, *others = (self.run(branch, operands) for branch in eqn.params["branches"])
        for results in others:
            first = [self.join(a, b) for a, b in zip(first, results, strict=True)]
        return first

    def loop(self, eqn: core.JaxprEqn, loop: JaxprLoop, inputs: Sequence[Value]) -> Sequence[Value]:
        """The results of a loop: of rounds that start from all that may be carried."""
        del eqn
        _, consts, carry, xs = loop.split(inputs)
        while True:
            results = self.run(loop.body, [*consts, *carry, *xs])
            joined = [self.join(a, b) for a, b in zip(carry, results, strict=False)]
            if joined == carry:
                return [*carry, *results[len(carry) :]]
            carry = joined
