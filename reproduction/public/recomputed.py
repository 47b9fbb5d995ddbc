"""The headline numbers of README.md once more, by other code: numpy and the raw files, nothing of this repository.

    DEPTHMUP_PUBLIC=directory python -m reproduction.public.recomputed

Best rates and losses at other rates are read from a parabola over the points within an octave, as the page says; laws
are fitted on a grid of exponents that shrinks, with coefficients by least squares over every subset of terms.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import pathlib
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

Cell = tuple[np.ndarray, np.ndarray]  # base-2 logarithms of rates, and losses
Law = Callable[[np.ndarray], float]


def cells(path: pathlib.Path, names: Sequence[str]) -> dict[tuple[float, ...], Cell]:
    """Columns ``names`` -> the curve over rates."""
    found: dict[tuple[float, ...], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["smooth loss"]:
                key = tuple(float(row[name]) for name in names)
                found[key][float(row["lr"])].append(float(row["smooth loss"]))
    curves = {}
    for key, rates in found.items():
        x = np.log2(sorted(rates))
        curves[key] = (x, np.array([np.mean(rates[rate]) for rate in sorted(rates)]))
    return curves


def parabola(cell: Cell, i: int) -> np.ndarray:
    """Through the points within an octave of point ``i``."""
    x, y = cell
    near = (np.abs(x - x[i]) < 1.01) | (np.abs(np.arange(len(x)) - i) <= 1)
    return np.polyfit(x[near], y[near], 2)


def optimum(cell: Cell) -> tuple[float, float] | None:
    """Best rate and loss; ``None`` at an end of the grid."""
    x, y = cell
    i = int(y.argmin())
    if i in (0, len(x) - 1):
        return None
    fit = parabola(cell, i)
    at = float(np.clip(-fit[1] / (2 * fit[0]), x[i - 1], x[i + 1])) if fit[0] > 0 else float(x[i])
    return at, float(np.polyval(fit, at)) if fit[0] > 0 else float(y[i])


def regret(cell: Cell, at: float) -> float:
    """What a rate costs."""
    x, y = cell
    best = optimum(cell)
    least = best[1] if best else float(y.min())
    at = float(np.clip(at, x[0], x[-1]))
    i = int(np.clip(np.abs(x - at).argmin(), 1, len(x) - 2))
    return max(0.0, float(np.polyval(parabola(cell, i), at)) - least)


def step_law(directory: pathlib.Path) -> dict[str, float]:
    """Mean regrets of carrying the rate of 960 x 7, and the exponent over tokens."""
    curves = cells(directory / "steplaw/step_law_dense.csv", ("h", "numl", "D", "bs"))
    kept = {k: c for k, c in curves.items() if 64 <= k[3] <= 512 and len(c[0]) >= 5 and optimum(c)}
    factors = {
        "none": (0, 0, 0),
        "1/m": (-1, 0, 0),
        "1/(m sqrt r)": (-1, -0.5, 0),
        "1/(m sqrt r) d^-1/4": (-1, -0.5, -0.25),
        "N^-.713 D^.307": (-1.426, -0.713, 0.307),
    }
    found = {name: list[float]() for name in factors}
    for base, target in itertools.product(kept, kept):
        if base[:2] == (960, 7) and target[0] > 960 and base[3] == target[3] and base[2] <= target[2]:
            ratios = np.log2(np.divide(target[:3], base[:3]))
            for name, powers in factors.items():
                found[name].append(regret(kept[target], optimum(kept[base])[0] + ratios @ powers))
    return {f"step_law, regret, {name}": float(np.mean(values)) for name, values in found.items()} | {
        "step_law, exponent over tokens": slope(kept, 2, (0, 1, 3))
    }


def slope(curves: dict[tuple[float, ...], Cell], axis: int, fixed: Sequence[int]) -> float:
    """Exponent of the best rate over one size, with an intercept for each value of the others."""
    groups = defaultdict(list)
    for key, cell in curves.items():
        best = optimum(cell)
        if best:
            groups[tuple(key[i] for i in fixed)].append((np.log2(key[axis]), best[0]))
    centered = np.concatenate([np.array(group) - np.mean(group, axis=0) for group in groups.values()])
    return float(centered[:, 0] @ centered[:, 1] / (centered[:, 0] @ centered[:, 0]))


def mixtures(directory: pathlib.Path) -> dict[str, float]:
    """Mean regrets of carrying a rate to more tokens, in the closed half."""
    curves = cells(directory / "steplaw/moe_lr_bs_loss.csv", ("moeh", "nume", "D", "bs"))
    closed = {key: cell for key, cell in curves.items() if key[0] != 352}
    found: dict[float, list[float]] = {0.0: [], -0.25: []}
    for base, target in itertools.product(closed, closed):
        best = optimum(closed[base])
        if best and base[:2] == target[:2] and base[3] == target[3] and base[2] < target[2]:
            for power, values in found.items():
                values.append(regret(closed[target], best[0] + power * np.log2(target[2] / base[2])))
    return {f"step_law_moe, closed, regret, d^{power:g}": float(np.mean(v)) for power, v in found.items()} | {
        "step_law_moe, closed, exponent over tokens": slope(closed, 2, (0, 1, 3))
    }


def lengths(directory: pathlib.Path) -> dict[str, float]:
    """Marin's sweep at width 512: regrets over tokens without diverged runs."""
    groups = defaultdict(dict)
    for path in (directory / "marin_optimizers").glob("*/130m/*/result.json"):
        if (optimizer := path.parts[-4]) == "mudam":
            continue
        cell = json.loads(path.read_text())
        losses = {cell["best_config"]["learning_rate"]: (cell.get("baseline") or {}).get("loss") or cell["min_loss"]}
        runs = [run for run in cell.get("ablations") or [] if run["param"] == "learning_rate"]
        losses |= {float(run["value"]): run["loss"] for run in runs if isinstance(run["loss"], float)}
        rates = sorted(losses)
        y = np.array([losses[rate] for rate in rates])
        if len(rates) >= 3:
            groups[optimizer][int(path.parts[-2])] = (np.log2(rates)[y < y.min() + 0.5], y[y < y.min() + 0.5])
    found: dict[float, list[float]] = {0.0: [], -0.25: []}
    for cell in groups.values():
        best = optimum(cell[1]) if len(cell[1][0]) > 2 else None
        start = best[0] if best else float(cell[1][0][cell[1][1].argmin()])
        for ratio in set(cell) - {1}:
            for power, values in found.items():
                values.append(_regret_of_few(cell[ratio], start + power * np.log2(ratio)))
    return {f"marin_optimizers, regret over tokens, d^{power:g}": float(np.mean(v)) for power, v in found.items()}


def _regret_of_few(cell: Cell, at: float) -> float:
    """`regret`, by a line where two runs are left."""
    x, y = cell
    return regret(cell, at) if len(x) > 2 else float(np.interp(at, x, y) - y.min())


def law(sizes: np.ndarray, losses: np.ndarray) -> Law:
    """E and a power of each column, exponents 1/4 to sqrt 2, by least squares of relative errors."""
    unit = sizes.max(0)

    def fitted(logs: Sequence[float]) -> tuple[float, np.ndarray]:
        terms = np.column_stack([np.ones(len(sizes)), (sizes / unit) ** -(2.0 ** np.array(logs))])
        best = np.inf, np.zeros(terms.shape[1])
        for count in range(1, terms.shape[1] + 1):
            for some in map(list, itertools.combinations(range(terms.shape[1]), count)):
                part = np.linalg.lstsq(terms[:, some] / losses[:, None], np.ones(len(losses)), rcond=None)[0]
                if (part < 0).any():
                    continue
                whole = np.zeros(terms.shape[1])
                whole[some] = part
                error = float(np.sum((terms @ whole / losses - 1) ** 2))
                best = min(best, (error, whole), key=lambda pair: pair[0])
        return best

    grid, width = list(itertools.product(np.linspace(-2, 0.5, 6), repeat=sizes.shape[1])), 0.5
    for _ in range(7):
        center = np.array(min(grid, key=lambda logs: fitted(logs)[0]))
        width /= 2
        steps = itertools.product((-width, 0, width), repeat=sizes.shape[1])
        grid = [tuple(np.clip(center + step, -2, 0.5)) for step in map(np.array, steps)]
    logs = min(grid, key=lambda one: fitted(one)[0])
    coefficients = fitted(logs)[1]
    return lambda size: float(coefficients @ np.concatenate([[1], (size / unit) ** -(2.0 ** np.array(logs))]))


def gemstones(directory: pathlib.Path) -> dict[str, float]:
    """Median error of forecasts at six lengths, and what depth brings at 100 B tokens."""
    rows = [json.loads(line) for line in (directory / "gemstones/gemstones_hot.jsonl").read_text().splitlines()]
    errors, gains = [], []
    for length in (5, 10, 20, 30, 40, 50):
        runs = [row for row in rows if round(row["tokens"] / 2.0007e9) == length]
        for target in runs:
            n = target["params_active_precise"]
            rungs = [r for r in runs if r["params_active_precise"] <= 0.103 * n and r["width"] <= target["width"]]
            if len(rungs) < 6:
                continue
            sizes = [[r["params_active_precise"], r["depth"]] for r in (*rungs, target)]
            losses = np.array([r["final_loss"] for r in rungs])
            aim = law(np.array(sizes[:-1], float), losses)(np.array(sizes[-1], float))
            errors.append(abs(np.log(target["final_loss"] / aim)))
        for shallow, deep in itertools.permutations(runs, 2) if length == 50 else ():
            equal = abs(deep["params_active_precise"] / shallow["params_active_precise"] - 1) <= 0.05
            if equal and deep["depth"] >= 1.5 * shallow["depth"]:
                gains.append(deep["final_loss"] - shallow["final_loss"])
    return {
        f"gemstones, median error of {len(errors)} forecasts": float(np.median(errors)),
        f"gemstones, loss(deeper) - loss(shallower) of {len(gains)} pairs": float(np.mean(gains)),
    }


def isoflops(directory: pathlib.Path) -> dict[str, float]:
    """Median and mean error of forecasts in the closed half."""
    errors = []
    for data in ("comma", "dclm", "nemotron"):
        with (directory / f"marin_isoflops/isoflop-{data}.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["eval/paloma/macro_loss"]]
        names = ("model.hidden_dim", "model.num_layers", "throughput/total_tokens", "parameter_count")
        table = np.array([[float(row[name]) for name in (*names, "eval/paloma/macro_loss")] for row in rows])
        for width, layers, tokens, parameters, loss in table[table[:, 0] > 1024]:
            smaller = (table[:, 0] <= width) & (table[:, 1] <= layers) & (table[:, 2] <= 1.0001 * tokens)
            rungs = table[smaller & (table[:, 3] * table[:, 2] <= 0.1 * parameters * tokens)]
            if len(rungs) < 6 or len(np.unique(rungs[:, :2], axis=0)) < 3:
                continue
            aim = law(rungs[:, [3, 2]], rungs[:, 4])(np.array([parameters, tokens]))
            errors.append(np.log(loss / aim))
    return {
        f"marin_isoflops, closed, median error of {len(errors)} forecasts": float(np.median(np.abs(errors))),
        "marin_isoflops, closed, mean error": float(np.mean(errors)),
    }


def main() -> None:
    """Prints a line for each number."""
    directory = pathlib.Path(os.environ["DEPTHMUP_PUBLIC"])
    for part in (step_law, mixtures, lengths, gemstones, isoflops):
        for name, value in part(directory).items():
            print(f"{name:70} {value:+.4f}", flush=True)


if __name__ == "__main__":
    main()
