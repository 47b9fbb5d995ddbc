"""Tune small, train large, against a search on the large network itself: runs, table and figure of demonstration.md.

    python -m reproduction.pages.demonstration run NAME DATA      NAME: resmlp, simple_resnet or gpt
                                                    DATA: TFDS's directory, or the text
    python -m reproduction.pages.demonstration show      renews the page's tables and figure from the records

A repetition draws learning rates and branch multipliers at random, trains the small network with each, and trains the
large one once, with those of the lowest training loss. The rival draws from the same ranges, trains the large network
with each, and keeps the run of the lowest training loss. Sizes, lengths, ranges, numbers of trials and seeds were
committed before the runs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict
from scipy import stats

from depthmup_flax import sweep, sweep_config
from depthmup_flax.commands.parser import one_device_per_core
from depthmup_flax.config import from_file
from depthmup_flax.data import LoadOnce
from depthmup_flax.plan.compiled_step import compile_run
from depthmup_flax.storage.sweep_records import COMPLETED, LEARNING_RATE, SEED, Record, read_sweep
from reproduction.pages import figure_look
from reproduction.pages.generated_parts import with_part

RECORDS = pathlib.Path(__file__).parents[1] / "records" / "demonstration"
FLOPS = RECORDS / "flops.json"
PAGE = pathlib.Path(__file__).with_suffix(".md")
START, END = "<!-- outcomes: python -m reproduction.pages.demonstration show -->", "<!-- end of outcomes -->"
MULTIPLIER, PRESET = "parametrization.branch_multiplier", "parametrization.preset"
RULE, CONTROL = "depth_mup", "sp"  # for the large network
SMALL, LARGE = 0, 1  # streams of random points
REPETITIONS = 10
SMALL_TRIALS = (4, 16, 64)  # after which the large network is trained
LARGE_TRIALS = 8  # of the rival
MULTIPLIERS = (1 / 4, 4.0)
COLORS = ("#0072b2", "#d55e00", "0.35")
Point = dict[str, object]  # dotted config field -> value


@dataclasses.dataclass(frozen=True)
class Pair:
    """A small network, and how it is searched; rates and multipliers are drawn uniformly in their logarithm.

    Attributes:
      small: the data's place -> config of the small network.
      large: width and depth of the large one, whose step takes at least 16 times the operations.
      rates: lowest and highest.
      measure: field of a record, on examples that no search has seen.
      chance: the measure of a network that diverged.
    """

    title: str
    small: Callable[[str], ConfigDict]
    large: tuple[int, int]
    rates: tuple[float, float]
    measure: str
    chance: float


def residual_mlp(data: str) -> ConfigDict:
    """TP6's network on CIFAR-10 with 16 x 16 pixels, 1.5 epochs, Adam."""
    config = from_file("cifar10_resmlp")
    config.model.update(width=64, depth=4)
    config.data.update(data_dir=data, image_size=16, test_examples=5000)
    config.train.update(epochs=0.0, steps=1200, average_steps=100)
    config.optimizer.frozen = ()
    return config


def convolutional(data: str) -> ConfigDict:
    """B24's network on CIFAR-10 with 16 x 16 pixels, SGD."""
    config = from_file("cifar10_resnet")
    config.model.update(width=32, depth=6)
    config.data.update(data_dir=data, image_size=16, test_examples=5000, augment="none")
    config.train.update(epochs=0.0, steps=200, average_steps=30)
    return config


def gpt(data: str) -> ConfigDict:
    """A GPT on Tiny Shakespeare, warm-up and cosine, Adam."""
    config = from_file("shakespeare_gpt")
    config.model.update(width=32, depth=2)
    config.data.update(name=f"text:{data}", context=32)
    config.train.update(steps=300, average_steps=30, batch_size=16)
    config.optimizer.warmup_steps = 40
    return config


PAIRS = {
    "resmlp": Pair("ResMLP, Adam: test accuracy", residual_mlp, (256, 16), (10**-4.5, 10**-1.5), "test_accuracy", 0.1),
    "simple_resnet": Pair("SimpleResNet, SGD: test accuracy", convolutional, (96, 14), (1e-3, 1), "test_accuracy", 0.1),
    "gpt": Pair("GPT, Adam: test loss", gpt, (64, 10), (1e-4, 10**-1.5), "test_loss", math.log(65)),
}


def points(pair: Pair, repetition: int, stream: int, count: int) -> list[Point]:
    """Random points; the small network and the rival have separate streams."""
    random = np.random.default_rng([repetition, stream])
    low, high = np.log([pair.rates, MULTIPLIERS]).T
    drawn = np.exp(random.uniform(low, high, (count, 2))).tolist()
    return [{LEARNING_RATE: rate, MULTIPLIER: multiplier, SEED: repetition} for rate, multiplier in drawn]


def configs(name: str, data: str) -> tuple[ConfigDict, ConfigDict]:
    """Configs of the small and the large network; the small one is the base of both."""
    pair = PAIRS[name]
    small = pair.small(data)
    small.model.update(base_width=small.model.width, base_depth=small.model.depth)
    large = small.copy_and_resolve_references()
    width, depth = pair.large
    large.model.update(width=width, depth=depth)
    return small, large


def directory(name: str, part: str) -> pathlib.Path:
    """Directory of a part's records: small, search (the rival's), kept (the small one's best, large)."""
    return RECORDS / f"{name}-{part}"


def trained(name: str, part: str, base: ConfigDict, runs: Sequence[Point]) -> None:
    """Trains the runs that the part's directory lacks."""
    grids = {f"run{i}": {path: (value,) for path, value in point.items()} for i, point in enumerate(runs)}
    title = f"{PAIRS[name].title}, {part}"
    sweep(sweep_config(base, grids, figure=f"demonstration-{name}", title=title, scale="cpu"), directory(name, part))


class Records:
    """The records of one part, by their points."""

    def __init__(self, name: str, part: str) -> None:
        self.read = read_sweep([directory(name, part)])
        self._by_point = {_key(record.point): record for record in self.read.records}

    def __getitem__(self, point: Point) -> Record:
        return self._by_point[_key(point)]

    def best(self, points: Sequence[Point]) -> Point:
        """The record of the lowest training loss; diverged runs come last."""
        return min(points, key=lambda point: _loss(self[point]))


def _key(point: Point) -> tuple[object, ...]:
    # Processors round exponentials of the same random numbers differently in the last digit.
    rate, multiplier = (f"{point[path]:.12g}" for path in (LEARNING_RATE, MULTIPLIER))
    return rate, multiplier, point[SEED], point.get(PRESET, RULE)


def _loss(record: Record) -> float:
    diverged = record.status != COMPLETED or record.train_loss_avg is None
    return math.inf if diverged else record.train_loss_avg


def run(name: str, data: str) -> None:
    """Trains all runs of a pair that are not recorded yet."""
    pair = PAIRS[name]
    small, large = configs(name, data)
    write_flops(name, small, large)
    drawn = [points(pair, repetition, SMALL, max(SMALL_TRIALS)) for repetition in range(REPETITIONS)]
    trained(name, "small", small, [point for own in drawn for point in own])
    searched = [points(pair, repetition, LARGE, LARGE_TRIALS) for repetition in range(REPETITIONS)]
    trained(name, "search", large, [point for own in searched for point in own])
    found = Records(name, "small")
    kept = [found.best(own[:trials]) for own in drawn for trials in SMALL_TRIALS]
    unique = list({_key(point): point for point in kept}.values())
    trained(name, "kept", large, [{**point, PRESET: preset} for preset in (RULE, CONTROL) for point in unique])


def write_flops(name: str, small: ConfigDict, large: ConfigDict) -> None:
    """Operations of the products in one training step, of the small and the large network."""
    load, (device, *_) = LoadOnce(), jax.devices()
    sizes = {"small": small, "large": large}
    found = {size: compile_run(config, [device], load).flops for size, config in sizes.items()}
    known = json.loads(FLOPS.read_text()) if FLOPS.exists() else {}
    FLOPS.write_text(json.dumps({**known, name: found}, indent=1, sort_keys=True) + "\n")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one way reaches at one cost.

    Attributes:
      cost: floating-point operations of all its runs, in those of one run of the large network.
      measured: (R,) the measure of the network it ends with, one per repetition; that of chance if it diverged.
      diverged: number of diverged networks.
    """

    way: str
    trials: int
    cost: float
    measured: np.ndarray
    diverged: int

    def quartiles(self) -> np.ndarray:
        """Lower quartile, median and upper quartile."""
        return np.quantile(self.measured, (0.25, 0.5, 0.75))


def outcomes(name: str) -> list[Outcome]:
    """Outcomes of all ways and numbers of trials, from the records."""
    pair = PAIRS[name]
    small, search, kept = (Records(name, part) for part in ("small", "search", "kept"))
    flops = json.loads(FLOPS.read_text())[name]
    share = flops["small"] / flops["large"]

    def outcome(way: str, trials: int, cost: float, ended: Sequence[Record]) -> Outcome:
        diverged = [record.status != COMPLETED for record in ended]
        values = [
            pair.chance if d else getattr(record, pair.measure) for d, record in zip(diverged, ended, strict=True)
        ]
        return Outcome(way, trials, cost, np.array(values, float), sum(diverged))

    found = []
    for way, preset in (("tuned small, kept by the rule", RULE), ("tuned small, kept without a rule", CONTROL)):
        for trials in SMALL_TRIALS:
            best = [small.best(points(pair, r, SMALL, max(SMALL_TRIALS))[:trials]) for r in range(REPETITIONS)]
            found.append(outcome(way, trials, trials * share + 1, [kept[{**point, PRESET: preset}] for point in best]))
    for trials in range(1, LARGE_TRIALS + 1):
        best = [search.best(points(pair, r, LARGE, LARGE_TRIALS)[:trials]) for r in range(REPETITIONS)]
        found.append(outcome("searched large", trials, float(trials), [search[point] for point in best]))
    return found


Outcomes = Mapping[str, Sequence[Outcome]]  # of the pairs


def recorded() -> Outcomes:
    """Outcomes of the pairs with records of all parts."""
    parts = ("small", "search", "kept")
    return {name: outcomes(name) for name in PAIRS if all(directory(name, part).exists() for part in parts)}


def renewed(page: str, found: Outcomes) -> str:
    """The page with the tables of the records."""
    return with_part(page, START, END, f"{contrasts(found)}\n\n{medians(found)}")


def medians(found: Outcomes) -> str:
    """Markdown: median and quartiles over the repetitions; a diverged network counts as chance."""
    lines = ["| networks | way | trials | cost | measure: median (quartiles) | diverged |", "|---|---|---|---|---|---|"]
    for name, ways in found.items():
        for one in ways:
            low, middle, high = one.quartiles()
            measure = f"{middle:.3f} ({low:.3f} to {high:.3f})"
            cells = (PAIRS[name].title, one.way, one.trials, f"{one.cost:.2f}", measure, one.diverged)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def contrasts(found: Outcomes) -> str:
    """Markdown: the rule minus each other way at the next higher cost, or the same.

    Means over the repetitions, with 95 % intervals of their differences by Student's t, and in how many it is better.
    """
    lines = ["| networks | cost | against | its cost | difference (95 %) | better in |", "|---|---|---|---|---|---|"]
    for name, ways in found.items():
        for trials in SMALL_TRIALS:
            rule = next(one for one in ways if one.trials == trials)
            others = [one for one in ways if one.way != rule.way and one.cost >= rule.cost - 1e-9]
            for other in {one.way: one for one in reversed(others)}.values():
                differences = rule.measured - other.measured
                half = stats.sem(differences) * stats.t.ppf(0.975, len(differences) - 1)
                middle = differences.mean()
                interval = f"{middle:+.3f} ({middle - half:+.3f} to {middle + half:+.3f})"
                better = int((differences > 0 if PAIRS[name].measure == "test_accuracy" else differences < 0).sum())
                wins = f"{better} of {len(differences)}"
                cells = (PAIRS[name].title, f"{rule.cost:.2f}", other.way, f"{other.cost:.2f}", interval, wins)
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def figure(found: Outcomes) -> None:
    """Writes demonstration.png."""
    drawing, axes_of = figure_look.panels(len(found), 3.4)
    for (name, ways), axes in zip(found.items(), axes_of, strict=True):
        for color, way in zip(COLORS, dict.fromkeys(one.way for one in ways), strict=True):
            own = [one for one in ways if one.way == way]
            low, middle, high = zip(*(one.quartiles() for one in own), strict=True)
            costs = [one.cost for one in own]
            axes.plot(costs, middle, color=color, marker="o", markersize=4, label=way)
            axes.fill_between(costs, low, high, color=color, alpha=0.2, linewidth=0)
        networks, _, measure = PAIRS[name].title.partition(": ")
        axes.set(title=networks.replace(", ", ",\n"), ylabel=measure, xticks=(2, 4, 6, 8))
        axes.locator_params(axis="y", nbins=5)
        axes.grid(alpha=0.25)
    drawing.supxlabel("cost, in runs of the large network", fontsize="medium")
    drawing.legend(handles=axes_of[0].get_lines(), loc="outside upper center", ncols=2, frameon=False)
    drawing.savefig(RECORDS / "demonstration.png", dpi=200)


def main(arguments: Sequence[str]) -> None:
    """Runs a pair, or shows what is recorded."""
    if len(arguments) == 3 and arguments[0] == "run" and arguments[1] in PAIRS:
        one_device_per_core()
        run(*arguments[1:])
    elif list(arguments) == ["show"]:
        found = recorded()
        PAGE.write_text(renewed(PAGE.read_text(), found))
        figure(found)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
