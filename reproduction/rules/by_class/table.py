"""What the registration asks of the records: the tasks that are done, and the two decisions. No JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.stats

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.table import Table
from reproduction.rules.by_class import runs
from reproduction.rules.by_class.tasks import TASKS, WAYS

MARGIN = 0.01


@dataclasses.dataclass(frozen=True)
class Result:
    """A task: each way's excess over the lowest, as a share of what the lowest learns, by seed."""

    name: str
    attention: bool
    losses: dict[str, float]
    excess: dict[str, np.ndarray]


def results() -> list[Result]:
    """Of the tasks whose records are complete."""
    found = []
    for name, task in TASKS.items():
        try:
            losses = {way: runs.at_target(name, way) for way in WAYS}
        except (InputError, KeyError, ValueError):  # a run that the records lack
            continue
        lowest = min(float(values.mean()) for values in losses.values())
        learned = runs.chance(name) - lowest
        excess = {way: (values - lowest) / learned for way, values in losses.items()}
        found.append(Result(name, task.attention, {way: float(v.mean()) for way, v in losses.items()}, excess))
    return found


def difference(found: Sequence[Result], way: str, other: str) -> np.ndarray:
    """What ``way`` loses more than ``other``, for each task."""
    return np.array([one.excess[way].mean() - one.excess[other].mean() for one in found])


def interval(values: np.ndarray) -> str:
    """Mean and half of a 95 % interval over tasks."""
    if len(values) < 2:
        return f"{values.mean():+.4f}" if len(values) else "none"
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.4f} ± {half:.4f}"


def by_class(found: Sequence[Result], attention: bool) -> str:
    """The first decision, for one class."""
    own = [one for one in found if one.attention == attention]
    total = sum(task.attention == attention for task in TASKS.values())
    kind = "with attention" if attention else "without attention"
    values = difference(own, "completep", "depth_mup")
    ahead = int((values < 0).sum())
    text = f"{kind}: completep minus depth_mup {interval(values)}, completep ahead in {ahead} of {len(own)}"
    if len(own) < total:
        return f"{text}; {total - len(own)} of {total} tasks are not done: no decision"
    resolved = values.mean() < -MARGIN and ahead >= total - 1
    return f"{text}: the default is {'completep' if resolved else 'depth_mup'}"


def against_own_best(found: Sequence[Result], other: str) -> str:
    """The second decision: depth_mup untuned at the target against a way that is searched there."""
    values = difference(found, "depth_mup", other)
    ahead = int((values < 0).sum())
    text = f"depth_mup untuned minus {other} at its own best: {interval(values)}, ahead in {ahead} of {len(found)}"
    if len(found) < len(TASKS):
        return f"{text}; {len(TASKS) - len(found)} tasks are not done: no decision"
    p = scipy.stats.wilcoxon(values).pvalue
    holds = ahead >= len(TASKS) - 1 and p < 0.05
    return f"{text} (Wilcoxon's p {p:.3f}): the claim {'holds' if holds else 'does not hold'}"


def text(found: Sequence[Result]) -> str:
    """The table and the decisions."""
    if not found:
        return "no task is done"
    spread = lambda values: f"{values.mean():.3f} ({values.std(ddof=1) / np.sqrt(len(values)):.3f})"
    rows = [(one.name, *(f"{one.losses[way]:.3f}, {spread(one.excess[way])}" for way in WAYS)) for one in found]
    return "\n".join(
        [
            *Table(("task", *WAYS), rows, "<" + ">" * len(WAYS)).lines,
            "",
            "Loss; excess over the lowest as a share of what that learns (standard error over seeds).",
            *decisions(found),
        ]
    )


def decisions(found: Sequence[Result]) -> list[str]:
    """A sentence for each class, and for each way that is searched at the target."""
    return [
        *(by_class(found, attention) for attention in (False, True)),
        *(against_own_best(found, other) for other in ("sp", "gpt2")),
    ]
