"""The course of a target: the training loss to expect in each part of its run, with a band, from the rungs' curves.

A run is cut into blocks of steps, short at first and longer later. In each block a law is fitted to the rungs' mean
losses, as at the end of the runs (`search.forecast.law`). The band holds for all blocks together: fewer than
2 % of healthy runs leave it anywhere (docs/forecast.md has the measurement).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from depthmup_flax.search.forecast.law import Rung, foretold, held_out, quantiles, seed_spread
from depthmup_flax.util.errors import InputError

_ROWS = 50  # at least, in a run that has so many steps
_GROWTH = 1 / 8  # of a block, as a share of the steps before it
_FEWEST_BLOCKS = 4
_DRAWS = 4000
_ONE_SIGMA = 0.6827
# Laws miss more than their posterior says: the further away the target, where the loss depends much on the size, and
# where the smaller rungs already miss the larger ones. Seeds of the target may differ where those of rungs, which have
# not begun to learn, do not: `_FLOOR`, relative. These numbers and `_HALF_BAND` were chosen on healthy runs.
_MISSED, _FLOOR = 0.2, 0.025
_NEIGHBORS = 2  # blocks on each side, over which variances are averaged
_HALF_BAND = 3.5  # standard deviations


@dataclasses.dataclass(frozen=True)
class Course:
    """What a run of the target should show.

    Attributes:
      every: steps between two rows of metrics; ``train.log_every`` divides it.
      ends: last step of each block.
      expected, low, high: mean training loss over a block, and the band of one run with any seed.
    """

    every: int
    ends: tuple[int, ...]
    expected: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def row(self, step: int) -> dict[str, float]:
        """Columns of the row of metrics of ``step``; none beyond the last block."""
        k = int(np.searchsorted(self.ends, step))
        if k == len(self.ends):
            return {}
        return {"forecast_loss": self.expected[k], "forecast_low": self.low[k], "forecast_high": self.high[k]}


@dataclasses.dataclass(frozen=True)
class Curves:
    """Training losses of a rung's seeds.

    Attributes:
      ends: [T], last steps of slices, as shares of the run.
      losses: [S, T], means over slices.
    """

    ends: np.ndarray
    losses: np.ndarray

    def means(self, ends: np.ndarray) -> np.ndarray:
        """``[S, B]``: means over the blocks with these last steps, as shares of the run."""
        lengths = np.diff(self.ends, prepend=0.0)
        sums = np.cumsum(self.losses * lengths, axis=1)
        at = np.stack([np.interp(ends, [0.0, *self.ends], [0.0, *row]) for row in sums])
        means: np.ndarray = np.diff(at, prepend=0.0) / np.diff(ends, prepend=0.0)
        return means


def log_steps(log_every: int, steps: int) -> int:
    """``train.log_every`` of a run with a course: the same, or fewer steps, so that there are enough rows."""
    return min(log_every, max(1, steps // _ROWS))


def block_ends(every: int, steps: int) -> list[int]:
    """The last steps of the blocks of a run with a row of metrics every ``every`` steps."""
    rows, ends = math.ceil(steps / every), [0]
    while ends[-1] < rows:
        ends.append(ends[-1] + max(1, round(_GROWTH * ends[-1])))
    if len(ends) > 2 and ends[-1] - rows > rows - ends[-2]:  # the last block would be short
        ends.pop()
    return [*(every * end for end in ends[1:-1]), steps]


def course_of(curves: Mapping[Rung, Curves], target: Rung, log_every: int) -> Course | None:
    """The course of ``target``, up to the first block whose losses follow no law, such as losses of 0 or less.

    It is ``None`` if that is an early block.

    Args:
      curves: of the rungs.
      log_every: of the target's run, from `log_steps`.
    """
    every = log_every * max(1, target.steps // _ROWS // log_every)
    ends = np.array(block_ends(every, target.steps))
    rungs = sorted(curves, key=lambda rung: rung.cost)
    means_RxSxB = np.stack([curves[rung].means(ends / target.steps) for rung in rungs])
    blocks = []
    for means_RxS in np.moveaxis(means_RxSxB, 2, 0):
        with contextlib.suppress(InputError):
            if (means_RxS > 0).all():
                blocks.append(_block(rungs, means_RxS, target))
                continue
        break
    if len(blocks) < _FEWEST_BLOCKS:
        return None
    expected, variances = np.array(blocks).T
    near = [variances[max(0, k - _NEIGHBORS) : k + _NEIGHBORS + 1].mean() for k in range(len(blocks))]
    factors = np.exp(_HALF_BAND * np.sqrt(np.array(near) + _FLOOR**2))
    bands = (expected, expected / factors, expected * factors)
    return Course(every, tuple(map(int, ends[: len(blocks)])), *(tuple(map(float, losses)) for losses in bands))


def _block(rungs: Sequence[Rung], losses_RxS: np.ndarray, target: Rung) -> tuple[float, float]:
    """The target's median loss in a block, and the variance of its logarithm for one run."""
    at = [dataclasses.replace(rung, losses=tuple(losses)) for rung, losses in zip(rungs, losses_RxS, strict=True)]
    noise, (small, large) = seed_spread(at), held_out(at)
    low, median, high = quantiles(foretold(at, [target], noise, 1, _DRAWS)[:, 0], _ONE_SIGMA)
    before = np.median(foretold(small, large, noise, losses_RxS.shape[1], _DRAWS), axis=0)
    missed = np.log(np.mean([rung.losses for rung in large], axis=1) / before)
    of_rungs, of_held_out = np.log(losses_RxS).mean(1).var(), np.square(missed).mean()
    distance = math.log(target.cost / rungs[-1].cost)
    return median, (math.log(high / low) / 2) ** 2 + _MISSED * distance * (of_rungs + of_held_out)


class Watch:
    """Compares a run with its course; see `update`.

    Args:
      course: of the run.
      start: the step after which the run is watched, for a run whose earlier losses are not known.

    Attributes:
      step: of the last call.
      left: the last step of the first block outside the band, or ``None``.
    """

    def __init__(self, course: Course, start: int = 0) -> None:
        self.course = course
        self.left: int | None = None
        self.step, self._sum = start, 0.0
        self._bounds = (0, *course.ends)
        self._block = int(np.searchsorted(self._bounds, start))  # the first that begins at ``start`` or later

    def update(self, step: int, loss: float) -> str | None:
        """A warning at the end of the first block outside the band, once; else ``None``.

        Args:
          step: number of steps taken. Blocks end at multiples of ``course.every`` and at the last step: call it there.
          loss: mean training loss of the steps since the call before.

        Raises:
          InputError: a block ended between two calls.
        """
        course, k, since = self.course, self._block, self.step
        self.step = step
        if k == len(course.ends) or step <= self._bounds[k]:
            return None
        begin, end, low, high = *self._bounds[k : k + 2], course.low[k], course.high[k]
        if step > end:
            raise InputError(f"step is {step}: a block ended at {end}. Call update every {course.every} steps.")
        self._sum += loss * (step - since)
        if step < end:
            return None
        mean, self._sum, self._block = self._sum / (end - begin), 0.0, k + 1
        if self.left is not None or low <= mean <= high:
            return None
        self.left = step
        return (
            f"step {step}: off course. The mean training loss of steps {begin + 1} to {end} is {mean:.4g}, and the "
            f"forecast expects {course.expected[k]:.4g}, band {low:.4g} to {high:.4g}."
        )
