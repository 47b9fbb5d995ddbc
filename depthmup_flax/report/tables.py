"""An analysis as data for programs, as plain text and as CSV, with notes on what limits it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from depthmup_flax.report import optimum as opt
from depthmup_flax.report import presets, settings, transfer
from depthmup_flax.report.contrasts import contrasts, headline, is_contrast, main_verdict
from depthmup_flax.report.loss_surfaces import EVALUATED, LOSSES, axis_name, number
from depthmup_flax.report.transfer import Analysis, Row, Variant
from depthmup_flax.report.verdict import Verdict, verdicts
from depthmup_flax.report.yardstick import TOLERANCE
from depthmup_flax.storage.records import MEANS_DIVERGED, TRAIN, Sweep
from depthmup_flax.util.errors import printable
from depthmup_flax.util.table import Table
from depthmup_flax.util.types import Json

_GIVEN = ("tolerance", "axes")  # numbers that are not rounded
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
_SHOWN_ELSEWHERE = (transfer.ONE_SEED, transfer.FEW_SEEDS, transfer.UNTRAINED)


def as_data(
    sweep: Sweep,
    analysis: Analysis,
    tolerance: float = TOLERANCE,
    compared: Sweep | None = None,
    other: Analysis | None = None,
) -> Json:
    """The content of ``report.json``: JSON values only, ``None`` for unknown numbers; arguments: see `make_report`.

    ``other`` is the sweep by another loss, which is judged, too.
    """
    info, records = sweep.info, sweep.records
    judged = verdicts(analysis, tolerance, other)
    main = main_verdict(analysis, judged)
    against = contrasts(analysis, main.axis, other) if main else []
    in_headline = [main, *(one for one in judged if main and is_contrast(one, main, against))]
    comparison = presets.comparison_data(compared) if compared else None
    data = {
        "headline": presets.headline(comparison)
        if comparison and compared is sweep
        else headline(analysis, main, against),
        "verdicts": [{**_verdict_data(one), "in_headline": one in in_headline} for one in judged],
        "contrasts": [
            {
                "control": one.control,
                "verdict": one.verdict,
                "verdict_by_other_loss": one.other_loss,
                "difference": estimate_data(one.estimate),
                "sentence": one.sentence,
            }
            for one in against
        ],
        "tolerance": tolerance,
        "figure": info.figure,
        "title": info.title,
        "scale": info.scale,
        "x": info.x,
        "loss": analysis.loss,
        "other_loss": other.loss if other else None,
        "second": analysis.other.axis if analysis.other else None,
        "axes": {**info.axes, info.x: sorted(info.axes[info.x])},  # shards may have added values at its ends
        "settings": settings.settings(info, analysis),
        "runs": len(records),
        "diverged": sum(int(surface.diverged.sum()) for surface in analysis.surfaces),
        "seeds": sorted({record.seed for record in records}),
        "devices": sorted({record.device for record in records}),
        "versions": sorted({f"{k} {v}" for record in records for k, v in record.versions.items()}),
        "commits": sorted({record.commit for record in records if record.commit}),
        "hours": math.fsum(record.wall_time_s for record in records) / 3600,
        "notes": warnings(sweep, analysis),
        "variants": [_variant_data(analysis, variant) for variant in analysis.variants],
        "comparison": comparison,
    }
    return {name: _plain(value, digits=17 if name in _GIVEN else 6) for name, value in data.items()}


def _verdict_data(one: Verdict) -> Json:
    row, ruler = one.row, one.measured_by
    return {
        "variant": one.variant,
        "axis": one.axis,
        "width": row.curve.width,
        "depth": row.curve.depth,
        "verdict": one.verdict,
        "verdict_by_other_loss": one.other_loss,
        "regret": estimate_data(row.regret if isinstance(row.regret, opt.Estimate) else None),
        "tolerance": ruler.tolerance if ruler else None,
        "passing": {"octaves": ruler.passing, "grid": ruler.grid} if ruler else None,
        "power": ruler.power if ruler else None,
        "seeds": len(row.curve.seeds),
        "seeds_needed": one.seeds_needed,
        "sentence": one.sentence,
    }


def _plain(value: Any, digits: int) -> Any:
    """JSON values with rounded numbers, ``None`` for NaN and infinity, and `printable` text: files may be hostile."""
    if isinstance(value, dict):
        return {printable(name): _plain(entry, digits) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry, digits) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return printable(value) if isinstance(value, str) else value


def _variant_data(analysis: Analysis, variant: Variant) -> Json:
    base = variant.base.curve
    return {
        "name": variant.name,
        "base": {"width": base.width, "depth": base.depth, "is_smallest": variant.base_is_smallest},
        "initial_loss": variant.initial_loss,
        "transferred": variant.transferred,
        "rows": [_row_data(analysis, row) for row in variant.rows],
        "slopes": {
            name: {**estimate_data(s.estimate), "fixed": s.fixed, "sizes": s.used, "left_out": s.left_out}
            for name, s in variant.slopes.items()
        },
    }


def _row_data(analysis: Analysis, row: Row) -> Json:
    curve, scale = row.curve, analysis.scale
    best = row.optimum if row.trains else None  # a network that does not train has no optimum
    ends, shift = (best.at.interval if best else None), estimate_data(row.shift)
    loss = estimate_data(row.optimum.loss if row.optimum else None)
    transferred = isinstance(row.regret, opt.Estimate)
    # With one value of x there is nothing to compare it with.
    regret = row.regret if isinstance(row.regret, opt.Estimate) and opt.ONE_VALUE not in row.flags else None
    regret_ends = regret.interval if regret else None
    return {
        "width": curve.width,
        "depth": curve.depth,
        "parameters": curve.parameters,
        "seeds": len(curve.seeds),
        "optimum": scale.value(best.at.value) if best else None,
        "interval": [scale.value(end) for end in ends] if ends else None,
        "grid_optimum": curve.x[best.grid] if best else None,
        "second_at_grid_optimum": curve.best_y[best.grid] if best and analysis.other else None,
        "shift": shift["value"],
        "shift_bound": row.bound,
        "shift_interval": shift["interval"],
        "regret": regret.value if regret else None,
        "regret_interval": [max(end, 0.0) for end in regret_ends] if regret_ends else None,
        "transferred": "completed" if transferred else row.regret,
        "best_loss": loss["value"],
        "best_loss_interval": loss["interval"],
        "diverged": {
            number(float(x)): f"{n}/{len(curve.seeds)}" for x, n in zip(curve.x, curve.diverged, strict=True) if n
        },
        "flags": row.flags,
    }


def estimate_data(estimate: opt.Estimate | None) -> Json:
    """``value``, and its interval, of an estimate."""
    return {"value": estimate.value, "interval": estimate.interval} if estimate else {"value": None, "interval": None}


def table_of(data: Json, variant: Json) -> Table:
    """A variant of `as_data`, a row per size."""
    columns = [
        *("width", "depth", "seeds", f"best {axis_name(data['x'])}", "95 % interval", "shift", "regret"),
        "best loss" if data["loss"] == TRAIN else f"best {LOSSES[data['loss']]}",
        "remarks",
    ]
    base = (variant["base"]["width"], variant["base"]["depth"])
    rows = [_cells(row, (row["width"], row["depth"]) == base) for row in variant["rows"]]
    return Table(columns, rows, ">" * (len(columns) - 1) + "<", variant["name"])


def _cells(row: Json, is_base: bool) -> tuple[str, ...]:
    four = lambda value: f"{value:.4f}" if abs(value) < 1000 else f"{value:.2e}"
    shift, regret = "?", "?" if row["transferred"] == "completed" else row["transferred"]
    if row["shift"] is not None:
        ends = row["shift_interval"]
        half = f" ± {ends[1] - row['shift']:.2g}" if ends and ends[1] > row["shift"] else ""
        shift = f"{row['shift_bound']} {row['shift']:+.2f}{half}".lstrip()
    if row["regret"] is not None:
        ends = row["regret_interval"]
        regret = four(row["regret"]) + (" ({} to {})".format(*map(four, ends)) if ends else "")
    return (
        *(str(row[name]) for name in ("width", "depth", "seeds")),
        "none" if row["optimum"] is None else f"{row['optimum']:.3g}",
        "{:.3g} .. {:.3g}".format(*row["interval"]) if row["interval"] else "",
        *(("base", "base") if is_base else (shift, regret)),
        "" if row["best_loss"] is None else four(row["best_loss"]),
        # The columns of seeds and regret show these.
        ", ".join(flag for flag in row["flags"] if flag not in _SHOWN_ELSEWHERE),
    )


def slope_sentences(variant: Json, x: str) -> list[str]:
    """The fitted exponents of one variant of `as_data`."""
    listed = lambda sizes: ", ".join(map(str, sizes))
    lines = []
    for name, slope in variant["slopes"].items():
        other = "width" if name == "depth" else "depth"
        at = f"at {other} {slope['fixed']}, from {name} {listed(slope['sizes']) or 'none'}"
        if slope["left_out"]:
            at += f"; left out, as they do not train or have no optimum inside the grid: {listed(slope['left_out'])}"
        if slope["value"] is None:
            lines.append(f"Best {x} against {name}: no exponent, which takes at least three sizes ({at}).")
            continue
        ends = slope["interval"]
        interval = f"95 % interval {ends[0]:+.2f} to {ends[1]:+.2f}" if ends else "no interval"
        lines.append(f"Best {x} ~ {name}^{slope['value']:+.2f} ({interval}; {at}). 0 is perfect transfer.")
    return lines


def explanation(analysis: Analysis) -> str:
    """How to read the columns."""
    x = analysis.scale.name
    untrained = f" A network does not train if no {x} brings its loss below twice that {analysis.initial_loss_name}."
    return (
        f"shift: best {x} minus the base's, in {analysis.scale.unit}; 0 is perfect transfer. "
        f"regret: {analysis.loss_name} lost by using the base's best {x} instead of tuning it at this size, on fitted "
        f"curves; the base's choice is resampled, too. ± and intervals: 95 %, over seeds."
        + (untrained if any(not row.trains for row in analysis.rows) else "")
    )


def as_text(data: Json, analysis: Analysis) -> str:
    """The report as text for a terminal."""
    lines = [data["headline"], "", data["title"]]
    lines += [f"note: {note}" for note in data["notes"]]
    lines += ["", *presets.comparison_lines(data["comparison"])] if data["comparison"] else []
    for variant in data["variants"]:
        lines += ["", *table_of(data, variant).lines, *slope_sentences(variant, analysis.scale.name)]
    others = other_verdicts(data)
    lines += ["", *others] if others else []
    facts = f"{counts(data)}; {', '.join(data['devices'])}; {duration(data['hours'])}"
    trained = settings.sentence(data["settings"])
    return "\n".join([*lines, "", explanation(analysis), tolerance_sentence(data, analysis), trained, facts])


def counts(data: Json) -> str:
    """``120 runs, 3 diverged (loss not finite)``."""
    return f"{data['runs']} runs, {data['diverged']} diverged ({MEANS_DIVERGED})"


def other_verdicts(data: Json) -> list[str]:
    """The sentences of the verdicts that are not in the headline."""
    return [one["sentence"] for one in data["verdicts"] if not one["in_headline"]]


def duration(hours: float) -> str:
    """``2.1 hours``, ``2.3 minutes`` or ``7 s``."""
    units = (("hours", 1.0), ("minutes", 1 / 60))
    return next((f"{hours / unit:.3g} {name}" for name, unit in units if hours >= unit), f"{3600 * hours:.0f} s")


def tolerance_sentence(data: Json, analysis: Analysis) -> str:
    """What the verdicts mean."""
    better = "The rule transfers better than a control if the whole interval of their regrets' difference is above 0."
    both = "A headline takes both losses."
    return (
        (f"{better} " if data["contrasts"] else "")
        + (f"{both} " if data["other_loss"] else "")
        + f"A rate transfers if the whole interval of the regret is below {100 * data['tolerance']:g} % of what the "
        f"base learned (tolerance), the loss {analysis.initial_loss_name} minus its lowest, and does not if the "
        f"whole interval is above. Would pass: the {analysis.scale.unit} of the grid whose regret is below that; "
        "above half of the grid there is no evidence. Power: the probability that these seeds show transfer if there "
        "is no regret."
    )


def points_csv(analysis: Analysis) -> str:
    """Every network at every x over its seeds, with the names of the axes as columns.

    The mean is empty if a run diverged or has not ended, the standard deviation also for one seed.
    """
    scales = list(filter(None, (analysis.scale, analysis.other)))
    rows = []
    for s in analysis.surfaces:
        for i, j in np.argwhere(s.ended > 0):
            losses = s.losses[:, i, j]
            known = bool(np.isfinite(losses).all())
            sd = float(losses.std(ddof=1)) if known and len(losses) > 1 else None
            at = [float(s.x[j]), float(s.y[i])][: len(scales)]
            mean, counts = float(losses.mean()) if known else None, (int(s.ended[i, j]), int(s.diverged[i, j]))
            rows.append((s.variant, s.width, s.depth, s.parameters, *at, mean, sd, *counts))
    sizes, axes = ("variant", "width", "depth", "parameters"), [scale.axis for scale in scales]
    return Table((*sizes, *axes, "mean", "sd", "n", "diverged"), rows, "").csv()


def tables_csv(data: Json) -> str:
    """The rows of all variants of an `as_data`; an interval takes two columns."""
    lines = [{"variant": variant["name"], **_flat(row)} for variant in data["variants"] for row in variant["rows"]]
    names = list(dict.fromkeys(name for line in lines for name in line))
    return Table(names, [[line.get(name) for name in names] for line in lines], "").csv()


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
        places = []
        for variant in analysis.variants:
            depths: dict[int, list[str]] = {}
            for row in variant.rows:
                if flag in row.flags:
                    depths.setdefault(row.curve.width, []).append(str(row.curve.depth))
            sizes = ", ".join(f"width {width} depth {'/'.join(of_width)}" for width, of_width in depths.items())
            places += [f"{variant.name} ({sizes})" if variant.name else sizes] if depths else []
        if places:
            every = all(flag in row.flags for row in analysis.rows)
            lines.append(warning.format(x=analysis.scale.name, where="every size" if every else "; ".join(places)))
    return lines
