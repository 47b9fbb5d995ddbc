"""The ladder that fits a budget in time: its rungs are measured for a few steps, and the plan is stored."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import time
from collections.abc import Callable, Sequence

from ml_collections import ConfigDict
from tqdm import tqdm

from depthmup_flax.data import LoadOnce
from depthmup_flax.search.forecast.ladder import LadderPlan, Size, ladder_sweep
from depthmup_flax.search.sweep.dry_run import Speed, estimate_s, measure
from depthmup_flax.search.sweep.grid import expand
from depthmup_flax.search.sweep.groups import plan as program_groups
from depthmup_flax.storage.records.run_hash import json_text
from depthmup_flax.storage.workdir import directory as workdirs
from depthmup_flax.storage.workdir.files import create, read_json
from depthmup_flax.storage.workdir.seal import sealed
from depthmup_flax.util.errors import InputError

log = logging.getLogger(__name__)

FILE = "ladder.json"


def planned_by_time(
    plan: LadderPlan,
    target: Size,
    directory: pathlib.Path,
    parameters: Callable[[Size], int],
    config: Callable[[Size], ConfigDict],
    objective: str,
    lanes: int | None,
    load: LoadOnce,
) -> list[Size]:
    """The rungs of the largest ladder that is estimated to end within the budget.

    They are stored in ``directory``, because a later estimate would plan others, and resuming needs the same.

    Raises:
      InputError: see `LadderPlan.sizes`; or the directory holds another plan.
    """
    path = directory / FILE
    asked = json_text({**dataclasses.asdict(plan), "target": dataclasses.asdict(target)})
    if not path.exists():
        seconds = _estimate(parameters, config, plan.seeds, objective, lanes, load)
        started = time.perf_counter()
        sizes = plan.sizes(target, parameters, seconds)
        times = seconds(sizes), time.perf_counter() - started
        log.info("the ladder is estimated to take %s; the estimate took %s", *map(tqdm.format_interval, times))
        with workdirs.claimed(directory, workdirs.FORECAST, lock=".lock-records"):
            create(path, sealed(json_text({"asked": asked, "rungs": [dataclasses.asdict(size) for size in sizes]})))
    stored = read_json(path, "choose another --workdir")
    if stored["asked"] != asked:
        raise InputError(f"{path} holds the ladder of another budget or target: choose another --workdir.")
    return [Size(**size) for size in stored["rungs"]]


def _estimate(
    parameters: Callable[[Size], int],
    config: Callable[[Size], ConfigDict],
    seeds: int,
    objective: str,
    lanes: int | None,
    load: LoadOnce,
) -> Callable[[Sequence[Size]], float]:
    """A function that estimates the seconds of a ladder; it measures the cheapest and the most expensive rung."""
    speeds: dict[Size, Speed] = {}
    cost = lambda size: parameters(size) * size.steps * config(size).train.batch_size  # Experiment.cost

    def seconds(rungs: Sequence[Size]) -> float:
        for size in (min(rungs, key=cost), max(rungs, key=cost)):
            if size not in speeds:
                grid = ladder_sweep({size: config(size)}, seeds, objective)
                speeds[size] = measure(program_groups(grid, expand(grid), load)[0], lanes)
        return estimate_s([*speeds.values()], [cost(size) for size in rungs], [seeds] * len(rungs))

    return seconds
