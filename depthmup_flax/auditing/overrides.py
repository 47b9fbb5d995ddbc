"""What a user says about parameters that a trace does not tell: axes by name, and places."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from depthmup_flax.rule.info_trees import matches
from depthmup_flax.rule.parametrization import ParamInfo, Role
from depthmup_flax.util.errors import InputError, shown

AxisNames: TypeAlias = tuple[str | None, ...]

IN, OUT = "in", "out"  # sides of a matrix

# Name of an axis -> its side, and whether it grows with the model's width.
_AXES: Mapping[str | None, tuple[str | None, bool]] = {
    "fixed_in": (IN, False),  # pixels, positions
    "vocab_in": (IN, False),  # tokens of a vocabulary, which may be split over devices
    "width_in": (IN, True),
    "width_out": (OUT, True),
    "inner_in": (IN, True),  # a width inside a branch: heads, a feed-forward's hidden layer
    "inner_out": (OUT, True),
    "fixed_out": (OUT, False),  # classes
    "vocab_out": (OUT, False),
    "layers": (None, False),  # the leading axis of a scanned stack
    "experts": (None, False),  # of networks side by side, among which a router chooses
    None: (None, False),  # such as a convolution's window
}
AXIS_NAMES = ", ".join(map(repr, _AXES))

# Whether an input and an output side grow -> the role of a matrix.
_ROLES = {
    (False, False): Role.FIXED,
    (False, True): Role.INPUT,
    (True, False): Role.OUTPUT,
    (True, True): Role.HIDDEN,
}


@dataclasses.dataclass(frozen=True)
class Axes:
    """What to take for true about a parameter; ``None``: what the trace tells."""

    names: AxisNames | None = None  # one of the names below per dimension
    in_branch: bool | None = None  # inside a residual branch or not
    depth_ratio: float | None = None  # of the branch
    decay: bool | None = None  # whether weight decay applies
    width_ratio: float | None = None  # m, by which the product of a readout is divided

    def __post_init__(self) -> None:
        if self.names is not None:
            _require_names(self.names)


def require_axes(argument: str, overrides: Mapping[str, Axes]) -> None:
    """Raises `InputError` unless ``overrides`` maps globs to `Axes`; ``argument`` is its name."""
    if not isinstance(overrides, Mapping):
        right = "use a dictionary, glob of paths -> Axes(names, in_branch=...)."
        raise InputError(f"{argument} is {shown(overrides)}: {right}")
    for pattern, axes in overrides.items():
        if not isinstance(axes, Axes):
            right = "use Axes(names, in_branch=...)."
            raise InputError(f"{argument}[{pattern!r}] is {shown(axes)}: {right}")


def overridden(path: str, traced: Axes, overrides: Mapping[str, Axes]) -> Axes:
    """What the trace tells about a parameter, corrected by overrides; later ones win."""
    result = traced
    for pattern, axes in overrides.items():
        if matches(path, pattern):
            declared = {name: value for name, value in vars(axes).items() if value is not None}
            result = dataclasses.replace(result, **declared)
            if not result.in_branch:
                result = dataclasses.replace(result, depth_ratio=1.0)
    return result


@dataclasses.dataclass(frozen=True)
class _Sides:
    """The width ratios of a matrix's sides, and which of them grow."""

    ratio_in: float = 1.0
    ratio_out: float = 1.0
    grows_in: bool = False
    grows_out: bool = False


def info_of_axes(
    path: str, axes: Axes, shape: tuple[int, ...], base_shape: tuple[int, ...], *, is_readout: bool
) -> ParamInfo:
    """Role and ratios of a parameter whose axes are named, from both shapes.

    ``is_readout``: the forward pass ends in its product, so its factor is judged there.

    Raises:
      InputError: the names do not fit the shapes, or nothing says what divides a readout.
    """
    names = axes.names or ()
    _require_fit(path, names, shape, base_shape)
    sides = _sides(path, names, shape, base_shape)
    role = _ROLES[sides.grows_in, sides.grows_out]
    width_in = sides.ratio_in
    width_out = sides.ratio_out
    named_sides = {_AXES[name][0] for name in names}
    if role in (Role.INPUT, Role.OUTPUT) and not named_sides >= {IN, OUT}:
        role = Role.VECTOR  # a lone side
        width_in = 1.0
        width_out = sides.ratio_in * sides.ratio_out
    if role is Role.OUTPUT:
        _require_readout_ratio(path, axes, sides.ratio_in, is_readout)
    in_axes, out_axes = _matrix_axes(names) if role is Role.HIDDEN else ((), ())
    return ParamInfo(
        role=role,
        shape=shape,
        width_in=width_in,
        width_out=width_out,
        in_branch=bool(axes.in_branch),
        depth_ratio=1.0 if axes.depth_ratio is None else axes.depth_ratio,
        decay=decays(role, axes.decay),
        in_axes=in_axes,
        out_axes=out_axes,
        inner=bool(axes.in_branch) and "inner_out" in names,
    )


def decays(role: Role, decay: bool | None) -> bool:
    """Whether weight decay applies to a parameter: as it is said, or to matrices."""
    if decay is None:
        return role not in (Role.VECTOR, Role.FIXED)
    return decay


def _require_names(names: Any) -> None:
    """Raises `InputError` unless every name is one of `_AXES`."""
    if isinstance(names, str) or not isinstance(names, (tuple, list)):
        raise InputError(f"axes is {names!r}: use a tuple with one of {AXIS_NAMES} per dimension.")
    for axis, name in enumerate(names):
        if name not in _AXES:
            right = f"use one of {AXIS_NAMES} (a scanned stack's is 'layers')."
            raise InputError(f"axis name {name!r} is unknown: {right}")
        if name == "layers" and axis > 0:
            text = f"have 'layers' at {axis}: a stack's axis comes first."
            raise InputError(f"axes {tuple(names)} {text}")


def _require_fit(
    path: str,
    names: AxisNames,
    shape: tuple[int, ...],
    base_shape: tuple[int, ...],
) -> None:
    if len(names) != len(shape):
        raise InputError(
            f"parameter {path!r} has shape {shape}, but its axes {names} name {len(names)} "
            f"dimensions: give one of {AXIS_NAMES} per dimension."
        )
    for name, size, base_size in zip(names, shape, base_shape, strict=True):
        side, grows = _AXES[name]
        if size != base_size and (side is None or not grows):
            raise InputError(
                f"parameter {path!r} has size {size} along {name!r} and {base_size} in the base "
                "model, but that axis does not grow: name it 'width_in' or 'width_out', or give "
                "the base model the same depth and data."
            )


def _sides(
    path: str,
    names: AxisNames,
    shape: tuple[int, ...],
    base_shape: tuple[int, ...],
) -> _Sides:
    ratios = {IN: 1.0, OUT: 1.0}
    growing: set[str] = set()
    for name, size, base_size in zip(names, shape, base_shape, strict=True):
        side, grows = _AXES[name]
        if side is not None and grows:
            ratios[side] *= size / base_size
            growing.add(side)
    return _Sides(ratios[IN], ratios[OUT], IN in growing, OUT in growing)


def _require_readout_ratio(path: str, axes: Axes, ratio: float, is_readout: bool) -> None:
    """Raises `InputError` unless it is known by what the product of a readout is divided."""
    width_ratio = axes.width_ratio
    if width_ratio is None and is_readout:
        return
    if width_ratio is None:
        raise InputError(
            f"parameter {path!r} is a readout (its input grows, its output does not), but nothing "
            "says that its product is multiplied by 1/m: multiply by rule.readout_multiplier(m), "
            "and pass Axes(..., width_ratio=m)."
        )
    if math.isclose(width_ratio, ratio):
        return
    remedy = "give the readout width_ratio = width / base width, with the same base"
    if ratio < 1:
        remedy = "were model and base swapped? The model comes first"
    raise InputError(
        f"parameter {path!r} belongs to a readout with width_ratio {width_ratio:g}, but it is "
        f"{ratio:g} times as wide as in the base model: {remedy}."
    )


def _matrix_axes(names: AxisNames) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The input and output dimensions of a hidden matrix; empty if the names do not tell.

    Unnamed dimensions in front belong to the inputs (a convolution's window), those at the end to
    their neighbor. For one in between, such as heads, ``fixed_in`` or ``fixed_out`` says which.
    """
    sides = [_AXES[name][0] for name in names]
    named = [axis for axis, side in enumerate(sides) if side is not None]
    for axis, name in enumerate(names):
        if name is not None or not named:
            continue
        if axis < named[0]:
            sides[axis] = IN
        elif axis > named[-1]:
            sides[axis] = sides[named[-1]]
    if any(name is None and side is None for name, side in zip(names, sides, strict=True)):
        return (), ()
    return _axes_of(sides, IN), _axes_of(sides, OUT)


def _axes_of(sides: list[str | None], wanted: str) -> tuple[int, ...]:
    return tuple(axis for axis, side in enumerate(sides) if side == wanted)
