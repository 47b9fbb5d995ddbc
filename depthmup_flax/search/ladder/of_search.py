"""How far the rate of a tuned proxy carries: the ladder of a search at one size."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ml_collections import ConfigDict

from depthmup_flax.report.own_records import OwnRuns, Run
from depthmup_flax.rule.batch_and_steps import OPTIMIZER_RULES
from depthmup_flax.search.ladder.ladder import Ladder, ladder_of
from depthmup_flax.search.ladder.law import known_laws
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED, Record
from depthmup_flax.util.errors import InputError

_RULE = "depth_mup"  # whose law stands for other presets


def ladder_of_search(
    records: Sequence[Record], proxy: ConfigDict, target: ConfigDict, steps: tuple[int, int], objective: str
) -> Ladder | None:
    """What a search says about the target at its rate; ``None`` without several rates and a best one inside of them.

    Args:
      records: of the search.
      proxy, target: configs with the tuned values, rescaled for the target's batch size and steps.
      steps: of a run of the proxy, and of the target.
      objective: the loss that the search compared.
    """
    others = lambda record: tuple((k, v) for k, v in record.point.items() if k not in (LEARNING_RATE, SEED))
    if not all(LEARNING_RATE in record.point for record in records):
        return None
    (grid, _), *_ = Counter(map(others, records)).most_common(1)  # further points of a search have other values
    runs = [_run(record, proxy, steps[0], objective) for record in records if others(record) == grid]
    rates = proxy.optimizer.learning_rate, target.optimizer.learning_rate
    preset, optimizer = target.parametrization.preset, target.optimizer.name
    try:
        return ladder_of(
            OwnRuns("search", runs, ()),
            (target.model.width, target.model.depth),
            steps[1],
            target.train.batch_size,
            preset if preset in known_laws() else _RULE,
            optimizer if optimizer in OPTIMIZER_RULES else "adam",
            tuned=rates,
        )
    except InputError:  # a best rate at the grid's edge, of which the search warns
        return None


def _run(record: Record, proxy: ConfigDict, steps: int, objective: str) -> Run:
    loss, first = record.loss(objective), record.train_loss_slices[:1]
    return Run(
        line=0,
        width=record.width,
        depth=record.depth,
        rate=record.point[LEARNING_RATE],
        loss=math.nan if loss is None else loss,
        seed=record.seed,
        initial_loss=math.nan if not first or first[0] is None else first[0],
        steps=steps,
        batch_size=proxy.train.batch_size,
        parameters=record.parameters,
        settings=(),
    )
