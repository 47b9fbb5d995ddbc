"""What a sweep says about transfer: optimum, shift, regret per size, and slopes, for each variant."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from depthmup_flax.errors import InputError
from depthmup_flax.records import SweepInfo
from depthmup_flax.report import optimum as opt
from depthmup_flax.report.loss_surfaces import Curve, Scale, Surface, profile

ALL_DIVERGED, ONE_SEED, FEW_SEEDS, INCOMPLETE = "all diverged", "one seed", "few seeds", "incomplete"
USELESS = "useless"  # its lowest loss is more than this many times the base's
USELESS_ABOVE = 2.0
DIVERGED, NOT_RUN = "diverged", "not run"


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One variant at one size.

    Attributes:
      curve: its losses.
      optimum: ``None`` if every point has a diverged run.
      shift: optimum minus the base's, in coordinates of x; ``None`` for the base, and if it is unknown.
      bound: ``<=`` or ``>=`` if the shift is only that, because an optimum is at an edge of its grid; else empty.
      regret: loss at the base's grid optimum minus the lowest loss; `DIVERGED` or `NOT_RUN` if there is none.
      flags: what a reader must know about it.
    """

    curve: Curve
    optimum: opt.Optimum | None
    shift: opt.Estimate | None
    bound: str
    regret: opt.Estimate | str
    flags: tuple[str, ...]

    @property
    def bracketed(self) -> bool:
        """Whether the optimum lies inside the grid."""
        return self.optimum is not None and self.optimum.flag in ("", opt.NEXT_TO_DIVERGENCE)

    @property
    def useful(self) -> bool:
        """Whether the network trains at any x; the optimum of one that does not means nothing."""
        return self.optimum is not None and USELESS not in self.flags

    @property
    def positive(self) -> bool:
        """Whether the lowest loss has a logarithm that says something."""
        return self.useful and self.optimum is not None and self.optimum.loss.value > 0


@dataclasses.dataclass(frozen=True)
class Slope:
    """Exponent of the optimum against a size, of those useful sizes whose optimum lies inside the grid.

    Attributes:
      estimate: of d log2(x*) / d log2(size); ``None`` for fewer than three sizes.
      fixed: the value of the other size.
      used, left_out: sizes.
    """

    estimate: opt.Estimate | None
    fixed: int
    used: tuple[int, ...]
    left_out: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Variant:
    """Everything about one variant.

    Attributes:
      name: short; empty if the sweep has only one.
      base: from which hyperparameters are transferred.
      base_is_smallest: whether it stands in for a base size that is not in the sweep.
      rows: one per size, ascending.
      slopes: by ``depth`` and ``width``, where three sizes or more were run.
    """

    name: str
    base: Row
    base_is_smallest: bool
    rows: tuple[Row, ...]
    slopes: dict[str, Slope]

    @property
    def transferred(self) -> float | None:
        """The grid value of x that is best at the base."""
        return float(self.base.curve.x[self.base.optimum.grid]) if self.base.optimum else None

    def row(self, width: int, depth: int) -> Row | None:
        """Of a size, if it was run."""
        return next((r for r in self.rows if (r.curve.width, r.curve.depth) == (width, depth)), None)


@dataclasses.dataclass(frozen=True)
class SizeAxis:
    """A row of panels: sizes along ``name`` (width or depth) at one value of the other."""

    name: str
    sizes: tuple[int, ...]
    fixed: int

    @property
    def other(self) -> str:
        """The size that is fixed."""
        return "width" if self.name == "depth" else "depth"

    def rows(self, variant: Variant) -> list[Row]:
        """A variant's, ascending."""
        return [
            r
            for r in variant.rows
            if getattr(r.curve, self.name) in self.sizes and getattr(r.curve, self.other) == self.fixed
        ]


@dataclasses.dataclass(frozen=True)
class Study:
    """A sweep seen along one axis.

    Attributes:
      info: of the sweep.
      scale: the axis along which the optimum is looked for.
      other: the axis over which the lowest mean is taken at each point, if there is a second continuous one.
      surfaces: all losses, x along ``scale``.
      variants: what was found, in the grid's order.
      axes: along which sizes vary.
    """

    info: SweepInfo
    scale: Scale
    other: Scale | None
    surfaces: tuple[Surface, ...]
    variants: tuple[Variant, ...]
    axes: tuple[SizeAxis, ...]


def analyze(
    info: SweepInfo,
    found: Sequence[Surface],
    scale: Scale,
    other: Scale | None = None,
    planned: Sequence[float] = (),
) -> Study:
    """Optimum, shift, regret and slopes; ``scale`` is that of the surfaces' x, ``other`` of their y.

    Sizes that lack one of the ``planned`` values of x are called incomplete.

    Raises:
      InputError: no point has all of its seeds.
    """
    curves = [curve for curve in map(profile, found) if len(curve.x)]
    if not curves:
        raise InputError("no point of the sweep has all of its seeds: run the same sweep again, it goes on.")
    # Points that no seed has were never planned, or come later.
    incomplete = {(s.variant, s.width, s.depth) for s in found if ((s.ended > 0) & (s.ended < len(s.seeds))).any()}
    axes = size_axes(info, curves)
    variants = []
    for name in dict.fromkeys(curve.variant for curve in curves):
        own = [curve for curve in curves if curve.variant == name]
        optima = [opt.find_optimum(scale.coordinate(curve.x), curve.losses) for curve in own]
        base, is_smallest = _base(info, own)
        at = own.index(base)
        rows = [
            _row(curve, best, base, optima[at], (name, curve.width, curve.depth) in incomplete, planned)
            for curve, best in zip(own, optima, strict=True)
        ]
        variant = Variant(name, rows[at], is_smallest, tuple(rows), {})
        slopes = {axis.name: _slope(variant, axis) for axis in axes if scale.log and len(axis.sizes) > 2}
        variants.append(dataclasses.replace(variant, slopes=slopes))
    return Study(info, scale, other, tuple(found), tuple(variants), tuple(axes))


def size_axes(info: SweepInfo, curves: Sequence[Curve]) -> list[SizeAxis]:
    """Depth and width, those with two values or more at one value of the other.

    That value is the base's if it has any; else the one with most sizes.
    """
    axes = []
    for name, other in (("depth", "width"), ("width", "depth")):
        sizes: dict[int, set[int]] = {}
        for curve in curves:
            sizes.setdefault(getattr(curve, other), set()).add(getattr(curve, name))
        base = _base_size(info, other)
        fixed = base if len(sizes.get(base, ())) > 1 else max(sizes, key=lambda s: (len(sizes[s]), -s))
        if len(sizes[fixed]) > 1:
            axes.append(SizeAxis(name, tuple(sorted(sizes[fixed])), fixed))
    return axes


def _base_size(info: SweepInfo, name: str) -> int:
    """0 in a config means the network's own."""
    model = info.base.get("model", {})
    return model.get(f"base_{name}") or model.get(name) or 0


def _base(info: SweepInfo, curves: Sequence[Curve]) -> tuple[Curve, bool]:
    """The curve at the base size; else, and True, the one at the smallest depth and width."""
    wanted = []
    for name in ("width", "depth"):
        sizes = {getattr(curve, name) for curve in curves}
        wanted.append(sizes.pop() if len(sizes) == 1 else _base_size(info, name))
    at_base = [curve for curve in curves if [curve.width, curve.depth] == wanted]
    return (at_base[0], False) if at_base else (min(curves, key=lambda c: (c.depth, c.width)), True)


def _row(
    curve: Curve,
    best: opt.Optimum | None,
    base: Curve,
    base_best: opt.Optimum | None,
    partial: bool,
    planned: Sequence[float],
) -> Row:
    seeds = len(curve.seeds)
    missing = np.array([value for value in planned if not np.isclose(curve.x, value, rtol=1e-9, atol=0).any()])
    # At an end of what was run, beside values that are still to come, nothing is known about the grid's end.
    unknown = {opt.EDGE_LOW: any(missing < curve.x[0]), opt.EDGE_HIGH: any(missing > curve.x[-1])}
    flags = [] if best else [ALL_DIVERGED]
    flags += [best.flag] if best and best.flag and not unknown.get(best.flag) else []
    if best and base_best and best.loss.value > max(USELESS_ABOVE * base_best.loss.value, base_best.loss.value):
        flags.append(USELESS)
    flags += [ONE_SEED] if seeds == 1 else [FEW_SEEDS] if seeds == 2 else []
    flags += [INCOMPLETE] if partial or len(missing) else []
    shift, bound = (None, "") if curve is base else _shift(best, base_best)
    return Row(curve, best, shift, bound, _regret(curve, base, base_best), tuple(flags))


def _shift(best: opt.Optimum | None, base: opt.Optimum | None) -> tuple[opt.Estimate | None, str]:
    """The difference and what it bounds; two edges may leave nothing known."""
    if best is None or base is None:
        return None, ""
    above = {opt.EDGE_HIGH: ">=", opt.EDGE_LOW: "<="}.get(best.flag)
    below = {opt.EDGE_HIGH: "<=", opt.EDGE_LOW: ">="}.get(base.flag)
    bounds = {bound for bound in (above, below) if bound}
    if len(bounds) == 2 or opt.ONE_VALUE in (best.flag, base.flag):
        return None, ""
    return best.at - base.at, "".join(bounds)


def _regret(curve: Curve, base: Curve, base_best: opt.Optimum | None) -> opt.Estimate | str:
    index = curve.index(float(base.x[base_best.grid])) if base_best else None
    if index is None:
        return NOT_RUN
    return opt.regret(curve.losses, index) or DIVERGED


def _slope(variant: Variant, axis: SizeAxis) -> Slope:
    rows = axis.rows(variant)
    used = {getattr(r.curve, axis.name): r.optimum.at for r in rows if r.bracketed and r.useful and r.optimum}
    estimate = opt.slope([math.log2(size) for size in used], list(used.values()))
    sizes = [getattr(row.curve, axis.name) for row in rows]
    return Slope(estimate, axis.fixed, tuple(used), tuple(size for size in sizes if size not in used))


def power_laws(rows: Sequence[Row]) -> dict[str, dict[int, opt.Estimate]]:
    """Exponents b of ``lowest loss = c * parameters^-b``, for lines of equal depth and of equal width.

    Least squares of log loss on log parameters, refitted in every draw; lines of three sizes or more.
    """
    laws: dict[str, dict[int, opt.Estimate]] = {"depth": {}, "width": {}}
    for name, found in laws.items():
        for size in sorted({getattr(row.curve, name) for row in rows}):
            line = [r for r in rows if getattr(r.curve, name) == size and r.positive]
            fit = opt.slope([math.log(r.curve.parameters) for r in line], [_negative_log(r) for r in line])
            if fit is not None:
                found[size] = fit
    return laws


def _negative_log(row: Row) -> opt.Estimate:
    assert row.optimum is not None
    loss = row.optimum.loss
    draws = None if loss.draws is None else -np.log(loss.draws)
    return opt.Estimate(-math.log(loss.value), draws, loss.seeds)
