"""Walks of jaxprs: values carried through the equations, and the jaxprs inside equations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from jax.extend import core

T = TypeVar("T")


def propagate(
    jaxpr: Any,
    inputs: Sequence[T],
    equation: Callable[[core.JaxprEqn, list[T]], Sequence[T]],
    constant: Callable[[Any], T],
) -> list[T]:
    """The values of a jaxpr's outputs, given those of its inputs; a value is whatever the caller computes or records.

    Args:
      jaxpr: open, without constants, or closed.
      inputs: a value per input.
      equation: (equation, values of its inputs) -> values of its outputs, called in order. It handles the jaxprs inside
        the equation.
      constant: the value of a constant or literal.
    """
    inner, consts = opened(jaxpr)
    known = dict(zip([*inner.constvars, *inner.invars], [*map(constant, consts), *inputs], strict=True))
    value = lambda x: constant(x.val) if isinstance(x, core.Literal) else known[x]
    for eqn in inner.eqns:
        known.update(zip(eqn.outvars, equation(eqn, [value(x) for x in eqn.invars]), strict=True))
    return [value(x) for x in inner.outvars]


def opened(jaxpr: Any) -> tuple[core.Jaxpr, Sequence[Any]]:
    """The jaxpr and the constants of an open or closed jaxpr."""
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "jaxpr") else (jaxpr, ())


def called_jaxpr(eqn: core.JaxprEqn) -> Any | None:
    """The jaxpr of an equation that calls one with its own inputs (``jit``, ``checkpoint``, ``custom_vjp``)."""
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(name)
        if inner is not None and len(opened(inner)[0].invars) == len(eqn.invars):
            return inner
    return None


def scan_counts(eqn: core.JaxprEqn) -> tuple[int, int]:
    """The numbers of constants and carried values of a ``scan``."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()  # since JAX 0.11
    return len(consts), len(carry)


def all_equations(jaxpr: Any) -> Iterator[core.JaxprEqn]:
    """Every equation of a jaxpr and of those that it calls."""
    for eqn in opened(jaxpr)[0].eqns:
        yield eqn
        for inner in core.jaxprs_in_params(eqn.params):
            yield from all_equations(inner)
