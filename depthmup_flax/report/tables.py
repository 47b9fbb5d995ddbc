"""A study as data for programs, as plain text, and as sentences about what to be careful with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from depthmup_flax.records import DIVERGED, Sweep
from depthmup_flax.report import analysis
from depthmup_flax.report import optimum as opt
from depthmup_flax.report.analysis import Row, Slope, Study, Variant, power_laws
from depthmup_flax.report.landscapes import sublevel_slope
from depthmup_flax.report.loss_surfaces import number, short

HEADER = ("width", "depth", "seeds", "best {x}", "95 % interval", "shift", "regret", "best loss", "remarks")
_SENTENCES = {
    opt.EDGE_LOW: "The lowest {x} of the grid is best at {where}: the optimum may lie below it, extend the grid.",
    opt.EDGE_HIGH: "The highest {x} of the grid is best at {where}: the optimum may lie above it, extend the grid.",
    opt.ONE_VALUE: "Only one {x} was run at {where}: there is nothing to compare it with.",
    opt.NEXT_TO_DIVERGENCE: "Runs diverged right beside the best {x} at {where}: the optimum there is a grid point, "
    "known to half a grid step.",
    analysis.ALL_DIVERGED: "Every {x} has a diverged run at {where}: there is no optimum, try lower learning rates.",
    analysis.INCOMPLETE: "Some runs have not ended at {where}: points without all of their seeds are left out.",
    analysis.USELESS: "At no {x} does the loss fall below twice the base's at {where}: that network does not train.",
    analysis.FEW_SEEDS: "There are two seeds only at {where}: intervals are wide, and wrong if one seed is odd.",
    analysis.ONE_SEED: "There is one seed only at {where}: nothing is known about the noise, no interval is given.",
}


def sentences(sweep: Sweep, study: Study) -> list[str]:
    """Notes of the reader of files, what is missing, and every flag once with the sizes that it is about."""
    said = list(sweep.notes)
    if not study.scale.log:
        said.append(f"The values of {study.scale.name} are not all positive: shifts are differences, not octaves.")
    for variant in study.variants:
        if variant.base_is_smallest:
            curve, named = variant.base.curve, f"{variant.name}: t" if variant.name else "T"
            said.append(
                f"{named}he base size is not in the sweep; width {curve.width}, depth {curve.depth} stands in for it."
            )
    for flag, sentence in _SENTENCES.items():
        where = [place for variant in study.variants if (place := _where(variant, flag))]
        every = all(flag in row.flags for variant in study.variants for row in variant.rows)
        if where:
            said.append(sentence.format(x=study.scale.name, where="every size" if every else "; ".join(where)))
    return said


def _where(variant: Variant, flag: str) -> str:
    depths: dict[int, list[str]] = {}
    for row in variant.rows:
        if flag in row.flags:
            depths.setdefault(row.curve.width, []).append(str(row.curve.depth))
    sizes = ", ".join(f"width {width} depth {'/'.join(found)}" for width, found in depths.items())
    return f"{variant.name} ({sizes})" if sizes and variant.name else sizes


def as_data(sweep: Sweep, study: Study) -> dict[str, Any]:
    """What ``report.json`` holds: JSON values only, six digits, ``None`` for what is not known."""
    info, records = sweep.info, sweep.records
    return {
        "figure": info.figure,
        "title": info.title,
        "scale": info.scale,
        "x": info.x,
        "second": study.other.axis if study.other else None,
        "axes": {**info.axes, info.x: sorted(info.axes[info.x])},  # shards may have added values at its ends
        "runs": len(records),
        "diverged": sum(record.status == DIVERGED for record in records),
        "seeds": sorted({record.seed for record in records}),
        "devices": sorted({record.device for record in records}),
        "versions": sorted({f"{k} {v}" for record in records for k, v in record.versions.items()}),
        "commits": sorted({record.commit or "unknown" for record in records}),
        "hours": rounded(math.fsum(record.wall_time_s for record in records) / 3600),
        "notes": sentences(sweep, study),
        "variants": [_variant_data(study, variant) for variant in study.variants],
        "sublevel_slopes": _sublevel_data(study),
    }


def _variant_data(study: Study, variant: Variant) -> dict[str, Any]:
    base = variant.base.curve
    return {
        "name": variant.name,
        "base": {"width": base.width, "depth": base.depth, "is_smallest": variant.base_is_smallest},
        "transferred": rounded(variant.transferred),
        "rows": [_row_data(study, row) for row in variant.rows],
        "slopes": {name: _slope_data(slope) for name, slope in variant.slopes.items()},
        "power_laws": {
            f"equal_{name}": {str(size): _estimate_data(law) for size, law in laws.items()}
            for name, laws in power_laws(variant.rows).items()
        },
    }


def _row_data(study: Study, row: Row) -> dict[str, Any]:
    curve, best, scale = row.curve, row.optimum, study.scale
    ends = best.at.interval if best else None
    lost = row.regret if isinstance(row.regret, opt.Estimate) else None
    grid = curve.x[best.grid] if best else None
    return {
        "width": curve.width,
        "depth": curve.depth,
        "parameters": curve.parameters,
        "seeds": len(curve.seeds),
        "optimum": rounded(scale.value(best.at.value)) if best else None,
        "interval": [rounded(scale.value(end)) for end in ends] if ends else None,
        "grid_optimum": rounded(grid),
        "second_at_grid_optimum": rounded(curve.best_y[best.grid]) if best and study.other else None,
        "shift": rounded(row.shift.value) if row.shift else None,
        "shift_bound": row.bound,
        "shift_interval": _interval(row.shift),
        "regret": rounded(lost.value) if lost else None,
        "regret_interval": _interval(lost, least=0.0),
        "transferred": "completed" if lost else row.regret,
        "best_loss": rounded(best.loss.value) if best else None,
        "best_loss_interval": _interval(best.loss) if best else None,
        "diverged": {
            number(float(x)): f"{n}/{len(curve.seeds)}" for x, n in zip(curve.x, curve.diverged, strict=True) if n
        },
        "flags": list(row.flags),
    }


def _slope_data(slope: Slope) -> dict[str, Any]:
    found = {"fixed": slope.fixed, "sizes": list(slope.used), "left_out": list(slope.left_out)}
    return {**(_estimate_data(slope.estimate) if slope.estimate else {"value": None, "interval": None}), **found}


def _sublevel_data(study: Study) -> list[dict[str, Any]]:
    if study.other is None:
        return []
    found = []
    for surface in study.surfaces:
        slope = sublevel_slope(surface, study.scale, study.other)
        sizes = {"variant": surface.variant, "width": surface.width, "depth": surface.depth}
        ends = [rounded(end) for end in slope[1]] if slope and slope[1] else None
        found.append({**sizes, "slope": rounded(slope[0]) if slope else None, "interval": ends})
    return found


def _estimate_data(estimate: opt.Estimate) -> dict[str, Any]:
    return {"value": rounded(estimate.value), "interval": _interval(estimate)}


def _interval(estimate: opt.Estimate | None, least: float = -math.inf) -> list[float | None] | None:
    ends = estimate.interval if estimate else None
    return [rounded(max(end, least)) for end in ends] if ends else None


def rounded(value: float | None) -> float | None:
    """Six digits; ``None`` for what is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def table_rows(variant: dict[str, Any]) -> list[tuple[str, ...]]:
    """A variant of `as_data` as the cells under `HEADER`."""
    base = (variant["base"]["width"], variant["base"]["depth"])
    return [_cells(row, (row["width"], row["depth"]) == base) for row in variant["rows"]]


def _cells(row: dict[str, Any], is_base: bool) -> tuple[str, ...]:
    bound = f"{row['shift_bound']} ".lstrip()
    shift = f"{bound}{row['shift']:+.2f}{_plus_minus(row, 'shift')}" if row["shift"] is not None else "?"
    lost = _four(row["regret"]) if row["regret"] else "0"  # exactly: the same grid point is best
    regret = lost + _plus_minus(row, "regret") if row["regret"] is not None else row["transferred"]
    return (
        str(row["width"]),
        str(row["depth"]),
        str(row["seeds"]),
        _three(row["optimum"]),
        "{} .. {}".format(*map(_three, row["interval"])) if row["interval"] else "",
        "base" if is_base else shift,
        "base" if is_base else regret,
        "" if row["best_loss"] is None else _four(row["best_loss"]),
        # The column of seeds says how few they are.
        ", ".join(flag for flag in row["flags"] if flag not in (analysis.ONE_SEED, analysis.FEW_SEEDS)),
    )


def _four(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.2e}"


def _three(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def _plus_minus(row: dict[str, Any], name: str) -> str:
    ends = row[f"{name}_interval"]
    return f" ± {ends[1] - row[name]:.2g}" if ends and ends[1] > row[name] else ""


def slope_sentences(variant: dict[str, Any], x: str) -> list[str]:
    """The fitted exponents of one variant of `as_data`."""
    said = []
    for name, slope in variant["slopes"].items():
        other = "width" if name == "depth" else "depth"
        why = "useless or without an optimum inside the grid"
        left = f"; {_sizes(slope['left_out'])} left out, {why}" if slope["left_out"] else ""
        at = f"at {other} {slope['fixed']}, from {name} {_sizes(slope['sizes']) or 'none'}{left}"
        if slope["value"] is None:
            said.append(f"Best {x} against {name}: no exponent, three sizes are needed ({at}).")
            continue
        ends = slope["interval"]
        interval = f"95 % interval {ends[0]:+.2f} to {ends[1]:+.2f}" if ends else "no interval"
        said.append(f"Best {x} ~ {name}^{slope['value']:+.2f} ({interval}; {at}); 0 is perfect transfer.")
    return said


def _sizes(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


def header(data: dict[str, Any]) -> tuple[str, ...]:
    """`HEADER` with the name of x."""
    return tuple(name.format(x=short(data["x"]).replace("_", " ")) for name in HEADER)


def explanation(study: Study) -> str:
    """How to read the columns."""
    x = study.scale.name
    return (
        f"shift: best {x} minus the base's, in {study.scale.unit}; 0 is perfect transfer. "
        f"regret: what is lost, in training loss, by keeping the base's best {x} instead of tuning it anew. "
        f"± and intervals: 95 %, over seeds."
    )


def as_text(data: dict[str, Any], study: Study) -> str:
    """Everything for a terminal."""
    lines = [data["title"], f"{data['runs']} runs, {data['diverged']} diverged"]
    lines += ["", *(f"note: {note}" for note in data["notes"])] if data["notes"] else []
    for variant in data["variants"]:
        cells = [header(data), *table_rows(variant)]
        widths = [max(len(row[k]) for row in cells) for k in range(len(HEADER))]
        lines += ["", variant["name"]] if variant["name"] else [""]
        lines += [
            "  ".join(c.rjust(w) if k < 8 else c for k, (c, w) in enumerate(zip(row, widths, strict=True)))
            for row in cells
        ]
        lines += slope_sentences(variant, study.scale.name)
    return "\n".join([*lines, "", explanation(study)])
