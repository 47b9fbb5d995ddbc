"""Writes the tables and the figure of batch_and_steps.md from the records of its sweeps.

    python -m reproduction.pages.batch_and_steps [DIRECTORY]      of batch_and_steps-cpu, ...; default: records

Coordinates are octaves: log2 of the rate, or of rate / (1 - momentum).
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator

from depthmup_flax.report.optimum import (
    EDGE_HIGH,
    EDGE_LOW,
    NEXT_TO_DIVERGENCE,
    Estimate,
    Optimum,
    find_optimum,
    resampled_means,
    slope,
)
from depthmup_flax.report.style import canvas
from depthmup_flax.storage.sweep_records import COMPLETED, LEARNING_RATE, SEED, read_sweep

DECAYS = (0.25, 1.0)  # of steps_with_decay
COST = 0.02  # training loss that decay may cost where its time is read
HERE = pathlib.Path(__file__).parent
RECORDS = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "records"
B1, MOMENTUM = "optimizer.kwargs.b1", "optimizer.kwargs.momentum"
BATCH, STEPS, DECAY = "train.batch_size", "train.steps", "optimizer.weight_decay"


@dataclasses.dataclass(frozen=True)
class Curve:
    """Losses (S, X) over coordinates (X,) at one batch size, number of steps and time of averages."""

    x: np.ndarray
    losses: np.ndarray
    optimum: Optimum

    def regret(self, at: float) -> Estimate | None:
        """Mean loss at the coordinate ``at``, interpolated, minus the lowest one.

        ``None`` above the largest rate that was run and at which no run diverged.
        """
        known = np.isfinite(self.losses.mean(0))
        if not self.x[known].min() <= at <= self.x[known].max():
            return None
        fit = lambda means: PchipInterpolator(self.x[known], means[known])
        finest = np.linspace(self.x[known].min(), self.x[known].max(), 200)
        lost = lambda means: float(fit(means)(at) - fit(means)(finest).min())
        draws = np.array([lost(means) for means in resampled_means(self.losses, 200)])
        return Estimate(max(0.0, lost(self.losses.mean(0))), draws, len(self.losses))


def curves(name: str, x: str = LEARNING_RATE, decay: float | None = None) -> dict[tuple[int, int, float | None], Curve]:
    """(batch size, steps, averaging constant) -> curve, of the sweep in the directory ``name``.

    With ``decay`` of its runs with that weight decay alone.
    """
    found: dict[tuple[int, int, float | None], dict[tuple[float, int], float]] = {}
    sweep = read_sweep([RECORDS / name])
    for record in sweep.records:
        point = record.point
        if decay is not None and point[DECAY] != decay:
            continue
        beta = point.get(MOMENTUM, point.get(B1))
        beta = None if beta is None else round(beta, 6)
        rate = math.log2(point[x] / (1 - (point.get(MOMENTUM) or 0.0))) if point[x] else -math.inf
        loss = record.train_loss_avg if record.status == COMPLETED else math.nan
        found.setdefault((point[BATCH], point[STEPS], beta), {})[rate, point[SEED]] = loss
    result = {}
    for key, losses in found.items():
        rates, seeds = (sorted({entry[i] for entry in losses}) for i in (0, 1))
        grid = np.array([[losses.get((rate, seed), math.nan) for rate in rates] for seed in seeds])
        optimum = find_optimum(np.array(rates), grid, most=sweep.info.chance)
        assert optimum is not None
        result[key] = Curve(np.array(rates), grid, optimum)
    return result


def shown(estimate: Estimate | None, flag: str = "", digits: int = 2, sign: str = "+") -> str:
    """``+0.53 ± 0.10``; a bound at an edge of the grid."""
    if estimate is None:
        return "above"
    bound = {EDGE_LOW: "<= ", EDGE_HIGH: ">= "}.get(flag, "")
    half = "" if bound or estimate.half_width is None else f" ± {estimate.half_width:.{digits}f}"
    return f"{bound}{estimate.value:{sign}.{digits}f}{half}" + (" *" if flag == NEXT_TO_DIVERGENCE else "")


def moved(estimate: Estimate, by: float) -> Estimate:
    """``estimate + by``."""
    draws = None if estimate.draws is None else estimate.draws + by
    return dataclasses.replace(estimate, value=estimate.value + by, draws=draws)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [" | ".join(row) for row in rows]
    return "\n".join(f"| {line} |" for line in [lines[0], " | ".join("---" for _ in rows[0]), *lines[1:]])


def size_table(name: str, base: Curve, at: int, columns: Sequence[tuple[str, Mapping[int, Curve], float]]) -> str:
    """Shift, regret and lowest loss at each size; columns are (title, size -> curve, exponent), ``at`` the base's size.

    Columns with the same curves share the column of their lowest losses, after them.
    """
    cells: list[dict[str, str]] = []
    for size in sorted({size for _, found, _ in columns for size in found}):
        row = {name: str(size)}
        for title, found, exponent in columns:
            own, by = found[size], exponent * math.log2(size / at)
            shift, regret = moved(own.optimum.at - base.optimum.at, -by), own.regret(base.optimum.at.value + by)
            row[f"shift, {title}"] = "base" if own is base else shown(shift, own.optimum.flag)
            row["regret" + " " * len(row)] = "base" if own is base else shown(regret, "", 3, "")
            if title == [other for other, curves, _ in columns if curves is found][-1]:
                row["best loss" + " " * len(row)] = f"{own.optimum.loss.value:.3f}"
        cells.append(row)
    return table([[title.strip() for title in cells[0]], *(list(row.values()) for row in cells)])


def exponent(found: Mapping[int, Curve], largest: int = 10**9) -> str:
    """The power of the size that the best rate follows, over sizes whose optimum is inside the grid."""
    inside = {n: c.optimum.at for n, c in found.items() if c.optimum.flag in ("", NEXT_TO_DIVERGENCE) and n <= largest}
    fit = slope([math.log2(n) for n in inside], list(inside.values()))
    return f"{shown(fit)}, sizes {min(inside)} to {max(inside)}"


def decay_table() -> str:
    """The time of decay, as a part of the run, at which it costs `COST` of training loss: log2, by batch size."""
    found: dict[int, dict[tuple[float, int], float]] = {}
    for record in read_sweep([RECORDS / "batch_and_steps_decay-cpu"]).records:
        point, batch = record.point, record.point[BATCH]
        runs = 1 / (point[LEARNING_RATE] * point[DECAY] * point[STEPS]) if point[DECAY] else math.inf
        found.setdefault(batch, {})[round(math.log2(runs), 6), point[SEED]] = record.train_loss_avg or math.nan
    estimates = {}
    for batch, losses in sorted(found.items()):
        times, seeds = (sorted({entry[i] for entry in losses}) for i in (0, 1))
        grid = np.array([[losses[time, seed] for time in times] for seed in seeds])

        def crossing(means: np.ndarray, times: Sequence[float] = times) -> float:
            excess = means[:-1] - means[-1] - COST  # the last time is infinite: no decay
            last = int(np.flatnonzero(excess > 0)[-1])
            return times[last] + (times[last + 1] - times[last]) * excess[last] / (excess[last] - excess[last + 1])

        draws = np.array([crossing(means) for means in resampled_means(grid)])
        estimates[batch] = Estimate(crossing(grid.mean(0)), draws, len(grid))
    rows = [["batch size", f"log2 of the time, in runs, that costs {COST}", "shift, rescaled", "shift, unchanged"]]
    for batch, estimate in estimates.items():
        shift = estimate - estimates[128]
        # An unchanged weight decay, at the rescaled rate, has a time in runs that grows as sqrt(batch size).
        kept = moved(shift, -0.5 * math.log2(batch / 128))
        rows.append([str(batch), shown(estimate), *(("base", "base") if batch == 128 else (shown(shift), shown(kept)))])
    return table(rows)


def draw(panel: Any, lines: Sequence[tuple[str, Mapping[int, Curve], float, Curve, int]], name: str) -> None:
    """Best rates over sizes with 95 % intervals; dashed: the base's, moved by the rule."""
    for number, (label, found, power, base, at) in enumerate(lines):
        sizes = [n for n, c in sorted(found.items()) if c.optimum.flag not in (EDGE_LOW, EDGE_HIGH)]
        best = [found[n].optimum.at for n in sizes]
        color, bars = f"C{number}", [estimate.half_width or 0.0 for estimate in best]
        panel.errorbar(
            sizes, [e.value for e in best], bars, color=color, marker="o", ms=4, lw=0, elinewidth=1, label=label
        )
        panel.plot(sizes, [base.optimum.at.value + power * math.log2(n / at) for n in sizes], "--", color=color, lw=1)
    panel.set_xscale("log", base=2)
    panel.set_xlabel(name)
    panel.grid(alpha=0.25)
    panel.legend(fontsize=7)


def main() -> None:
    """Writes the tables between the marks of the page, and the figure."""
    parts: list[str] = []
    mlp, sgd, gpt = (curves(f"batch_and_steps{kind}-cpu") for kind in ("", "_sgd", "_gpt"))
    batches, lengths = (32, 64, 128, 256, 512, 1024, 2048), (300, 600, 1200, 2400)
    few, texts = (32, 64, 128, 256, 512), {64: (16, 32, 64, 256), 128: (32, 64, 128, 256, 512)}
    length = lambda batch: 76800 // batch
    averaged = lambda batch, base: round(max(0.0, 1 - 0.1 * batch / base), 6)
    adam = {n: mlp[n, length(n), 0.9] for n in batches}
    adam_averaged = {n: mlp[n, length(n), averaged(n, 128)] for n in batches}
    plain = {n: sgd[n, length(n), None] for n in few}
    momentum = {n: sgd[n, length(n), averaged(n, 128)] for n in few}
    examples = {64: 9600, 128: 38400}
    text, text_averaged = (
        {base: {n: gpt[n, examples[base] // n, beta(n, base)] for n in texts[base]} for base in texts}
        for beta in (lambda n, base: 0.9, averaged)
    )
    steps = {n: mlp[128, n, 0.9] for n in lengths}
    steps_averaged = {n: mlp[128, n, round(1 - 0.1 * 600 / n, 6)] for n in lengths}
    steps_plain = {n: sgd[128, n, None] for n in lengths}
    steps_text = {n: gpt[16, n, 0.9] for n in (150, 300, 600, 1200)}

    for title, at, kept, rescaled, power, largest in (
        ("Residual MLP, Adam", 128, adam, adam_averaged, 0.5, 512),
        ("Residual MLP, SGD", 128, plain, plain, 1.0, 128),
        ("Residual MLP, SGD with momentum", 128, {}, momentum, 1.0, 512),
        ("GPT, Adam, 38,400 examples", 128, text[128], text_averaged[128], 0.5, 256),
        ("GPT, Adam, 9,600 examples", 64, text[64], text_averaged[64], 0.5, 64),
    ):
        columns = [("unchanged", kept, 0.0)] if kept else []
        parts.append(f"### {title}, over batch size")
        parts.append(size_table("batch size", rescaled[at], at, [*columns, ("rescaled", rescaled, power)]))
        parts.append(f"Best rate ~ batch size^({exponent(rescaled, largest)}).")
        if kept and kept is not rescaled:
            parts[-1] += f" With unchanged averages: ^({exponent(kept, largest)})."
    decayed = {decay: curves("steps_with_decay-cpu", decay=decay) for decay in DECAYS}
    for title, at, found in (
        ("Residual MLP, Adam", 300, steps),
        *(
            (f"Residual MLP, AdamW, weight decay {decay:g}", 300, {n: own[128, n, 0.9] for n in lengths})
            for decay, own in decayed.items()
        ),
        ("Residual MLP, Adam, averages as parts of the run", 300, steps_averaged),
        ("Residual MLP, SGD", 300, steps_plain),
        ("GPT, Adam", 150, steps_text),
    ):
        parts.append(f"### {title}, over steps")
        powers = (0.0, -0.25, -0.5)
        parts.append(
            size_table("steps", found[at], at, [(f"rate ~ steps^{power:g}", found, power) for power in powers])
        )
        parts.append(f"Best rate ~ steps^({exponent(found)}).")

    parts += ["### Weight decay over batch size", decay_table()]
    page = pathlib.Path(__file__).with_suffix(".md")
    before, _, rest = page.read_text().partition("<!-- Tables -->")
    after = rest.partition("<!-- end -->")[2]
    page.write_text("\n\n".join([f"{before}<!-- Tables -->", *parts, f"<!-- end -->{after}"]))

    figure, panels = canvas(1, 2)
    over_batch = [
        ("MLP, Adam", adam_averaged, 0.5, adam[128], 128),
        ("MLP, SGD", plain, 1.0, plain[128], 128),
        ("MLP, SGD with momentum", momentum, 1.0, momentum[128], 128),
        ("GPT, Adam", text_averaged[128], 0.5, text[128][128], 128),
    ]
    over_steps = [
        ("MLP, Adam", steps, -0.25, steps[300], 300),
        ("MLP, SGD", steps_plain, -0.25, steps_plain[300], 300),
        ("GPT, Adam", steps_text, -0.25, steps_text[150], 150),
    ]
    draw(panels[0, 0], over_batch, "batch size, at the same number of examples")
    draw(panels[0, 1], over_steps, "steps, at the same batch size")
    panels[0, 0].set_ylabel("log2 of the best rate / (1 - momentum)")
    figure.suptitle("Best rates with 95 % intervals (n = 5 seeds); dashed: the rule", fontsize=10)
    figure.savefig(HERE / "batch_and_steps.png", dpi=90, metadata={"Software": None})


if __name__ == "__main__":
    main()
