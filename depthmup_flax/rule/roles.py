"""The role and the ratios of every annotated parameter, from the shapes of a model and its base model."""

import dataclasses
import fnmatch
import math
from collections.abc import Collection, Iterable, Mapping

import flax.linen as nn
import jax

from depthmup_flax.rule.annotations import (
    AXES,
    AXIS_NAMES,
    AnnotatedParam,
    Axes,
    AxisNames,
    is_annotated,
    require_axes,
    require_axis_names,
)
from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.rule.parametrization import ParamInfo, Role
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, InfoTree


def info_from_annotations(
    params: ArrayTree, base_params: ArrayTree, overrides: Mapping[str, Axes] | None = None
) -> InfoTree:
    """`ParamInfo` from two trees of annotated parameters (arrays or shapes), the model's and the base model's."""
    require_axes("overrides", overrides or {})
    leaves, structure = jax.tree_util.tree_flatten_with_path(params, is_leaf=is_annotated)
    base_leaves = dict(jax.tree_util.tree_flatten_with_path(base_params, is_leaf=is_annotated)[0])
    unused = set(overrides or {})
    if extra := base_leaves.keys() - {path for path, _ in leaves}:
        raise InputError(f"parameter {path_name(min(extra, key=path_name))!r} is in the base model, not in the model.")
    labeled = []
    for path, leaf in leaves:
        name = path_name(path)
        for pattern, axes in (overrides or {}).items():
            if fnmatch.fnmatchcase(name, pattern):
                leaf = axes.annotate(name, leaf)
                unused.discard(pattern)
        if path not in base_leaves:
            raise InputError(f"parameter {name!r} is in the model but not in the base model: give both the same depth.")
        if not isinstance(leaf, AnnotatedParam):
            raise InputError(
                f"parameter {name!r} of shape {tuple(nn.unbox(leaf).shape)} has no role: pass "
                f"overrides={{{name!r}: Axes(names, in_branch=...)}} with one of {AXIS_NAMES} per dimension."
            )
        labeled.append(_info_of_leaf(name, leaf, nn.unbox(base_leaves[path]).shape))
    if unused:
        raise InputError(f"override {sorted(unused)[0]!r} matches no parameter: write a glob of one of the paths.")
    width = model_width(labeled)
    return jax.tree_util.tree_unflatten(structure, [dataclasses.replace(leaf, model_width=width) for leaf in labeled])


def model_width(infos: Collection[ParamInfo], tied: Iterable[ParamInfo] = ()) -> float:
    """The ratio m of the width that the readout reads, which every parameter carries; ``tied`` are readouts too."""
    widths = {leaf.width_in for leaf in infos if leaf.role is Role.OUTPUT and not leaf.in_branch}
    widths |= {leaf.width_out for leaf in tied if leaf.role is Role.INPUT}
    if len(widths) > 1:
        raise InputError(f"readouts have different width ratios {sorted(widths)}: they must grow together.")
    return widths.pop() if widths else max((leaf.width_out for leaf in infos), default=1.0)


def _info_of_leaf(name: str, box: AnnotatedParam, base_shape: tuple[int, ...]) -> ParamInfo:
    """Role and ratios of one annotated leaf, from its axes and the base model's shape."""
    shape = tuple(box.value.shape)
    require_axis_names(box.names)
    if len(box.names) != len(shape):
        raise InputError(
            f"parameter {name!r} has shape {shape}, but its axes {box.names} name {len(box.names)} dimensions: give "
            f"one of {AXIS_NAMES} per dimension."
        )
    if len(base_shape) != len(shape):
        raise InputError(f"parameter {name!r} has shape {shape}, but {base_shape} in the base model: use one code.")
    ratio, grows = {"in": 1.0, "out": 1.0}, {"in": False, "out": False}
    for axis, size, base_size in zip(box.names, shape, base_shape, strict=True):
        direction, growing = AXES[axis]
        if growing and direction is not None:
            grows[direction] = True
            ratio[direction] *= size / base_size
        elif size != base_size:
            raise InputError(
                f"parameter {name!r} has size {size} along {axis!r} and {base_size} in the base model, but that axis "
                "does not grow: name it 'width_in' or 'width_out', or give the base model the same depth and data."
            )
    role = ((Role.FIXED, Role.INPUT), (Role.OUTPUT, Role.HIDDEN))[grows["in"]][grows["out"]]
    directions = {AXES[axis][0] for axis in box.names}
    if role in (Role.INPUT, Role.OUTPUT) and not directions >= {"in", "out"}:  # a lone direction is a vector
        role, ratio = Role.VECTOR, {"in": 1.0, "out": ratio["in"] * ratio["out"]}
    if role is Role.OUTPUT and box.width_ratio is None:
        raise InputError(
            f"parameter {name!r} is a readout (its input grows, its output does not), but nothing says that its "
            "product is multiplied by 1/m: use depthmup_flax.Readout, or do that and annotate it with width_ratio=m."
        )
    if role is Role.OUTPUT and not math.isclose(box.width_ratio or 0, ratio["in"]):
        remedy = "give the readout width_ratio = width / base width, with the same base"
        if ratio["in"] < 1:
            remedy = "were model and base swapped? The model comes first"
        raise InputError(
            f"parameter {name!r} belongs to a readout with width_ratio {box.width_ratio:g}, but it is {ratio['in']:g} "
            f"times as wide as in the base model: {remedy}."
        )
    in_axes, out_axes = _matrix_axes(box.names) if role is Role.HIDDEN else ((), ())
    return ParamInfo(
        role=role,
        shape=shape,
        width_in=ratio["in"],
        width_out=ratio["out"],
        in_branch=box.in_branch,
        depth_ratio=box.depth_ratio,
        init_std=box.init_std,
        decay=role not in (Role.VECTOR, Role.FIXED) if box.decay is None else box.decay,
        in_axes=in_axes,
        out_axes=out_axes,
        inner=box.in_branch and "inner_out" in box.names,
    )


def _matrix_axes(names: AxisNames) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The input and output dimensions of a hidden matrix; empty if the names do not tell.

    Unnamed dimensions in front belong to the inputs (a convolution's window), those at the end to their neighbor. For
    one in between, such as heads, ``fixed_in`` or ``fixed_out`` says which.
    """
    sides = [AXES[name][0] for name in names]
    named = [axis for axis, side in enumerate(sides) if side is not None]
    for axis, name in enumerate(names):
        if name is None and named and axis < named[0]:
            sides[axis] = "in"
        elif name is None and named and axis > named[-1]:
            sides[axis] = sides[named[-1]]
        elif name is None:
            return (), ()
    ins, outs = (tuple(axis for axis, side in enumerate(sides) if side == which) for which in ("in", "out"))
    return ins, outs
