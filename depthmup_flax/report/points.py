"""The points of all curves: the values that a figure shows on hovering, and the lines of ``points.csv``."""

from __future__ import annotations

import csv
import dataclasses
import io
from typing import Any

import numpy as np

from depthmup_flax.report.loss_surfaces import Curve, Network, Surface
from depthmup_flax.report.transfer import Analysis
from depthmup_flax.util.types import Json


@dataclasses.dataclass(frozen=True)
class Point:
    """One network at one x, over its seeds."""

    variant: str
    width: int
    depth: int
    parameters: int
    x: float
    second: float | None  # value of the second continuous axis, if the sweep has one; on a curve the best for this x
    mean: float | None  # loss; None if a run diverged or has not ended
    sd: float | None  # over seeds; None where the mean is, and for one seed
    n: int  # runs that ended
    diverged: int  # of these


def curve_points(curve: Curve, analysis: Analysis) -> list[Point]:
    """The points of one curve, ascending in x."""
    arrays = zip(curve.x, curve.best_y, curve.losses.T, curve.diverged, strict=True)
    return [_point(analysis, curve, x, y, losses, len(curve.seeds), bad) for x, y, losses, bad in arrays]


def surface_points(surface: Surface, analysis: Analysis) -> list[Point]:
    """The points of one surface at which a run has ended, ascending in y, then x."""
    s = surface
    return [
        _point(analysis, s, s.x[j], s.y[i], s.losses[:, i, j], s.ended[i, j], s.diverged[i, j])
        for i, j in np.argwhere(s.ended > 0)
    ]


def _point(
    analysis: Analysis, network: Network, x: float, y: float, losses: np.ndarray, n: int, diverged: int
) -> Point:
    mean, sd = mean_and_sd(losses)
    sizes = network.variant, network.width, network.depth, network.parameters
    return Point(*sizes, float(x), float(y) if analysis.other else None, mean, sd, int(n), int(diverged))


def mean_and_sd(losses: np.ndarray) -> tuple[float | None, float | None]:
    """Mean and standard deviation of losses (S,); ``None`` for what is unknown."""
    if not np.isfinite(losses).all():
        return None, None
    return float(losses.mean()), float(losses.std(ddof=1)) if len(losses) > 1 else None


def loss_text(mean: float | None, sd: float | None, n: int, diverged: int = 0) -> str:
    """``mean loss 1.234, sd 0.012, n = 3``."""
    if mean is None:
        return f"{diverged} of {n} runs diverged" if diverged else f"no mean yet, n = {n}"
    return f"mean loss {mean:.5g}, " + (f"sd {sd:.2g}, " if sd is not None else "") + f"n = {n}"


def size_text(network: Network | Point) -> str:
    """``completep, width 128, depth 4``."""
    return ", ".join(filter(None, (network.variant, f"width {network.width}", f"depth {network.depth}")))


def point_text(point: Point, analysis: Analysis) -> str:
    """What a point shows on hovering, in three lines."""
    at = f"{analysis.scale.name} {point.x:.4g}"
    if analysis.other and point.second is not None:
        at += f", {analysis.other.name} {point.second:.4g}"
    return f"{size_text(point)}\n{at}\n{loss_text(point.mean, point.sd, point.n, point.diverged)}"


def points_csv(analysis: Analysis) -> str:
    """A line per point of all surfaces, with the names of the axes as columns."""
    names = [field.name for field in dataclasses.fields(Point)]
    columns = {"x": analysis.scale.axis, "second": analysis.other.axis if analysis.other else None}
    shown = [name for name in names if columns.get(name, name)]
    points = [point for surface in analysis.surfaces for point in surface_points(surface, analysis)]
    head = [columns.get(name, name) for name in shown]
    return _csv([head, *([getattr(point, name) for name in shown] for point in points)])


def tables_csv(data: Json) -> str:
    """The rows of all variants of an `as_data`; an interval takes two columns."""
    lines = [{"variant": variant["name"], **_flat(row)} for variant in data["variants"] for row in variant["rows"]]
    names = list(dict.fromkeys(name for line in lines for name in line))
    return _csv([names, *([line.get(name) for name in names] for line in lines)])


def _flat(row: Json) -> Json:
    flat: Json = {}
    for name, value in row.items():
        if name.endswith("interval"):
            flat[f"{name}_low"], flat[f"{name}_high"] = value or (None, None)
        elif isinstance(value, dict):
            flat[name] = "; ".join(f"{entry} at {key}" for key, entry in value.items())
        elif isinstance(value, (list, tuple)):
            flat[name] = "; ".join(map(str, value))
        else:
            flat[name] = value
    return flat


def _csv(lines: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
