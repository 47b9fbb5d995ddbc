"""Writes tables and figure of reproduction/pages/public_models.md: python -m reproduction.pages.public_models_table

Best rates are those of a parabola through the lowest mean and its neighbors, intervals 95 % percentiles of 4,000
resamplings of seeds; a resampling takes the same seeds of all runs, since a seed has the same batches in each.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import numpy as np

from reproduction.pages import figure_look
from reproduction.pages.generated_parts import with_part
from reproduction.recomputed import lowest

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "public_models.md"
RECORDS = HERE.parent / "public_models" / "records"
PART = "<!-- public models: python -m reproduction.pages.public_models_table -->", "<!-- end of public models -->"
SHORT = "mamba2_60_steps"
SHORT_PART = "<!-- short: python -m reproduction.pages.public_models_table -->", "<!-- end of short -->"
CONSTANT_GUESS = {"vit": np.log(10), "llm": 3.31, "mamba2": 3.31, SHORT: 3.31}  # its loss in nats, as registered
TITLES = {"vit": "ViT", "llm": "Qwen 3", "mamba2": "Mamba-2"}
LINES = {
    "base": ("16 x 2, plain optax: the base", "#7f7f7f"),
    "rule": ("64 x 8, the rule", "#21918c"),
    "plain": ("64 x 8, plain optax", "#c44e52"),
}
Runs = dict[str, tuple[np.ndarray, np.ndarray]]  # run -> log2 rates (X,), losses (seeds, X)
Measure = Callable[[Runs], float]


def read(model: str) -> tuple[Runs, float]:
    """The runs of the seeds that all runs have, and the processor seconds of all."""
    rows = [json.loads(line) for line in (RECORDS / f"{model}.jsonl").read_text().splitlines()]
    losses = {(name, seed, rate): loss for name, seed, rate, loss, _ in rows}
    rates = {name: sorted({row[2] for row in rows if row[0] == name}) for name in LINES}
    needed = [(name, rate) for name in LINES for rate in rates[name]]
    seeds = [s for s in sorted({row[1] for row in rows}) if all((name, s, rate) in losses for name, rate in needed)]
    runs = {}
    for name in LINES:
        values = np.array([[losses[name, seed, rate] for rate in rates[name]] for seed in seeds])
        runs[name] = np.log2(rates[name]), np.where(np.isfinite(values), values, CONSTANT_GUESS[model])
    return runs, sum(row[4] for row in rows)


def best(runs: Runs, name: str) -> tuple[float, float]:
    """The best rate's base-2 logarithm and the lowest loss, of the mean over seeds."""
    x, losses = runs[name]
    return lowest(x, losses.mean(0), np.inf)


def shift(runs: Runs) -> float:
    """The rule's best rate over the base's, in octaves."""
    return best(runs, "rule")[0] - best(runs, "base")[0]


def at_base_rate(runs: Runs, name: str) -> float:
    """The large network's mean loss at the base's best rate of the grid."""
    x, losses = runs["base"]
    rate = x[losses.mean(0).argmin()]
    return float(runs[name][1].mean(0)[list(runs[name][0]).index(rate)])


def regret(runs: Runs) -> float:
    """What the base's best rate costs over the lowest loss of the rule's grid."""
    return at_base_rate(runs, "rule") - float(runs["rule"][1].mean(0).min())


def untuned_minus_tuned(runs: Runs) -> float:
    """The rule at the base's best rate minus plain at its own."""
    return at_base_rate(runs, "rule") - best(runs, "plain")[1]


def both_untuned(runs: Runs) -> float:
    """The rule minus plain, both at the base's best rate."""
    return at_base_rate(runs, "rule") - at_base_rate(runs, "plain")


def both_tuned(runs: Runs) -> float:
    """The rule minus plain, each at its own best rate."""
    return best(runs, "rule")[1] - best(runs, "plain")[1]


def interval(measure: Measure, runs: Runs) -> tuple[float, float, float]:
    """A measure and its 95 % interval."""
    n = len(runs["base"][1])
    draws = np.random.default_rng(0).integers(n, size=(4000, n))
    values = [measure({name: (x, losses[draw]) for name, (x, losses) in runs.items()}) for draw in draws]
    low, high = np.percentile(values, [2.5, 97.5])
    return measure(runs), low, high


def table(models: dict[str, tuple[Runs, float]]) -> str:
    """A row a measure, a column a model."""
    rows = [["", *(TITLES[name] for name in models)], ["---"] * (len(models) + 1)]
    add = lambda title, cells: rows.append([title, *cells])
    of = lambda measure: [interval(measure, runs) for runs, _ in models.values()]
    with_interval = lambda one, form: f"{one[0]:{form}} ({one[1]:{form}} to {one[2]:{form}})"
    add("seeds", (f"{len(runs['base'][1])}" for runs, _ in models.values()))
    for name, (title, _) in LINES.items():
        add(f"{title}: best rate, loss there", (_best(runs, name) for runs, _ in models.values()))
    add("the rule's best rate over the base's, octaves", (with_interval(one, "+.2f") for one in of(shift)))
    learned = {name: CONSTANT_GUESS[name] - runs["rule"][1].mean(0).min() for name, (runs, _) in models.items()}
    share = lambda one, name: f"{with_interval(one, '.3f')}: {one[0] / learned[name]:.1%} of what is learned"
    regrets = of(regret)
    add("what the base's best rate costs the rule", map(share, regrets, models))
    transfers = (
        abs(moved[0]) <= 0.5 or cost[0] < 0.02 * learned[name]
        for moved, cost, name in zip(of(shift), regrets, models, strict=True)
    )
    add("**the rate transfers**", (f"**{'yes' if yes else 'no'}**" for yes in transfers))
    untuned = of(untuned_minus_tuned)
    add("rule at the base's best rate minus plain at its own best", (with_interval(one, "+.3f") for one in untuned))
    verdict = lambda one: "better" if one[2] < 0 else "behind" if one[1] > 0 else "not resolved"
    add("**the rule, untuned, against plain, tuned**", (f"**{verdict(one)}**" for one in untuned))
    add("rule minus plain, both at the base's best rate", (with_interval(one, "+.3f") for one in of(both_untuned)))
    add("rule minus plain, each at its own best rate", (with_interval(one, "+.3f") for one in of(both_tuned)))
    add("processor seconds, of all runs", (f"{seconds:.0f}" for _, seconds in models.values()))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _best(runs: Runs, name: str) -> str:
    x, losses = runs[name]
    at, value = best(runs, name)
    deviation = losses[:, losses.mean(0).argmin()].std(ddof=1)
    return f"2^{at:.1f}{' (edge of the grid)' if at in (x[0], x[-1]) else ''}, {value:.3f} ± {deviation:.3f}"


def by_rate(runs: Runs) -> str:
    """Mean and standard deviation of the losses at each rate."""
    grid = sorted({at for x, _ in runs.values() for at in x})
    rows = [["rate", *(f"2^{at:.0f}" for at in grid)], ["---"] * (len(grid) + 1)]
    for name, (title, _) in LINES.items():
        x, losses = runs[name]
        cells = {at: f"{one.mean():.3f} ± {one.std(ddof=1):.3f}" for at, one in zip(x, losses.T, strict=True)}
        rows.append([title, *(cells.get(at, "not run") for at in grid)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(models: dict[str, tuple[Runs, float]]) -> None:
    """Loss against rate, a panel a model."""
    figure, axes_of = figure_look.panels(len(models), 3.0)
    for axes, (model, (runs, _)) in zip(axes_of, models.items(), strict=True):
        for name, (title, color) in LINES.items():
            x, losses = runs[name]
            mean, deviation = losses.mean(0), losses.std(0, ddof=1)
            axes.plot(x, mean, color=color, marker="o", markersize=3, label=title)
            axes.fill_between(x, mean - deviation, mean + deviation, color=color, alpha=0.2, linewidth=0)
        x, losses = runs["base"]
        axes.axvline(x[losses.mean(0).argmin()], color="#7f7f7f", linestyle="--", linewidth=1)
        ticks = range(int(runs["plain"][0][0]), int(runs["rule"][0][-1]) + 1, 2)
        axes.set(title=TITLES[model], xticks=list(ticks))
        axes.grid(alpha=0.25)
    axes_of[0].set_ylabel("training loss")
    axes_of[len(models) // 2].set_xlabel("base-2 logarithm of the learning rate")
    figure.legend(*axes_of[0].get_legend_handles_labels(), loc="outside upper center", frameon=False)
    figure.savefig(PAGE.with_suffix(".png"), dpi=200)


def renewed(page: str) -> str:
    """The page with what the records give."""
    page = with_part(page, *SHORT_PART, by_rate(read(SHORT)[0]))
    return with_part(page, *PART, table({name: read(name) for name in TITLES}))


def main() -> None:
    """Renews the page and its figure."""
    PAGE.write_text(renewed(PAGE.read_text()))
    draw({name: read(name) for name in TITLES})


if __name__ == "__main__":
    main()
