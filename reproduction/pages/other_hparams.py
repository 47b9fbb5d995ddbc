"""Writes the tables and the figure of other_hparams.md from the records of its sweeps.

    python -m reproduction.pages.other_hparams

Coordinates are octaves: log2 of the value, or of 1 / (1 - beta), the steps that a beta averages over.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping

import numpy as np

HERE = pathlib.Path(__file__).parent

from depthmup_flax.report.curves import Scale  # noqa: E402
from depthmup_flax.report.optimum import (  # noqa: E402
    EDGES,
    Estimate,
    Optimum,
    excess,
    find_optimum,
    regret,
    resampled_means,
    slope,
)
from depthmup_flax.report.style import canvas  # noqa: E402
from depthmup_flax.report.verdict import OPPOSITE, SHOWN, TOLERANCE, judge, unless_empty, yardstick  # noqa: E402
from depthmup_flax.storage.sweep_records import COMPLETED, SEED, read_sweep  # noqa: E402
from reproduction.claims.power import power  # noqa: E402
from reproduction.pages.generated_parts import with_part  # noqa: E402

PAGE = HERE / "other_hparams.md"
PARTS = {
    name: (f"<!-- {name}: python -m reproduction.pages.other_hparams -->", f"<!-- end of {name} -->")
    for name in ("sizes", "lengths")
}
CHANCE = math.log(10)  # the loss before learning
OCTAVES = Scale("octaves", (0.0, 1.0))  # of coordinates
WORDS = {SHOWN: "**transfers**", OPPOSITE: "**does not**"}
Size = tuple[int, int, int]  # width, depth, steps
BASE: Size = (32, 4, 600)


@dataclasses.dataclass(frozen=True)
class Hyperparameter:
    """One that a sweep varies: its name in the page, the record's directory and field, its usual value."""

    name: str
    records: str
    field: str
    usual: float
    octaves: Callable[[float], float] = math.log2
    value: Callable[[float], float] = lambda octaves: 2.0**octaves


def _averaging(name: str, usual: float) -> Hyperparameter:
    field = f"optimizer.kwargs.{name}"
    return Hyperparameter(name, name, field, usual, lambda b: -math.log2(1 - b), lambda octaves: 1 - 2.0**-octaves)


HYPERPARAMETERS = (
    Hyperparameter("warm-up, steps", "warmup", "optimizer.warmup_steps", 32),
    _averaging("b1", 0.9),
    _averaging("b2", 0.999),
    *(
        Hyperparameter(f"`{name}`", name, f"parametrization.{name}", 1.0)
        for name in ("input_lr_factor", "output_lr_factor")
    ),
)


@dataclasses.dataclass(frozen=True)
class Curve:
    """Training losses (S, X) at coordinates (X,) of one network and number of steps, and their minimum."""

    x: np.ndarray
    losses: np.ndarray
    optimum: Optimum

    def cost(self, at: float) -> Estimate:
        """Of a fixed coordinate."""
        means, draws = self.losses.mean(0), resampled_means(self.losses)
        at_draws = np.full(len(draws), at)
        return Estimate(float(excess(self.x, means, np.array(at))), excess(self.x, draws, at_draws), len(self.losses))


def curves(one: Hyperparameter) -> dict[Size, Curve]:
    """By width, depth and steps; values that not all networks have were added at the end of a grid."""
    losses: dict[Size, dict[tuple[float, int], float]] = {}
    sweep = read_sweep([HERE.parent / "records" / f"other_hparams_{one.records}-cpu"])
    for record in sweep.records:
        at = one.octaves(record.point[one.field]), record.point[SEED]
        loss = record.train_loss_avg if record.status == COMPLETED else math.nan
        losses.setdefault((record.width, record.depth, record.steps), {})[at] = loss
    result = {}
    for size, known in losses.items():
        x, seeds = (sorted({at[i] for at in known}) for i in (0, 1))
        grid = np.array([[known[u, seed] for u in x] for seed in seeds])
        optimum = find_optimum(np.array(x), grid, most=sweep.info.chance)
        assert optimum is not None
        result[size] = Curve(np.array(x), grid, optimum)
    return result


def shown(estimate: Estimate, text: Callable[[float], str]) -> str:
    """``0.81 (0.62 to 0.9)``."""
    middle, *ends = map(text, (estimate.value, *(estimate.interval or ())))
    return f"{middle} ({' to '.join(ends)})" if ends else middle


def lost(cost: Estimate) -> str:
    """``0.004 (0 to 0.012)``; never negative."""
    return shown(cost, lambda loss: f"{max(0.0, loss):.4f}")


def judged(cost: Estimate | None, base: Curve, curve: Curve) -> str:
    """The cost of what the base chose, and its verdict by the yardstick of the reports."""
    if cost is None:
        return "?"
    verdict = unless_empty(judge(cost, small(base)), yardstick(OCTAVES, curve, small(base))).verdict
    return f"{lost(cost)}, {WORDS.get(verdict, verdict)}"


def small(base: Curve) -> float:
    """The cost that counts as small, a share of what the base learned."""
    return TOLERANCE * (CHANCE - base.optimum.loss.value)


def markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows))


def cells(one: Hyperparameter, base: Curve, curve: Curve) -> tuple[str, str, str]:
    """The best value, with its interval inside the grid; the part of the grid whose cost is small; the power."""
    flag = curve.optimum.flag
    text = lambda u: f"{one.value(float(np.clip(u, curve.x[0], curve.x[-1]))):.{4 if one.name == 'b2' else 3}g}"
    best = shown(curve.optimum.at, text) + (f", {flag}" if flag in EDGES else "")
    measured, share = yardstick(OCTAVES, curve, small(base)), power(OCTAVES, base, curve, small(base))
    return best, f"{100 * measured.passing / measured.grid:.0f} %", f"{share:.2f}"


SIZES = (
    "hyperparameter",
    "width x depth",
    "best (95 %)",
    "would pass",
    "power",
    "cost of the usual",
    "cost of the base's best",
)
LENGTHS = ("steps", "best (95 %)", "would pass", "power", "cost, kept in steps", "cost, kept as a share")


def size_rows(one: Hyperparameter, of_size: Mapping[Size, Curve]) -> list[tuple[str, ...]]:
    """A row of `SIZES` per network."""
    rows, base = [], of_size[BASE]
    for size in sorted(size for size in of_size if size[2] == BASE[2]):
        curve = of_size[size]
        kept = "base" if size == BASE else judged(regret(curve.x, curve.losses, base.optimum), base, curve)
        usual = lost(curve.cost(one.octaves(one.usual)))
        rows.append((one.name, f"{size[0]} x {size[1]}", *cells(one, base, curve), usual, kept))
    return rows


def length_rows(one: Hyperparameter, of_size: Mapping[Size, Curve]) -> list[tuple[str, ...]]:
    """A row of `LENGTHS` per number of steps."""
    rows, base = [], of_size[BASE]
    for size in sorted(size for size in of_size if size[:2] == BASE[:2]):
        curve, octaves, at = of_size[size], math.log2(size[2] / BASE[2]), base.optimum.at
        draws = None if at.draws is None else at.draws + octaves
        moved = dataclasses.replace(at, value=at.value + octaves, draws=draws)
        ways = base.optimum, dataclasses.replace(base.optimum, at=moved)
        costs = [judged(regret(curve.x, curve.losses, way), base, curve) for way in ways]
        rows.append((str(size[2]), *cells(one, base, curve), *(["base"] * 2 if size == BASE else costs)))
    return rows


def draw(of: Mapping[Hyperparameter, Mapping[Size, Curve]]) -> None:
    """Losses above the lowest of each network, over the hyperparameter."""
    figure, panels = canvas(3, 2, width=3.0, height=2.5, sharey=True)
    *panels, beside = panels.flat
    for panel, (one, of_size) in zip(panels, of.items(), strict=True):
        for number, size in enumerate(sorted(size for size in of_size if size[2] == BASE[2])):
            curve = of_size[size]
            means = curve.losses.mean(0)
            panel.plot(curve.x, means - means.min(), "o-", ms=3, color=f"C{number}", label=f"{size[0]} x {size[1]}")
        x = of_size[32, 16, 600].x
        panel.set_xticks(x, [f"{one.value(u):.4g}" for u in x], fontsize=7, rotation=45)
        panel.set_xlabel(one.name.strip("`"))
        panel.set_ylim(-0.005, 0.12)
        panel.grid(alpha=0.25)
    figure.supylabel("training loss above the lowest")
    beside.axis("off")
    beside.legend(*panels[0].get_legend_handles_labels(), loc="center", title="width x depth")
    figure.savefig(HERE / "other_hparams.png", dpi=110, metadata={"Software": None})


def renewed(page: str, of: Mapping[Hyperparameter, Mapping[Size, Curve]]) -> str:
    """The page with the tables of the records."""
    page = with_part(page, *PARTS["sizes"], markdown(SIZES, [row for item in of.items() for row in size_rows(*item)]))
    warmup, of_size = next(iter(of.items()))
    of_steps = {size[2]: curve.optimum.at for size, curve in of_size.items() if size[:2] == BASE[:2]}
    power = slope([math.log2(steps) for steps in of_steps], list(of_steps.values()))
    assert power is not None
    sentence = f"Best warm-up ~ steps^{shown(power, '{:.2g}'.format)}."
    return with_part(page, *PARTS["lengths"], f"{markdown(LENGTHS, length_rows(warmup, of_size))}\n\n{sentence}")


def measured() -> dict[Hyperparameter, dict[Size, Curve]]:
    """The curves of all sweeps."""
    return {one: curves(one) for one in HYPERPARAMETERS}


if __name__ == "__main__":
    found = measured()
    PAGE.write_text(renewed(PAGE.read_text(), found))
    draw(found)
