"""Writes the table of registered forecasts in forecasts.md: python -m reproduction.pages.forecast_table"""

from __future__ import annotations

import json
import pathlib
import statistics
from typing import Any

from reproduction.pages.generated_parts import with_part

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "forecasts.md"
PART = "<!-- forecasts: python -m reproduction.pages.forecast_table -->", "<!-- end of forecasts -->"
HEADER = (
    "forecast",
    "target",
    "cost / largest rung's",
    "steps / longest rung's",
    "forecast, 95 % interval",
    "reached",
    "error",
    "inside",
    "sha256",
)
_FAR = 100  # a ratio of costs


def main() -> None:
    """Renews the page."""
    PAGE.write_text(renewed(PAGE.read_text()))


def renewed(page: str) -> str:
    """The page with what the files give: the misses first, then the largest errors."""
    checks = [json.loads(line) for line in (HERE.parent / "forecasts" / "checked.jsonl").read_text().splitlines()]
    checks.sort(key=lambda check: (check["inside"], -abs(check["error"])))
    inside = lambda checks: f"{sum(check['inside'] for check in checks)} of {len(checks)}"
    far = [check for check in checks if check["cost_ratio"] >= _FAR]
    longer: dict[int, list[dict[str, object]]] = {}
    for check in checks:
        longer.setdefault(_steps_ratio(check), []).append(check)
    by_steps = [f"{inside(some)} at {ratio} times" for ratio, some in sorted(longer.items())]
    errors = sorted(abs(check["error"]) for check in checks)
    widths = [(check["interval"][1] - check["interval"][0]) / 2 / check["forecast"] for check in checks]
    summary = (
        f"**{inside(checks)} targets reached a loss inside the interval**, {inside(far)} of those at {_FAR} times the "
        f"largest rung's cost and more. By the target's steps over the longest rung's: {', '.join(by_steps)}. Error: "
        f"median {statistics.median(errors):.1%}, largest {errors[-1]:.1%}. Half of the interval: median "
        f"{statistics.median(widths):.1%} of the loss. Cost of the target over the largest rung's: "
        f"{min(check['cost_ratio'] for check in checks):.0f} to {max(check['cost_ratio'] for check in checks):.0f}."
    )
    lines = [f"| {' | '.join(row)} |" for row in (HEADER, ("---",) * len(HEADER), *map(_row, checks))]
    return with_part(page, *PART, "\n".join([summary, "", *lines]))


def _registered(check: dict[str, object]) -> dict[str, Any]:
    return json.loads((HERE.parent / "forecasts" / f"{check['name']}.json").read_text())


def _steps_ratio(check: dict[str, object]) -> int:
    registered = _registered(check)
    return round(registered["target"]["steps"] / max(rung["steps"] for rung in registered["rungs"]))


def _row(check: dict[str, object]) -> tuple[str, ...]:
    name = str(check["name"])
    registered = _registered(check)
    target, (low, high) = registered["target"], registered["forecast"]["interval"]
    return (
        f"[{name}](../forecasts/{name}.json)",
        f"{target['width']} x {target['depth']}, {target['steps']:,} steps",
        f"{check['cost_ratio']:.0f}",
        str(_steps_ratio(check)),
        f"{check['forecast']:.3f} ({low:.3f} to {high:.3f})",
        f"{check['loss']:.3f}",
        f"{check['error']:+.1%}",
        "yes" if check["inside"] else "**no**",
        f"`{registered['sha256'][:8]}`",
    )


if __name__ == "__main__":
    main()
