"""The ladder of a forecast: which smaller networks are trained, with which hyperparameters, as a sweep."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config, field_paths, get_field
from depthmup_flax.search.forecast.law import AXES, DEPTH, STEPS, WIDTH
from depthmup_flax.search.sweep.grid import as_tuple, sweep_config
from depthmup_flax.search.tune.target import Rescaling, rescale_target
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED
from depthmup_flax.util.errors import InputError, did_you_mean

FIGURE = "forecast"
_BUDGET = 0.05
_LEVELS = 3  # of a planned ladder; each halves every axis
_MOST_HALVINGS = 12
_SMALLEST = {WIDTH: 8, DEPTH: 1, STEPS: 16}
_FEWEST_VALUES = 3  # of an axis: a power law with an irreducible part has three unknowns


@dataclasses.dataclass(frozen=True)
class Size:
    """A rung, or the target."""

    width: int
    depth: int
    steps: int


@dataclasses.dataclass(frozen=True)
class LadderPlan:
    """What the user says about a ladder.

    Attributes:
      budget: of all runs of a planned ladder, ``"5%"`` or 0.05 of one run of the target, in parameters times examples.
        By default 5 %, or what the smallest ladder takes.
      axes: of `AXES`, along which a planned ladder is smaller than the target; by default those of width and depth
        along which three smaller sizes exist.
      widths, depths, steps: sizes in place of a planned ladder, all combinations; of an empty one, the target's.
      seeds: runs of each size.
    """

    budget: float | str | None = None
    axes: Sequence[str] | None = None
    widths: Sequence[int] = ()
    depths: Sequence[int] = ()
    steps: Sequence[int] = ()
    seeds: int = 3

    def __post_init__(self) -> None:
        if any(self._given().values()) and (self.budget, self.axes) != (None, None):
            raise InputError("budget and axes plan rungs, and widths, depths and steps name them: use one.")
        if not 0 < self._share() < 1:
            raise InputError(f"budget is {self.budget!r}: use a part of the target's operations, such as 5% or 0.05.")
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds!r}: use a whole number of at least 1.")
        axes = self._axes()
        for axis in axes:
            if axis not in AXES:
                raise InputError(f"axes has {axis!r}: {did_you_mean(str(axis), AXES)}")
        if not axes or len(set(axes)) < len(axes):
            raise InputError(f"axes is {','.join(axes)!r}: name one or several of {', '.join(AXES)}, each once.")

    def _axes(self) -> tuple[str, ...]:
        return (WIDTH, DEPTH) if self.axes is None else as_tuple(self.axes)

    def _share(self) -> float:
        """The budget as a share of the target's operations; NaN for what is none."""
        text = str(_BUDGET if self.budget is None else self.budget)
        try:
            return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            return math.nan

    def _given(self) -> dict[str, Sequence[int]]:
        return {WIDTH: self.widths, DEPTH: self.depths, STEPS: self.steps}

    def sizes(self, target: Size, parameters: Callable[[Size], int]) -> list[Size]:
        """The rungs, smallest first.

        Args:
          target: what is forecast.
          parameters: of a network of this size.

        Raises:
          InputError: they do not lie below the target, determine no law, or do not fit the budget.
        """
        parameters(target)  # what is wrong with the target is said first
        given = self._given()
        if any(given.values()):
            values = [sorted(set(given[axis])) or [getattr(target, axis)] for axis in AXES]
            rungs = [Size(*value) for value in itertools.product(*values)]
        else:
            rungs = self._planned(target, parameters)
        if problem := _problem(rungs, target):
            raise InputError(problem)
        return rungs

    def _planned(self, target: Size, parameters: Callable[[Size], int]) -> list[Size]:
        """The most expensive ladder that fits the budget; by default at least the cheapest.

        Each level has a network that is smaller than the target by about the same power of two along all axes, and
        networks with one of the axes halved again. So the largest rungs lie towards the target, and the effect of each
        axis is seen at every level.
        """
        smallest = self._smallest(target, parameters)
        halved = itertools.product(range(1, _MOST_HALVINGS), repeat=len(smallest))
        even = [dict(zip(smallest, times, strict=True)) for times in halved if max(times) - min(times) <= 1]
        ladders = [_levels(target, halvings, smallest) for halvings in even]
        ladders = [rungs for rungs in ladders if not _problem(rungs, target)]
        ladders.sort(key=lambda rungs: _cost(rungs, target, lambda size: size.width**2 * size.depth))
        cost = lambda rungs: self.seeds * _cost(rungs, target, parameters)
        try:
            fitting = bisect.bisect_right(ladders, self._share(), key=cost)
            if fitting or self.budget is None:
                return ladders[max(0, fitting - 1)]
            least = cost(ladders[0])
        except InputError as error:  # the network has no such size
            raise InputError(f"{error} Name the rungs, such as widths=16,32,64 depths=4,8,16.") from error
        raise InputError(
            f"budget is {self.budget}: the smallest ladder, with seeds={self.seeds}, needs {100 * least:.3g}% of "
            "the target's operations. Set a larger one, or fewer seeds."
        )

    def _smallest(self, target: Size, parameters: Callable[[Size], int]) -> dict[str, int]:
        """Axes along which the ladder varies -> the smallest size that the network has."""
        smallest, problems = {}, []
        for axis in self._axes():
            end = getattr(target, axis)
            sizes = sorted({_halved(target, axis, times) for times in range(1, _MOST_HALVINGS)} - {end})
            while sizes and not _exists(dataclasses.replace(target, **{axis: sizes[0]}), parameters):
                del sizes[0]
            if len(sizes) >= _FEWEST_VALUES:
                smallest[axis] = sizes[0]
            else:
                problems.append(
                    f"the target's {axis} is {end}: a planned ladder halves it {_FEWEST_VALUES} times, to "
                    f"{_SMALLEST[axis]} or more, and the network has {len(sizes)} such sizes. Raise target.{axis}, "
                    f"leave {axis} out of axes, or name the rungs, such as widths=16,32,64."
                )
        if problems and (self.axes is not None or not smallest):
            raise InputError(problems[0])
        return smallest


def _halved(target: Size, axis: str, times: int, smallest: int = 0) -> int:
    return max(min(smallest or _SMALLEST[axis], getattr(target, axis)), round(getattr(target, axis) / 2**times))


def _exists(size: Size, parameters: Callable[[Size], int]) -> bool:
    try:
        return parameters(size) > 0
    except InputError:
        return False


def _levels(target: Size, halvings: dict[str, int], smallest: dict[str, int]) -> list[Size]:
    rungs = []
    for level in reversed(range(_LEVELS)):
        for again in (*halvings, None):
            times = {axis: number + level + (axis == again) for axis, number in halvings.items()}
            sizes = {axis: _halved(target, axis, times[axis], smallest[axis]) for axis in halvings}
            rungs.append(dataclasses.replace(target, **sizes))
    return sorted(set(rungs), key=lambda size: (size.width**2 * size.depth * size.steps, size.width))


def _cost(rungs: Sequence[Size], target: Size, parameters: Callable[[Size], int]) -> float:
    """Operations of one run of each rung over those of the target."""
    cost = lambda size: parameters(size) * size.steps
    return sum(map(cost, rungs)) / cost(target)


def _problem(rungs: Sequence[Size], target: Size) -> str:
    """Why a law of these rungs cannot forecast the target, in a sentence; empty if it can."""
    if len(rungs) < 2:
        return "the ladder has one size: name at least three of an axis, such as widths=16,32,64."
    if target in rungs:
        return "the target is a rung of the ladder: use smaller rungs, or a larger target."
    for axis in AXES:
        values, end = sorted({getattr(rung, axis) for rung in rungs}), getattr(target, axis)
        if min(values) < 1:
            return f"the ladder has {axis} {min(values)}: use whole numbers of at least 1."
        if max(values) > end:
            return f"the ladder has {axis} {max(values)}, above the target's {end}: a forecast is of a larger network."
        if values != [end] and len(values) < _FEWEST_VALUES:
            listed = " and ".join(map(str, values))
            return f"the ladder has {axis} {listed}, and the target {end}: a law needs {_FEWEST_VALUES} values."
    return ""


def rung_config(tuned: ConfigDict, tuned_steps: int, epoch_steps: int, size: Size, batch_size: int) -> ConfigDict:
    """The config of a run: ``tuned`` at another size, with what batch size and steps change."""
    config = tuned.copy_and_resolve_references()
    config.model.update(width=size.width, depth=size.depth)
    if (size.steps, batch_size) != (tuned_steps, tuned.train.batch_size):
        rescale_target(tuned, tuned_steps, config, tuned_steps, Rescaling(batch_size, size.steps))
        # The same part of the run: averaged over a whole short run, the loss would measure how early it falls.
        average = (tuned.train.average_steps or epoch_steps) * size.steps / tuned_steps
        config.train.average_steps = max(1, round(average))
    return config


def ladder_sweep(configs: Mapping[Size, ConfigDict], seeds: int, objective: str) -> ConfigDict:
    """The sweep over the configs of rungs, each with ``seeds`` seeds from its own on."""
    configs = {size: config.copy_and_resolve_references() for size, config in configs.items()}
    for size, config in configs.items():
        config.train.steps = size.steps  # in place of epochs
        config.mesh = default_config().mesh  # a sweep trains whole networks on each device
        if "stage_sizes" in config.model:
            config.model.stage_sizes = ()
    base = next(iter(configs.values()))
    differ = [
        path for path in field_paths(base) if len({repr(get_field(config, path)) for config in configs.values()}) > 1
    ]
    grids = {}
    for size, config in configs.items():
        grid = {path: (get_field(config, path),) for path in dict.fromkeys((*differ, LEARNING_RATE))}
        seed_values = range(config.seed, config.seed + seeds)
        grids[f"width{size.width}_depth{size.depth}_steps{size.steps}"] = {**grid, SEED: seed_values}
    return sweep_config(base, grids, figure=FIGURE, title="The ladder of a forecast", scale=FIGURE, objective=objective)
