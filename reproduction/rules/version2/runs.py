"""Trains a cell after the other, a cell being a task at a target, and reads the losses from the records."""

from __future__ import annotations

import itertools
import logging
import pathlib
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from depthmup_flax.data import LoadOnce
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED, read_sweep
from reproduction.rules import runs as version1
from reproduction.rules.command import within
from reproduction.rules.rule_file import Rule, read_rule
from reproduction.rules.score import capped
from reproduction.rules.version2.tasks import PROXY, SEARCHES, SEEDS, TARGETS, Task

log = logging.getLogger(__name__)

RECORDS = pathlib.Path(__file__).with_name("records")
RULES = ("sp", "mup", "depth_mup", "completep", "effective_depth")  # "auto" and "spectral" have no runs of their own
AROUND, EXTENSIONS = (0.5, 1.0, 2.0), 2
_PATHS = version1._PATHS
Grid = tuple[version1.Values, Sequence[float], Sequence[int]]


def rules() -> dict[str, Rule]:
    """Name -> rule."""
    return {name: read_rule(str(pathlib.Path(__file__).with_name("sp.py")) if name == "sp" else name) for name in RULES}


def run(
    tasks: Mapping[str, Task],
    workdir: pathlib.Path,
    hours: float,
    records: pathlib.Path = RECORDS,
    targets: Mapping[str, tuple[int, int]] = TARGETS,
) -> None:
    """Trains what ``records`` lack of the tasks, target by target, until ``hours`` of processor time are used."""
    load, start = LoadOnce(), time.process_time()
    for target, name in within(hours, itertools.product(targets, tasks)):
        directory = version1.begun(workdir / name, records / name)
        _cell(tasks[name], f"Rules on {name}", targets[target], directory, load)
        version1.ship(directory, records / name)
        log.warning("%s, %s: done, %.0f processor seconds so far", name, target, time.process_time() - start)


def _cell(task: Task, title: str, sizes: tuple[int, int], directory: pathlib.Path, load: LoadOnce) -> None:
    every = [seed for seeds in SEARCHES for seed in seeds]
    values_of = lambda rule, at: version1.values_at(rule, task, at) or ()

    def train(grids: Iterable[Grid]) -> version1.Losses:
        axes = (*_PATHS, LEARNING_RATE, SEED)
        products = {
            f"grid{k}": dict(zip(axes, (*((value,) for value in values), rates, seeds), strict=True))
            for k, (values, rates, seeds) in enumerate(grids)
        }
        base = task.config()
        base.train.same_code = True  # the table may change; the data's checksum is in the records
        config = sweep_config(base, products, figure="rules", title=title, scale="cpu")
        sweep(config, directory, load=load)
        return losses(directory)

    known = rules().values()
    proxy = next(iter({values_of(rule, PROXY) for rule in known}))  # the same network under every rule
    tuned = searched(proxy, train([(proxy, task.rates, every)]), task.rates)
    rates = sorted({rate * times for rate in tuned for times in AROUND})
    own = {values: list(rates) for values in dict.fromkeys(values_of(rule, sizes) for rule in known)}
    for _ in range(1 + EXTENSIONS):
        found = train([(values, tuple(trained), SEEDS) for values, trained in own.items()])
        for values, trained in own.items():
            trained.sort()
            best = min(trained, key=lambda rate: mean(found, values, rate, SEEDS))
            if best in (trained[0], trained[-1]):
                trained.append(best * (2.0 if best == trained[-1] else 0.5))


def losses(directory: pathlib.Path) -> version1.Losses:
    """The records of a task's directory."""
    read = read_sweep([directory])
    of: dict[version1.Candidate, dict[int, float]] = defaultdict(dict)
    for record in read.records:
        loss = record.loss(read.info.objective)
        of[tuple(record.point[path] for path in (*_PATHS, LEARNING_RATE))][record.seed] = (
            np.nan if loss is None else loss
        )
    core_s = sum(record.wall_time_s * int(record.device.split()[0]) for record in read.records)
    return version1.Losses(of, float(read.info.chance or np.nan), frozenset(of), core_s)


def searched(proxy: version1.Values, found: version1.Losses, rates: Sequence[float]) -> list[float]:
    """The rate that each of the searches takes: the lowest mean of its seeds."""
    return [min(rates, key=lambda rate: mean(found, proxy, rate, seeds)) for seeds in SEARCHES]


def mean(found: version1.Losses, values: version1.Values, rate: float, seeds: Sequence[int]) -> float:
    """The mean loss of a candidate; a diverged run counts as a constant guess. `KeyError` for a missing run."""
    of: Mapping[int, float] = found.of.get((*values, rate), {})
    return float(capped(np.array([of[seed] for seed in seeds]), found.chance).mean())
