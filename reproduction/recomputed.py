"""Claims and the rule benchmark computed again from the records by other code: numpy and json, nothing of the package.

    python -m reproduction.recomputed

Its optimum is a parabola through the lowest mean and its neighbors in base-2 logarithms of the rate, its intervals are
percentiles of 2,000 resamplings of seeds, which are narrower than the page's for three seeds. The benchmark's second
version is scored by the words of its registration.
"""

from __future__ import annotations

import gzip
import json
import pathlib
import re
from collections import defaultdict
from collections.abc import Callable

import numpy as np

HERE = pathlib.Path(__file__).parent
Key = tuple[str, int, int]  # parametrization, width, depth
Curves = dict[Key, tuple[np.ndarray, np.ndarray]]  # -> log2 rates (X,), mean losses (X,)
Measure = Callable[[Curves, float], float]
RULES = {(0.0, 0.0): "mup", (0.5, 0.5): "depth_mup", (1.0, 0.0): "completep", (0.5, -0.5): "effective_depth"}
SIZES = {(1, 4): "depth x4", (4, 4): "both x4", (1, 16): "depth x16"}  # the proxy's width and depth times


def read(directory: pathlib.Path) -> tuple[dict, list[dict]]:
    """A sweep's description and its records."""
    return json.loads((directory / "sweep.json").read_text()), records_of(directory)


def records_of(directory: pathlib.Path) -> list[dict]:
    """The records of a sweep or of a limit."""
    with gzip.open(directory / "records.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def loss_of(record: dict) -> float:
    """The mean of the last training losses, infinite if the run diverged."""
    return np.inf if record["diverged_at_step"] is not None else record["train_loss_avg"]


def lowest(x: np.ndarray, y: np.ndarray, chance: float) -> tuple[float, float]:
    """Where a curve is lowest, and its value there."""
    i = int(np.argmin(y))
    if i in (0, len(x) - 1) or max(y[i - 1 : i + 2]) > chance:
        return x[i], y[i]
    coefficients = np.polyfit(x[i - 1 : i + 2], y[i - 1 : i + 2], 2)
    at = float(np.clip(-coefficients[1] / (2 * coefficients[0]), x[i - 1], x[i + 1]))
    return at, float(np.polyval(coefficients, at))


def value(x: np.ndarray, y: np.ndarray, at: float, chance: float) -> float:
    """A curve at a rate: the parabola through the three nearest points, or a line next to those that do not train."""
    i = int(np.clip(np.argmin(abs(x - at)), 1, len(x) - 2))
    if max(y[i - 1 : i + 2]) > chance:
        return float(np.interp(at, x[y <= chance], y[y <= chance]))
    return float(np.polyval(np.polyfit(x[i - 1 : i + 2], y[i - 1 : i + 2], 2), at))


def regret(rule: str, base: tuple[int, int], size: tuple[int, int]) -> Measure:
    """What the base's best rate costs at another size."""

    def measure(curves: Curves, chance: float) -> float:
        at, _ = lowest(*curves[rule, *base], chance)
        return value(*curves[rule, *size], at, chance) - lowest(*curves[rule, *size], chance)[1]

    return measure


def gain(one: Key, other: Key) -> Measure:
    """The lowest loss of one network minus that of another."""
    return lambda curves, chance: lowest(*curves[one], chance)[1] - lowest(*curves[other], chance)[1]


def minus(one: Measure, other: Measure) -> Measure:
    """A difference."""
    return lambda curves, chance: one(curves, chance) - other(curves, chance)


_MLP, _LONG, _ENDS = "lr_width_depth_mlp-cpu", "lr_width_depth_mlp-long", "trained_ends-long"
_SGD, _CONV = "lr_width_depth_sgd-cpu", "lr_width_depth_conv-cpu"
# (records, the row's words in pages/reproduction.md) -> how it is computed here.
CLAIMS: dict[tuple[str, str], Measure] = {
    (_MLP, "regret of depth_mup at depth 256"): regret("depth_mup", (32, 4), (32, 256)),
    (_MLP, "at depth 256 minus that of depth_mup at depth 4"): gain(("depth_mup", 32, 256), ("depth_mup", 32, 4)),
    (_MLP, "regret of depth_mup at width 128"): regret("depth_mup", (32, 4), (128, 4)),
    (_MLP, "regret of sp minus that of depth_mup at width 128"): minus(
        regret("sp", (32, 4), (128, 4)), regret("depth_mup", (32, 4), (128, 4))
    ),
    (_LONG, "regret of depth_mup at depth 16"): regret("depth_mup", (64, 4), (64, 16)),
    (_LONG, "at depth 64 minus that of depth_mup at depth 4"): gain(("depth_mup", 64, 64), ("depth_mup", 64, 4)),
    (_LONG, "regret of sp minus that of depth_mup at width 256"): minus(
        regret("sp", (64, 4), (256, 4)), regret("depth_mup", (64, 4), (256, 4))
    ),
    (_ENDS, "regret of depth_mup at depth 64"): regret("depth_mup", (64, 4), (64, 64)),
    (_ENDS, "regret of depth_mup at width 256 and depth 16"): regret("depth_mup", (64, 4), (256, 16)),
    (_ENDS, "regret of block_only minus that of depth_mup at depth 64"): minus(
        regret("block_only", (64, 4), (64, 64)), regret("depth_mup", (64, 4), (64, 64))
    ),
    (_ENDS, "regret of ode minus that of depth_mup at depth 64"): minus(
        regret("ode", (64, 4), (64, 64)), regret("depth_mup", (64, 4), (64, 64))
    ),
    (_ENDS, "lowest loss of depth_mup minus that of ode at depth 64"): gain(("depth_mup", 64, 64), ("ode", 64, 64)),
    (_SGD, "at depth 64 minus that of depth_mup at depth 4"): gain(("depth_mup", 32, 64), ("depth_mup", 32, 4)),
    (_SGD, "regret of depth_mup at depth 64"): regret("depth_mup", (32, 4), (32, 64)),
    (_CONV, "regret of mup minus that of depth_mup at depth 24"): minus(
        regret("mup", (32, 6), (32, 24)), regret("depth_mup", (32, 6), (32, 24))
    ),
}


def claim(records: str, measure: Measure, draws: int = 2000) -> tuple[float, float, float]:
    """The number of a claim, and its 95 % interval."""
    info, rows = read(HERE / "records" / records)
    grid: dict[Key, dict[float, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        key = (row["point"]["parametrization.preset"], row["width"], row["depth"])
        grid[key][np.log2(row["point"]["optimizer.learning_rate"])][row["seed"]] = loss_of(row)
    seeds = sorted({row["seed"] for row in rows})
    arrays = {
        key: (np.array(sorted(curve)), np.array([[curve[x][seed] for seed in seeds] for x in sorted(curve)]))
        for key, curve in grid.items()
    }
    means = lambda chosen: {key: (x, losses[:, chosen].mean(1)) for key, (x, losses) in arrays.items()}
    rng = np.random.default_rng(0)
    drawn = [measure(means(rng.integers(len(seeds), size=len(seeds))), info["chance"]) for _ in range(draws)]
    low, high = np.nanpercentile(drawn, [2.5, 97.5]) if drawn else (np.nan, np.nan)
    return measure(means(np.arange(len(seeds))), info["chance"]), float(low), float(high)


def printed(records: str, words: str) -> float:
    """The number that pages/reproduction.md has."""
    row = next(
        line
        for line in (HERE / "pages" / "reproduction.md").read_text().splitlines()
        if f"records/{records})" in line and words in line
    )
    return float(re.search(re.escape(words) + r" is (-?[\d.]+)", row)[1])  # type: ignore[index]


def benchmark() -> dict[tuple[str, str, str], float]:
    """(task, target, rule) -> regret, of the cells of `reproduction.rules.version2` that are done."""
    found = {}
    for directory in sorted((HERE / "rules" / "version2" / "records").iterdir()):
        info, rows = read(directory)
        chance, proxy_size = info["chance"], (info["base"]["model"]["width"], info["base"]["model"]["depth"])
        runs: dict = defaultdict(lambda: defaultdict(dict))
        for row in rows:
            size, at = (row["width"], row["depth"]), row["point"]
            rule = RULES[at["parametrization.alpha"], at["parametrization.gamma"]]
            if at["parametrization.width"] == "standard":
                rule = "sp"
            key = rule if size != proxy_size else "proxy"
            runs[size][key, at["optimizer.learning_rate"]][row["seed"]] = min(loss_of(row), chance)
        proxy = {rate: losses for (_, rate), losses in runs.pop(proxy_size).items()}
        tuned = [min(proxy, key=lambda rate: proxy[rate][k] + proxy[rate][k + 1]) for k in (0, 2, 4)]
        for size, losses in runs.items():
            target = SIZES[size[0] // proxy_size[0], size[1] // proxy_size[1]]
            table = {key: np.array([of[seed] for seed in sorted(of)]) for key, of in losses.items() if len(of) == 6}
            others = {key: (row.sum() - row) for key, row in table.items()}
            best = np.array([table[min(table, key=lambda key: others[key][k])][k] for k in range(6)])
            for rule in {rule for rule, _ in table}:
                regrets = [table[rule, rate].mean() - best.mean() for rate in tuned if (rule, rate) in table]
                if len(regrets) == 3:
                    found[directory.name, target, rule] = float(np.mean(regrets) / (chance - best.mean()))
    return found


def papers_size() -> dict[tuple[str, str, int], tuple[int, float, float]]:
    """(directory, rule, depth) of reproduction/papers -> seeds, best rate in octaves, lowest mean loss.

    Rates that lack seeds which others of their curve have are left out.
    """
    found = {}
    for directory in sorted((HERE / "papers" / "records").glob("fig10-*-epochs")):
        info, rows = read(directory)
        curves: dict = defaultdict(lambda: defaultdict(dict))
        for row in rows:
            key = directory.name, row["point"]["parametrization.preset"], row["depth"]
            curves[key][np.log2(row["point"]["optimizer.learning_rate"])][row["seed"]] = loss_of(row)
        for key, curve in curves.items():
            most = max(map(len, curve.values()))
            x = np.array(sorted(rate for rate, losses in curve.items() if len(losses) == most))
            means = np.array([np.mean(list(curve[rate].values())) for rate in x])
            found[key] = most, float(lowest(x, means, info["chance"])[0]), float(means.min())
    return found


def widths_power() -> dict[str, float]:
    """Power of the width of the square errors of linear networks of the paper's size, by least squares."""
    rows = records_of(HERE / "records" / "linear_limit-paper")
    rows = [row for row in rows if row["case"]["what"] == "networks" and row["case"]["depth"] == 64]
    x = np.log([row["case"]["width"] for row in rows])
    names = "square_errors", "square_errors_outputs"
    return {name: float(np.polyfit(x, np.log([np.mean(row["values"][name]) for row in rows]), 1)[0]) for name in names}


def diversity_slopes() -> dict[tuple[str, str, int], float]:
    """Slopes of distances of features over eps to 1/8 after the last step, at the size of TP6 Fig. 17 to 19.

    Rule, nonlinearity and depth -> the mean over seeds of least squares between logarithms.
    """
    found = {}
    for row in records_of(HERE / "records" / "diversity-paper"):
        eps, distances = np.array(row["values"]["fractions"]), np.array(row["values"]["distances"])[:, -1]
        near = eps <= 1 / 8
        slopes = [np.polyfit(np.log(eps[near]), np.log(seed[near]), 1)[0] for seed in distances]
        found[tuple(row["case"].values())] = float(np.mean(slopes))
    return found


def main() -> None:
    """Prints all."""
    for (records, words), measure in CLAIMS.items():
        number, low, high = claim(records, measure)
        print(f"{records}: {words}: page {printed(records, words):.4g}, here {number:.3g} ({low:.2g} to {high:.2g})")
    for cell, number in benchmark().items():
        print(*cell, f"{number:.3f}", sep=", ")
    for key, (seeds, best, loss) in papers_size().items():
        print(*key, f"n = {seeds}, best rate 2^{best:.1f}, lowest loss {loss:.3f}", sep=", ")
    print(widths_power())
    print(diversity_slopes())


if __name__ == "__main__":
    main()
