"""Writes the tables of README.md, results.json and docs/public_sweeps.png from the published files.

    DEPTHMUP_PUBLIC=directory python -m reproduction.public.page

The forecasts are those of forecasts.csv, which ``python -m reproduction.public.forecasts`` writes.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from depthmup_flax.report.style import canvas
from reproduction.pages.generated_parts import with_part
from reproduction.public import depth, forecasts, rates, sources
from reproduction.public.curves import Curve
from reproduction.public.sources import Run

HERE = pathlib.Path(__file__).parent
PAGE, RESULTS = HERE / "README.md", HERE / "results.json"
FIGURE = HERE.parent.parent / "docs" / "public_sweeps.png"
Row = Sequence[str]
# Step Law's own law of the best rate (arXiv:2503.04715): N^-0.713 D^0.307, with N as width^2 depth.
STEP_LAW_OWN = rates.power(-2 * 0.713, -0.713, 0.307)
_GROUPS = {"entrywise (7 optimizers)": rates.ENTRYWISE, "Muon, Scion": ("muon", "scion"), "Kron": ("kron",)}


def table(rows: Sequence[Row]) -> str:
    """Markdown; the first row is the header."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def part(page: str, name: str, text: str) -> str:
    """The page with another text between the comments of ``name``."""
    return with_part(page, f"<!-- {name}: python -m reproduction.public.page -->", f"<!-- end of {name} -->", text)


def between(value: float, bounds: tuple[float, float], digits: int = 2) -> str:
    """``-0.78 (-0.92 to -0.70)``, without an interval that is not known."""
    low, high = bounds
    known = "" if math.isnan(low) else f" ({low:+.{digits}f} to {high:+.{digits}f})"
    return f"{value:+.{digits}f}{known}"


def _exponent_row(found: rates.Exponents, source: str) -> Row:
    values = [f"{name} {between(value, found.bounds[name])}" for name, value in found.values.items()]
    alone = f"{found.correlation:.2f}" if len(values) > 1 else ""
    return source, found.of, "; ".join(values), alone, str(found.cells)


def exponent_rows(step: Sequence[Curve], moe: Sequence[Curve], marin: Sequence[Curve]) -> list[Row]:
    """Question (a)."""
    shape = lambda c: (c.width, c.depth)
    rows: list[Row] = [("source", "cells", "exponents of the best rate (95 %)", "correlation", "n")]
    for regressors in ({**rates.WIDTH, **rates.DEPTH, **rates.TOKENS}, {**rates.BOTH, **rates.TOKENS}):
        found = rates.exponents("AdamW, each batch size", step, regressors, lambda c: c.batch, shape)
        rows.append(_exponent_row(found, "`step_law`"))
    for name, regressors, group in (
        ("AdamW, each shape and batch size", rates.TOKENS, lambda c: (shape(c), c.batch)),
        ("AdamW, each shape and length", rates.BATCH, lambda c: (shape(c), c.tokens)),
    ):
        rows.append(_exponent_row(rates.exponents(name, step, regressors, group), "`step_law`"))
    for half in ("open", "closed"):
        own = [curve for curve in moe if rates.moe_half(curve) == half]
        for what, regressors, group in (
            ("batch size", rates.TOKENS, lambda c: (c.series, c.batch)),
            ("length", rates.BATCH, lambda c: (c.series, c.tokens)),
        ):
            found = rates.exponents(f"AdamW, each mixture and {what}, {half}", own, regressors, group)
            rows.append(_exponent_row(found, "`step_law_moe`"))
    for reading, curves in (("registered", marin), ("without diverged runs", [rates.trained(c) for c in marin])):
        rows += _marin_exponents(reading, curves)
    return rows


def _marin_exponents(reading: str, marin: Sequence[Curve]) -> list[Row]:
    rows: list[Row] = []
    for name, optimizers in _GROUPS.items():
        own = [curve for curve in marin if curve.series in optimizers]
        for what, cells, regressors in (
            ("20 tokens a parameter", [c for c in own if rates.ratio(c) == 1], rates.WIDTH),
            ("width 512", [c for c in own if c.width == 512], rates.TOKENS),
            ("all", own, {**rates.WIDTH, **rates.TOKENS}),
        ):
            try:
                found = rates.exponents(f"{name}, {what}, {reading}", cells, regressors, lambda c: c.series)
            except ValueError:
                continue  # one width or length is left
            rows.append(_exponent_row(found, "`marin_optimizers`"))
    return rows


def regret_rows(found: Sequence[rates.Regrets]) -> list[Row]:
    """Of factors over one source."""
    rows: list[Row] = [("factor", "mean regret, nats (95 %)", "largest", "pairs", "beyond the grid")]
    for one in found:
        low, high = one.bounds
        mean = f"{one.mean:.4f} ({low:.4f} to {high:.4f})"
        rows.append((one.factor, mean, f"{one.largest:.3f}", str(one.pairs), str(one.outside)))
    return rows


def marin_rows(readings: dict[str, list[rates.OptimizerRegret]]) -> list[Row]:
    """Question (b), by optimizer."""
    columns = ("none", "rule", "quarter", "half", "fitted")
    rows: list[Row] = [
        ("reading", "optimizer", "pairs", "none", "rule", "rule, d^-1/4", "rule, d^-1/2", "N^a D^b", "beyond the grid")
    ]
    shown = lambda value: "" if math.isnan(value) else f"{value:.4f}"
    for reading, found in readings.items():
        for one in found:
            values = [shown(getattr(one, column)) for column in columns]
            rows.append((reading, one.optimizer, str(one.pairs), *values, str(one.outside)))
        fitted = [one for one in found if not math.isnan(one.fitted)]
        for label, some in ((f"mean of {len(found)}", found), (f"mean of {len(fitted)} with N^a D^b", fitted)):
            means = [sum(getattr(one, column) for one in some) / len(some) for column in columns]
            pairs, outside = sum(one.pairs for one in some), sum(one.outside for one in some)
            rows.append((reading, f"**{label}**", str(pairs), *map(shown, means), str(outside)))
    return rows


def duration_rows(cases: dict[str, dict[str, list[rates.Pair]]]) -> list[Row]:
    """Regrets over the number of tokens alone."""
    rows: list[Row] = [("runs", "none", "d^-1/4", "d^-1/2", "d^-1/4 less none (95 %)", "pairs")]
    for name, pairs in cases.items():
        factors = {label: rates.power(0, 0, exponent) for label, exponent in rates.DURATIONS.items()}
        found = rates.regrets(pairs, factors)
        mean, low, high = rates.difference(pairs, factors["d^-1/4"])
        means = [f"{one.mean:.4f}" for one in found]
        rows.append((name, *means, f"{mean:+.4f} ({low:+.4f} to {high:+.4f})", str(found[0].pairs)))
    return rows


def own_duration_rows() -> list[Row]:
    """The same of the package's own records: means over all pairs of lengths."""
    from reproduction.pages import batch_and_steps as own  # reads the command line

    lengths = (300, 600, 1200, 2400)
    mlp, sgd, gpt = (own.curves(f"batch_and_steps{kind}-cpu") for kind in ("", "_sgd", "_gpt"))
    families = {
        "MLP, Adam": {n: mlp[128, n, 0.9] for n in lengths},
        "MLP, Adam, averages as parts of the run": {n: mlp[128, n, round(1 - 0.1 * 600 / n, 6)] for n in lengths},
        "MLP, SGD": {n: sgd[128, n, None] for n in lengths},
        "GPT, Adam": {n: gpt[16, n, 0.9] for n in (150, 300, 600, 1200)},
    }
    for decay in own.DECAYS:
        decayed = own.curves("steps_with_decay-cpu", decay=decay)
        families[f"MLP, AdamW, decay {decay:g}"] = {n: decayed[128, n, 0.9] for n in lengths}
    rows: list[Row] = [("own runs", "none", "d^-1/4", "d^-1/2", "best rate ~ steps^", "pairs")]
    for name, found in families.items():
        pairs = [(base, target) for base in found for target in found if base < target]
        means = []
        for exponent in rates.DURATIONS.values():
            moved = [(found[b].optimum.at.value + exponent * math.log2(t / b), found[t]) for b, t in pairs]
            costs = [cost.value for at, curve in moved if (cost := curve.regret(at)) is not None]
            means.append(f"{sum(costs) / len(costs):.4f}" if len(costs) == len(pairs) else "")
        rows.append((name, *means, own.exponent(found).partition(",")[0], str(len(pairs))))
    return rows


def batch_rows(cases: dict[str, dict[str, list[rates.Pair]]]) -> list[Row]:
    """Regrets over the batch size alone."""
    powers = (0.0, 0.25, 0.333, 0.5, 1.0)
    rows: list[Row] = [("runs", *(f"k^{power:g}" for power in powers), "pairs")]
    for name, pairs in cases.items():
        for way in ("larger", "smaller"):
            chosen = {key: group for key, group in pairs.items() if key.startswith(way)}
            found = rates.batch_regrets(chosen, powers)
            means = [f"{one.mean:.4f}" for one in found]
            rows.append((f"{name}, {way}", *means, str(found[0].pairs)))
    return rows


def distance_rows(step: Sequence[Curve], marin: Sequence[Curve]) -> list[Row]:
    """Question (c)."""
    rows: list[Row] = [("targets", "inside 95 %", "rms error, octaves")]
    cases = {f"`step_law`, {name}": pairs for name, pairs in rates.step_law_pairs(step).items()}
    cases["`step_law`, all"] = [pair for pairs in rates.step_law_pairs(step).values() for pair in pairs]
    cases["`marin_optimizers`, registered"] = [pair for pairs in rates.marin_pairs(marin).values() for pair in pairs]
    for name, pairs in cases.items():
        inside, count, rms = rates.covered(pairs, _rule_of)
        rows.append((name, f"{inside} of {count}", f"{rms:.2f}"))
    return rows


def _rule_of(pair: rates.Pair) -> rates.Factor:
    """Depth-muP's factor of the pair's optimizer."""
    width = rates.WIDTH_EXPONENTS.get(pair[0].series, -1.0)
    return rates.power(width, -0.5)


SHOWN = ("", forecasts.AVERAGED, forecasts.GAIN, forecasts.TENTHS)  # of today's forecasts


def forecast_rows(outcomes: Sequence[forecasts.Outcome], laws: Sequence[str]) -> list[Row]:
    """Question (d)."""
    rows: list[Row] = [("targets", "law", "n", "median error", "rms", "mean", "inside 95 %", "half-width", "score")]
    fresh = [one for one in outcomes if one.half == "fresh"]
    groups = {
        "fresh, all": fresh,
        **{f"{series}, fresh": [one for one in fresh if one.series == series] for series in sources.ISOFLOPS},
        "closed, all": [one for one in outcomes if one.half == "closed"],
        **{
            f"{source}, {half}": [one for one in outcomes if (one.source, one.half) == (source, half)]
            for source in ("gemstones", "marin_isoflops", "open_lm")
            for half in ("open", "closed")
        },
    }
    percent = lambda value, sign="": "" if math.isnan(value) else f"{value:{sign}.1%}"
    for name, some in groups.items():
        for law in laws if some else ():
            one = forecasts.score(some, law)
            errors = percent(one.median), percent(one.rms), percent(one.mean, "+")
            shown = (law or "**the package's**", str(one.targets), *errors)
            interval = "" if math.isnan(one.interval) else f"{one.interval:.3f}"
            rows.append((name, *shown, percent(one.inside), percent(one.half_width), interval))
    return rows


def depth_rows(runs: dict[str, Sequence[Run]]) -> list[Row]:
    """Question (e)."""
    rows: list[Row] = [
        ("source", "width / depth of the shallower", "deeper by", "loss(deeper) - loss(shallower) (95 %)", "pairs")
    ]
    for name, some in runs.items():
        found = depth.pairs(some)
        for low, high in (*depth.BINS, (0.0, math.inf)):
            one = depth.gain(found, low, high)
            if one is not None:
                where = "all" if (low, high) == (0.0, math.inf) else f"{low:g} to {high:g}"
                mean = between(one.mean, one.bounds, 3)
                rows.append((name, where, f"{one.depth_ratio:.1f}", mean, f"{one.pairs}, {one.shapes} shapes"))
    return rows


# One length of about 25 billion tokens for each shape, batches of 256 sequences.
_SHOWN = {(960, 7): 20.0, (1024, 8): 25.0, (1280, 10): 22.7, (1280, 13): 28.4, (2048, 16): 20.0}


def draw(step: Sequence[Curve]) -> None:
    """Loss over the rate of five transformers, and over the rate times the inverse of the rule's factor."""
    figure, panels = canvas(1, 2, width=3.1, height=2.5, sharey=True)
    chosen = [c for c in step if c.batch == 256 * 2048 and _SHOWN[c.width, c.depth] == round(c.tokens / 1e9, 1)]
    for panel, ruled in zip(panels[0], (False, True), strict=True):
        for number, curve in enumerate(sorted(chosen, key=lambda c: (c.width, c.depth))):
            factor = curve.width / 960 * math.sqrt(curve.depth / 7) if ruled else 1.0
            x = [1e3 * factor * 2**rate for rate in curve.x]
            excess = [loss - curve.least for loss in curve.y]
            label = f"{curve.width} x {curve.depth}"
            panel.plot(x, excess, color=f"C{number}", marker="o", ms=3, lw=1, label=label)
            panel.axvline(1e3 * factor * 2**curve.best, color=f"C{number}", lw=0.8, ls=":")
        panel.set_xscale("log", base=2)
        panel.set_ylim(-0.002, 0.06)
        panel.grid(alpha=0.25)
        panel.set_xlabel("rate x m sqrt(r) x 1000 (Depth-muP)" if ruled else "learning rate x 1000")
        panel.xaxis.set_major_formatter("{x:g}")
    panels[0, 0].set_ylabel("loss above the lowest, nats")
    panels[0, 1].legend(title="width x depth", fontsize=7, title_fontsize=7)
    figure.savefig(FIGURE, dpi=110, metadata={"Software": None})


def main() -> None:
    """Renews the page, the numbers and the figure."""
    directory = sources.data_directory()
    if directory is None:
        raise SystemExit(f"set {sources.VARIABLE} to the directory of the published files (README.md)")
    runs = {name: reader(directory) for name, reader in sources.READERS.items()}
    step, moe = rates.step_law_curves(runs["step_law"]), rates.moe_curves(runs["step_law_moe"])
    marin = [c for c in rates.marin_curves(runs["marin_optimizers"]) if c.series in rates.WIDTH_EXPONENTS]
    factors = dict(rates.ENTRYWISE_RULES)
    factors |= {"N^-.71 D^.31, Step Law's": STEP_LAW_OWN, "N^a D^b, fitted here": rates.step_law_fitted(step)}
    carried = rates.regrets(rates.step_law_pairs(step), factors)
    readings = {"registered": marin, "without diverged runs": [rates.trained(curve) for curve in marin]}
    lengths = {"`step_law`": rates.longer_pairs(step)}
    lengths |= {
        f"`step_law_moe`, {half}": rates.longer_pairs([c for c in moe if rates.moe_half(c) == half])
        for half in ("open", "closed")
    }
    lengths |= {f"`marin_optimizers`, {name}": rates.marin_lengths(curves) for name, curves in readings.items()}
    larger = rates.step_law_curves(runs["step_law"], (64, math.inf))
    batches = {"`step_law`, 64 to 512 sequences": rates.batch_pairs(step), "`step_law`, all": rates.batch_pairs(larger)}
    batches["`step_law_moe`, 32 to 512"] = rates.batch_pairs(moe)
    grid = [run for run in runs["open_lm"] if run.series == "grid"]
    gems = [run for run in runs["gemstones"] if round(run.tokens / 2.0007e9) == 50]
    parts: dict[str, list[Row]] = {
        "exponents": exponent_rows(step, moe, marin),
        "regrets": regret_rows(carried),
        "optimizers": marin_rows({name: rates.marin_regrets(curves) for name, curves in readings.items()}),
        "durations": duration_rows(lengths),
        "own durations": own_duration_rows(),
        "batches": batch_rows(batches),
        "distance": distance_rows(step, marin),
        "registered forecasts": forecast_rows(forecasts.read(forecasts.REGISTERED), ("", *forecasts.OTHERS)),
        "forecasts": forecast_rows(forecasts.read(forecasts.FINAL), SHOWN),
        "depth": depth_rows({"`open_lm`, grid": grid, "`gemstones`, 100 B tokens": gems}),
    }
    page = PAGE.read_text()
    for name, rows in parts.items():
        page = part(page, name, table(rows))
    PAGE.write_text(page)
    RESULTS.write_text(json.dumps(_as_json(parts), indent=1) + "\n")
    draw(step)


def _as_json(parts: dict[str, list[Row]]) -> dict[str, list[dict[str, Any]]]:
    """The tables as objects, by their headers."""
    return {name: [dict(zip(rows[0], row, strict=True)) for row in rows[1:]] for name, rows in parts.items()}


if __name__ == "__main__":
    main()
