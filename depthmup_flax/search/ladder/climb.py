"""The rungs of a tuned ladder: sizes between proxy and target, each with a few rates around the predicted one."""

from __future__ import annotations

import logging
import pathlib
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.config.fields import set_size
from depthmup_flax.report.own_records import Run
from depthmup_flax.report.verdict import TOLERANCE
from depthmup_flax.search.ladder.ladder import Ladder
from depthmup_flax.search.ladder.next_size import Next
from depthmup_flax.search.ladder.of_search import ladder_of_runs, run_of
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED
from depthmup_flax.util import messages

log = logging.getLogger(__name__)

DIRECTORY = "ladder"  # below the search's
_EXTEND = 2  # rates that may be added at each end of a rung


def climb(
    runs: list[Run],
    proxy: ConfigDict,
    target: ConfigDict,
    steps: tuple[int, int],
    directory: pathlib.Path,
    *,
    budget: float,
    objective: str,
    chance: float | None = None,
    tolerance: float = TOLERANCE,
    **options: Any,
) -> Ladder:
    """Trains sizes between proxy and target until the expected regret is small or the budget is spent; or resumes.

    Each step trains the size that lowers the expected regret most, at three or five rates with one seed.

    Args:
      runs: of the proxy's search, see `of_search.runs_of_search`.
      proxy, target: configs with the tuned values.
      steps: of a run of the proxy and of all rungs, and of the target.
      directory: of the search.
      budget: of all rungs, in runs of the target.
      objective: the loss that is compared.
      chance: the loss before learning; ``None``: that of the runs' first steps.
      tolerance: the regret at which it ends, as a share of what is learned.
      options: of `depthmup_flax.sweep`.
    """
    runs, spent, tried = list(runs), 0.0, set()
    while True:
        found = ladder_of_runs(runs, target, steps[1], initial_loss=chance)
        log.info("%s", "\n".join(found.statement), extra=messages.RESULT)
        within = [one for one in found.useful if one.size not in tried and spent + one.cost <= budget]
        if found.regret.mean <= tolerance or not within:
            return found
        best = min(within, key=lambda one: one.regret.mean)
        config = _rung(proxy, best, objective)
        records = sweep(config, directory / DIRECTORY / f"width{best.size.width}_depth{best.size.depth}", **options)
        runs += [run_of(record, proxy, steps[0], objective) for record in records]
        spent += best.cost * len(records) / best.runs
        tried.add(best.size)


def _rung(proxy: ConfigDict, rung: Next, objective: str) -> ConfigDict:
    """The sweep over the rates of a rung."""
    config = proxy.copy_and_resolve_references()
    set_size(config, rung.size.width, rung.size.depth)
    grid = {LEARNING_RATE: tuple(float(f"{rate:.4g}") for rate in rung.rates), SEED: (config.seed,)}
    title = f"A ladder's rung, {rung.size}"
    return sweep_config(
        config, {"rung": grid}, figure=DIRECTORY, title=title, scale=DIRECTORY, extend=_EXTEND, objective=objective
    )
