"""Every product counts: each product of a right network in turn is multiplied by a power of the width ratio."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from depthmup_flax.auditing.evaluated_network import _distance, _given, _output, smaller_epsilons
from depthmup_flax.trace import tracing
from depthmup_flax.trace.equations import source_line
from depthmup_flax.trace.evaluation import NotEvaluated
from depthmup_flax.trace.graph import INPUT, Graph
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.primitives import EXPERT_PRODUCTS, PRODUCTS, TAKES

from .cases import Kind

POWERS = (-0.5, 0.5)  # of the width ratio
FOUND, NOT_READ, BLIND, UNKNOWN = "missing", "not judged", "blind", "not evaluated"
# Why a factor changes no output: no output depends on the product, or on its size, as in front of a norm; or why it is
# not seen: it is inside of the norm of a weight.
UNUSED, OF_ANY_SIZE, IN_WEIGHT = "without effect", "of any size", "in a weight"
_ROUNDING = 1e-5  # relative to the largest output
_EPSILONS = 0.05  # of norms: what is left of them, relative to what depends on the product
_TRIES = 4
Product = tuple[str, tuple[int, ...], str, int]  # its operation, shape and line, and how many like it are before it


@dataclasses.dataclass
class _Mutation:
    """What multiplies a product in the traces that come, of which the first is the model's, and their products."""

    at: Product | None = None
    factor: float = 1.0
    seen: dict[Product, int] = dataclasses.field(default_factory=dict)  # -> node
    alike: Counter[tuple[str, tuple[int, ...], str]] = dataclasses.field(default_factory=Counter)

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
        form = eqn.primitive.name, out.shape, source_line(self.callers)
        product = (*form, self.mutation.alike[form])
        self.mutation.alike[form] += 1
        self.mutation.seen[product] = results[0]
        if product != self.mutation.at:
            return results
        aval = jax.ShapeDtypeStruct(out.shape, out.dtype)
        return self.run(jax.make_jaxpr(lambda x: x * self.mutation.factor)(aval), results)


def outcomes(kind: Kind, every: bool = False) -> Iterator[tuple[Product, float, str]]:
    """What becomes of the verdict on a right network: product, power, and the outcome.

    Where the audit stays ok, the outputs of the network with the factor tell whether it should. Of products of one
    shape and line, those of the first layer are multiplied, or ``every`` one.
    """
    try:
        if not kind.audit().ok:
            return
    except InputError:  # by the names of its parameters
        return
    wide = kind.scales(*kind.size)
    right = _Mutation()
    with mock.patch.object(tracing, "_Inliner", right.inliner):
        graph = kind.traced(wide).graph
    for product, node in right.seen.items() if wide.m != 1 else ():
        *form, place = product
        if place >= max(right.alike[tuple(form)] // wide.depth, 1) and not every:
            continue
        for power in POWERS:
            factor = wide.m**power
            with mock.patch.object(tracing, "_Inliner", _Mutation(product, factor).inliner):
                audit = kind.audit()
            yield product, power, _effect(graph, node, factor) if audit.ok else audit.verdict


def _effect(graph: Graph, node: int, factor: float) -> str:
    """Why an audit is ok, though an array is multiplied; or that it should not be."""
    try:
        epsilons = smaller_epsilons(graph)
        for seed in range(_TRIES):  # smaller and smaller parameters, as streams without a norm overflow
            given = _given(graph, seed, ())
            outputs = [_output(graph, given, {**epsilons, (node, -1): times}) for times in (1.0, factor, 0.0)]
            if np.isfinite(outputs[:2]).all() and outputs[0].any():
                break
        else:
            return UNKNOWN
    except NotEvaluated:
        return UNKNOWN
    right, multiplied, without = outputs
    of_factor = _distance(multiplied, right)
    of_product = _distance(without, right) if np.isfinite(without).all() else 1.0  # a norm of zeros
    if max(of_factor, of_product) < _ROUNDING:
        return UNUSED
    if of_factor < _EPSILONS * of_product:
        return OF_ANY_SIZE
    is_of_batch = any(graph.nodes[i].op == INPUT for i in graph.upstream(node, lambda i: False))
    return BLIND if is_of_batch else IN_WEIGHT


def table(found: Counter[tuple[str, str]]) -> str:
    """Counts by group and outcome, as a table of Markdown."""
    columns = (FOUND, NOT_READ, OF_ANY_SIZE, UNUSED, IN_WEIGHT, UNKNOWN, BLIND)
    lines = ["| kinds | tried | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    groups = list(dict.fromkeys(group for group, _ in found))
    for group in (*groups, "all"):
        counts = [sum(found[each, column] for each in groups if group in (each, "all")) for column in columns]
        lines.append(f"| {group} | {sum(counts)} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines)
