"""Writes the tables of laws and of registered forecasts in forecasts.md: python -m reproduction.pages.forecast_table"""

from __future__ import annotations

import json
import math
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from depthmup_flax.search.forecast.law import (
    COST,
    DEPTH,
    LONGER_ERROR,
    PARAMETERS,
    STEPS,
    WIDTH,
    Fit,
    Rung,
    fit,
    forecast_loss,
)
from reproduction.pages.generated_parts import with_part

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "forecasts.md"
LAWS = "<!-- laws: python -m reproduction.pages.forecast_table -->", "<!-- end of laws -->"
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
    ratios = {check["name"]: _cost_ratio(check) for check in checks}
    far = [check for check in checks if ratios[check["name"]] >= _FAR]
    longer: dict[int, list[dict[str, Any]]] = {}
    for check in checks:
        longer.setdefault(_steps_ratio(check), []).append(check)
    by_steps = [f"{inside(some)} at {ratio} times" for ratio, some in sorted(longer.items())]
    errors = sorted(abs(check["error"]) for check in checks)
    forecasts = [_forecast(check) for check in checks]
    widths = [(one["interval"][1] - one["interval"][0]) / 2 / one["loss"] for one in forecasts]
    summary = (
        f"**{inside(checks)} targets reached a loss inside the interval**, {inside(far)} of those at {_FAR} times the "
        f"largest rung's cost and more. By the target's steps over the longest rung's: {', '.join(by_steps)}. Error: "
        f"median {statistics.median(errors):.1%}, largest {errors[-1]:.1%}. Half of the interval: median "
        f"{statistics.median(widths):.1%} of the loss. Cost of the target over the largest rung's: "
        f"{min(ratios.values()):.0f} to {max(ratios.values()):.0f}."
    )
    lines = [f"| {' | '.join(row)} |" for row in (HEADER, ("---",) * len(HEADER), *map(_row, checks))]
    early, late = ([check for check in checks if ("started" in check) == is_late] for is_late in (False, True))
    rows = [*_laws(early, ""), *_laws(late, "later, ")]
    header = ("targets", "law", "median error", "rms", "coverage", "interval score")
    page = with_part(page, *LAWS, "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * 6, *rows)))
    return with_part(page, *PART, "\n".join([summary, "", *lines]))


def _laws(checks: Sequence[dict[str, Any]], when: str) -> list[tuple[str, ...]]:
    """The errors and intervals of laws on the registered ladders, against what the targets reached.

    What was registered is the old machinery's, or, ``when`` it is named, the package's.
    """
    losses = np.array([check["loss"] for check in checks])
    registered = [_registered(check) for check in checks]
    of = lambda given: Rung(**{**given, "losses": tuple(given["losses"])})
    ladders = [([of(rung) for rung in one["rungs"]], of(one["target"])) for one in registered]
    forecasts = [forecast_loss(rungs, target) for rungs, target in ladders]
    spreads = [forecast.seed_spread for forecast in forecasts]
    longer = np.array([target.steps > max(rung.steps for rung in rungs) for rungs, target in ladders], bool)
    largest = [max(rungs, key=lambda rung: rung.cost) for rungs, _ in ladders]
    pick = lambda values, where: [value for value, at in zip(values, where, strict=True) if at]

    def by_law(axes: tuple[str, ...], where: np.ndarray) -> list[Fit]:
        chosen = pick(list(zip(ladders, spreads, strict=True)), where)
        return [fit(axes, rungs, target, spread) for (rungs, target), spread in chosen]

    old = [(one["loss"], *one["interval"]) for one in map(_forecast, checks)]
    new = [(forecast.loss, *forecast.interval) for forecast in forecasts]
    last = [(float(np.mean(rung.losses)), math.nan, math.nan) for rung in largest]
    fits = [forecast.fits for forecast in forecasts]
    wide = lambda one: _interval(one, LONGER_ERROR)
    by_rungs = [min(some, key=lambda one: one.left_out_error) for some in pick(fits, longer)]
    tables = {
        "equal steps": (
            ~longer,
            {
                "old machinery: sum, product and parameters, posterior": pick(old, ~longer),
                "**the package's**": pick(new, ~longer),
                "E + A parameters^-a": list(map(_interval, by_law((PARAMETERS,), ~longer))),
                "E + A width^-a + B depth^-b": list(map(_interval, by_law((WIDTH, DEPTH), ~longer))),
                "loss of the largest rung": pick(last, ~longer),
            },
        ),
        "longer": (
            longer,
            {
                "old machinery": pick(old, longer),
                "**the package's**": pick(new, longer),
                "the same, not widened": [_interval(some[0]) for some in pick(fits, longer)],
                "E + A parameters^-a + B steps^-b": list(map(wide, by_law((PARAMETERS, STEPS), longer))),
                "E + A cost^-a": list(map(wide, by_law((COST,), longer))),
                "E + A parameters^-a": list(map(wide, by_law((PARAMETERS,), longer))),
                "of the package's, the smallest error for left-out rungs": list(map(wide, by_rungs)),
                "loss of the largest rung": pick(last, longer),
            },
        ),
    }
    return [
        (f"{when}{name}, {sum(where)}", law, *_score(np.array(given), losses[where]))
        for name, (where, laws) in tables.items()
        for law, given in laws.items()
        if where.any() and not (when and law.startswith("old"))
    ]


def _interval(one: Fit, wider: float = 0.0) -> tuple[float, float, float]:
    """The loss, and the ends of its 95 % interval."""
    factor = math.exp(1.96 * math.hypot(one.deviation, wider))
    return one.loss, one.loss / factor, one.loss * factor


def _score(forecasts: np.ndarray, losses: np.ndarray) -> tuple[str, ...]:
    """The cells of a law, from ``[targets, (loss, low, high)]``.

    The interval score (Gneiting and Raftery, 2007, eq. 43) is relative to the loss; smaller is better.
    """
    forecast, low, high = forecasts.T
    errors = losses / forecast - 1
    cells = f"{np.median(abs(errors)):.1%}", f"{np.sqrt(np.mean(errors**2)):.1%}"
    if np.isnan(low).any():
        return (*cells, "", "")
    outside = np.maximum(0, np.maximum(low - losses, losses - high))
    score = np.mean((high - low + 2 / 0.05 * outside) / losses)
    return (*cells, f"{np.sum(outside == 0)} of {len(losses)}", f"{score:.3f}")


def _registered(check: dict[str, Any]) -> dict[str, Any]:
    return json.loads((HERE.parent / "forecasts" / f"{check['name']}.json").read_text())


def _forecast(check: dict[str, Any]) -> dict[str, Any]:
    """Its loss and interval; the first registered ones are the old machinery's, with an object of their own."""
    registered = _registered(check)
    return registered.get("forecast", registered)


def _cost_ratio(check: dict[str, Any]) -> float:
    registered = _registered(check)
    cost = lambda rung: rung["parameters"] * rung["steps"]
    return cost(registered["target"]) / max(map(cost, registered["rungs"]))


def _steps_ratio(check: dict[str, Any]) -> int:
    registered = _registered(check)
    return round(registered["target"]["steps"] / max(rung["steps"] for rung in registered["rungs"]))


def _row(check: dict[str, Any]) -> tuple[str, ...]:
    name = str(check["name"])
    registered = _registered(check)
    target, (low, high) = registered["target"], _forecast(check)["interval"]
    return (
        f"[{name}](../forecasts/{name}.json)",
        f"{target['width']} x {target['depth']}, {target['steps']:,} steps",
        f"{_cost_ratio(check):.0f}",
        str(_steps_ratio(check)),
        f"{_forecast(check)['loss']:.3f} ({low:.3f} to {high:.3f})",
        f"{check['loss']:.3f}",
        f"{check['error']:+.1%}",
        "yes" if check["inside"] else "**no**",
        f"`{registered['sha256'][:8]}`",
    )


if __name__ == "__main__":
    main()
