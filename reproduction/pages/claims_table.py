"""Writes the table of claims and the limits' costs in reproduction.md, from the records.

    python -m reproduction.pages.claims_table

Claims: reproduction/claims/statements.py; verdicts: reproduction/claims/judged_claims.py.
"""

from __future__ import annotations

import collections
import dataclasses
import gzip
import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from depthmup_flax.report.curves import TEST
from depthmup_flax.report.sweep_report import analysis_of
from depthmup_flax.report.verdict import NO_EVIDENCE, NOT_RESOLVED, OPPOSITE, SHOWN, judge
from depthmup_flax.storage.sweep_records import read_sweep
from reproduction.claims.judged_claims import (
    LEANS_AGAINST,
    UNDECIDED,
    UNTRAINED_CONTROL,
    JudgedClaim,
    core_minutes,
    judged,
)
from reproduction.claims.statements import CLAIMS
from reproduction.pages.generated_parts import with_part

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "reproduction.md"
AT_PAPERS_SIZE = HERE.parent / "papers" / "records"
NOT_RUN = "not run"
CLAIMS_PART = "<!-- claims: python -m reproduction.pages.claims_table -->", "<!-- end of claims -->"
COSTS_PART = "<!-- costs: python -m reproduction.pages.claims_table -->", "<!-- end of costs -->"
HEADER = (
    "id",
    "the paper's claim",
    "contrast (95 % interval)",
    "n",
    "n that would do",
    "by training loss",
    "by test loss",
    "at the papers' size",
    "core-minutes",
    "sweep",
)
BY_BOTH, BY_TRAINING = "shown by both losses", "by the training loss alone"
VERDICTS = (BY_BOTH, BY_TRAINING, UNTRAINED_CONTROL, OPPOSITE, LEANS_AGAINST, NOT_RESOLVED, NO_EVIDENCE)
LEVEL = 0.025  # one-sided, of the 95 % intervals
# Sweep and claim -> its bound before the yardstick changed: 1 % of the lowest loss of the base. Verdicts depend on it.
EARLIER_BOUNDS = {
    ("trained_ends-long", "the best rate of Depth-muP transfers over width and depth together"): 0.0035,
    ("lr_width_depth_mlp-long", "the best rate of Depth-muP transfers over width"): 0.0054,
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A claim, judged on the records of one sweep.

    Attributes:
      sweep: name of its directory.
      steps: of each run; of several sweeps of a figure, the longest decides.
    """

    figure: str
    sweep: str
    steps: int
    minutes: float
    one: JudgedClaim

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if self.one.verdict != SHOWN:
            return self.one.verdict
        return BY_BOTH if self.one.shown_by_both else BY_TRAINING


def main() -> None:
    """Renews the page."""
    PAGE.write_text(renewed(PAGE.read_text()))


def renewed(page: str) -> str:
    """The page with what the records give."""
    return with_part(with_part(page, *CLAIMS_PART, table()), *COSTS_PART, costs())


def table() -> str:
    """How many claims of each id have which verdict, and a row per claim, in the order of `CLAIMS`."""
    rows = _rows()
    longest: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = row.figure, row.one.claim.text
        longest[key] = max(longest.get(key, row), row, key=lambda one: one.steps)
    deciding = list(longest.values())
    counts = collections.Counter(row.verdict for row in deciding)
    summary = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    large = at_papers_size()
    cells = [_cells(row, large, any(row is one for one in deciding)) for row in rows]
    parts = f"Of {len(deciding)} claims: {summary}.", multiplicity(deciding), run_at_papers_size(deciding, large)
    return "\n\n".join([*parts, _by_id(deciding), _markdown(HEADER, cells)])


def at_papers_size() -> Mapping[tuple[str, str], str]:
    """(figure, text of a claim) -> what runs of the paper's size show, the longest first; without runs it is absent."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = collections.defaultdict(list)
    for path in sorted(AT_PAPERS_SIZE.glob("*/sweep.json")):
        sweep = read_sweep([path.parent])
        steps = max(record.steps for record in sweep.records)
        link = f"[{path.parent.name}](../papers/records/{path.parent.name})"
        for one in judged(sweep.info.figure, analysis_of(sweep), analysis_of(sweep, TEST)):
            if one.seeds:
                text = f"{one.verdict}: {one.finding}; n = {one.seeds}, {link}"
                found[sweep.info.figure, one.claim.text].append((-steps, text))
    return {key: "<br>".join(text for _, text in sorted(texts)) for key, texts in found.items()}


def run_at_papers_size(deciding: Sequence[Row], large: Mapping[tuple[str, str], str]) -> str:
    """How many of the claims have runs of the paper's size, in a sentence."""
    run = sum((row.figure, row.one.claim.text) in large for row in deciding)
    registered = "[registered](../papers/registration.md)"
    return f"**At the papers' size**: runs of {run} of the {len(deciding)} claims have begun ({registered})."


def multiplicity(deciding: Sequence[Row]) -> str:
    """How many of the shown claims stay so if they are judged together, in a sentence."""
    p = np.array([1.0 if row.one.p is None else row.one.p for row in deciding])
    holm = (np.minimum.accumulate(np.sort(p) * np.arange(len(p), 0, -1) <= LEVEL)).sum()
    fdr = (stats.false_discovery_control(p) <= LEVEL).sum()
    against = sum(row.verdict == LEANS_AGAINST and p_one > 0.9 for row, p_one in zip(deciding, p, strict=True))
    return (
        f"**Together**: {(p <= LEVEL).sum()} claims have a one-sided p of at most {LEVEL} (no number: 1). Of these "
        f"{holm} stay by Holm's method, and {fdr} by Benjamini and Hochberg's, over all {len(p)}. Of those that lean "
        f"against their claim, {against} have a p above 0.9."
    )


def costs() -> str:
    """How long each limit took, in a sentence."""
    minutes = {}
    for path in sorted((HERE.parent / "records").glob("*/limits.json")):
        lines = gzip.decompress((path.parent / "records.jsonl.gz").read_bytes()).decode().splitlines()
        minutes[path.parent.name] = sum(json.loads(line)["seconds"] for line in lines) / 60
    listed = ", ".join(f"{name.removesuffix('-cpu')} {one:.2g}" for name, one in minutes.items())
    return f"Minutes on two cores, theory included: {listed}. `reproduction/run.sh cpu NAME` repeats one."


def _by_id(deciding: Sequence[Row]) -> str:
    counts = collections.Counter((row.one.claim.id, row.verdict) for row in deciding)
    ids = dict.fromkeys(row.one.claim.id for row in deciding)
    cells = [(name, *(str(counts[name, verdict] or "") for verdict in VERDICTS)) for name in ids]
    return _markdown(("id", *VERDICTS), cells)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


def _rows() -> list[Row]:
    read = {path.parent.name: read_sweep([path.parent]) for path in (HERE.parent / "records").glob("*/sweep.json")}
    rows = []
    for name in sorted(read):
        info, records = read[name].info, read[name].records
        if info.figure not in CLAIMS:
            continue
        steps = max(record.steps for record in records)
        for one in judged(info.figure, analysis_of(read[name]), analysis_of(read[name], TEST)):
            rows.append(Row(info.figure, name, steps, core_minutes(records), one))
    places = [(figure, claim.text) for figure, claims in CLAIMS.items() for claim in claims]
    return sorted(rows, key=lambda row: (places.index((row.figure, row.one.claim.text)), -row.steps))


def _cells(row: Row, large: Mapping[tuple[str, str], str], decides: bool) -> tuple[str, ...]:
    """The cells under `HEADER`."""
    one = row.one
    seeds_needed = "" if one.verdict not in UNDECIDED or one.note else str(one.seeds_needed or "> 100")
    name, _, scale = row.sweep.rpartition("-")
    sweep = f"[{name}, {scale}](../records/{row.sweep})"
    claim = f"{one.claim.text} ({one.claim.source})"
    verdict = f"**{one.verdict}**" if decides else one.verdict
    by_test_loss = one.other_loss + r"\*" * (one.other_loss in UNDECIDED and bool(one.other_note))
    cost = f"{float(f'{row.minutes:.2g}'):g}"
    finding, earlier = one.finding, EARLIER_BOUNDS.get((row.sweep, one.claim.text))
    if earlier is not None and one.estimate is not None:
        finding += f"; **{judge(one.estimate, earlier).verdict} to {earlier}**, its bound before the yardstick changed"
    own_size = large.get((row.figure, one.claim.text), NOT_RUN) if decides else ""
    return one.claim.id, claim, finding, str(one.seeds), seeds_needed, verdict, by_test_loss, own_size, cost, sweep


if __name__ == "__main__":
    main()
