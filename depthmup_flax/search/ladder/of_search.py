"""How far the rate of a tuned proxy carries: the ladder of a search at one size."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.report.own_records import OwnRuns, Run
from depthmup_flax.rule.batch_and_steps import OPTIMIZER_RULES
from depthmup_flax.search.ladder.ladder import Ladder, ladder
from depthmup_flax.search.ladder.law import known_laws
from depthmup_flax.search.tune.choice import best_choice
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED, Record, Sweep
from depthmup_flax.util.errors import InputError

_LAWS = {"ode": "completep"}  # the law of a preset that has none of its own, else
_RULE = "depth_mup"


def ladder_of_search(searched: Sweep, proxy: ConfigDict, target: ConfigDict, steps: tuple[int, int]) -> Ladder | None:
    """What a search says about the target at its rate; ``None`` without several rates and a best one inside of them.

    Args:
      searched: the search's records.
      proxy, target: configs with the tuned values, rescaled for the target's batch size and steps.
      steps: of a run of the proxy, and of the target.
    """
    runs = runs_of_search(searched, proxy, steps[0])
    kept, chance = target.optimizer.learning_rate, searched.info.chance
    try:
        return ladder_of_runs(runs, target, steps[1], kept=kept, initial_loss=chance) if runs else None
    except InputError:  # a best rate at the grid's edge, of which the search warns
        return None


def ladder_of_runs(runs: Sequence[Run], target: ConfigDict, steps: int, **options: Any) -> Ladder:
    """The ladder of runs under the target's rule and optimizer; ``options``: of `ladder`."""
    preset, optimizer = target.parametrization.preset, target.optimizer.name
    return ladder(
        OwnRuns("search", runs, ()),
        (target.model.width, target.model.depth),
        steps=steps,
        batch_size=target.train.batch_size,
        rule=preset if preset in known_laws() else _LAWS.get(preset, _RULE),
        optimizer=optimizer if optimizer in OPTIMIZER_RULES else "adam",
        weight_decay=target.optimizer.weight_decay,
        **options,
    )


def runs_of_search(searched: Sweep, proxy: ConfigDict, steps: int) -> list[Run]:
    """The runs of a search's grid of rates; none if it has no rates.

    Where other values were tuned, too, the rates are moved so that the grid's best is the tuned one.
    """
    records, objective = searched.records, searched.info.objective
    others = lambda record: tuple((k, v) for k, v in record.point.items() if k not in (LEARNING_RATE, SEED))
    if not all(LEARNING_RATE in record.point for record in records):
        return []
    (grid, _), *_ = Counter(map(others, records)).most_common(1)  # further points of a search have other values
    chosen = _with_equal_rates([record for record in records if others(record) == grid])
    moved = proxy.optimizer.learning_rate / best_choice(chosen, LEARNING_RATE, objective).values[LEARNING_RATE]
    return [run_of(record, proxy, steps, objective, moved) for record in chosen]


def _with_equal_rates(records: Sequence[Record]) -> list[Record]:
    """Those of the seeds that have the most rates: fresh seeds judge single rates, which are no curve."""
    rates: dict[int, set[float]] = {}
    for record in records:
        rates.setdefault(record.seed, set()).add(record.point[LEARNING_RATE])
    most = max(map(len, rates.values()))
    return [record for record in records if len(rates[record.seed]) == most]


def run_of(record: Record, config: ConfigDict, steps: int, objective: str, moved: float = 1.0) -> Run:
    """A record as a run of a table, its rate times ``moved``."""
    loss, first = record.loss(objective), record.train_loss_slices[:1]
    return Run(
        line=0,
        width=record.width,
        depth=record.depth,
        rate=record.point[LEARNING_RATE] * moved,
        loss=math.nan if loss is None else loss,
        seed=record.seed,
        initial_loss=math.nan if not first or first[0] is None else first[0],
        steps=steps,
        batch_size=config.train.batch_size,
        parameters=record.parameters,
        settings=(),
    )
