"""A larger run for a compute budget: width, batch size, steps and what follows from them, together.

Compute is counted as parameters times examples, as `search.forecast.law.Rung.cost`. (Sizes chosen by the law of a
ladder were worse in five of six measurements: reproduction/pages/forecasts.md.)
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable

from ml_collections import ConfigDict

from depthmup_flax.config.rescaling import tuned_hyperparameters
from depthmup_flax.data import LoadOnce, steps_of_epoch
from depthmup_flax.rule.batch_and_steps import rescaling_table
from depthmup_flax.search.forecast.forecasting import require_rule
from depthmup_flax.search.forecast.ladder import rung_config
from depthmup_flax.search.forecast.law import Rung
from depthmup_flax.trainer.engine.from_config import build, count_parameters
from depthmup_flax.util.errors import InputError, UserCodeError
from depthmup_flax.util.table import Table

# The largest budget, in the tuned run's, at which recipes were compared with a search.
CHECKED_COMPUTE = 64
# ``parameters ~ compute^this``; the rest are examples. 0.5 in arXiv:2203.15556, from balanced runs; tuned runs are
# mostly too short for their size. Ours: reproduction/pages/forecasts.md.
_PARAMETERS = 0.33
# Over the training examples, at most; what compute is left beyond makes more parameters. Up to 4 are nearly as good as
# new examples in arXiv:2305.16264.
_PASSES = 4


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

    def __repr__(self) -> str:
        return self.text


def recipe(
    tuned: ConfigDict,
    compute: float,
    *,
    width: int | None = None,
    depth: int | None = None,
    batch_size: int | None = None,
    load: LoadOnce | None = None,
) -> Recipe:
    """The run that a compute budget is best spent on, from tuned hyperparameters.

    Args:
      tuned: a config with tuned hyperparameters, at the size, batch size and steps at which they were tuned.
      compute: parameters times examples, in those of a run of ``tuned``; at least 1.
      width: of the run; ``None``: chosen.
      depth, batch_size: of the run; ``None``: the tuned ones.
      load: shared with a caller that uses the same data.

    Raises:
      InputError: bad sizes, or a rule that does not transfer.
    """
    load = load or LoadOnce()
    require_rule(tuned)
    if not 1 <= compute < math.inf:
        raise InputError(f"compute is {compute!r}: use a number of at least 1, times the operations of the config.")
    built, sizes = build(tuned, load=load), {"width": width, "depth": depth}
    why = {axis: "given" if size else "as tuned" for axis, size in sizes.items()}
    depth, batch_size = depth or tuned.model.depth, batch_size or tuned.train.batch_size

    def sized(width: int, steps: int) -> ConfigDict:
        return rung_config(tuned, built.total_steps, built.epoch_steps, Rung(width, depth, steps), batch_size)

    parameters = functools.cache(lambda width: count_parameters(sized(width, built.total_steps), load=load))
    if not width:
        goal, why["width"] = built.parameters * compute**_PARAMETERS, f"parameters ~ compute^{_PARAMETERS:g}"
        pass_steps = steps_of_epoch(built.dataset.train, tuned.train.batch_size)  # none where batches have no end
        if pass_steps:  # the tuned run may have more passes
            least = built.parameters * compute * min(1, built.total_steps / (_PASSES * pass_steps))
            if least > goal:
                goal, why["width"] = least, f"at most {_PASSES} passes over the data"
        width = _width(tuned.model.width, goal, parameters)
    steps = round(compute * built.cost / (parameters(width) * batch_size))
    if steps < 1:
        raise InputError(
            f"compute is {compute:g}, less than one step of {batch_size} examples at width {width}, depth {depth}: "
            "raise it, or use smaller sizes."
        )
    config = sized(width, steps)
    before, after = tuned_hyperparameters(tuned, built.total_steps), tuned_hyperparameters(config, steps)
    examples = before.batch_size * before.steps, after.batch_size * after.steps
    counts = (
        ("width", tuned.model.width, width, why["width"]),
        ("depth", tuned.model.depth, depth, why["depth"]),
        ("parameters", built.parameters, parameters(width), f"times {parameters(width) / built.parameters:.3g}"),
        ("examples", *examples, f"times {examples[1] / examples[0]:.3g}, the rest of the compute"),
    )
    rows = [(name, f"{old:,}", f"{new:,}", reason) for name, old, new, reason in counts]
    used = parameters(width) * steps * batch_size / built.cost
    lines = [*Table(("", "tuned", "recipe", "why"), rows, "<>><").lines, ""]
    lines += [rescaling_table(before, after, tuned.optimizer.name), ""]
    lines.append(f"compute: {used:.4g} times the tuned run's parameters times examples")
    if used > CHECKED_COMPUTE * 1.05:
        lines.append(f"Warning: recipes were compared with searches up to {CHECKED_COMPUTE} times the compute.")
    return Recipe(tuned, config, used, "\n".join(lines))


def _width(tuned: int, goal: float, parameters: Callable[[int], int]) -> int:
    """The width of about ``goal`` parameters: the tuned one and multiples of a quarter, half or all of it more."""
    for grain in (tuned // 4, tuned // 2, tuned):
        if grain and tuned % grain == 0:
            with contextlib.suppress(InputError, UserCodeError):  # the network has no such width
                parameters(tuned + grain)
                break
    at = lambda grains: parameters(tuned + grains * grain)
    most = math.ceil(tuned * goal / (grain * at(0)))  # parameters grow at least like the width
    enough = bisect.bisect_left(range(most), goal, key=at)
    return tuned + grain * min((max(0, enough - 1), enough), key=lambda grains: abs(math.log(at(grains) / goal)))
