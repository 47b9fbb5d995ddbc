"""Whether a network is the one that the rule wants, by its outputs at random parameters.

Nothing that was read of factors is asked: the other network is the same code with the base model's
numbers, and with what the rule wants at branches, readouts and scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.auditing.audit_report import Finding, number
from depthmup_flax.auditing.comparison import Comparison, may_be_readout, readout_ratio
from depthmup_flax.auditing.relative_factors import close
from depthmup_flax.rule.factor import Factor
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, Role
from depthmup_flax.trace.code_constants import CodeNumber, code_numbers
from depthmup_flax.trace.equations import source_line
from depthmup_flax.trace.evaluation import NotEvaluated, evaluate, work
from depthmup_flax.trace.graph import INPUT, PARAM, STATE, Graph, Place
from depthmup_flax.trace.uses import PRODUCT
from depthmup_flax.util.groups import grouped
from depthmup_flax.util.primitives import SUMS

_MOST_WORK = 1e10  # about a second on a CPU
_MULTIPLIER = 0.7  # the rule's a: parameters must carry it once
_TRIES = 4  # smaller and smaller parameters, as streams without a norm overflow
_TOLERANCE = 2e-4  # relative to the largest output; rounding makes less than 1e-6 in the zoo
_TOLERANCE_OF_16_BITS = 5e-2
# Times what rounded parameters change: an average over a batch of nearly equal rows magnifies rounding.
_OF_ROUNDING = 4
_MOST_EPSILON = 1e-3
_OF_EPSILON = 1e-4


@dataclasses.dataclass(frozen=True)
class UnlikeOutputs:
    """How far the outputs of two networks are apart, relative to the largest."""

    error: float
    numbers: Sequence[CodeNumber]  # whose base model's value makes them so, if some do


def unlike_outputs(
    compared: Comparison,
    infos: Mapping[str, ParamInfo],
    *,
    carries_multiplier: bool,
) -> UnlikeOutputs | None:
    """What differs, if the code with carried factors is not the network that the rule wants.

    Raises:
      NotEvaluated: the outputs cannot be computed here.
    """
    graph = compared.match.model.graph
    if compared.branches.fades:
        raise NotEvaluated("every layer multiplies the stream")
    if work(graph) > _MOST_WORK:
        raise NotEvaluated("the network is large")
    rule = compared.rule.replace(branch_multiplier=_MULTIPLIER)
    wanted = _wanted(compared, rule, carries_multiplier=carries_multiplier)
    scores = {i for i, reader in wanted if reader == -1 and not compared.facts.reading.uses_at(i)}
    numbers = code_numbers(compared.facts, compared.base_facts, scores)
    steps = _steps(compared)
    numbers = [each for each in numbers if not (each.node in steps and _is_of_branch(compared, each))]
    epsilons = smaller_epsilons(graph)
    factors = epsilons | _together(wanted, numbers)
    given, right = _finite(compared, factors)
    found = _output(graph, _with_carried(graph, given, infos, rule), epsilons)
    error = _distance(found, right)
    if error < _tolerance(graph):
        return None
    rounded = _distance(_output(graph, _rounded_otherwise(given), factors), right)
    if error < _OF_ROUNDING * rounded:
        raise NotEvaluated(f"rounding of parameters changes them by {100 * rounded:.1g} %")

    def explain(some: Sequence[CodeNumber]) -> bool:
        """Whether the outputs are right where all but some numbers are the base model's."""
        others = [each for each in numbers if each not in some]
        without = _output(graph, given, epsilons | _together(wanted, others))
        return _distance(found, without) < _tolerance(graph)

    for of_line in grouped(numbers, lambda each: _line(graph, each)).values():
        if explain(of_line):
            equal = grouped(of_line, lambda each: (each.number, each.base))  # those of a mean undo each other
            return UnlikeOutputs(error, next(filter(explain, equal.values()), of_line))
    return UnlikeOutputs(error, ())


def as_finding(compared: Comparison, unlike: UnlikeOutputs) -> Finding:
    """What an audit says of a network whose outputs are not those that the rule wants."""
    text = f"at random parameters the outputs are {100 * unlike.error:.2g} % off from those of the "
    text += "base model's code with the rule's factors"
    if not unlike.numbers:
        text += ": a factor was not read, or parameters carry too much."
        return Finding("outputs", (), text, "audit with carry=False, and edit the code")
    each = unlike.numbers[0]
    line = _line(compared.match.model.graph, each)
    text += f": the code has a factor of {number(each.number)} there, in the base model "
    text += f"{number(each.base)}, which was not read."
    return Finding("outputs", (), text, "give both models the same number there", source=line)


def _line(graph: Graph, each: CodeNumber) -> str:
    return source_line(graph.nodes[each.node].params["callers"])


# --- the network that the rule wants


def _wanted(
    compared: Comparison,
    rule: Parametrization,
    *,
    carries_multiplier: bool,
) -> dict[Place, float]:
    """What multiplies arrays of the code without factors of its own."""
    result: dict[Place, float] = {}
    facts = compared.facts
    for branch in facts.branches:
        factor = compared.branches_want[branch.node]
        in_code = compared.branch_factor(branch.node)
        if carries_multiplier and close(in_code, 1):
            factor *= Factor(multiplier=1.0)
        if compared.is_absolute and in_code:  # the base model's code has it, too
            factor = factor.over(in_code)
        result[branch.end, branch.node] = float(factor.under(rule))
    for entry in compared.inner_branches.of_node.values():  # a step inside of a step, as of an ODE
        if any(close(entry.factor, of_branch) for of_branch in compared.wanted.values()):
            result[entry.branch.end, entry.branch.node] = entry.factor or 1.0
    for path, wanted in _readouts(compared).items():
        for use in facts.uses[path]:
            if use.kind == PRODUCT and not use.first:
                result[use.node, -1] = float(wanted.under(rule))
    for scores in compared.scores:
        if scores.product.in_softmax or scores.is_right(compared.rule):
            result[scores.product.node, -1] = float(scores.wanted.under(rule))
    return result


def _steps(compared: Comparison) -> set[int]:
    """What is added to the stream where a branch evaluates itself at a point between, as in Heun's method.

    It has the branch's factor and the stream's shape, unlike a mean that a norm subtracts, and the sum is no residual
    one. A sum in whose place a product is read (`depthmup_flax.trace.equal_terms`) is none.
    """
    graph = compared.facts.graph
    stream = {residual.shortcut for residual in compared.facts.reading.streams.sums}
    needed = graph.needed()
    result: set[int] = set()
    for i, node in enumerate(graph.nodes):
        if needed[i] and node.op in SUMS and i not in compared.facts.nodes and not stream.isdisjoint(node.inputs):
            result.update(j for j in node.inputs if graph.nodes[j].shape == node.shape)
    return result


def _is_of_branch(compared: Comparison, each: CodeNumber) -> bool:
    """Whether a number of the code is the factor that the rule wants of a branch."""
    return any(close(each.number / each.base, wanted) for wanted in compared.wanted.values())


def _readouts(compared: Comparison) -> dict[str, Factor]:
    """Path -> what the rule wants of products with readouts, but for those that branches end in."""
    result: dict[str, Factor] = {}
    for path, info in compared.infos.items():
        if path in compared.facts.readouts and may_be_readout(info):
            result[path] = Factor(width=readout_ratio(info), output=info.model_width)
        elif info.role is Role.OUTPUT and path not in compared.last_weights:
            result[path] = Factor(width=info.width_in)
    return result


def _together(wanted: Mapping[Place, float], numbers: Sequence[CodeNumber]) -> dict[Place, float]:
    """What is wanted, with the base model's numbers in the code."""
    result = dict(wanted)
    for each in numbers:
        result[each.node, -1] = result.get((each.node, -1), 1.0) * each.base / each.number
    return result


# --- its outputs


def smaller_epsilons(graph: Graph) -> dict[Place, float]:
    """A small factor for each small number that is added to an array.

    Such a number lets the size of what a norm reads change what it returns.
    """
    result: dict[Place, float] = {}
    for i, node in enumerate(graph.nodes):
        for j in node.inputs:
            number = graph.nodes[j].value
            if node.op in SUMS and number is not None and 0 < number <= _MOST_EPSILON:
                result[j, i] = _OF_EPSILON
    return result


def _finite(
    compared: Comparison,
    factors: Mapping[Place, float],
) -> tuple[dict[int, Any], np.ndarray]:
    """Parameters and inputs, and outputs at them that are neither infinite nor all zero."""
    graph = compared.match.model.graph
    zeros = _biases_of_readouts(compared)
    for seed in range(_TRIES):
        given = _given(graph, seed, zeros)
        right = _output(graph, given, factors)
        if np.isfinite(right).all() and right.any():
            return given, right
    raise NotEvaluated("they are not finite, or zero, at random parameters")


def _output(
    graph: Graph,
    given: Mapping[int, Any],
    factors: Mapping[Place, float],
) -> np.ndarray:
    output = np.asarray(evaluate(graph, given, factors))
    return output if np.iscomplexobj(output) else output.astype(np.float32)


def _distance(found: np.ndarray, right: np.ndarray) -> float:
    return float(np.max(np.abs(found - right)) / np.max(np.abs(right)))


def _tolerance(graph: Graph) -> float:
    """How much rounding may change."""
    for node in graph.nodes:
        dtype = node.params.get("new_dtype", node.params.get("dtype", jnp.float32))
        if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits <= 16:
            return _TOLERANCE_OF_16_BITS
    return _TOLERANCE


def _biases_of_readouts(compared: Comparison) -> set[str]:
    """They may be multiplied as readouts are, or not: a rule leaves it open."""
    facts = compared.facts
    return {bias.path for path in _readouts(compared) for bias in facts.biases.get(path, ())}


def _given(graph: Graph, seed: int, zeros: Collection[str]) -> dict[int, Any]:
    """Random parameters and inputs; ``zeros`` are paths of parameters."""
    rng = np.random.default_rng(seed)
    result: dict[int, Any] = {}
    for i, node in enumerate(graph.nodes):
        if node.op == PARAM and node.params["path"] in zeros:
            result[i] = np.zeros(node.shape, node.params["dtype"])
        elif node.op == PARAM:
            fan_in = node.size / node.shape[-1] if len(node.shape) > 1 else 4.0
            std = np.float32(0.3**seed * fan_in**-0.5)
            values = std * rng.standard_normal(node.shape, np.float32)
            result[i] = np.asarray(values, node.params["dtype"])
        elif node.op == STATE:
            result[i] = np.ones(node.shape, node.params["dtype"])
        elif node.op == INPUT:
            result[i] = _drawn(rng, node.shape, node.params["dtype"])
    return result


def _rounded_otherwise(given: Mapping[int, Any]) -> dict[int, Any]:
    """``given`` with parameters and inputs that differ by about the precision of their dtype."""
    rng = np.random.default_rng(_TRIES)
    result = dict(given)
    for i, value in given.items():
        if jnp.issubdtype(value.dtype, jnp.floating):
            relative = float(jnp.finfo(value.dtype).eps) * rng.standard_normal(value.shape)
            result[i] = np.asarray(value * (1 + relative), value.dtype)
    return result


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return rng.normal(0, 1, shape).astype(dtype)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), shape)
    return rng.integers(0, 2, shape).astype(dtype)


def _with_carried(
    graph: Graph,
    given: Mapping[int, Any],
    infos: Mapping[str, ParamInfo],
    rule: Parametrization,
) -> dict[int, Any]:
    """The parameters times what they carry."""
    result = dict(given)
    for i, node in enumerate(graph.nodes):
        if node.op == PARAM and node.params["path"] in infos:
            info = infos[node.params["path"]]
            carried = given[i] * info.factor(rule) + info.carried_shift(rule)
            result[i] = np.asarray(carried, node.params["dtype"])
    return result
