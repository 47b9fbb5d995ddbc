"""Writes expectations.md, each sentence of README's "What to expect" with its cells.

    python -m reproduction.pages.expectations

Where it is cheap, numbers are computed here again from the committed records, by NumPy and json alone, and must be
those that the sentence prints. A sentence without a row, or with another number, is an error.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from reproduction import recomputed

ROOT = pathlib.Path(__file__).parents[2]
PAGE = pathlib.Path(__file__).with_suffix(".md")


def nothing() -> list[str]:
    """No number of such a sentence is computed again here."""
    return []


def joint_cell() -> list[str]:
    """The regret of 64 x 4's rate at 128 x 16, and the lowest mean loss there."""
    curves = _means("cifar10-cpu", recomputed.loss_of)
    chance = recomputed.read(recomputed.HERE / "records" / "cifar10-cpu")[0]["chance"]
    regret = recomputed.regret("depth_mup", (64, 4), (128, 16))(curves, chance)
    return [f"{regret:.4f}", f"{min(curves['depth_mup', 128, 16][1]):.3f}"]


def accuracy_of_depth() -> list[str]:
    """Points of test accuracy from depth 4 to 16 at width 128 and 64 x 4's best rate, with the rule and without."""
    found, losses = (
        _means("cifar10-cpu", lambda run: 100 * run["test_accuracy"]),
        _means("cifar10-cpu", recomputed.loss_of),
    )
    printed = []
    for rule in ("depth_mup", "sp"):
        i = int(np.argmin(losses[rule, 64, 4][1]))
        printed.append(f"{found[rule, 128, 16][1][i] - found[rule, 128, 4][1][i]:.1f}")
    return [f"{printed[0]} points", f"by {printed[1]}"]


def untuned() -> list[str]:
    """In how many fresh tasks depth_mup, untuned, loses less than sp; and the mean difference."""
    found = _by_class()
    share = [(x["sp"] - x["depth_mup"]) / (x["chance"] - min(x[way] for way in _WAYS)) for x in found.values()]
    ahead = sum(x["depth_mup"] < x["sp"] for x in found.values())
    return [f"{ahead} of 8", f"{np.mean(share):.3f}"]


def ladders() -> list[str]:
    """How many best rates lie in their interval."""
    words = {10: "ten"}
    inside = {sum(one["inside"] for one in _ladder(end).values()) for end in ("", "_one_run")}
    (number,) = inside
    return [f"{words[number]} of ten"]


def ladder_costs() -> list[str]:
    """The mean regrets of the ladder's rate and of the proxy's."""
    found = [one["regret"] for one in _ladder("_one_run").values()]
    return [f"{100 * np.mean([one[way] for one in found]):.1f} %" for way in ("rate", "of_smallest")]


def _ladder(end: str) -> dict:
    return json.loads((recomputed.HERE / "ladder" / f"results{end}.json").read_text())


_WAYS = ("depth_mup", "completep", "sp", "gpt2")


def _by_class() -> dict[str, dict[str, float]]:
    """Task -> each way's mean loss, and chance, from the records alone; a diverged run is a constant guess."""
    place = recomputed.HERE / "rules" / "by_class" / "records"
    result = {}
    for task in sorted(place.iterdir()):
        of: dict[str, float] = {}
        for way in _WAYS:
            info, rows = recomputed.read(task / way / "target")
            of["chance"] = info["chance"]
            seeds: dict = defaultdict(dict)
            for row in rows:
                loss = row["train_loss_avg"] if row["status"] == "completed" else info["chance"]
                seeds[row["point"]["optimizer.learning_rate"]][row["seed"]] = min(loss, info["chance"])
            means = {rate: np.mean(list(x.values())) for rate, x in seeds.items() if len(x) == 4}
            if way in ("sp", "gpt2"):
                of[way] = float(min(means.values()))
            else:
                of[way] = float(np.mean([means[rate] for rate in _searched(task / way / "proxy", way)]))
        result[task.name] = of
    return result


def _searched(place: pathlib.Path, way: str) -> list[float]:
    """The best rates of the two searches of a proxy."""
    info, rows = recomputed.read(place)
    parts = [(0, 1), (2, 3)] if way == "depth_mup" else [(0,), (1,)]
    best = []
    for part in parts:
        losses: dict = defaultdict(list)
        for row in rows:
            if row["seed"] in part:
                loss = row["train_loss_avg"] if row["status"] == "completed" else info["chance"]
                losses[row["point"]["optimizer.learning_rate"]].append(min(loss, info["chance"]))
        best.append(min(losses, key=lambda rate: np.mean(losses[rate])))
    return best


def _means(records: str, value: Callable[[dict], float]) -> recomputed.Curves:
    """(rule, width, depth) -> base-2 logarithms of rates, and means over seeds."""
    _, rows = recomputed.read(recomputed.HERE / "records" / records)
    grid: dict = defaultdict(lambda: defaultdict(list))
    for row in rows:
        key = (row["point"]["parametrization.preset"], row["width"], row["depth"])
        grid[key][np.log2(row["point"]["optimizer.learning_rate"])].append(value(row))
    return {key: (np.array(sorted(of)), np.array([np.mean(of[x]) for x in sorted(of)])) for key, of in grid.items()}


@dataclasses.dataclass(frozen=True)
class Row:
    """A sentence by its first words, what it rests on, how to make it again, and its numbers by other code."""

    start: str
    cells: str
    command: str
    numbers: Callable[[], list[str]] = nothing


_SWEEP = "`reproduction/run.sh cpu cifar10`"
ROWS = (
    Row(
        "The rate transfers",
        "[records/cifar10-cpu](../records/cifar10-cpu): 64 x 4 and 128 x 16, 5 seeds, training loss; the ten cells: "
        "[drift.md](drift.md)",
        f"{_SWEEP}, `python -m reproduction.drift.runs`",
        joint_cell,
    ),
    Row(
        "It transfers in three public models",
        "[public_models.md](public_models.md): ViT, Qwen 3, Mamba-2, 16 x 2 to 64 x 8, n = 5; Qwen 3 by its cost alone",
        "`python reproduction/public_models/vit.py`, ...",
    ),
    Row("Elsewhere it", "[drift.md](drift.md)", "`python -m reproduction.drift.runs`, `... .over_depth`"),
    Row(
        "How far off?",
        "[ladder.md](ladder.md): ten targets, an interval each at both budgets; the costs with a budget of one run",
        "`python -m reproduction.ladder.runs check --budget=1`",
        ladders,
    ),
    Row(
        "`--ladder=1`",
        "the same ten targets",
        "`python -m reproduction.ladder.runs check --budget=1`",
        ladder_costs,
    ),
    Row(
        "Untuned against tuned",
        "[rule_benchmark.md](rule_benchmark.md#by-class-and-untuned-against-tuned): eight tasks, 4 seeds",
        "`python -m reproduction.rules.by_class --hours=0`",
        untuned,
    ),
    Row("Seven were", "the same eight tasks", "`python -m reproduction.rules.by_class --hours=0`"),
    Row(
        "At scale",
        "[public](../public/README.md): `step_law`, 215 M and 1.07 B parameters, one run a point",
        "`python -m reproduction.public.recomputed`",
    ),
    Row(
        "A second sweep",
        "[public](../public/README.md#carried-rates-regret): `marin_optimizers`",
        "`python -m reproduction.public.page`",
    ),
    Row(
        "Depth pays or does no harm",
        "text: [depth.md](depth.md), 64 x 4 and 64 x 16, 12 seeds; images: "
        "[records/cifar10-cpu](../records/cifar10-cpu), 128 x 4 and 128 x 16 at the rate of 64 x 4, 5 seeds",
        f"`python -m reproduction.depth.runs`, {_SWEEP}",
        accuracy_of_depth,
    ),
    Row(
        "At equal cost, width and steps",
        "[depth.md](depth.md): 64 x 16, 128 x 4 and 64 x 4 for four times the steps, 12 seeds; one task",
        "`python -m reproduction.depth.runs`",
    ),
    Row(
        "It fails where",
        "[records/lr_width_depth_mlp-long](../records/lr_width_depth_mlp-long), 8 seeds",
        "`reproduction/run.sh long lr_width_depth_mlp`",
    ),
    Row(
        "Batch size, steps and data",
        "[batch_and_steps.md](batch_and_steps.md)",
        "[its sweeps](batch_and_steps.md)",
    ),
    Row("Never tried", "no measurement", ""),
)


def sentences(readme: str) -> list[str]:
    """Those of the section "What to expect", without marks of bold text, on one line."""
    section = readme.split("## What to expect")[1].split("\n## ")[0]
    bullets = [" ".join(part.split()) for part in section.split("\n* ")[1:]]
    bullets[-1] = bullets[-1].split(" [What was found]")[0]
    plain = [re.sub(r"\]\([^)]*\)", "", bullet.replace("**", "")).replace("[", "") for bullet in bullets]
    parts = [re.split(r"(?<=[a-z0-9)`]\.) (?=[A-Z`])", bullet) for bullet in plain]
    named = {f"{row.start}." for row in ROWS}
    found: list[str] = []
    for sentence in (one for some in parts for one in some):
        if found and found[-1] in named:  # a heading of the bullet
            found[-1] += f" {sentence}"
        else:
            found.append(sentence)
    return found


def row_of(sentence: str) -> Row:
    """The row of a sentence; ValueError without one, or if it prints another number than its records give."""
    rows = [row for row in ROWS if sentence.startswith(row.start)]
    if len(rows) != 1:
        raise ValueError(f"{sentence!r} has {len(rows)} rows in reproduction/pages/expectations.py: name its cells.")
    missing = [number for number in rows[0].numbers() if number not in sentence]
    if missing:
        raise ValueError(f"{sentence!r} does not print {missing}, which its records give.")
    return rows[0]


def written(sentences: Sequence[str]) -> str:
    """The page."""
    lines = ["| sentence | cells | command | by other code |", "|---|---|---|---|"]
    for sentence in sentences:
        row = row_of(sentence)
        lines.append(f"| {sentence} | {row.cells} | {row.command} | {', '.join(row.numbers())} |")
    return (
        "# What is said, and of which cells\n\nEach sentence of [README](../../README.md)'s *What to expect*, what it "
        "rests on, how to make it again, and its numbers as [other code](expectations.py) computes them from the "
        "committed records; a test compares them.\n\n" + "\n".join(lines) + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(written(sentences((ROOT / "README.md").read_text())))
