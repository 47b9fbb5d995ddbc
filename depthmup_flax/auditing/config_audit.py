"""The roles of a network that a config names, and what its forward pass lacks: `audit` at sizes that show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax

from depthmup_flax.auditing.audit_report import Audit, Finding, Row
from depthmup_flax.auditing.given_model import Output
from depthmup_flax.auditing.model_audit import audit
from depthmup_flax.networks.adapters import arguments_of, training_flags
from depthmup_flax.networks.model_functions import ModelFunctions
from depthmup_flax.rule.annotations import AnnotatedParam, is_annotated
from depthmup_flax.rule.factor import Factor
from depthmup_flax.rule.info_trees import is_info, path_name
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo
from depthmup_flax.rule.roles import param_info
from depthmup_flax.util.errors import InputError, UserCodeError
from depthmup_flax.util.types import ArrayTree, InfoTree

Sizes: TypeAlias = tuple[int, int]  # width, depth

# Multiples of the base's width and depth at which a network of the base's size is audited; the first that works counts.
_MULTIPLES = ((2, 2), (4, 2), (2, 3), (3, 2), (4, 4), (2, 1), (4, 1))


class Audited(NamedTuple):
    """What the audit says about a network."""

    info: InfoTree  # in the structure of the parameters of `ModelFunctions.init`
    # Of the network itself or, where that has a base size, of a larger one; without rows if one is not traced, which is
    # annotated.
    audit: Audit


def audited(
    functions: Callable[[int, int], ModelFunctions],
    sizes: Sizes,
    base_sizes: Sizes,
    inputs: ArrayTree,
    *,
    output: Output = None,
    in_code: Sequence[Parametrization] = (),
) -> Audited:
    """Audits a network of ``sizes``, (width, depth), against its base, with shapes alone.

    At the base's width or depth nothing shows what grows with it. Then the roles are those of a network that is larger
    in that respect, with ratios of 1. A Linen network whose parameters are all annotated keeps its annotations. Factors
    that the code lacks are carried, see `depthmup_flax.audit`.

    Args:
      functions: (width, depth) -> the network.
      sizes, base_sizes: of the network and of the base network.
      inputs: a batch, arrays or shapes; a tuple is several arguments.
      output, in_code: see `depthmup_flax.audit`.

    Raises:
      InputError: a role cannot be read, or the network cannot be built at other sizes than the base's.
      UserCodeError: the user's code fails at ``sizes`` or ``base_sizes``.
    """
    inputs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), inputs)
    own, base = functions(*sizes), functions(*base_sizes)
    base.outputs(inputs)  # fails with the user's error
    shapes, _ = own.shapes(inputs)
    annotated_info = _annotated_info(own, lambda: functions(base_sizes[0], sizes[1]), inputs)
    larger_sizes, larger = _larger(functions, own, sizes, base_sizes, inputs)

    def of(network: ModelFunctions, sizes: Sizes) -> Audit:
        with_ratio = lambda ratio: audit(network, base, inputs, depth_ratio=ratio, output=output, in_code=in_code)
        return _by_their_count(with_ratio, sizes[1] / base_sizes[1])

    try:
        result = of(larger, larger_sizes)
        info = _transferred(result, shapes, sizes, larger_sizes) if annotated_info is None else annotated_info
        rows = result.rows
        if sizes != larger_sizes and any(row.info and row.info.carries for row in rows):  # by other factors there
            rows = () if sizes == base_sizes else of(own, sizes).rows
        info = _carrying(info, rows, _counterparts(result, shapes))
    except InputError as error:
        if annotated_info is None:
            raise
        place = Finding("forward pass", (), f"it cannot be audited: {error}", "measure with dm.coord_check")
        return Audited(annotated_info, Audit((), (), (place,), (), 1.0, 1.0, jax.tree.structure(None)))
    if larger_sizes != sizes:
        same = [f"{what} {a}" for what, a, b in zip(("width", "depth"), sizes, base_sizes, strict=True) if a == b]
        at = f"width {larger_sizes[0]}, depth {larger_sizes[1]}"
        note = f"audited at {at}, because {' and '.join(same)} {'are' if len(same) > 1 else 'is'} the base's."
        result = dataclasses.replace(result, notes=(note, *result.notes))
    return Audited(info, result)


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
        annotated = {row.info.depth_ratio for row in result.rows if row.info is not None and row.info.in_branch}
        for other in sorted({ratio, *annotated} - {result.depth_ratio}):
            again = audit_with(other)
            if not lacks(again):
                return again
    return result


def _annotated_info(
    own: ModelFunctions, of_base_width: Callable[[], ModelFunctions], inputs: ArrayTree
) -> InfoTree | None:
    """`param_info` of a Linen network whose parameters are all annotated; else ``None``."""
    if own.linen is None:
        return None
    leaves = jax.tree.leaves(own.boxed_shapes(inputs)[0], is_leaf=is_annotated)
    if not all(isinstance(leaf, AnnotatedParam) for leaf in leaves):
        return None
    base = of_base_width().linen
    if base is None:
        return None
    flags = training_flags(type(own.linen).__call__, False)
    return param_info(own.linen, base, *arguments_of(inputs), **flags)


def _larger(
    functions: Callable[[int, int], ModelFunctions],
    own: ModelFunctions,
    sizes: Sizes,
    base_sizes: Sizes,
    inputs: ArrayTree,
) -> tuple[Sizes, ModelFunctions]:
    """The network itself if it differs from the base in width and depth, else a larger one that can be built."""
    (width, depth), (base_width, base_depth) = sizes, base_sizes
    if width != base_width and depth != base_depth:
        own.outputs(inputs)
        return sizes, own
    failures: dict[str, Exception] = {}
    # Sizes that differ from the base's, at the network's own where that differs.
    grown = lambda times, size, base: size if size != base else times * size
    for larger in dict.fromkeys(tuple(map(grown, times, sizes, base_sizes)) for times in _MULTIPLES):
        try:
            model = functions(*larger)
            model.outputs(inputs)
            return larger, model
        except (UserCodeError, InputError) as error:
            failures[f"{larger[0]} x {larger[1]}"] = error
    last = list(failures.values())[-1]
    raise InputError(
        f"model.width is {width} and model.depth is {depth}: roles are read from a larger network, but "
        f"{own.name} fails at width x depth {', '.join(failures)} ({last}). Make one of these sizes work."
    ) from last


def _transferred(result: Audit, shapes: ArrayTree, sizes: Sizes, larger: Sizes) -> InfoTree:
    """The infos of an audited network for one that is smaller: without the ratios in which it is the base's."""
    result.require_roles()
    infos, own = _counterparts(result, shapes), _shapes(shapes)
    if missing := own.keys() - infos.keys():
        raise InputError(
            f"parameter {min(missing)!r} has no counterpart at width {larger[0]}, depth {larger[1]}: build all sizes "
            "from the same code."
        )
    changed: dict[str, Any] = {"width_in": 1.0, "width_out": 1.0, "model_width": 1.0} if sizes[0] != larger[0] else {}
    changed |= {"depth_ratio": 1.0} if sizes[1] != larger[1] else {}
    new = [dataclasses.replace(infos[path], shape=shape, **changed) for path, shape in own.items()]
    return jax.tree.unflatten(jax.tree.structure(shapes), new)


def _counterparts(result: Audit, shapes: ArrayTree) -> dict[str, ParamInfo]:
    """Path of a parameter -> the info of the audited network's, which is larger."""
    infos = {row.path: row.info for row in result.rows if row.info is not None}
    if _shapes(shapes).keys() == infos.keys():
        return infos
    return {other: infos[path] for path, other in result.pairs.items() if path in infos}  # at the base's depth


def _shapes(shapes: ArrayTree) -> dict[str, tuple[int, ...]]:
    return {path_name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}
