"""Writes the table of registered forecasts in forecast.md, from docs/forecasts: python docs/forecast_table.py"""

from __future__ import annotations

import json
import pathlib

from generated_parts import with_part

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "forecast.md"
PART = "<!-- forecasts: python docs/forecast_table.py -->", "<!-- end of forecasts -->"
HEADER = (
    "forecast",
    "target",
    "cost / largest rung's",
    "forecast, 95 % interval",
    "reached",
    "error",
    "inside",
    "sha256",
)


def main() -> None:
    """Renews the page."""
    PAGE.write_text(renewed(PAGE.read_text()))


def renewed(page: str) -> str:
    """The page with what the files give: the misses first, then the largest errors."""
    checks = [json.loads(line) for line in (HERE / "forecasts" / "checked.jsonl").read_text().splitlines()]
    checks.sort(key=lambda check: (check["inside"], -abs(check["error"])))
    inside = sum(check["inside"] for check in checks)
    errors = sorted(abs(check["error"]) for check in checks)
    summary = (
        f"{inside} of {len(checks)} targets reached a loss inside the interval; median error "
        f"{errors[len(errors) // 2]:.1%}, largest {errors[-1]:.1%}."
    )
    lines = [f"| {' | '.join(row)} |" for row in (HEADER, ("---",) * len(HEADER), *map(_row, checks))]
    return with_part(page, *PART, "\n".join([summary, "", *lines]))


def _row(check: dict[str, object]) -> tuple[str, ...]:
    name = str(check["name"])
    registered = json.loads((HERE / "forecasts" / f"{name}.json").read_text())
    target, (low, high) = registered["target"], registered["forecast"]["interval"]
    return (
        f"[{name}](forecasts/{name}.json)",
        f"{target['width']} x {target['depth']}, {target['steps']:,} steps",
        f"{check['cost_ratio']:.0f}",
        f"{check['forecast']:.3f} ({low:.3f} to {high:.3f})",
        f"{check['loss']:.3f}",
        f"{check['error']:+.1%}",
        "yes" if check["inside"] else "**no**",
        f"`{registered['sha256'][:8]}`",
    )


if __name__ == "__main__":
    main()
