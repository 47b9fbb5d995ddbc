"""Writes the table of claims in reproduction.md, from the committed records: python docs/claims_table.py

The table lies between two markers. Claims and verdicts: depthmup_flax/report/claims.py.
"""

from __future__ import annotations

import collections
import pathlib

from depthmup_flax.records import read_info, read_sweep
from depthmup_flax.report.claims import CLAIMS, JudgedClaim, core_minutes, judged
from depthmup_flax.report.make_report import studies

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "reproduction.md"
START, END = "<!-- claims: python docs/claims_table.py -->", "<!-- end of claims -->"
HEADER = (
    "id",
    "the paper's claim",
    "contrast (95 % interval)",
    "n",
    "n that would do",
    "verdict",
    "core-minutes",
    "sweep",
)


def main() -> None:
    """Replaces the table in the page."""
    PAGE.write_text(with_table(PAGE.read_text(), table()))


def with_table(page: str, text: str) -> str:
    """The page with another table."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{text}\n\n{END}{after}"


def table() -> str:
    """How many claims have which verdict, and a row per claim, in the order of `CLAIMS`."""
    rows = [(name, minutes, one) for name, minutes, found in _sweeps() for one in found]
    counts = collections.Counter(one.verdict for _, _, one in rows)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    cells = [HEADER, ("---",) * len(HEADER), *(_cells(*row) for row in rows)]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    return f"Of {len(rows)} claims: {summary}.\n\n{lines}"


def _sweeps() -> list[tuple[str, float, list[JudgedClaim]]]:
    directories = [path.parent for path in (HERE / "reproduction").glob("*/sweep.json")]
    order = {figure: place for place, figure in enumerate(CLAIMS)}
    figures = {directory: read_info(directory).figure for directory in directories}
    known = sorted((order[figure], directory) for directory, figure in figures.items() if figure in order)
    sweeps = [(directory.name, read_sweep([directory])) for _, directory in known]
    return [(name, core_minutes(s.records), judged(s.info.figure, studies(s)[0])) for name, s in sweeps]


def _cells(name: str, minutes: float, one: JudgedClaim) -> tuple[str, ...]:
    """The cells under `HEADER`."""
    seeds_needed = "" if one.verdict != "not resolved" or one.note else str(one.seeds_needed or "> 100")
    sweep = f"[{name.rpartition('-')[0]}](reproduction/{name})"
    claim = f"{one.claim.text} ({one.claim.source})"
    verdict = f"**{one.verdict}**"
    return one.claim.id, claim, one.finding, str(one.seeds), seeds_needed, verdict, f"{minutes:.2g}", sweep


if __name__ == "__main__":
    main()
