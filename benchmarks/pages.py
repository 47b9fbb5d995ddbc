"""Results as Markdown tables: all of them in docs/performance.md, a few in README.md."""

from __future__ import annotations

import json
import math

from benchmarks.contest import ROOT
from benchmarks.figures import FIGURES, RESULTS
from benchmarks.row import Row
from depthmup_flax.types import Json

PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
# The rows of the README: figure of `FIGURES` -> the beginnings of its cases, and what a reader calls them.
_SHORT = {
    "parametrization": {"ResMLP 256x64": "step with the rule / without it", "ViT": "step with the rule / without it"},
    "against_torch": dict.fromkeys(
        ("ResMLP 256x64, one core", "ViT 128x6, one core", "ResNet-18, one core"), "step, PyTorch + mup / ours"
    ),
    "curve": dict.fromkeys(
        ("ResMLP 128x16, 32x32", "ResMLP 32x16, 8x8"), "a whole learning-rate curve, PyTorch + mup / ours"
    ),
}


def document() -> None:
    """Replaces the tables between ``<!-- benchmarks: cpu -->`` and ``<!-- end -->`` in the pages by the results."""
    for page in PAGES:
        text = page.read_text()
        for path in RESULTS.glob("*.json"):
            result = json.loads(path.read_text())
            whole = f"{where(result)}\n\n{table(result)}\n"
            for mark, content in ((path.stem, whole), (f"{path.stem}, short", f"{short_table(result)}\n")):
                begin = f"<!-- benchmarks: {mark} -->\n"
                before, mark_found, after = text.partition(begin)
                if mark_found:
                    text = f"{before}{begin}{content}{after[after.index('<!-- end -->') :]}"
        page.write_text(text)


def where(result: Json) -> str:
    """Hardware and versions of the figures, each combination once."""
    facts = (figure for figure in result["figures"].values())
    lines = (
        f"{one['hardware']}; Python {' '.join(f'{k} {v},' for k, v in one['versions'].items()).removeprefix('python ')}"
        f" {one['day']}."
        for one in facts
    )
    return "\n".join(dict.fromkeys(lines))


def table(result: Json) -> str:
    """The results as a Markdown table."""
    lines = ["| figure | case | against | measured (quartiles, n) | bound | |", "|---|---|---|---|---|---|"]
    lines += [line(row) for name in FIGURES if name in result["figures"] for row in result["figures"][name]["rows"]]
    return "\n".join(lines)


def line(row: Json) -> str:
    """A row of `table`."""
    measured = row["note"]
    if row["value"] is not None:
        measured = _measured(row) + (f"; {row['note']}" if row["note"] else "")
    bar = "" if row["bar"] is None else f"{'<=' if row['at_most'] else '>='} {row['bar']:g}"
    value = row["value"] or {"low": math.nan, "high": math.nan, "n": 0}
    judgment = Row(**{**row, "value": value}).judgment
    return f"| {row['figure']} | {row['case']} | {row['against']} | {measured} | {bar} | {judgment} |"


def short_table(result: Json) -> str:
    """The rows of `_SHORT` as a Markdown table, with hardware and versions in each."""
    lines = ["| ratio of times | network | measured (quartiles, n) | machine |", "|---|---|---|---|"]
    for name, cases in _SHORT.items():
        figure = result["figures"].get(name, {"rows": []})
        for start, title in cases.items():
            rows = [row for row in figure["rows"] if row["case"].startswith(start) and row["bar"] is not None]
            for row in rows[:1]:
                versions = ", ".join(f"{k} {v}" for k, v in figure["versions"].items() if k in _shown(name))
                lines.append(f"| {title} | {row['case']} | {_measured(row)} | {figure['hardware']}; {versions} |")
    return "\n".join(lines)


def _shown(name: str) -> tuple[str, ...]:
    return ("jax",) if name == "parametrization" else ("jax", "torch", "mup")


def _measured(row: Json) -> str:
    value, unit = row["value"], row["unit"] and f" {row['unit']}"
    spread = f" ({value['low']:.3g}-{value['high']:.3g}, {value['n']})" if value["n"] > 1 else ""
    return f"**{value['median']:.3g}{unit}**{spread}"
