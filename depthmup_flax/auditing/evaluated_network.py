"""Whether the network with carried factors is the one that the rule wants, by its outputs.

Reading factors is not asked: the other network is the code with the base model's numbers, and with
what the rule wants at branches, readouts and scores.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.auditing.audit_report import Finding
from depthmup_flax.auditing.comparison import Comparison, may_be_readout, readout_ratio
from depthmup_flax.rule.factor import Factor
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, Role
from depthmup_flax.trace.code_constants import code_ratios
from depthmup_flax.trace.evaluation import NotEvaluated, evaluate, work
from depthmup_flax.trace.graph import INPUT, PARAM, STATE, Graph, Place
from depthmup_flax.trace.uses import PRODUCT
from depthmup_flax.util.types import ArrayTree

_MOST_WORK = 1e10  # a second on a CPU
_A = 0.7  # of the rule, which parameters carry once
TOLERANCE = 2e-3  # relative to the largest output


def difference(
    compared: Comparison,
    infos: Mapping[str, ParamInfo],
    *,
    carries_multiplier: bool,
) -> float:
    """How far the outputs of both networks are apart, relative to the largest.

    Raises:
      NotEvaluated: they cannot be computed here.
    """
    graph = compared.match.model.graph
    if work(graph) > _MOST_WORK:
        raise NotEvaluated("the network is large")
    if compared.branches.fades:
        raise NotEvaluated("every layer multiplies the stream")
    rule = compared.rule.replace(branch_multiplier=_A)
    wanted = _wanted(compared, rule, carries_multiplier=carries_multiplier)
    for seed in range(_TRIES):
        given = _given(graph, seed, _biases_of_readouts(compared))
        right = np.asarray(evaluate(graph, given, wanted), np.float32)
        if np.isfinite(right).all() and right.any():
            found = np.asarray(evaluate(graph, _with_carried(graph, given, infos, rule), {}), np.float32)
            return float(np.max(np.abs(found - right)) / np.max(np.abs(right)))
    raise NotEvaluated("they are not finite, or zero, at random parameters")


def unlike_outputs(compared: Comparison, error: float) -> Finding:
    """What an audit says of a network whose outputs are not those that the rule wants."""
    text = f"at random parameters the outputs are {100 * error:.2g} % off from those of the base "
    text += "model's code with the rule's factors: a number of the code was not read."
    return Finding("outputs", (), text, "make the numbers of the code those of the base model")


_TRIES = 4


def _given(graph: Graph, seed: int, zeros: Collection[str]) -> dict[int, np.ndarray]:
    """Random parameters and inputs; ``zeros`` are paths of parameters."""
    rng = np.random.default_rng(seed)
    size = 0.3**seed
    result: dict[int, np.ndarray] = {}
    for i, node in enumerate(graph.nodes):
        if node.op == PARAM:
            if node.params["path"] in zeros:
                result[i] = np.zeros(node.shape, node.params["dtype"])
                continue
            fan_in = max(node.size // max(node.shape[-1], 1), 1) if len(node.shape) > 1 else 4
            result[i] = rng.normal(0, size * fan_in**-0.5, node.shape).astype(node.params["dtype"])
        elif node.op == STATE:
            result[i] = np.ones(node.shape, node.params["dtype"])
        elif node.op == INPUT:
            result[i] = _drawn(rng, node.shape, node.params["dtype"])
    return result


def _drawn(rng, shape, dtype):
    if jnp.issubdtype(dtype, jnp.floating):
        return rng.normal(0, 1, shape).astype(dtype)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), shape)
    return rng.integers(0, 2, shape).astype(dtype)


def _with_carried(graph, given, infos, rule):
    result = dict(given)
    for i, node in enumerate(graph.nodes):
        if node.op == PARAM and node.params["path"] in infos:
            info = infos[node.params["path"]]
            x = given[i]
            result[i] = np.asarray(x * info.factor(rule) + info.carried_shift(rule), x.dtype)
    return result


def _wanted(compared: Comparison, rule: Parametrization, *, carries_multiplier: bool) -> dict[Place, float]:
    """What multiplies each array of the code to make it the rule's."""
    result: dict[Place, float] = {}
    facts = compared.facts
    for branch in facts.branches:
        factor = compared.branches_want[branch.node]
        if carries_multiplier and math.isclose(compared.branch_factor(branch.node) or 0, 1, rel_tol=5e-3):
            factor *= Factor(multiplier=1.0)
        result[branch.end, branch.node] = float(factor.under(rule))
    for path, wanted in _readouts(compared).items():
        for use in facts.uses[path]:
            if use.kind == PRODUCT and not use.first:
                result[use.node, -1] = float(wanted.under(rule))
    for scores in compared.scores:
        if scores.product.in_softmax or scores.is_right(compared.rule):
            result[scores.product.node, -1] = float(scores.wanted.under(rule))
    judged = {i for i, reader in result if reader == -1}
    scores = {i for i in judged if not facts.reading.uses_at(i)}
    for i, ratio in code_ratios(facts, compared.base_facts, scores).items():
        result[i, -1] = result.get((i, -1), 1.0) * ratio
    return result


def _readouts(compared: Comparison) -> dict[str, Factor]:
    """Path -> what the rule wants of products with readouts, but for those that branches end in."""
    result: dict[str, Factor] = {}
    for path, info in compared.infos.items():
        if path in compared.facts.readouts and may_be_readout(info):
            result[path] = Factor(width=readout_ratio(info), output=info.model_width)
        elif info.role is Role.OUTPUT and path not in compared.last_weights:
            result[path] = Factor(width=info.width_in)
    return result


def _biases_of_readouts(compared: Comparison) -> set[str]:
    """They may be multiplied as readouts are, or not: a rule leaves it open."""
    facts = compared.facts
    return {bias.path for path in _readouts(compared) for bias in facts.biases.get(path, ())}
