"""An analysis as data for programs, as plain text and as a page, with notes on what limits it."""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from depthmup_flax.report import optimum as opt
from depthmup_flax.report import transfer
from depthmup_flax.report.contrasts import SAME, contrasts, headline, main_verdict
from depthmup_flax.report.curves import EVALUATED, LOSSES, axis_name, number
from depthmup_flax.report.transfer import Analysis, Row, Variant
from depthmup_flax.report.verdict import (
    MOST_OCTAVES,
    MOST_SEEDS,
    NOT_RESOLVED,
    OPPOSITE,
    SHOWN,
    TOLERANCE,
    Verdict,
    rounded_loss,
    verdicts,
)
from depthmup_flax.storage.run_hash import execution_fields
from depthmup_flax.storage.sweep_records import MEANS_DIVERGED, TRAIN, Sweep, SweepInfo
from depthmup_flax.util.errors import printable
from depthmup_flax.util.table import Table
from depthmup_flax.util.types import Json

_SIZES = ("model.width", "model.depth", "model.stage_sizes")
_GIVEN = ("tolerance", "axes")  # numbers that are not rounded
_MEANINGS = {  # of the remarks on rows
    opt.EDGE_LOW: "the optimum may lie below the grid: extend the grid",
    opt.EDGE_HIGH: "the optimum may lie above the grid: extend the grid",
    opt.ONE_VALUE: "there is nothing to compare it with",
    opt.NEXT_TO_DIVERGENCE: "the loss beside the best {x} diverges or is too high for a fit: known to half a step",
    transfer.ALL_DIVERGED: "every {x} has a diverged run: try lower learning rates",
    transfer.INCOMPLETE: "some runs have not ended: their points are left out",
    transfer.FEW_SEEDS: "there are only two: intervals are wide, and wrong if one seed is an outlier",
    transfer.ONE_SEED: "the noise is unknown, so no interval is given",
}
_AGAINST = {  # verdict on a control -> its words
    SHOWN: "costs more than the rule",
    OPPOSITE: "costs less than the rule",
    NOT_RESOLVED: "costs more or less than the rule, which is not resolved",
    SAME: "costs the same as the rule",
    transfer.UNTRAINED: "does not train",
}
_SHOWN_ELSEWHERE = (transfer.ONE_SEED, transfer.FEW_SEEDS, transfer.UNTRAINED)


def as_data(sweep: Sweep, analysis: Analysis, tolerance: float = TOLERANCE, other: Analysis | None = None) -> Json:
    """The content of ``report.json``, ``None`` for unknown numbers; see `make_report`. ``other``: by another loss."""
    info, records = sweep.info, sweep.records
    judged = verdicts(analysis, tolerance, other)
    main = main_verdict(analysis, judged)
    against = contrasts(analysis, main.axis, other) if main else []
    data = {
        "headline": headline(analysis, main, against, [one for one in judged if main and one.variant == main.variant]),
        "verdicts": [_verdict_data(one) for one in judged],
        "contrasts": [
            {
                "control": one.control,
                "verdict": one.verdict,
                "verdict_by_other_loss": one.other_loss,
                "difference": estimate_data(one.estimate),
                "remark": one.remark,
            }
            for one in against
        ],
        "tolerance": tolerance,
        "figure": info.figure,
        "title": info.title,
        "scale": info.scale,
        "x": info.x,
        "loss": analysis.loss,
        "loss_name": analysis.loss_name,
        "other_loss": other.loss if other else None,
        "axes": {**info.axes, info.x: sorted(info.axes[info.x])},  # shards may have added values at its ends
        "settings": settings(info),
        "runs": len(records),
        "diverged": sum(int(surface.diverged.sum()) for surface in analysis.surfaces),
        "seeds": sorted({record.seed for record in records}),
        "devices": sorted({record.device for record in records}),
        "versions": sorted({f"{k} {v}" for record in records for k, v in record.versions.items()}),
        "commits": sorted({record.commit for record in records if record.commit}),
        "hours": math.fsum(record.wall_time_s for record in records) / 3600,
        "notes": warnings(sweep, analysis),
        "variants": [_variant_data(analysis, variant) for variant in analysis.variants],
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
        "regret": estimate_data(row.regret),
        "tolerance": ruler.tolerance if ruler else None,
        "passing": {"octaves": ruler.passing, "grid": ruler.grid} if ruler else None,
        "seeds": len(row.curve.seeds),
        "seeds_needed": one.seeds_needed,
        "remark": one.remark,
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
    # With one value of x there is nothing to compare it with.
    regret = estimate_data(None if opt.ONE_VALUE in row.flags else row.regret)
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
        "regret": regret["value"],
        "regret_interval": regret["interval"] and [max(end, 0.0) for end in regret["interval"]],
        "transferred": row.regret if isinstance(row.regret, str) else "completed",
        "best_loss": loss["value"],
        "best_loss_interval": loss["interval"],
        "diverged": {
            number(float(x)): f"{n}/{len(curve.seeds)}" for x, n in zip(curve.x, curve.diverged, strict=True) if n
        },
        "flags": row.flags,
    }


def estimate_data(estimate: opt.Estimate | str | None) -> Json:
    """``value``, and its interval, of an estimate; ``None`` without one."""
    known = estimate if isinstance(estimate, opt.Estimate) else None
    return {"value": known and known.value, "interval": known and known.interval}


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a report, as text or on a page: a heading, sentences, a table, sentences below it, and figures."""

    heading: str = ""
    texts: Sequence[str] = ()
    table: Table | None = None
    below: Sequence[str] = ()
    pictures: Sequence[tuple[str, str, str]] = ()  # caption, type, and content in base 64

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.heading, *self.texts, str(self.table or ""), *self.below)))


def sections(data: Json, analysis: Analysis) -> list[Section]:
    """The report as tables and sentences: verdicts, notes, results, how to read them, how they were measured."""
    parts = [Section("Verdicts", table=_verdict_table(data), below=_contrast_sentences(data))] * bool(data["verdicts"])
    if data.get("ladder"):
        parts.append(Section("How far the rate carries", data["ladder"]))
    if data["notes"]:
        parts.append(Section("Notes", data["notes"]))
    for variant in data["variants"]:
        base = (variant["base"]["width"], variant["base"]["depth"])
        rows = [_cells(row, (row["width"], row["depth"]) == base) for row in variant["rows"]]
        best = "loss" if data["loss"] == TRAIN else data["loss_name"]
        x = f"best {axis_name(data['x'])}"
        columns = ("width", "depth", "seeds", x, "95 % interval", "shift", "regret", f"best {best}", "remarks")
        table = Table(columns, rows, ">>>>>>>><")
        parts.append(Section(variant["name"] or "Results", table=table, below=_slope_sentences(variant, data["x"])))
    runs = f"{data['runs']} runs, {data['diverged']} diverged ({MEANS_DIVERGED})"
    facts = {
        "sweep": data["title"] if analysis.is_own else f"{data['title']} ({data['figure']}, {data['scale']})",
        **data["settings"],
        **{axis: ", ".join(map(number, values)) for axis, values in data["axes"].items()},
        "devices": "" if analysis.is_own else "; ".join(data["devices"]),
        "versions": ", ".join(data["versions"]),
        "commits": ", ".join(data["commits"]),
        "runs": runs if analysis.is_own else f"{runs}; {_duration(data['hours'])}",
    }
    measured = Table((), [(name, text) for name, text in facts.items() if text], "<<")
    reading = Section("How to read it", _explanation(data, analysis))
    return [*parts, reading, Section("How it was measured", table=measured)]


def as_text(data: Json, analysis: Analysis) -> str:
    """The report as text for a terminal."""
    return "\n\n".join([data["headline"], data["title"], *map(str, sections(data, analysis))])


def _verdict_table(data: Json) -> Table:
    rows = []
    for one in data["verdicts"]:
        passing = one["passing"] and f"{one['passing']['octaves']:.2g} of {one['passing']['grid']:.2g}"
        unclear = one["verdict"] == NOT_RESOLVED and one["regret"]["interval"] and not one["remark"]
        needed = one["seeds_needed"] or (f"over {MOST_SEEDS}" if unclear else "")
        by_other = (one["verdict_by_other_loss"],) * bool(data["other_loss"])
        ends = (one["variant"], f"width {one['width']}, depth {one['depth']}", one["axis"], one["verdict"], *by_other)
        numbers = (_interval(one["regret"], least=0.0), one["tolerance"], passing or "", str(needed))
        rows.append((*ends, *numbers, one["remark"]))
    by_other = (f"by {LOSSES[data['other_loss']]}",) if data["other_loss"] else ()
    numbers = ("regret (95 %)", "tolerance", "would pass", "seeds needed")
    columns = ("", "at", "over", f"by {data['loss_name']}", *by_other, *numbers, "remarks")
    return Table(columns, rows, "<" * len(columns))


def _contrast_sentences(data: Json) -> list[str]:
    """A line per control."""
    lines = []
    for one in data["contrasts"]:
        verdict, other, regret = one["verdict"], one["verdict_by_other_loss"], _interval(one["difference"])
        by_other = f"{other} by {LOSSES[data['other_loss']]}" if other not in ("", verdict) else ""
        reasons = (f"regret minus the rule's {regret}" if regret else "", one["remark"], by_other)
        text = "; ".join(filter(None, reasons))
        lines.append(f"{one['control']} {_AGAINST[verdict]}{f': {text}' if text else ''}.")
    return lines


def _interval(estimate: Json, least: float = -math.inf) -> str:
    """``0.003 (0 to 0.016)`` of an `estimate_data`, ``least`` is the smallest possible value; empty if unknown."""
    if estimate["value"] is None:
        return ""
    ends = estimate["interval"]
    interval = f" ({rounded_loss(max(ends[0], least))} to {rounded_loss(ends[1])})" if ends else ""
    return f"{rounded_loss(estimate['value'])}{interval}"


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


def _slope_sentences(variant: Json, field: str) -> list[str]:
    """The fitted exponents of one variant of `as_data`."""
    x, lines, listed = axis_name(field), list[str](), lambda sizes: ", ".join(map(str, sizes))
    for name, slope in variant["slopes"].items():
        at = f"{'width' if name == 'depth' else 'depth'} {slope['fixed']}, {name} {listed(slope['sizes']) or 'none'}"
        at += f", without {listed(slope['left_out'])}" if slope["left_out"] else ""
        if slope["value"] is None:
            lines.append(f"Best {x} against {name}: no exponent, which takes at least three sizes ({at}).")
            continue
        ends = slope["interval"]
        interval = f"95 % interval {ends[0]:+.2f} to {ends[1]:+.2f}" if ends else "no interval"
        lines.append(f"Best {x} ~ {name}^{slope['value']:+.2f} ({interval}; {at}).")
    return lines


def _explanation(data: Json, analysis: Analysis) -> list[str]:
    """How to read the columns, and what the verdicts mean."""
    x, unit, initial = analysis.scale.name, analysis.scale.unit, analysis.initial_loss_name
    octaves = [one["passing"]["grid"] for one in data["verdicts"] if one["passing"] and analysis.scale.log]
    or_octaves = f", or {MOST_OCTAVES:g} octaves," * any(grid > 2 * MOST_OCTAVES for grid in octaves)
    exponents = any(slope.estimate for variant in analysis.variants for slope in variant.slopes.values())
    return [
        f"shift: best {x} minus the base's, in {unit}; 0 is perfect transfer"
        f"{', as is an exponent of 0' * exponents}. regret: {analysis.loss_name} lost by using the base's best {x} "
        "instead of tuning it at this size, on fitted curves; "
        "the base's choice is resampled, too. ± and intervals: 95 %, over seeds. A network does not train if no "
        f"{x} brings its loss below twice that {initial}.",
        f"A rate transfers if the whole interval of the regret is below {100 * data['tolerance']:g} % of what the base "
        f"learned (tolerance), the loss {initial} minus its lowest, and does not if the whole interval is above. A "
        "control costs more if the whole interval of its regret minus the rule's is above 0. Would pass: the "
        f"{unit} of the grid whose regret is below the tolerance; above half of the grid{or_octaves} there is no "
        "evidence.",
    ]


def settings(info: SweepInfo) -> dict[str, str]:
    """Sections of a sweep's base config -> their fields that are set, without the axes."""
    hidden = {*execution_fields(info.base), *info.axes, *_SIZES}
    rows: dict[str, list[str]] = {}
    for path, value in _flat(info.base).items():
        section, _, field = path.partition(".")
        off: tuple[Any, ...] = (None, "", [], *([] if section == "parametrization" else [0]))  # 0 switches most off
        if hidden.isdisjoint((path, section)) and value not in off:
            text = " and ".join(map(str, value)) if isinstance(value, list) else number(value)
            rows.setdefault(section, []).append(f"{field}={text}" if field else text)
    return {section: ", ".join(fields) for section, fields in rows.items()}


def _flat(tree: Json, path: str = "") -> Json:
    """Dotted config field -> value."""
    flat: Json = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{path}{name}.") if isinstance(value, dict) else {path + name: value}
    return flat


def warnings(sweep: Sweep, analysis: Analysis) -> list[str]:
    """Notes on the files, on missing sizes, and on what the remarks on rows mean."""
    lines = list(sweep.notes)
    if analysis.loss != TRAIN and not analysis.is_own:
        lines.append(f"All losses are {EVALUATED[analysis.loss]}, after training.")
    if not analysis.scale.log:
        lines.append(f"Not all values of {analysis.scale.name} are positive: shifts are differences, not octaves.")
    for variant in analysis.variants:
        if variant.base_is_smallest:
            base, start = variant.base.curve, f"{variant.name}: the" if variant.name else "The"
            lines.append(f"{start} base size is not in the sweep: width {base.width}, depth {base.depth} replaces it.")
    flags = {flag for row in analysis.rows for flag in row.flags}
    lines += [f"{flag}: {text.format(x=analysis.scale.name)}." for flag, text in _MEANINGS.items() if flag in flags]
    return lines


def as_pages(data: Json, analysis: Analysis, figures: Sequence[tuple[str, Mapping[str, bytes]]]) -> tuple[str, str]:
    """The page of an analysis, and what a notebook shows of it; ``figures`` are captions and files."""
    template, parts = _template(), sections(data, analysis)
    encoded = lambda kind, files: [base64.b64encode(x).decode() for name, x in files.items() if name.endswith(kind)]
    pictures = lambda kind, media: [(caption, media, *encoded(kind, files)) for caption, files in figures]
    shown = [Section(pictures=pictures(".svg", "svg+xml")), *parts]
    cell = [Section(pictures=pictures(".png", "png")), *parts[:-2]]
    render = lambda sections, whole: template.render(title=data["headline"], sections=sections, whole=whole)
    return render(shown, True).strip() + "\n", render(cell, False).strip() + "\n"


@functools.cache  # to compile it is to run code, which no record may do (tests/security_test.py)
def _template() -> Any:
    import jinja2  # an optional dependence

    text = (pathlib.Path(__file__).parent / "page.html").read_text("utf-8")
    return jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)


def _duration(hours: float) -> str:
    """``2.1 hours``, ``2.3 minutes`` or ``7 s``."""
    units = (("hours", 1.0), ("minutes", 1 / 60))
    return next((f"{hours / unit:.3g} {name}" for name, unit in units if hours >= unit), f"{3600 * hours:.0f} s")
