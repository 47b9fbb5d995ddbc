"""Writes the table of recipes in forecasts.md: python -m reproduction.pages.recipe_table"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from reproduction.pages.generated_parts import with_part

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "forecasts.md"
PART = "<!-- recipes: python -m reproduction.pages.recipe_table -->", "<!-- end of recipes -->"
HEADER = ("network", "compute", "run", "width x depth", "steps x batch size", "test loss", "regret (95 %)", "n")
ORDER = ("recipe", "ladder", "search", "balanced")


def main() -> None:
    """Renews the page."""
    PAGE.write_text(renewed(PAGE.read_text()))


def renewed(page: str) -> str:
    """The page with what the file gives: the largest regret first."""
    rows = [json.loads(line) for line in (HERE.parent / "recipe" / "results.jsonl").read_text().splitlines()]
    groups = {key: [row for row in rows if _key(row) == key] for key in dict.fromkeys(map(_key, rows))}
    best = {key: min((r for r in group if "search" in r["run"]), key=_mean) for key, group in groups.items()}
    shown = [row for row in rows if "search" not in row["run"] or row is best[_key(row)]]
    largest = {
        key: max(_regret(row, best[key])[0] for row in group if row["run"] in ("recipe", "ladder"))
        for key, group in groups.items()
    }
    shown.sort(key=lambda row: (-largest[_key(row)], _key(row), ORDER.index(row["run"].partition(",")[0])))
    lines = [HEADER, ("---",) * len(HEADER), *(_row(row, best[_key(row)]) for row in shown)]
    return with_part(page, *PART, "\n".join(f"| {' | '.join(line)} |" for line in lines))


def _key(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["name"], row["compute"]


def _mean(row: Mapping[str, Any]) -> float:
    return float(np.mean(row["losses"]))


def _regret(row: Mapping[str, Any], best: Mapping[str, Any]) -> tuple[float, float]:
    """The loss relative to the best of the search, minus 1, and half of its interval: paired by seeds, Student's t."""
    ratios = np.log(_losses(row)) - np.log(_losses(best))
    spread = ratios.std(ddof=1) / math.sqrt(len(ratios))
    return float(np.expm1(ratios.mean())), float(spread * stats.t.ppf(0.975, len(ratios) - 1))


def _losses(row: Mapping[str, Any]) -> Sequence[float]:
    return np.array(row["losses"])


def _row(row: Mapping[str, Any], best: Mapping[str, Any]) -> tuple[str, ...]:
    regret, half = _regret(row, best)
    return (
        row["name"],
        str(row["compute"]),
        row["run"].partition(",")[0],
        f"{row['width']} x {row['depth']}",
        f"{row['steps']:,} x {row['batch_size']}",
        f"{_mean(row):.4f}",
        ""
        if row is best
        else "the search's best"
        if row["losses"] == best["losses"]
        else f"{regret:+.1%} ± {half:.1%}",
        str(len(row["losses"])),
    )


if __name__ == "__main__":
    main()
