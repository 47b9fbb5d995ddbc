"""How far a tuned rate carries to a target; and the rate that a ladder of sizes in between predicts there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.search.ladder.climb import DIRECTORY, climb
from depthmup_flax.search.ladder.of_search import ladder_of_search, runs_of_search
from depthmup_flax.search.ladder.rules import compare_rules
from depthmup_flax.search.tune.choice import Best
from depthmup_flax.search.tune.tuning import write_reference
from depthmup_flax.storage.sweep_records import COMPARISON, LEARNING_RATE, Sweep, read_sweep

log = logging.getLogger(__name__)


def carry(
    best: Best,
    proxy: ConfigDict,
    target: ConfigDict,
    steps: tuple[int, int],
    budget: float | None = None,
    **options: Any,
) -> None:
    """Sets ``best.ladder``; with a budget trains sizes on the way, and sets the rate that they predict.

    Args:
      best: of the search on the proxy.
      proxy, target: configs with the tuned values, rescaled for the target's batch size and steps.
      steps: of a run of the proxy, and of the target.
      budget: of the ladder, see `climb`; ``None``: nothing is trained, and the tuned rate is kept.
      options: of `depthmup_flax.sweep`.
    """
    searched = read_sweep([best.directory])
    best.ladder = ladder_of_search(searched, proxy, target, steps)
    if budget is None:
        return
    if best.ladder is None:
        log.warning(
            "No ladder: the search has no best rate inside of its rates. Tune the learning rate over a wider range."
        )
        return
    runs, rung, info = runs_of_search(searched, proxy, steps[0]), _rung_base(searched, proxy, steps[0]), searched.info
    options = {"objective": info.objective, "chance": info.chance, **options}
    found = climb(runs, rung, target, steps, best.directory, budget=budget, **options)
    found.write(best.directory)
    rate = float(f"{found.rate:.4g}")
    best.ladder, best.interval = found, found.interval
    best.remark = f"This rate is taken for the target: {rate:.4g}."
    moved = rate / target.optimizer.learning_rate
    best.fields[LEARNING_RATE] = float(f"{best.fields[LEARNING_RATE] * moved:.4g}")
    target.optimizer.learning_rate = rate
    write_reference(best, proxy, searched.records, steps[0])  # the target's runs are compared with it


def compare_on_ladder(
    best: Best, proxy: ConfigDict, steps: int, names: Sequence[str], seeds: Sequence[int], **options: Any
) -> str:
    """`compare_rules` at the largest size of a ladder, or else the next one; a sentence if there is none."""
    sizes = [one.search.size for one in best.ladder.searched[1:]] if best.ladder else []
    if best.ladder and best.ladder.next and not sizes:
        sizes = [best.ladder.next.size]
    if not sizes:
        return "No rules are compared: the ladder has no size between proxy and target."
    searched = read_sweep([best.directory])
    rung, directory = _rung_base(searched, proxy, steps), best.directory / DIRECTORY / COMPARISON
    return compare_rules(rung, sizes[-1], names, seeds, directory, searched.info.objective, **options)


def _rung_base(searched: Sweep, proxy: ConfigDict, steps: int) -> ConfigDict:
    """The proxy with what a run needs to measure the search's objective, at another size, too."""
    rung = proxy.copy_and_resolve_references()
    rung.data.validation_fraction = searched.info.base["data"]["validation_fraction"]
    rung.train.steps = steps
    return rung
