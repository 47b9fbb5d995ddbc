"""The role and the ratios of every parameter, from how the forward pass uses it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import jax

from depthmup_flax.auditing import parameter_trees as trees
from depthmup_flax.auditing.depth_ratios import DepthRatios
from depthmup_flax.auditing.given_model import Model
from depthmup_flax.auditing.parameter_axes import (
    VECTOR_NAMES,
    ParamShapes,
    infer_decay,
    overridden,
    own_annotation,
    with_readout_ratio,
)
from depthmup_flax.auditing.parameter_uses import ENTRYWISE, LOOKUP, Use
from depthmup_flax.auditing.traced_facts import Traced
from depthmup_flax.rule.annotations import AnnotatedParam, Axes
from depthmup_flax.rule.parametrization import ParamInfo, Role
from depthmup_flax.rule.roles import info_from_annotations, model_width


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a trace says about one parameter; no role where it does not say."""

    role: Role | None
    width_in: float = 1.0
    width_out: float = 1.0
    why_not: str = ""


def layer_axes(uses: Mapping[str, Sequence[Use]]) -> dict[str, frozenset[int]]:
    """Path -> the axes that count layers: in each use, one entry along them is taken."""
    return {path: frozenset().union(*(use.layers for use in several)) for path, several in uses.items()}


def read_role(shapes: ParamShapes, uses: Sequence[Use], layers: frozenset[int], is_readout: bool) -> Reading:
    """The role of one parameter whose axes ``shapes.growing`` grow."""
    grows = {k: shapes.shape[k] / shapes.base[k] for k in shapes.growing if k not in layers}
    ratio = lambda axes: math.prod(grows[k] for k in axes)
    if not uses:
        return Reading(None, why_not="the output does not depend on it")
    if not grows:
        return Reading(Role.FIXED)
    if all(use.kind == ENTRYWISE for use in uses):
        # A table of one vector per position is an input by convention; both have the same factors.
        return Reading(Role.INPUT if shapes.is_table else Role.VECTOR, width_out=ratio(grows))
    contracting = [use for use in uses if use.kind != ENTRYWISE]
    union = lambda sides: frozenset().union(*sides) & grows.keys()
    into, out = union(use.into for use in contracting), union(use.out for use in contracting)
    batch = union(use.batch for use in contracting)
    if any(use.into & use.out & grows.keys() for use in contracting) or grows.keys() - into - out - batch:
        return Reading(None, why_not="the trace does not tell its input axes from its output axes")
    looked_up = [use for use in contracting if use.kind == LOOKUP] or [use for use in contracting if use.first]
    if looked_up and (looked_up[0].kind == LOOKUP or into & out):  # an embedding, which may be the readout too
        out = union(use.out for use in looked_up)
        return Reading(Role.INPUT if out else Role.FIXED, width_out=ratio(out))
    if into & out:  # used in both directions, as in a tied autoencoder
        low, high = min(grows.values()), max(grows.values())
        if len(grows) < 2 or not math.isclose(low, high):
            return Reading(None, why_not="it is used in two directions")
        return Reading(Role.HIDDEN, high, high)
    if into and is_readout and not out:
        return Reading(Role.OUTPUT, ratio(into))
    role = Role.HIDDEN if into else Role.INPUT if out else Role.FIXED
    # The gates of experts sum to 1, so the gradient of each falls with their number, as with the fan-out.
    return Reading(role, ratio(into), ratio(out | batch))


def read_role_by_place(shapes: ParamShapes, uses: Sequence[Use], is_readout: bool, after_readout: bool) -> Reading:
    """The role, by place, in a model as wide as the base model, where no axis grows."""
    if not uses:
        return Reading(None, why_not="the output does not depend on it")
    if all(use.kind == ENTRYWISE for use in uses):
        sides = [n for n in shapes.shape[1 if shapes.stacked else 0 :] if n > 1]
        is_vector = len(sides) < 2 or shapes.name in VECTOR_NAMES
        return Reading(Role.FIXED if after_readout or not sides else Role.VECTOR if is_vector else Role.INPUT)
    if any(use.kind == LOOKUP for use in uses) or all(use.first for use in uses):
        return Reading(Role.INPUT)
    return Reading(Role.OUTPUT if is_readout else Role.HIDDEN)


def traced_infos(
    model: Model,
    traced: Traced,
    base: Mapping[str, tuple[int, ...]],
    depth_ratios: DepthRatios,
    overrides: Mapping[str, Axes],
    *,
    same_width: bool,
) -> tuple[dict[str, ParamInfo], dict[str, str]]:
    """Path -> `ParamInfo`; and path -> reason of parameters that were not read.

    ``base`` are the base model's shapes at the model's depth.
    """
    infos, unread, layers = {}, {}, layer_axes(traced.uses)
    readout_parents = {path.rpartition("/")[0] for path in traced.readouts if "/" in path}
    for path, leaf in model.leaves.items():
        shape, uses = trees.shape_of(leaf), traced.uses.get(path, ())
        shapes = ParamShapes(path, shape, base[path], 0 in layers.get(path, frozenset()))
        inside = traced.inside.get(path, False)
        ratio = depth_ratios.of_path(path, traced)
        blank = AnnotatedParam(trees.abstract(leaf), names=(), in_branch=inside, depth_ratio=ratio)
        own = own_annotation(leaf)
        box = overridden(path, own or blank, overrides)
        if own is not None or box is not blank:
            box = with_readout_ratio(box, shapes) if path in traced.readouts else box
            base_leaf = jax.ShapeDtypeStruct(base[path], trees.abstract(leaf).dtype)
            infos[path] = info_from_annotations({path: box}, {path: base_leaf})[path]
            continue
        if same_width:
            after = path.rpartition("/")[0] in readout_parents
            reading = read_role_by_place(shapes, uses, path in traced.readouts, after)
        else:
            reading = read_role(shapes, uses, layers.get(path, frozenset()), path in traced.readouts)
        if reading.role is None:
            unread[path] = reading.why_not
            continue
        decay, role, (into, out) = infer_decay(shapes), reading.role, matrix_axes(reading.role, uses)
        decayed = role not in (Role.VECTOR, Role.FIXED) if decay is None else decay
        leaf_info = ParamInfo(role, shape, reading.width_in, reading.width_out, inside, ratio, decay=decayed)
        infos[path] = dataclasses.replace(leaf_info, in_axes=into, out_axes=out)
    for path, twin in _twins(unread, infos, traced).items():
        infos[path] = infos[twin]
        del unread[path]
    width = model_width(infos.values(), [infos[path] for path in traced.readouts if path in infos])
    return {path: dataclasses.replace(leaf, model_width=width) for path, leaf in infos.items()}, unread


def _twins(unread: Collection[str], infos: Mapping[str, ParamInfo], traced: Traced) -> dict[str, str]:
    """Path without any use -> an equal parameter of another layer: the end of a second stream may have no effect."""
    same = lambda path, other: trees.series(other) == trees.series(path) and infos[other].shape == traced.shapes[path]
    twins = {path: next((q for q in infos if same(path, q)), "") for path in unread if not traced.used[path]}
    return {path: twin for path, twin in twins.items() if twin}


def matrix_axes(role: Role, uses: Sequence[Use]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions of a hidden matrix that every use contracts, and those that it keeps; none if uses differ."""
    sides = {(tuple(sorted(use.into)), tuple(sorted(use.out))) for use in uses if use.kind != ENTRYWISE}
    if role is not Role.HIDDEN or len(sides) != 1:
        return (), ()
    ((into, out),) = sides
    return (into, out) if into and out else ((), ())
