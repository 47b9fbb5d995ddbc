"""Results as Markdown tables in docs/performance.md."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence

from benchmarks.contest import ROOT
from benchmarks.figures import FIGURES, RESULTS
from benchmarks.row import Row
from depthmup_flax.util.types import Json

PAGE = ROOT / "docs" / "performance.md"


def document() -> None:
    """Replaces the tables between ``<!-- benchmarks: cpu -->`` and ``<!-- end -->`` in the page by the results."""
    for device, results in stored().items():
        text, begin = PAGE.read_text(), f"<!-- benchmarks: {device} -->\n"
        before, found, after = text.partition(begin)
        if found:
            rest = after[after.index("<!-- end -->") :]
            PAGE.write_text(f"{before}{begin}{where(results)}\n\n{table(results)}\n{rest}")


def stored() -> dict[str, list[Json]]:
    """Device -> results of each of its processors in benchmarks/results."""
    results: dict[str, list[Json]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        results.setdefault(result["device"], []).append(result)
    return results


def where(results: Sequence[Json]) -> str:
    """Hardware, versions and days of the measurements, each combination of hardware and stack once."""
    lines = []
    for result in results:
        measured: dict[str, list[Json]] = {}
        for figure in result["figures"].values():
            for stack, facts in figure["measured"].items():
                measured.setdefault(stack, []).append(facts)
        for stack, all_facts in sorted(measured.items()):
            versions: dict[str, list[str]] = {}
            for facts in all_facts:
                for name, version in facts["versions"].items():
                    if version and version not in versions.setdefault(name, []):
                        versions[name].append(version)
            days = sorted({facts["day"] for facts in all_facts})
            listed = ", ".join(f"{name} {' and '.join(values)}" for name, values in versions.items())
            lines.append(f"* {stack}: {result['hardware']}; {listed}; {' and '.join(days)}.")
    return "\n".join(lines)


def table(results: Sequence[Json]) -> str:
    """The results as a Markdown table: a row for each case and processor, a column for each stack."""
    stacks = sorted({row["stack"] for result in results for _, row in _rows(result)})
    titles = ["figure", "case", "against", *stacks, "bound", "processor"]
    lines = [_cells(titles), _cells(["---"] * len(titles), space="")]
    cases: dict[tuple[str, ...], list[Json]] = {}
    for name, result in itertools.product(FIGURES, results):
        for figure, row in _rows(result):
            if figure == name:
                case = (row["figure"], row["case"], row["against"], result["hardware"])
                cases.setdefault(case, []).append(row)
    lines += [line(rows, stacks, processor) for (*_, processor), rows in cases.items()]
    return "\n".join(lines)


def line(rows: Sequence[Json], stacks: Sequence[str] = (), processor: str = "") -> str:
    """A row of `table`: one case on one processor, with a cell for each of ``stacks``."""
    by_stack = {row["stack"]: row for row in rows}
    first = rows[0]
    bar = "" if first["bar"] is None else f"{'<=' if first['at_most'] else '>='} {first['bar']:g}"
    cells = [_cell(by_stack[stack]) if stack in by_stack else "" for stack in stacks or by_stack]
    return _cells([first["figure"], first["case"], first["against"], *cells, bar, processor])


def _rows(result: Json) -> Iterator[tuple[str, Json]]:
    for name, figure in result["figures"].items():
        for row in figure["rows"]:
            yield name, row


def _cells(texts: Sequence[str], space: str = " ") -> str:
    return f"|{'|'.join(f'{space}{text}{space}' for text in texts)}|"


def _cell(row: Json) -> str:
    if row["value"] is None:
        return row["note"]
    judgment = Row(**row).judgment
    return "; ".join(text for text in (_measured(row), judgment, row["note"]) if text)


def _measured(row: Json) -> str:
    value, unit = row["value"], row["unit"] and f" {row['unit']}"
    spread = f" ({value['low']:.3g}-{value['high']:.3g}, {value['n']})" if value["n"] > 1 else ""
    return f"**{value['median']:.3g}{unit}**{spread}"
