"""Writes the tables of laws and of registered forecasts in forecasts.md: python -m reproduction.pages.forecast_table"""

from __future__ import annotations

import gzip
import json
import math
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

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
TESTS = "<!-- tests: python -m reproduction.pages.forecast_table -->", "<!-- end of tests -->"
_SWEEPS = ("cifar10-cpu", "lr_width_depth_conv-cpu", "megatron-cpu", "which_exponent_gpt-cpu", "which_exponent_mlp-cpu")
LATER, FRESH = "later, ", "fresh, "
_FAR = 100  # a ratio of costs
_CHARACTERS = 3.3135743524353867


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
    groups = {name: [check for check in checks if _group(check) == name] for name in ("", LATER, FRESH)}
    rows = [row for name, some in groups.items() for row in _laws(some, name, groups[""])]
    header = ("targets", "law", "median error", "rms", "coverage", "interval score")
    page = with_part(page, *LAWS, "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * 6, *rows)))
    header = ("targets", "above the limit", "power", "of them cannot tell", "power of the others")
    rows = [row for name, some in groups.items() for row in _tests(some, name)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * 5, *rows))
    page = with_part(page, *TESTS, f"{table}\n\n{_half_rate(checks)}")
    return with_part(page, *PART, "\n".join([summary, "", *lines]))


def _group(check: dict[str, Any]) -> str:
    """Registered by the old machinery, by the law alone, or by the law and what earlier targets gained."""
    return FRESH if "most" in _registered(check) else LATER if "started" in check else ""


def _chance(check: dict[str, Any]) -> float:
    """The loss of chance, which the first files lack: characters of Tiny Shakespeare, ten classes."""
    return _registered(check).get("chance") or (_CHARACTERS if str(check["name"]).startswith("gpt") else math.log(10))


def _ladder(check: dict[str, Any]) -> tuple[list[Rung], Rung]:
    of = lambda given: Rung(**{**given, "losses": tuple(given["losses"])})
    registered = _registered(check)
    return [of(rung) for rung in registered["rungs"]], of(registered["target"])


def _gain(check: dict[str, Any]) -> float:
    """By how much a target's log loss is below the best rung's."""
    return math.log(_best(_ladder(check)[0]) / check["loss"])


def _best(rungs: Sequence[Rung]) -> float:
    return min(float(np.mean(rung.losses)) for rung in rungs)


def _is_longer(check: dict[str, Any]) -> bool:
    rungs, target = _ladder(check)
    return target.steps > max(rung.steps for rung in rungs)


def _tests(checks: Sequence[dict[str, Any]], when: str) -> list[tuple[str, ...]]:
    """False alarms of the limit, and its power against a run that reaches the best rung's loss."""
    rows = []
    for name, longer in (("equal steps", False), ("longer", True)):
        some = [check for check in checks if _is_longer(check) == longer]
        if not some:
            continue
        forecasts = [forecast_loss(*_ladder(check), _chance(check)) for check in some]
        above = sum(check["loss"] > one.most for check, one in zip(some, forecasts, strict=True))
        blind = [one.interval[1] >= _best(_ladder(check)[0]) for check, one in zip(some, forecasts, strict=True)]
        powers = np.array([one.power for one in forecasts])
        clear = powers[~np.array(blind)]
        cells = f"{above} of {len(some)}", f"{powers.mean():.2f}", str(sum(blind))
        rows.append((f"{when}{name}", *cells, f"{clear.mean():.2f}" if clear.size else ""))
    return rows


def _half_rate(checks: Sequence[dict[str, Any]]) -> str:
    """What half of the best rate costs in sweeps of these networks, and the limit's power against it."""
    costs = []
    for name in _SWEEPS:
        runs: dict[tuple[int, int], dict[float, list[float]]] = {}
        with gzip.open(HERE.parent / "records" / name / "records.jsonl.gz", "rt") as lines:
            for record in map(json.loads, lines):
                point = record["point"]
                if point.get("parametrization.preset", "depth_mup") == "depth_mup":
                    loss = math.inf if record["test_loss"] is None else record["test_loss"]
                    rates = runs.setdefault((record["width"], record["depth"]), {})
                    rates.setdefault(point["optimizer.learning_rate"], []).append(loss)
        for rates in runs.values():
            means = {rate: np.mean(losses) for rate, losses in rates.items()}
            best = min(means, key=lambda rate: means[rate])
            costs += [math.log(means[rate] / means[best]) for rate in means if abs(math.log2(best / rate) - 1) < 0.05]
    some = [forecast_loss(*_ladder(check), _chance(check)) for check in checks if not _is_longer(check)]
    limits = np.array([[math.log(one.most / one.loss)] for one in some])
    power = stats.norm.sf(stats.norm.isf(0.05) * (1 - np.array(costs) / limits)).mean()
    return (
        f"**Half of the best rate** costs {np.median(costs):.1%} of the test loss in the median of {len(costs)} sizes "
        f"of these networks ({min(costs):.1%} to {max(costs):.1%}); at equal steps the limit is "
        f"{np.median(limits):.1%} above the forecast. So its power is {power:.2f}: a forecast does not see a wrong "
        "rate."
    )


def _laws(checks: Sequence[dict[str, Any]], when: str, first: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The errors and intervals of laws on the registered ladders, against what the targets reached.

    What was registered is the old machinery's, or, ``when`` it is named, the package's. The constant is the mean gain
    of the ``first`` targets, with their standard deviation.
    """
    if not checks:
        return []
    losses = np.array([check["loss"] for check in checks])
    ladders = list(map(_ladder, checks))
    forecasts = [forecast_loss(rungs, target) for rungs, target in ladders]
    averaged = [forecast_loss(*_ladder(check), _chance(check)) for check in checks]
    spreads = [forecast.seed_spread for forecast in forecasts]
    longer = np.array([target.steps > max(rung.steps for rung in rungs) for rungs, target in ladders], bool)
    largest = [max(rungs, key=lambda rung: rung.cost) for rungs, _ in ladders]
    pick = lambda values, where: [value for value, at in zip(values, where, strict=True) if at]

    def by_law(axes: tuple[str, ...], where: np.ndarray) -> list[Fit]:
        chosen = pick(list(zip(ladders, spreads, strict=True)), where)
        return [fit(axes, rungs, target, spread) for (rungs, target), spread in chosen]

    old = [(one["loss"], *one["interval"]) for one in map(_forecast, checks)]
    law = [(forecast.loss, *forecast.interval) for forecast in forecasts]
    new = [(forecast.loss, *forecast.interval) for forecast in averaged]

    def constant(longer: bool) -> list[tuple[float, ...]]:
        gains = [_gain(check) for check in first if _is_longer(check) == longer]
        ends = np.mean(gains) + 1.96 * np.std(gains, ddof=1) * np.array([0, 1, -1])
        own = [_best(rungs) for rungs, target in ladders if (target.steps > max(x.steps for x in rungs)) == longer]
        return [tuple(best * np.exp(-ends)) for best in own]

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
                "the law alone": pick(law, ~longer),
                "constant: the mean gain of the first 17": constant(False),
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
                "the law alone": pick(law, longer),
                "constant: the mean gain of the first 10": constant(True),
                "the law alone, not widened": [_interval(some[0]) for some in pick(fits, longer)],
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
