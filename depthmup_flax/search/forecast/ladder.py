"""The ladder of a forecast: which smaller networks are trained, with which hyperparameters, as a sweep."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config, field_paths, get_field, set_size
from depthmup_flax.config.rescaling import rescale_target
from depthmup_flax.search.forecast.law import AXES, DEPTH, STEPS, WIDTH, Rung
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED
from depthmup_flax.util.errors import InputError, require_number

FIGURE = "forecast"
_BUDGET = 0.05
_SMALLEST = {WIDTH: 8, DEPTH: 1}  # of planned ladders
_FEWEST_VALUES = 3  # of an axis: a power law with an irreducible part has three unknowns


@dataclasses.dataclass(frozen=True)
class LadderPlan:
    """What the user says about a ladder: all combinations of its sizes.

    Attributes:
      widths, depths, steps: of the rungs; of an empty one, the target's. All three empty: three widths and depths (or
        four of one of them), each half of the one before, the largest that fit the budget.
    """

    widths: Sequence[int] = ()
    depths: Sequence[int] = ()
    steps: Sequence[int] = ()
    # Of all runs of such a ladder, in parameters times examples of one run of the target; ``None``: 0.05, or what the
    # smallest ladder takes
    budget: float | None = None
    seeds: int = 3  # runs of each size

    def __post_init__(self) -> None:
        if self.budget is not None and not 0 < self.budget < 1:
            raise InputError(f"budget is {self.budget!r}: use a part of the target's operations, such as 0.05.")
        if self.budget is not None and (self.widths or self.depths or self.steps):
            raise InputError("budget plans rungs, and widths, depths and steps name them: use one.")
        require_number("seeds", self.seeds, least=1, whole=True)

    def rungs(self, target: Rung, parameters: Callable[[Rung], int]) -> list[Rung]:
        """The rungs, without losses.

        Args:
          target: what is forecast.
          parameters: of a network of this size; `InputError` for a size that the network does not have.
        """
        counted = lambda size: dataclasses.replace(size, parameters=parameters(size))
        target = counted(target)  # what is wrong with the target is said first
        given = {WIDTH: self.widths, DEPTH: self.depths, STEPS: self.steps}
        if any(given.values()):
            rungs = _combinations(target, {axis: values for axis, values in given.items() if values})
            _require_law(rungs, target)
            return [counted(rung) for rung in rungs]
        halved = {axis: of for axis in _SMALLEST if len(of := _halved(target, axis, parameters)) >= _FEWEST_VALUES}
        levels = _FEWEST_VALUES if len(halved) > 1 else _FEWEST_VALUES + 1
        share, rungs = math.inf, list[Rung]()
        for first in range(max(map(len, halved.values()), default=0) - levels + 1):
            starts = {axis: min(first, len(sizes) - levels) for axis, sizes in halved.items()}
            levels_of = {axis: halved[axis][start : start + levels] for axis, start in starts.items()}
            rungs = [counted(rung) for rung in _combinations(target, levels_of)]
            share = self.seeds * sum(rung.cost for rung in rungs) / target.cost
            if share <= (self.budget or _BUDGET):
                break
        if not rungs:
            raise InputError("the target has too few sizes of a half, a quarter, ...: name rungs, as widths=8,12,16.")
        if self.budget and share > self.budget:
            raise InputError(f"budget is {self.budget}: the smallest ladder needs {share:.3g}. Raise it.")
        return rungs


def _combinations(target: Rung, sizes: Mapping[str, Sequence[int]]) -> list[Rung]:
    """All combinations of sizes, the target's where there are none."""
    values = [sorted(set(sizes.get(axis, [getattr(target, axis)]))) for axis in AXES]
    return [Rung(*size) for size in itertools.product(*values)]


def _halved(target: Rung, axis: str, parameters: Callable[[Rung], int]) -> list[int]:
    """The sizes of an axis, halved again and again, as far as the network has them; the largest first."""
    sizes: list[int] = []
    while (size := getattr(target, axis) // 2 ** (len(sizes) + 1)) >= _SMALLEST[axis]:
        try:
            parameters(dataclasses.replace(target, **{axis: size}))
        except InputError:
            break
        sizes.append(size)
    return sizes


def _require_law(rungs: Sequence[Rung], target: Rung) -> None:
    """`InputError` if a law of these rungs cannot forecast the target."""
    for axis in AXES:
        values, end = {getattr(rung, axis) for rung in rungs}, getattr(target, axis)
        if max(values) > end:
            raise InputError(f"the ladder has {axis} {max(values)}, above the target's {end}: use smaller rungs.")
        if values != {end} and len(values) < _FEWEST_VALUES:
            raise InputError(f"the ladder has {len(values)} values of {axis}: a law needs {_FEWEST_VALUES}.")
    steps, sizes = len({rung.steps for rung in rungs}), len({(rung.width, rung.depth) for rung in rungs})
    fewest = 2 + 2 * (steps > 1) + 2 * (sizes > 1)  # one more than a law has unknowns
    if len(rungs) < fewest:
        raise InputError(f"the ladder has {len(rungs)} sizes: a law and its error need {fewest}.")
    if dataclasses.replace(target, parameters=0) in rungs:
        raise InputError("the target is a rung of the ladder: use smaller rungs, or a larger target.")


def rung_config(tuned: ConfigDict, tuned_steps: int, epoch_steps: int, size: Rung, batch_size: int) -> ConfigDict:
    """The config of a run: ``tuned`` at another size, with what batch size and steps change."""
    config = tuned.copy_and_resolve_references()
    set_size(config, size.width, size.depth)
    if (size.steps, batch_size) != (tuned_steps, tuned.train.batch_size):
        rescale_target(tuned, tuned_steps, config, tuned_steps, batch_size, size.steps)
        # The same part of the run: averaged over a whole short run, the loss would measure how early it falls.
        average = (tuned.train.average_steps or epoch_steps) * size.steps / tuned_steps
        config.train.average_steps = max(1, round(average))
    return config


def ladder_sweep(configs: Mapping[Rung, ConfigDict], seeds: int, objective: str) -> ConfigDict:
    """The sweep over the configs of rungs, each with ``seeds`` seeds from its own on."""
    configs = {size: config.copy_and_resolve_references() for size, config in configs.items()}
    for size, config in configs.items():
        config.train.steps = size.steps  # in place of epochs
        config.mesh = default_config().mesh  # a sweep trains whole networks on each device
    base = next(iter(configs.values()))
    differ = [path for path in field_paths(base) if len({repr(get_field(one, path)) for one in configs.values()}) > 1]
    grids = {
        f"width{size.width}_depth{size.depth}_steps{size.steps}": {
            **{path: (get_field(config, path),) for path in (*differ, LEARNING_RATE)},
            SEED: range(config.seed, config.seed + seeds),
        }
        for size, config in configs.items()
    }
    return sweep_config(base, grids, figure=FIGURE, title="The ladder of a forecast", scale=FIGURE, objective=objective)
