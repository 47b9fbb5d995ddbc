"""A search by a sampler of Optuna, which proposes batches of points and is told their losses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.extras import require

if TYPE_CHECKING:
    import optuna

Point: TypeAlias = dict[str, Any]
_LOG_FROM = 10.0  # ranges of positive numbers with this ratio have a log scale


def search(
    ranges: Mapping[str, tuple[float, float]],
    losses_of: Callable[[Sequence[Point]], Sequence[float]],
    *,
    sampler: optuna.samplers.BaseSampler | None,
    trials: int,
    at_once: int,
    seed: int = 0,
    whole: Collection[str] = (),
) -> Point:
    """The best of ``trials`` points, asked in batches of ``at_once``.

    The sampler is copied, so that one with a seed asks for the same points whenever the search is repeated. Losses
    that are recorded then cost nothing.

    Args:
      ranges: name -> lowest and highest value; on a log scale from a ratio of 10.
      losses_of: points -> their losses, infinite for what diverged.
      sampler: ``None``: a tree-structured Parzen estimator with ``seed``.
      trials, at_once: numbers of points.
      seed: of the default sampler.
      whole: names whose values are whole numbers.

    Raises:
      InputError: a range is none, Optuna is not installed, or every point diverged.
    """
    for name, value in (("trials", trials), ("at_once", at_once)):
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is {value!r}: use a whole number of at least 1.")
    for name, ends in ranges.items():
        if not _is_range(ends):
            raise InputError(f"{name} is {ends!r}: a sampler takes a range (lowest, highest), such as (1e-4, 1e-1).")
    require("optuna", "a search with a sampler")
    import optuna

    if sampler is not None and not isinstance(sampler, optuna.samplers.BaseSampler):
        raise InputError(f"sampler is {sampler!r}: use one of optuna.samplers, or None for its TPESampler.")
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True) if sampler is None else copy.deepcopy(sampler)
    study = optuna.create_study(sampler=sampler)
    while (done := len(study.trials)) < trials:
        batch = [study.ask() for _ in range(min(at_once, trials - done))]
        points = [
            {name: _suggested(trial, name, ends, name in whole) for name, ends in ranges.items()} for trial in batch
        ]
        for trial, loss in zip(batch, losses_of(points), strict=True):
            study.tell(trial, loss)
    if math.isinf(study.best_value):
        raise InputError(f"all {trials} points diverged: use lower ends of the ranges {dict(ranges)}.")
    return dict(study.best_params)


def _is_range(ends: Any) -> bool:
    is_number = lambda x: isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)
    return isinstance(ends, (tuple, list)) and len(ends) == 2 and all(map(is_number, ends)) and ends[0] < ends[1]


def _suggested(trial: optuna.Trial, name: str, ends: tuple[float, float], whole: bool) -> float:
    low, high = ends
    log = low > 0 and high / low >= _LOG_FROM
    if whole:
        return trial.suggest_int(name, math.ceil(low), math.floor(high), log=log)
    return trial.suggest_float(name, low, high, log=log)
