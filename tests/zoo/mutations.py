"""Every product counts: each product of a right network in turn is multiplied by a power of the width ratio."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.extend import core

from depthmup_flax.auditing.audit_report import Audit
from depthmup_flax.trace import tracing
from depthmup_flax.trace.equations import source_line
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.primitives import EXPERT_PRODUCTS, PRODUCTS, TAKES

from .cases import Kind

POWERS = (-0.5, 0.5)  # of the width ratio
FOUND, NOT_READ, SAME, UNSEEN = "missing", "not judged", "same outputs", "unseen"
Product = tuple[str, tuple[int, ...], str]  # its operation, shape and line: that of all layers


@dataclasses.dataclass
class _Mutation:
    """What multiplies the first product of a kind in the traces that come, and the products that they had."""

    at: Product | None = None
    factor: float = 1.0
    seen: dict[Product, int] = dataclasses.field(default_factory=dict)

    def inliner(self, *arguments: Any) -> tracing._Inliner:
        """In place of the one of traces."""
        return _Inliner(self, *arguments)


class _Inliner(tracing._Inliner):
    def __init__(self, mutation: _Mutation, *arguments: Any):
        super().__init__(*arguments)
        self.mutation = mutation

    def operation(self, eqn: core.JaxprEqn, inputs: Sequence[int]) -> list[int]:
        """With the factor behind the product."""
        results = super().operation(eqn, inputs)
        out = eqn.outvars[0].aval
        if eqn.primitive.name not in PRODUCTS | EXPERT_PRODUCTS | TAKES or not jnp.issubdtype(out.dtype, jnp.inexact):
            return results
        product = eqn.primitive.name, out.shape, source_line(self.callers)
        count = self.mutation.seen[product] = self.mutation.seen.get(product, 0) + 1
        if product != self.mutation.at or count > 1:
            return results
        aval = jax.ShapeDtypeStruct(out.shape, out.dtype)
        return self.run(jax.make_jaxpr(lambda x: x * self.mutation.factor)(aval), results)


def _audit(kind: Kind, mutation: _Mutation) -> Audit:
    with mock.patch.object(tracing, "_Inliner", mutation.inliner):
        return kind.audit()


def outcomes(kind: Kind) -> Iterator[tuple[Product, float, str]]:
    """What becomes of the verdict on a right network: product, power, and one of the four outcomes.

    "same outputs": no factor there changes the network, as in front of a norm. "unseen": outputs were not compared.
    """
    try:
        if not kind.audit().ok:
            return
    except InputError:  # by the names of its parameters
        return
    wide = kind.scales(*kind.size)
    right = _Mutation()
    with mock.patch.object(tracing, "_Inliner", right.inliner):
        kind._shapes(wide)
    for product in right.seen if wide.m != 1 else ():
        for power in POWERS:
            audit = _audit(kind, _Mutation(product, wide.m**power))
            is_compared = not any("outputs were not compared" in note for note in audit.notes)
            yield product, power, audit.verdict if not audit.ok else SAME if is_compared else UNSEEN
