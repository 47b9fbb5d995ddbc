"""Writes the tables of coverage.md, what of the papers is tested and where, from coverage.toml.

python -m reproduction.pages.coverage_table
"""

from __future__ import annotations

import collections
import os
import pathlib
import re
import tomllib
from collections.abc import Iterator, Mapping

from reproduction.pages.generated_parts import with_part

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = HERE / "coverage.md"
CONTENT = tomllib.loads((HERE / "coverage.toml").read_text())
NUMBERED: Mapping[str, list[str]] = CONTENT.pop("numbered")
STATES = ("verified", "small", "differently", "absent", "no result")
HEADER = "| item | what it says | state | where | reason |\n|---|---|---|---|---|"
Row = tuple[str, str, list[str], str]  # state, what it says, where, reason


def items(key: str) -> Iterator[str]:
    """``Fig. 4, B.1-3`` -> Fig. 4, Fig. B.1, Fig. B.2, Fig. B.3; panels, as in ``Fig. B.3 (b, c)``, are left out."""
    kind, _, numbers = key.partition(" ")
    for number in re.sub(r" \(.*?\)", "", numbers).split(", "):
        before, first, last = re.fullmatch(r"(.*?)(\d*)(?:-(\d+))?", number).groups()  # type: ignore[union-attr]
        for n in range(int(first), int(last) + 1) if last else [first]:
            yield f"{kind} {before}{n}"


def files(where: str) -> list[pathlib.Path]:
    """What an entry of the column "where" names: a file, or a config and the directories of its records."""
    kind, _, name = where.partition("/")
    if kind in ("sweeps", "limits"):
        shipped, ours = (root / "configs" / kind / f"{name}.py" for root in (ROOT, ROOT / "reproduction"))
        return [shipped if shipped.exists() else ours, *sorted((ROOT / "reproduction/records").glob(f"{name}-*"))]
    return [ROOT / re.split("::|#", where)[0]]


def link(where: str) -> str:
    """An entry as Markdown."""
    kind, _, name = where.partition("/")
    if kind == "claims":
        return f"[claims {name}](reproduction.md#what-the-sweeps-show)"
    path, *records = files(where)
    anchor = where[where.index("#") :] if "#" in where else ""
    scales = ", ".join(f"[{record.name.rpartition('-')[2]}](../records/{record.name})" for record in records)
    return f"[{path.stem}]({os.path.relpath(path, HERE)}{anchor}){f' ({scales})' if scales else ''}"


def table(rows: Mapping[str, Row]) -> str:
    """How many items have which state, and the rows."""
    counts = collections.Counter(row[0] for key, row in rows.items() for _ in items(key))
    lines = [
        f"| {key} | {what} | **{state}** | {', '.join(map(link, where))} | {reason} |"
        for key, (state, what, where, reason) in rows.items()
    ]
    summary = ", ".join(f"{counts[state]} {state}" for state in STATES)
    return "\n".join([f"{counts.total()} items: {summary}.", "", HEADER, *lines])


def renewed(page: str) -> str:
    """The page with the tables of `CONTENT`."""
    for paper, rows in CONTENT.items():
        start = f"<!-- {paper}: python -m reproduction.pages.coverage_table -->"
        start = f"<!-- {paper}: python -m reproduction.pages.coverage_table -->"
        page = with_part(page, start, f"<!-- end of {paper} -->", table(rows))
    return page


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
