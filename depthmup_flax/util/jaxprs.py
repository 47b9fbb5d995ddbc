"""How equations of a jaxpr hold other jaxprs; for those who read or evaluate one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend import core


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
