"""Notes of a report: what limits its conclusions, and what helps."""

from __future__ import annotations

from depthmup_flax.report import optimum as opt
from depthmup_flax.report import transfer
from depthmup_flax.report.loss_surfaces import EVALUATED
from depthmup_flax.report.transfer import Analysis, Variant
from depthmup_flax.storage.records.table import TRAIN, Sweep

_WARNINGS = {
    opt.EDGE_LOW: "The optimum is at the lowest {x} of the grid at {where}: it may lie below. Extend the grid.",
    opt.EDGE_HIGH: "The optimum is at the highest {x} of the grid at {where}: it may lie above. Extend the grid.",
    opt.ONE_VALUE: "Only one {x} was run at {where}: there is nothing to compare it with.",
    opt.NEXT_TO_DIVERGENCE: "The loss diverges, or is 100 times as high, next to the best {x} at {where}: the optimum "
    "there is a grid point, known to half a grid step.",
    transfer.ALL_DIVERGED: "Every {x} has a diverged run at {where}: there is no optimum. Try lower learning rates.",
    transfer.INCOMPLETE: "Some runs have not ended at {where}: points that lack a seed are left out.",
    transfer.FEW_SEEDS: "There are only two seeds at {where}: intervals are wide, and wrong if one seed is an outlier.",
    transfer.ONE_SEED: "There is only one seed at {where}: the noise is unknown, so no interval is given.",
}


def warnings(sweep: Sweep, analysis: Analysis) -> list[str]:
    """Notes on the files, missing sizes, and every flag once with the sizes that have it."""
    lines = list(sweep.notes)
    if analysis.loss != TRAIN:
        lines.append(
            f"All losses are {EVALUATED[analysis.loss]}, after training. Curves and claims over training time are left "
            "out."
        )
    if not analysis.scale.log:
        lines.append(f"Not all values of {analysis.scale.name} are positive: shifts are differences, not octaves.")
    for variant in analysis.variants:
        if variant.base_is_smallest:
            base, start = variant.base.curve, f"{variant.name}: the" if variant.name else "The"
            lines.append(f"{start} base size is not in the sweep: width {base.width}, depth {base.depth} replaces it.")
    for flag, warning in _WARNINGS.items():
        where = [place for variant in analysis.variants if (place := _where(variant, flag))]
        if where:
            every = all(flag in row.flags for row in analysis.rows)
            lines.append(warning.format(x=analysis.scale.name, where="every size" if every else "; ".join(where)))
    return lines


def _where(variant: Variant, flag: str) -> str:
    """The sizes of a variant that have a flag; empty if none has."""
    depths: dict[int, list[str]] = {}
    for row in variant.rows:
        if flag in row.flags:
            depths.setdefault(row.curve.width, []).append(str(row.curve.depth))
    sizes = ", ".join(f"width {width} depth {'/'.join(of_width)}" for width, of_width in depths.items())
    return f"{variant.name} ({sizes})" if sizes and variant.name else sizes
