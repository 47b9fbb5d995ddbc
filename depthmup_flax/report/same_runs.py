"""Variants that repeat the runs of another variant, and so are not evidence as controls.

With frozen stem and readout, Adam under ``block_only`` at a rate is ``depth_mup`` at sqrt(r) times it, run for run.
"""

from __future__ import annotations

import numpy as np

from depthmup_flax.report.loss_surfaces import Curve, Scale
from depthmup_flax.report.transfer import Analysis, Variant

_SAME_LOSS = 1e-5  # relative: the same run but for rounding in float32


def same_runs(analysis: Analysis, variant: Variant, other: Variant, axis: str) -> str:
    """Says that all runs along an axis are those of the other variant, at x times a constant of each size; else empty.

    ``axis``: ``depth`` or ``width``; any other name takes all sizes. The base's runs do not count.
    """
    line = analysis.along(axis)
    rows = line.rows(variant.rows) if line else variant.rows
    theirs = {row.size: row.curve for row in other.rows}
    compared = [row for row in rows if row is not variant.base and row.size in theirs]
    equal = [_equal_runs(analysis.scale, row.curve, theirs[row.size]) for row in compared]
    if not equal or not all(equal):
        return ""
    return f"{variant.name} repeats {other.name}'s runs at shifted {analysis.scale.name}s ({sum(equal)} are equal)"


def _equal_runs(scale: Scale, a: Curve, b: Curve) -> int:
    """How many runs two curves share if one is the other with x moved by a constant; 0 if it is not."""
    if a.seeds != b.seeds:
        return 0
    u, v = scale.coordinate(a.x), scale.coordinate(b.x)
    for shift in sorted(range(1 - len(v), len(u)), key=abs):
        i, j = max(shift, 0), max(-shift, 0)
        n = min(len(u) - i, len(v) - j)
        moved = u[i : i + n] - v[j : j + n]
        ours, theirs = a.losses[:, i : i + n], b.losses[:, j : j + n]
        same = np.allclose(ours, theirs, rtol=_SAME_LOSS, atol=0, equal_nan=True) and np.isfinite(ours).any()
        if n > 1 and same and np.allclose(moved, moved[0], atol=1e-6):
            return ours.size
    return 0
