"""The rules in order, for a terminal, a page and programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from depthmup_flax.util.table import Table
from depthmup_flax.util.types import Json
from reproduction.rules.rule_file import DEFAULT, Rule
from reproduction.rules.runs import Scores
from reproduction.rules.score import Mean, Score, mean_over_tasks
from reproduction.rules.tasks import TARGET_SEEDS, TARGETS

HEADER = (
    *("rule", "tasks", "regret", *(f"{cost}x" for cost in TARGETS)),
    *("of it: rate", "limit", "diverged", f"minus {DEFAULT}'s"),
)
WHAT = (
    "Regret: the loss at the transferred values above the best that a committed rule reached there at any rate, over "
    "what that one learned; 0: as good, 1: nothing learned, or diverged. Its limit remains at the rule's own best rate."
)


def compared(scores: Sequence[tuple[Rule, Scores]]) -> list[Json]:
    """A row for each rule that covers a task, the best first: by the difference from the default on the same tasks."""
    default = next((of for rule, of in scores if rule.name == DEFAULT), {})
    rows = [_row(rule, of, default) for rule, of in scores if of]
    from_default = lambda row: row["minus_default"]["value"] if row["minus_default"] else 0.0
    return sorted(rows, key=from_default if default else lambda row: row["regret"]["value"])


def _row(rule: Rule, of: Scores, default: Scores) -> Json:
    every = [score for task in of.values() for score in task.values()]
    means = {task: _mean(of[task]) for task in of}
    shared = [means[task] - _mean(default[task]) for task in of if task in default]
    return {
        "rule": rule.name,
        "tasks": len(of),
        "regret": vars(mean_over_tasks(list(means.values()))),
        "at": {str(cost): float(np.mean([task[cost].regret for task in of.values()])) for cost in TARGETS},
        "limit": float(np.mean([score.limit for score in every])),
        "diverged": sum(score.diverged for score in every),
        "runs": len(every) * len(TARGET_SEEDS),
        "minus_default": vars(mean_over_tasks(shared)) if shared and rule.name != DEFAULT else None,
        "scores": {task: {str(cost): vars(score) for cost, score in costs.items()} for task, costs in of.items()},
    }


def _mean(costs: Mapping[int, Score]) -> float:
    return float(np.mean([score.regret for score in costs.values()]))


def headline(rows: Sequence[Json], own: str = DEFAULT) -> str:
    """Which rule is first, and how far the rule ``own`` is from it."""
    first, others = rows[0], [row for row in rows if row["rule"] == own]
    text = f"First of {len(rows)} rules: {first['rule']}, regret {Mean(**first['regret'])}"
    for row in others[: own != first["rule"]]:
        text += f". {own}: {Mean(**row['regret'])}"
    if (against := first["minus_default"]) is not None:
        resolved = "" if against["half"] and against["value"] + against["half"] < 0 else ", which is not resolved"
        text += f". Its difference from {DEFAULT}, the default: {Mean(**against)}{resolved}"
    return f"{text}."


def cells(row: Json) -> tuple[str, ...]:
    """The entries of `HEADER`."""
    against = row["minus_default"]
    return (
        row["rule"],
        str(row["tasks"]),
        str(Mean(**row["regret"])),
        *(f"{value:.3f}" for value in row["at"].values()),
        f"{row['regret']['value'] - row['limit']:.3f}",
        f"{row['limit']:.3f}",
        f"{row['diverged']} of {row['runs']}",
        "" if against is None else str(Mean(**against)),
    )


def text(rows: Sequence[Json], own: str) -> str:
    """For a terminal."""
    return "\n".join(
        [headline(rows, own), "", *Table(HEADER, list(map(cells, rows)), "<" + ">" * (len(HEADER) - 1)).lines, "", WHAT]
    )
