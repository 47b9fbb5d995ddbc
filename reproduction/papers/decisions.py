"""Writes what the runs of registration.md decide into reproduction.md: python -m reproduction.papers.decisions."""

from __future__ import annotations

import math
import pathlib

from depthmup_flax.report import verdict
from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.sweep_report import analysis_of
from depthmup_flax.report.transfer import Row, Variant
from depthmup_flax.storage.sweep_records import read_sweep
from reproduction.claims.judged_claims import judged
from reproduction.pages.generated_parts import with_part

RECORDS = pathlib.Path(__file__).with_name("records")
PAGE = pathlib.Path(__file__).parents[1] / "pages" / "reproduction.md"
PART = "<!-- papers' size: python -m reproduction.papers.decisions -->", "<!-- end of papers' size -->"
HEADER = (
    "| runs | rule | depth | n | best rate, octaves | shift | regret | lowest loss |\n|---|---|---|---|---|---|---|---|"
)
TRANSFERS, DOES_NOT, OPEN = "transfers", "does not transfer", "not resolved"
OCTAVES, LEAST_SEEDS = 0.5, 3
_RULE, _CONTROL, _DEPTH = "depth_mup", "sp", 32
_COMPARED = {
    "deeper is better": "under Depth-muP the loss improves with depth",
    "the standard parametrization transfers worse": (
        "the best rate of Depth-muP transfers better over depth than that of SP"
    ),
}


def transfer(shift: Estimate | None, regret: Estimate | str, tolerance: float) -> str:
    """The first registered decision: shift within half an octave and small regret, both with whole intervals."""
    if shift is None or isinstance(regret, str) or regret.seeds < LEAST_SEEDS:
        return OPEN
    parts = _judged(shift, -OCTAVES, OCTAVES), _judged(regret, -math.inf, tolerance)
    if DOES_NOT in parts:
        return DOES_NOT
    return TRANSFERS if set(parts) == {TRANSFERS} else OPEN


def _judged(estimate: Estimate, low: float, high: float) -> str:
    ends = estimate.interval
    if ends is None:
        return OPEN
    if low <= ends[0] and ends[1] <= high:
        return TRANSFERS
    return DOES_NOT if ends[1] < low or ends[0] > high else OPEN


def text() -> str:
    """A row for each rule and depth, then the decisions, of each directory that has runs of both depths."""
    rows, decisions = [HEADER], []
    for directory in sorted(RECORDS.glob("fig10-*-epochs")):
        sweep = read_sweep([directory])
        analysis = analysis_of(sweep)
        link = f"[{directory.name}](../papers/records/{directory.name})"
        rows += [_row(link, variant, row) for variant in analysis.variants for row in variant.rows]
        variants = {variant.name: variant for variant in analysis.variants}
        if {_RULE, _CONTROL} <= variants.keys():
            decisions += _decisions(directory.name, variants[_RULE])
            judged_here = {one.claim.text: one for one in judged(sweep.info.figure, analysis)}
            for words, claim in _COMPARED.items():
                one = judged_here[claim]
                said = one.verdict if one.seeds >= LEAST_SEEDS else OPEN
                decisions.append(f"* {directory.name}, {words}: **{said}**, n = {one.seeds}: {one.finding}.")
    return "\n".join([*rows, "", *decisions]).rstrip()


def _decisions(name: str, variant: Variant) -> list[str]:
    deep = next((row for row in variant.rows if row.curve.depth == _DEPTH), None)
    if deep is None:
        return []
    tolerance = verdict.tolerance_of(variant, verdict.TOLERANCE)
    said = transfer(deep.shift if not deep.bound else None, deep.regret, tolerance)
    seeds = len(deep.curve.seeds)
    return [f"* {name}, Depth-muP from depth 8 to {_DEPTH}: **{said}**, n = {seeds}; small is {tolerance:.3f}."]


def _row(link: str, variant: Variant, row: Row) -> str:
    best = row.optimum
    at = "?" if best is None else f"{best.at.value:.1f}" + (f", {row.edge}" if row.edge else "")
    shift = "base" if row.curve.depth == variant.base.curve.depth else _number(row.shift, row.bound)
    regret = row.regret if isinstance(row.regret, str) else _number(row.regret)
    loss = "?" if best is None else f"{best.loss.value:.3f}"
    cells = (link, variant.name or _RULE, str(row.curve.depth), str(len(row.curve.seeds)), at, shift, regret, loss)
    return f"| {' | '.join(cells)} |"


def _number(estimate: Estimate | None, bound: str = "") -> str:
    if estimate is None:
        return "?"
    half = estimate.half_width
    return f"{bound}{estimate.value:.3f}" + ("" if half is None or bound else f" ± {half:.3f}")


def renewed(page: str) -> str:
    """The page with what the records give."""
    return with_part(page, *PART, text())


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
