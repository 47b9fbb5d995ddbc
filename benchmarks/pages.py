"""Results as Markdown tables: all of them in docs/performance.md, a few in README.md."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence

from benchmarks.contest import ROOT
from benchmarks.figures import FIGURES, RESULTS
from benchmarks.row import Row
from depthmup_flax.util.types import Json

PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
# The rows of the README: figure of `FIGURES` -> the beginnings of its cases, and what a reader calls them.
_SHORT = {  # of the README: what code for CPUs alone did not change
    "parametrization": {"ResMLP 256x64": "step with the rule / without it", "ViT": "step with the rule / without it"},
    "against_torch": {"ResMLP 256x64, one core": "step, PyTorch + mup / ours"},
}


def document() -> None:
    """Replaces the tables between ``<!-- benchmarks: cpu -->`` and ``<!-- end -->`` in the pages by the results."""
    for device, results in stored().items():
        whole = f"{where(results)}\n\n{table(results)}"
        for page in PAGES:
            for mark, content in ((device, whole), (f"{device}, short", short_table(results))):
                text = page.read_text()
                begin = f"<!-- benchmarks: {mark} -->\n"
                before, mark_found, after = text.partition(begin)
                if mark_found:
                    page.write_text(f"{before}{begin}{content}\n{after[after.index('<!-- end -->') :]}")


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


def short_table(results: Sequence[Json]) -> str:
    """The rows of `_SHORT` as a Markdown table; of several processors, the one with the worst median."""
    stacks = sorted({row["stack"] for result in results for _, row in _rows(result)})
    titles = ["ratio of times", "network", *stacks, "machine"]
    lines = [_cells(titles), _cells(["---"] * len(titles), space="")]
    for name, cases in _SHORT.items():
        for start, title in cases.items():
            found = []
            for result in results:
                rows = [
                    row
                    for figure, row in _rows(result)
                    if figure == name and row["case"].startswith(start) and row["bar"] is not None and row["value"]
                ]
                if rows:
                    sign = -1 if rows[0]["at_most"] else 1
                    found.append((min(sign * row["value"]["median"] for row in rows), result, rows))
            if found:
                _, result, rows = min(found, key=lambda one: one[0])
                by_stack = {row["stack"]: row for row in rows}
                cells = [_measured(by_stack[stack]) if stack in by_stack else "" for stack in stacks]
                lines.append(_cells([title, rows[0]["case"], *cells, result["hardware"]]))
    return "\n".join(lines)


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
