"""The roles of a network that a config names, and what its forward pass lacks: `audit` at sizes that show it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import flax.linen as nn
import jax
import numpy as np

from depthmup_flax.auditing.audit_report import Audit, Row
from depthmup_flax.auditing.given_model import Output
from depthmup_flax.auditing.model_audit import audit
from depthmup_flax.networks.adapters import linen, once_for_shapes
from depthmup_flax.networks.model_functions import ModelFunctions
from depthmup_flax.rule.factor import Factor
from depthmup_flax.rule.info_trees import flatten_info, is_info, path_name
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo
from depthmup_flax.util.errors import InputError, UserCodeError
from depthmup_flax.util.types import ArrayTree, InfoTree

Sizes: TypeAlias = tuple[int, int]  # width, depth

# Multiples of the base's width and depth at which a network of the base's size is audited; the first that works counts.
_MULTIPLES = ((2, 2), (4, 2), (2, 3), (3, 2), (4, 4), (2, 1), (4, 1))


class _Power(float):
    """A power of width ratios, as `Parametrization.width` takes it; what is computed of it is a plain float.

    A NumPy number would be: modules that keep one would have an array more.
    """

    dtype = np.dtype(float)


# The rule under which networks that take one are built to be audited. Its numbers belong to no preset: where the code
# has its factors, the code follows any rule; where it has those of a preset, they are written into it.
PROBE = Parametrization(alpha=0.618, gamma=0.382, width=_Power(0.847), gamma0_width_exponent=0.271)


# A second one: what parameters carry under both stands in no place where the code has a part of the rule's factor.
_SECOND_PROBE = Parametrization(alpha=0.811, gamma=0.189, width=_Power(0.733), gamma0_width_exponent=0.193)
# The same for models of this package. A tied readout has the initial scale of weights as a factor, which is no power of
# the width ratio between muP and the standard parametrization.
_OUR_PROBE = PROBE.replace(width="mup")


class Audited(NamedTuple):
    """What the audit says about a network."""

    info: InfoTree  # in the structure of the parameters of `ModelFunctions.init`
    audit: Audit  # of the network itself or, where that has a base size, of a larger one
    # Whether the output is divided by the rule's power of the width, `Parametrization.gamma0_width_exponent`, if the
    # code follows the rule: `Parametrization.readout_multiplier` alone does not.
    divides_output: bool = True


def audited(
    functions: Callable[[int, int], ModelFunctions],
    sizes: Sizes,
    base_sizes: Sizes,
    inputs: ArrayTree,
    *,
    output: Output = None,
    count: Callable[[ModelFunctions], float] | None = None,
    probe: Parametrization = PROBE,
    evaluate: bool = True,
) -> Audited:
    """Audits a network of ``sizes``, (width, depth), against its base, with shapes alone.

    A network that takes a rule is built under `PROBE`, so that what the audit says holds under every rule. At the
    base's width or depth nothing shows what grows with it. Then the roles are those of a network that is larger in that
    respect, with ratios of 1. Factors that the code lacks are carried, see `depthmup_flax.audit`.

    Args:
      functions: (width, depth) -> the network.
      sizes, base_sizes: of the network and of the base network.
      inputs: a batch, arrays or shapes; a tuple is several arguments.
      output: see `depthmup_flax.audit`.
      count: network -> the depth ratio of its own code, which is taken as given: then roles are read at a depth where
        every stage grows. By default residual sums are counted, see `_by_their_count`.
      probe: the rule that the networks have, if they take one.
      evaluate: see `depthmup_flax.audit`.

    Raises:
      InputError: a role cannot be read, or the network cannot be built at other sizes than the base's.
      UserCodeError: the user's code fails at ``sizes`` or ``base_sizes``.
    """
    inputs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), inputs)
    own, base = functions(*sizes), functions(*base_sizes)
    base.outputs(inputs)  # fails with the user's error
    shapes, _ = own.shapes(inputs)
    larger_sizes, larger = _larger(functions, own, sizes, base_sizes, inputs, deeper=count is not None)

    in_code = probe, probe.replace(gamma0_width_exponent=0.0)

    def of(network: ModelFunctions, sizes: Sizes) -> Audit:
        def with_ratio(ratio: float | None) -> Audit:
            return audit(network, base, inputs, depth_ratio=ratio, output=output, in_code=in_code, evaluate=evaluate)

        if count is not None:
            return with_ratio(count(network))
        return _by_their_count(with_ratio, sizes[1] / base_sizes[1])

    result = of(larger, larger_sizes)
    result.require_roles()
    others = _counterparts(result, shapes, same_names=count is not None)
    info = _transferred(others, shapes, sizes, larger_sizes, count(own) if count is not None else 1.0)
    rows = result.rows
    if sizes != larger_sizes and any(row.info and row.info.carries for row in rows):  # by other factors there
        rows = () if sizes == base_sizes else of(own, sizes).rows
    info = _carrying(info, rows, others)
    if larger_sizes != sizes:
        same = [f"{what} {a}" for what, a, b in zip(("width", "depth"), sizes, base_sizes, strict=True) if a == b]
        at = f"width {larger_sizes[0]}, depth {larger_sizes[1]}"
        reason = f", because {' and '.join(same)} {'are' if len(same) > 1 else 'is'} the base's" if same else ""
        note = f"audited at {at}{reason}."
        result = dataclasses.replace(result, notes=(note, *result.notes))
    # What the code has of a rule, without what it has of the one that it was given.
    record, divides_output = result.record, True
    if record.alpha == probe.alpha:
        record = dataclasses.replace(record, alpha=None)
    exponents = (probe.gamma0_width_exponent, 0.0)
    if record.width_power == probe.width_power and record.gamma0_width_exponent in exponents:
        divides_output = record.gamma0_width_exponent != 0
        record = dataclasses.replace(record, width_power=None, gamma0_width_exponent=0.0)
    return Audited(info, dataclasses.replace(result, record=record), divides_output)


def audited_under_any_rule(
    functions: Callable[[Parametrization, Sizes], ModelFunctions],
    sizes: Sizes,
    base_sizes: Sizes,
    inputs: ArrayTree,
    *,
    output: Output = None,
    takes_rule: bool,
) -> Audited:
    """`audited`, of a network that may take the rule; ``functions``: (rule, sizes) -> the network.

    Raises:
      InputError: where a parameter acts, the code has a part of a rule's factor; and as `audited`.
    """

    def under(probe: Parametrization) -> Audited:
        at = lambda width, depth: functions(probe, (width, depth))
        return audited(at, sizes, base_sizes, inputs, output=output, probe=probe)

    result = under(PROBE)
    carried = {path: leaf.carried for path, leaf in flatten_info(result.info).items() if leaf.carries}
    if takes_rule and any(factor.constant != 1 for factor in carried.values()):
        again = flatten_info(under(_SECOND_PROBE).info)
        for path, factor in carried.items():
            if not _agree(factor, again[path].carried):
                raise InputError(
                    f"model.name is {functions(PROBE, sizes).name!r}: where {path!r} acts, its code has a part of the "
                    "rule's factor. Use all of it, rule.residual_multiplier(r, uses=n) and rule.readout_multiplier(m), "
                    "or take it out of the code: parameters carry it then."
                )
    return result


def _agree(one: Factor, other: Factor) -> bool:
    """Whether two factors are the same powers of the same numbers."""
    for name, value in vars(one).items():
        values = np.asarray(value), np.asarray(getattr(other, name))
        if values[0].shape != values[1].shape or not np.allclose(*values, rtol=5e-3, atol=0):
            return False
    return True


def _carrying(info: InfoTree, rows: Sequence[Row], others: Mapping[str, ParamInfo]) -> InfoTree:
    """``info`` with the carried factors of ``rows``, those of this size; ``others`` tell who carries the rule's a."""
    carried = {row.path: row.info for row in rows if row.info is not None and row.info.carries}

    def of(path: Any, leaf: ParamInfo) -> ParamInfo:
        other, own = others.get(path_name(path), leaf), carried.get(path_name(path))
        multiplier = other.carried.multiplier
        if own is None:
            offset = other.offset if multiplier else 0.0
            return dataclasses.replace(leaf, carried=Factor(multiplier=multiplier), offset=offset)
        factor = dataclasses.replace(own.carried, multiplier=multiplier)
        return dataclasses.replace(leaf, carried=factor, offset=own.offset)

    return jax.tree_util.tree_map_with_path(of, info, is_leaf=is_info)


def _by_their_count(audit_with: Callable[[float | None], Audit], ratio: float) -> Audit:
    """The audit with the depth ratio of the trace or, if branches are right for it, with that of the user's own count.

    Residual sums may not be proportional to what the user calls depth, as with one more block in front.
    """
    result = audit_with(None)

    def lacks(result: Audit) -> bool:
        # A parameter inside may carry another factor than the branch's.
        carries = any(row.in_branch and not row.carried.is_one and row.lacks for row in result.rows)
        return carries or any(finding.name == "missing_branch_multiplier" for finding in result.findings)

    if lacks(result):
        of_branches = {row.info.depth_ratio for row in result.rows if row.info is not None and row.info.in_branch}
        for other in sorted({ratio, *of_branches} - {result.depth_ratio}):
            again = audit_with(other)
            if not lacks(again):
                return again
    return result


def _larger(
    functions: Callable[[int, int], ModelFunctions],
    own: ModelFunctions,
    sizes: Sizes,
    base_sizes: Sizes,
    inputs: ArrayTree,
    *,
    deeper: bool,
) -> tuple[Sizes, ModelFunctions]:
    """The network itself if it differs from the base in width and depth, else a larger one that can be built.

    With ``deeper``, one that is deeper in any case.
    """
    (width, depth), (base_width, base_depth) = sizes, base_sizes
    if deeper:
        depth = base_depth = max(depth, base_depth)
    elif width != base_width and depth != base_depth:
        own.outputs(inputs)
        return sizes, own
    failures: dict[str, Exception] = {}
    for width_times, depth_times in _MULTIPLES:
        # Sizes that differ from the base's, at the network's own where that differs.
        larger = (
            width if width != base_width else width_times * width,
            depth if depth != base_depth else depth_times * depth,
        )
        name = f"{larger[0]} x {larger[1]}"
        if name in failures:
            continue
        try:
            model = functions(*larger)
            model.outputs(inputs)
            return larger, model
        except (UserCodeError, InputError) as error:
            failures[name] = error
    last = list(failures.values())[-1]
    raise InputError(
        f"model.width is {sizes[0]} and model.depth is {sizes[1]}: roles are read from a larger network, but "
        f"{own.name} fails at width x depth {', '.join(failures)} ({last}). Make one of these sizes work."
    ) from last


def _transferred(
    infos: Mapping[str, ParamInfo], shapes: ArrayTree, sizes: Sizes, larger: Sizes, depth_ratio: float
) -> InfoTree:
    """The infos of an audited network for one that is smaller, with its own ``depth_ratio``, and the base's width."""
    own = _shapes(shapes)
    if missing := own.keys() - infos.keys():
        raise InputError(
            f"parameter {min(missing)!r} has no counterpart at width {larger[0]}, depth {larger[1]}: build all sizes "
            "from the same code."
        )
    new = []
    for path, shape in own.items():
        leaf = dataclasses.replace(infos[path], shape=shape)
        if sizes[0] != larger[0]:
            leaf = dataclasses.replace(leaf, width_in=1.0, width_out=1.0, model_width=1.0)
        if sizes[1] != larger[1]:
            leaf = dataclasses.replace(leaf, depth_ratio=depth_ratio if leaf.in_branch else 1.0)
        new.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(shapes), new)


def _counterparts(result: Audit, shapes: ArrayTree, *, same_names: bool) -> dict[str, ParamInfo]:
    """Path of a parameter -> the info of the audited network's, which is larger.

    ``same_names``: layers of one name have one role at every depth.
    """
    infos = {row.path: row.info for row in result.rows if row.info is not None}
    if same_names or _shapes(shapes).keys() == infos.keys():
        return infos
    return {other: infos[path] for path, other in result.pairs.items() if path in infos}  # at the base's depth


def _shapes(shapes: ArrayTree) -> dict[str, tuple[int, ...]]:
    return {path_name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}


def of_module(model: nn.Module) -> ModelFunctions:
    """A model of this package, which is traced once in this process unless numbers of its rule are traced."""
    try:
        return _of_known_module(model)
    except TypeError:  # a traced number has no hash
        return ModelFunctions("", linen(model))


@functools.lru_cache(maxsize=64)
def _of_known_module(model: nn.Module) -> ModelFunctions:
    return ModelFunctions("", linen(model))


def audited_model(model: Any, inputs: ArrayTree) -> Audited:
    """The audit of a model of `depthmup_flax.models` against its base, once in this process for all rules.

    ``inputs``: a batch, arrays or shapes.
    """
    return _audited_model(model.resized(model.width, model.depth).clone(rule=_OUR_PROBE), inputs)


@once_for_shapes
def _audited_model(model: Any, inputs: ArrayTree) -> Audited:
    # What is read does not depend on the nonlinearity; linear branches would look like the shortcuts beside them.
    if hasattr(model, "nonlinearity"):
        model = model.clone(nonlinearity="gelu")
    # In a batch of one, images of one pixel would have statistics of a single number.
    inputs = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype), inputs)

    def at(width: int, depth: int) -> ModelFunctions:
        return of_module(model.resized(width, depth))

    def count(functions: ModelFunctions) -> float:
        sized: Any = functions.linen
        return float(sized.depth_ratio)

    own, base = (model.width, model.depth), (model.base_width, model.base_depth)
    # Evaluating takes a third of the time; our models are in the tests of audits that evaluate.
    return audited(at, own, base, inputs, count=count, probe=_OUR_PROBE, evaluate=False)
