"""The arithmetic of the benchmark: regret of transferred values, its parts, means over tasks. No JAX.

Letters in shapes: C candidates (a rule's numbers and a learning rate), S seeds, T tasks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.special


@dataclasses.dataclass(frozen=True)
class Score:
    """A rule at one target, in units of what the best candidate learned: its loss below that of a constant guess.

    Attributes:
      regret: loss at the transferred values minus the best one: 0 as good, 1 nothing learned.
      limit: the same for the best of the rule's own rates: what a better rate would not mend.
      diverged: runs at the transferred values without a finite loss.
    """

    regret: float
    limit: float
    diverged: int


def score(
    losses: np.ndarray, chance: float, *, reference: Sequence[int], own: Sequence[int], transferred: int
) -> Score:
    """The score of a rule at a target.

    Args:
      losses: (C, S); NaN where a run diverged. A loss above ``chance`` counts as ``chance``, as does a diverged run.
      chance: the loss of the best constant guess.
      reference: candidates among which the best is sought.
      own: candidates of the rule.
      transferred: the candidate with the transferred values.
    """
    below = capped(losses, chance)
    best = left_out_minimum(below[list(reference)])
    learned = chance - best
    excess = lambda loss: float((loss - best) / learned)
    return Score(
        excess(below[transferred].mean()),
        excess(left_out_minimum(below[list(own)])),
        int((~np.isfinite(losses[transferred])).sum()),
    )


def capped(losses: np.ndarray, chance: float) -> np.ndarray:
    """Losses of the same shape, at most ``chance``, which diverged runs have."""
    return np.where(np.isfinite(losses), np.minimum(losses, chance), chance)


def left_out_minimum(losses: np.ndarray) -> float:
    """The loss of the best of (C, S) candidates, each seed evaluating the one that is best on the other seeds.

    The minimum of means over the same seeds would be too low, the more so the more candidates there are.
    """
    seeds = range(losses.shape[1])
    chosen = [np.delete(losses, seed, axis=1).mean(1).argmin() for seed in seeds]
    return float(np.mean([losses[candidate, seed] for candidate, seed in zip(chosen, seeds, strict=True)]))


@dataclasses.dataclass(frozen=True)
class Mean:
    """A mean over tasks; half the length of its 95 % interval, ``None`` for one task."""

    value: float
    half: float | None

    def __str__(self) -> str:
        return f"{self.value:.3f}" if self.half is None else f"{self.value:.3f} ± {self.half:.3f}"


def mean_over_tasks(values: Sequence[float]) -> Mean:
    """Mean of (T,) with Student's interval. A value has the noise of its seeds, so that it covers seeds and tasks."""
    tasks = len(values)
    if tasks == 1:
        return Mean(float(values[0]), None)
    half = scipy.special.stdtrit(tasks - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(tasks)
    return Mean(float(np.mean(values)), float(half))
