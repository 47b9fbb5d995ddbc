"""What a sweep shows about transfer: optimum, shift and regret per size, and exponents, for each variant."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from depthmup_flax.report import optimum as opt
from depthmup_flax.report.curves import LOSSES, Curve, Scale, Surface, profile, roles, surfaces
from depthmup_flax.storage.sweep_records import OWN, TRAIN, Record, SweepInfo
from depthmup_flax.util.errors import InputError

ALL_DIVERGED, ONE_SEED, FEW_SEEDS, INCOMPLETE = "all diverged", "one seed", "few seeds", "incomplete"
UNTRAINED = "does not train"  # its lowest loss is above twice that before learning, see `Variant.initial_loss`
DIVERGED, NOT_RUN = "diverged", "not run"


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One variant at one size."""

    curve: Curve
    optimum: opt.Optimum | None  # None if every point has a diverged run
    # Optimum minus the base's, in coordinates of x; None for the base, if unknown, and if it does not train.
    shift: opt.Estimate | None
    bound: str  # "<=" or ">=" if an optimum at an edge of its grid only bounds the shift; else empty
    # The fitted loss at the base's optimum minus the lowest, see `opt.regret`; or DIVERGED, NOT_RUN, UNTRAINED.
    regret: opt.Estimate | str
    flags: tuple[str, ...]  # what limits the conclusions about it

    @property
    def size(self) -> tuple[int, int]:
        """Width and depth."""
        return self.curve.width, self.curve.depth

    @property
    def edge(self) -> str:
        """``lowest of the grid`` or ``highest of the grid`` if the optimum is there; else empty."""
        return self.optimum.flag if self.optimum and self.optimum.flag in opt.EDGES else ""

    @property
    def bracketed(self) -> bool:
        """Whether the optimum lies inside the grid."""
        return self.optimum is not None and self.optimum.flag in ("", opt.NEXT_TO_DIVERGENCE)

    @property
    def trains(self) -> bool:
        """Whether the network trains at any x; if it does not, its optimum is meaningless."""
        return self.optimum is not None and UNTRAINED not in self.flags


@dataclasses.dataclass(frozen=True)
class Slope:
    """Exponent d log2(x*) / d log2(size)."""

    estimate: opt.Estimate | None  # None for fewer than three sizes
    fixed: int  # value of the other size
    used: tuple[int, ...]  # sizes that train and have an optimum inside the grid
    left_out: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Variant:
    """Results of one variant."""

    name: str  # short; empty if the sweep has only one
    base: Row  # the size from which hyperparameters are transferred
    base_is_smallest: bool  # it replaces a base size that is not in the sweep
    # The loss before learning: of the best constant guess if the sweep knows it (`data.chance_loss`); else
    # the base's training loss in the first time slice at its best x.
    initial_loss: float
    most: float  # of a mean loss in a fit, see `belonging`: the constant guess's, or twice that of the first time slice
    rows: tuple[Row, ...]  # one per size, ascending
    slopes: dict[str, Slope]  # by depth and width, where at least three sizes were run

    @property
    def transferred(self) -> float | None:
        """The grid value of x that is best at the base."""
        return float(self.base.curve.x[self.base.optimum.grid]) if self.base.optimum else None


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

    def rows(self, rows: Sequence[Row]) -> list[Row]:
        """The rows on this axis."""
        return [r for r in rows if r.curve.size(self.name) in self.sizes and r.curve.size(self.other) == self.fixed]


@dataclasses.dataclass(frozen=True)
class Analysis:
    """A sweep analyzed along one axis, ``scale``."""

    scale: Scale
    other: Scale | None  # the second continuous axis, over which each point's mean is minimized, if there is one
    surfaces: tuple[Surface, ...]
    variants: tuple[Variant, ...]
    axes: tuple[SizeAxis, ...]  # along which sizes vary; one with a single size if none does
    loss: str = TRAIN  # of all curves, a key of `LOSSES`
    knows_chance: bool = False  # whether every `Variant.initial_loss` is that of the best constant guess
    is_own: bool = False  # whether the runs are those of somebody's table, which says no more than its columns

    @property
    def initial_loss_name(self) -> str:
        """Where `Variant.initial_loss` comes from, for sentences."""
        if self.is_own:
            return "before learning"
        return "of a constant guess" if self.knows_chance else "of the base's first steps"

    @property
    def loss_name(self) -> str:
        """For sentences: ``training loss``."""
        return "loss" if self.is_own and self.loss == TRAIN else LOSSES[self.loss]

    @property
    def rows(self) -> list[Row]:
        """Of all variants."""
        return [row for variant in self.variants for row in variant.rows]

    def along(self, name: str) -> SizeAxis | None:
        """The axis along which that size varies, if it does."""
        return next((axis for axis in self.axes if axis.name == name), None)


def analyze(
    info: SweepInfo,
    records: Sequence[Record],
    loss: str = TRAIN,
    planned: Sequence[float] = (),
    unfinished: Mapping[tuple[int, int], Sequence[float]] | None = None,
) -> Analysis:
    """Optimum, shift, regret and exponents, by a loss of `LOSSES`.

    Sizes that lack one of the ``planned`` values of x, or have an ``unfinished`` one, are incomplete. Raises InputError
    if all runs diverged, or no point has all of its seeds.
    """
    scale, other, _ = roles(info)
    grids = surfaces(info, records, loss)
    if all((surface.diverged == surface.ended).all() for surface in grids):
        raise InputError(f"all {len(records)} runs diverged: sweep lower values of {scale.axis}, or check the data.")
    curves = [curve for curve in map(profile, grids) if len(curve.x)]
    if not curves:
        raise InputError("no point of the sweep has all of its seeds: rerun the sweep command to resume it.")
    axes, pending, is_own = _size_axes(info, curves), unfinished or {}, info.scale == OWN
    variants = []
    for name in dict.fromkeys(curve.variant for curve in curves):
        own = [curve for curve in curves if curve.variant == name]
        base, is_smallest = _base(info, own)
        at, initial_loss = own.index(base), _first_loss(base) if info.chance is None else info.chance
        most = exploded(initial_loss) if info.chance is None else initial_loss
        optima = [opt.find_optimum(scale.coordinate(curve.x), curve.losses, most=most) for curve in own]
        regrets = [_regret(scale, curve, optima[at], most) for curve in own]
        rows = tuple(
            _row(
                curve,
                best,
                base,
                optima[at],
                regret,
                initial_loss,
                [*planned, *pending.get((curve.width, curve.depth), ())],
            )
            for curve, best, regret in zip(own, optima, regrets, strict=True)
        )
        slopes = {axis.name: _slope(rows, axis) for axis in axes if scale.log and len(axis.sizes) > 2}
        variants.append(Variant(name, rows[at], is_smallest, initial_loss, most, rows, slopes))
    return Analysis(scale, other, tuple(grids), tuple(variants), tuple(axes), loss, info.chance is not None, is_own)


def _size_axes(info: SweepInfo, curves: Sequence[Curve]) -> list[SizeAxis]:
    """Depth and width, where they have two values at one value of the other: the base's, or the one with most sizes."""
    axes = []
    for name, other in (("depth", "width"), ("width", "depth")):
        sizes: dict[int, set[int]] = {}
        for curve in curves:
            sizes.setdefault(curve.size(other), set()).add(curve.size(name))
        base = _base_size(info, other)
        fixed = base if len(sizes.get(base, ())) > 1 else max(sizes, key=lambda s: (len(sizes[s]), -s))
        if len(sizes[fixed]) > 1:
            axes.append(SizeAxis(name, tuple(sorted(sizes[fixed])), fixed))
    return axes or [SizeAxis("depth", (curves[0].depth,), curves[0].width)]


def _base_size(info: SweepInfo, name: str) -> int:
    """The configured base size; 0 in a config means the network's own size."""
    model = info.base.get("model", {})
    size = model.get(f"base_{name}") or model.get(name)
    return size if isinstance(size, int) else 0


def _base(info: SweepInfo, curves: Sequence[Curve]) -> tuple[Curve, bool]:
    """The curve at the base size; else, and True, the one at the smallest depth and width."""
    at_base = list(curves)
    for name in ("width", "depth"):
        if len({curve.size(name) for curve in curves}) > 1:
            at_base = [curve for curve in at_base if curve.size(name) == _base_size(info, name)]
    return (at_base[0], False) if at_base else (min(curves, key=lambda c: (c.depth, c.width)), True)


def exploded(initial_loss: float) -> float:
    """The loss above which a network does not train: twice the loss before learning; likelihoods may be negative."""
    return initial_loss + abs(initial_loss)


def _first_loss(base: Curve) -> float:
    """The mean over seeds in the first time slice at the best x; NaN if it is unknown."""
    means = base.losses.mean(0)
    known = np.isfinite(means).any() and base.slices.shape[-1]
    return float(base.slices[:, np.nanargmin(means), 0].mean()) if known else math.nan


def _row(
    curve: Curve,
    best: opt.Optimum | None,
    base: Curve,
    base_best: opt.Optimum | None,
    regret: opt.Estimate | str,
    initial_loss: float,
    planned: Sequence[float],
) -> Row:
    missing = np.array([value for value in planned if not np.isclose(curve.x, value, rtol=1e-9, atol=0).any()])
    # While values beyond an end are pending, an optimum at that end is not at the edge of the grid.
    unknown = {opt.EDGE_LOW: any(missing < curve.x[0]), opt.EDGE_HIGH: any(missing > curve.x[-1])}
    trains = not (best and best.loss.value > exploded(initial_loss))
    flags = [] if best else [ALL_DIVERGED]
    if not trains:
        flags.append(UNTRAINED)
    elif best and best.flag and not unknown.get(best.flag):
        flags.append(best.flag)
    flags += {1: [ONE_SEED], 2: [FEW_SEEDS]}.get(len(curve.seeds), [])
    flags += [INCOMPLETE] if curve.incomplete or len(missing) else []
    shift, bound = (None, "") if curve is base or not trains else _shift(best, base_best)
    return Row(curve, best, shift, bound, regret if trains else UNTRAINED, tuple(flags))


def _regret(scale: Scale, curve: Curve, base_best: opt.Optimum | None, most: float) -> opt.Estimate | str:
    coordinates = scale.coordinate(curve.x)
    if base_best is None or not coordinates[0] <= base_best.at.value <= coordinates[-1]:
        return NOT_RUN
    return opt.regret(coordinates, curve.losses, base_best, most=most) or DIVERGED


def _shift(best: opt.Optimum | None, base: opt.Optimum | None) -> tuple[opt.Estimate | None, str]:
    """The difference, and ``<=`` or ``>=`` if it is a bound; unknown if two edges bound it in opposite directions."""
    if best is None or base is None:
        return None, ""
    above = {opt.EDGE_HIGH: ">=", opt.EDGE_LOW: "<="}.get(best.flag, "")
    below = {opt.EDGE_HIGH: "<=", opt.EDGE_LOW: ">="}.get(base.flag, "")
    if (above and below and above != below) or opt.ONE_VALUE in (best.flag, base.flag):
        return None, ""
    return best.at - base.at, above or below


def _slope(rows: Sequence[Row], axis: SizeAxis) -> Slope:
    rows = axis.rows(rows)
    used = {r.curve.size(axis.name): r.optimum.at for r in rows if r.bracketed and r.trains and r.optimum}
    estimate = opt.slope([math.log2(size) for size in used], list(used.values()))
    sizes = [row.curve.size(axis.name) for row in rows]
    return Slope(estimate, axis.fixed, tuple(used), tuple(size for size in sizes if size not in used))
