"""A larger run for a compute budget: width, depth, batch size, steps and what follows from them, together.

Compute is counted as parameters times examples, as `search.forecast.law.Rung.cost`. Powers of the compute
(`Allocation`) say how much of it goes where. (Sizes chosen by the law of a ladder were worse in five of six
measurements, and are not offered: reproduction/pages/forecasts.md.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config.fields import field_paths, get_field
from depthmup_flax.data import LoadOnce, steps_of_epoch
from depthmup_flax.rule.batch_and_steps import concerns, rescaling_rows
from depthmup_flax.search.forecast.forecasting import require_rule
from depthmup_flax.search.forecast.ladder import Size, rung_config
from depthmup_flax.search.forecast.law import DEPTH, STEPS, WIDTH
from depthmup_flax.search.tune.target import tuned_hyperparameters
from depthmup_flax.trainer.engine.from_config import build, count_parameters
from depthmup_flax.util.errors import InputError, UserCodeError
from depthmup_flax.util.table import Table

# The largest budget, in the tuned run's, at which recipes were compared with a search.
CHECKED_COMPUTE = 64


@dataclasses.dataclass(frozen=True)
class Allocation:
    """How sizes grow with the compute C of a run, as powers of their ratios to the tuned run's.

    Attributes:
      parameters: ``parameters ~ C^this``; the rest are examples. 0.5 in arXiv:2203.15556, from balanced runs; tuned
        runs are mostly too short for their size. Ours: reproduction/pages/forecasts.md.
      depth: ``depth ~ width^this``; 1 keeps the aspect ratio, 0 the depth, which was as good or better in ours.
      batch_size: ``batch size ~ examples^this``; about 0.4 in arXiv:2505.13738, 0 keeps it.
      passes: over the training examples; what compute is left beyond makes more parameters. Up to 4 are nearly as good
        as new examples in arXiv:2305.16264.
    """

    parameters: float = 0.33
    depth: float = 0.0
    batch_size: float = 0.0
    passes: float = 4.0


ALLOCATION = Allocation()


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A run for a compute budget; print shows what it changes in the tuned one, and why.

    Attributes:
      tuned, config: of the tuned run, and of this one.
      compute: its parameters times examples, in those of the tuned run.
      text: the table, compute and warnings.
    """

    tuned: ConfigDict
    config: ConfigDict
    compute: float
    text: str

    @property
    def values(self) -> dict[str, Any]:
        """What it changes in the tuned run, by name, as `depthmup_flax.Study.train` has it."""
        model, before = self.config.model, self.tuned
        changed = {path: get_field(self.config, path) for path in field_paths(self.config)}
        changed = {path: value for path, value in changed.items() if value != get_field(before, path)}
        sizes = {WIDTH: model.width, DEPTH: model.depth}
        return sizes | {path: value for path, value in changed.items() if path.rpartition(".")[2] not in sizes}

    def __repr__(self) -> str:
        return self.text


def recipe(
    tuned: ConfigDict,
    compute: float,
    *,
    width: int | None = None,
    depth: int | None = None,
    batch_size: int | None = None,
    allocation: Allocation = ALLOCATION,
    load: LoadOnce | None = None,
) -> Recipe:
    """The run that a compute budget is best spent on, from tuned hyperparameters.

    Args:
      tuned: a config with tuned hyperparameters, at the size, batch size and steps at which they were tuned.
      compute: parameters times examples, in those of a run of ``tuned``; at least 1.
      width, depth, batch_size: of the run; ``None``: ``allocation`` chooses them.
      allocation: where the compute goes. The steps use what the sizes leave.
      load: shared with a caller that uses the same data.

    Raises:
      InputError: bad sizes, or a rule that does not transfer.
    """
    load = load or LoadOnce()
    require_rule(tuned)
    if not 1 <= compute < math.inf:
        raise InputError(f"compute is {compute!r}: use a number of at least 1, times the operations of the config.")
    given = {"width": width, "depth": depth, "batch_size": batch_size}
    for name, value in given.items():
        if value is not None and value < 1:
            raise InputError(f"target.{name} is {value!r}: use a whole number of at least 1.")
    family = _Family(tuned, load)
    return _described(family, *_allocated(family, compute, given, allocation), load)


class _Family:
    """The networks of a tuned config at all sizes."""

    def __init__(self, tuned: ConfigDict, load: LoadOnce) -> None:
        self.tuned, self._load, self.built = tuned, load, build(tuned, load=load)
        self.parameters = functools.cache(self._parameters)

    def config(self, size: Size, batch_size: int) -> ConfigDict:
        """The config of a run."""
        config = rung_config(self.tuned, self.built.total_steps, self.built.epoch_steps, size, batch_size)
        if "stage_sizes" in config.model and size.depth != self.tuned.model.depth:
            config.model.stage_sizes = ()
        return config

    def _parameters(self, width: int, depth: int) -> int:
        size = Size(width, depth, self.built.total_steps)
        return count_parameters(self.config(size, self.tuned.train.batch_size), load=self._load)

    @functools.cached_property
    def count(self) -> Callable[[int, int], int]:
        """About `parameters`, without building: quadratic in the width, linear in the depth."""
        model = self.tuned.model
        widths = [times * model.width for times in (1, 2, 3)]
        fit = lambda depth: np.polyfit(widths, [self.parameters(width, depth) for width in widths], 2)
        shallow, deep = fit(model.depth), fit(2 * model.depth)
        at = lambda depth: shallow + (deep - shallow) * (depth / model.depth - 1)
        return lambda width, depth: max(1, round(float(np.polyval(at(depth), width))))

    def grain(self, axis: str) -> int:
        """Sizes are multiples of it: a quarter, half or all of the tuned size, as the network allows."""
        model = self.tuned.model
        for parts in (4, 2):
            grain = model[axis] // parts
            if grain and model[axis] % grain == 0:
                with contextlib.suppress(InputError, UserCodeError):
                    self.parameters(**{WIDTH: model.width, DEPTH: model.depth, axis: model[axis] + grain})
                    return grain
        return int(model[axis])

    def steps(self, compute: float, width: int, depth: int, batch_size: int) -> int:
        """What is left of the compute."""
        steps = round(compute * self.built.cost / (self.parameters(width, depth) * batch_size))
        if steps < 1:
            raise InputError(
                f"compute is {compute:g}, less than one step of {batch_size} examples at width {width}, depth "
                f"{depth}: raise it, or use smaller sizes."
            )
        return steps


def _allocated(
    family: _Family, compute: float, given: Mapping[str, int | None], allocation: Allocation
) -> tuple[Size, int, dict[str, str]]:
    """The size and batch size by powers of the compute, and the reasons."""
    model, batch_size, count = family.tuned.model, family.tuned.train.batch_size, family.parameters
    goal, reason = _parameters(family, compute, allocation)
    power = allocation.depth if family.built.rule.alpha else 0.0  # without it depth does not transfer
    free = DEPTH if given[WIDTH] else WIDTH
    grain, deeper = family.grain(free), family.grain(DEPTH)

    fixed = dict(given)
    if free == DEPTH and not given[DEPTH]:
        if given[WIDTH] and given[WIDTH] < model.width:
            raise InputError(f"target.width is {given[WIDTH]}, below the tuned {model.width}: fix target.depth, too.")
        if not family.built.rule.alpha:
            fixed[DEPTH], reason = model.depth, "as tuned"

    def size(grains: int) -> tuple[int, int]:
        value = model[free] + grains * grain
        width = given[WIDTH] or value
        along = deeper * round(model.depth * (width / model.width) ** power / deeper)
        return width, fixed[DEPTH] or (value if free == DEPTH else max(model.depth, along))

    sizes = [size(0)]
    if not (given[WIDTH] and fixed[DEPTH]) and count(*size(0)) < goal:
        low, high = 0, 1
        while count(*size(high)) < goal:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if count(*size(middle)) < goal else (low, middle)
        sizes = [size(low), size(high)]
    width, depth = min(sizes, key=lambda size: abs(math.log(count(*size) / goal)))
    examples = compute * family.built.parameters / family.parameters(width, depth)
    batch = given["batch_size"] or batch_size * max(1, round(examples**allocation.batch_size))
    why = {
        WIDTH: reason,
        DEPTH: reason if free == DEPTH else f"~ width^{power:g}" if power else "as tuned",
        "batch_size": f"~ examples^{allocation.batch_size:g}" if allocation.batch_size else "as tuned",
        STEPS: "the rest of the compute",
    }
    why |= {name: "given" for name, value in given.items() if value}
    return Size(width, depth, family.steps(compute, width, depth, batch)), batch, why


def _parameters(family: _Family, compute: float, allocation: Allocation) -> tuple[float, str]:
    """About how many parameters the run has, and the reason."""
    tuned, built, batch_size = family.built.parameters, family.built, family.tuned.train.batch_size
    by_power = tuned * compute**allocation.parameters
    of_pass = steps_of_epoch(built.dataset.train, batch_size)  # none where batches have no end
    by_passes = compute * built.cost / (allocation.passes * of_pass * batch_size) if of_pass else 0.0
    by_passes = min(by_passes, tuned * compute)  # the tuned run may have more passes
    if by_passes > by_power:
        return by_passes, f"at most {allocation.passes:g} passes over the data"
    return by_power, f"parameters ~ compute^{allocation.parameters:g}"


def _described(
    family: _Family,
    size: Size,
    batch_size: int,
    why: Mapping[str, str],
    load: LoadOnce,
) -> Recipe:
    config, built, tuned = family.config(size, batch_size), family.built, family.tuned
    run = build(config, load=load)
    used = run.cost / built.cost
    before, after = tuned_hyperparameters(tuned, built.total_steps), tuned_hyperparameters(config, size.steps)
    rows = rescaling_rows(before, after, tuned.optimizer.name)
    counts = ((WIDTH, tuned.model.width, size.width), (DEPTH, tuned.model.depth, size.depth))
    examples = before.batch_size * before.steps, after.batch_size * after.steps
    sums = (("parameters", built.parameters, run.parameters), ("examples", *examples))
    cells = [
        *((name, f"{old:,}", f"{new:,}", why[name]) for name, old, new in counts),
        *((name, f"{old:,}", f"{new:,}", f"times {new / old:.3g}") for name, old, new in sums),
        *((name, old, new, f"{why[name]}; {reason}" if name in why else reason) for name, old, new, reason in rows),
    ]
    table = Table(("", "tuned", "recipe", "why"), cells, "<>><")
    lines = [*table.lines, "", f"compute: {used:.4g} times the tuned run's parameters times examples"]
    lines += [f"Warning: {text}" for text in concerns(before, after, tuned.optimizer.name)]
    if used > CHECKED_COMPUTE * 1.05:
        lines.append(f"Warning: recipes were compared with searches up to {CHECKED_COMPUTE} times the compute.")
    return Recipe(tuned, config, used, "\n".join(lines))
