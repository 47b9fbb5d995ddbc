"""Trains a task by each of four ways to get a rate, and reads their losses from the records."""

from __future__ import annotations

import itertools
import logging
import pathlib
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.data import LoadOnce
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED, read_info, read_sweep
from reproduction.rules.by_class.tasks import OWN_RATES, SEARCHES, SEEDS, TASKS, WAYS
from reproduction.rules.command import within
from reproduction.rules.runs import begun, ship
from reproduction.rules.score import capped

log = logging.getLogger(__name__)

RECORDS = pathlib.Path(__file__).with_name("records")
_EXTENSIONS = 4  # rates of sp's own search that may be added, one at a time
Losses = Mapping[float, Mapping[int, float]]  # learning rate -> seed -> loss


def run(names: Sequence[str], workdir: pathlib.Path, hours: float) -> None:
    """Trains what the records lack, a task after the other, until ``hours`` of processor time are used."""
    load, start = LoadOnce(), time.process_time()
    for name, way in within(hours, itertools.product(names, WAYS)):
        train = _transferred if way in SEARCHES else _searched_there
        train(name, way, workdir, load)
        log.warning("%s, %s: done, %.0f processor seconds so far", name, way, time.process_time() - start)


def _transferred(name: str, way: str, workdir: pathlib.Path, load: LoadOnce) -> None:
    """A rule: two searches at its proxy, and their rates at the target."""
    task = TASKS[name]
    every = [seed for seeds in SEARCHES[way] for seed in seeds]
    found = _train(task.proxy(way), task.rates, every, workdir, f"{name}/{way}/proxy", load)
    rates = sorted(set(searched(found, way)))
    _train(task.at(way, *task.target), rates, SEEDS, workdir, f"{name}/{way}/target", load)


def _searched_there(name: str, way: str, workdir: pathlib.Path, load: LoadOnce) -> None:
    """The standard parametrization: rates at the target by one seed, and the best three by all."""
    task = TASKS[name]
    config, place = task.at(way, *task.target), f"{name}/{way}/target"
    rates = sorted(task.rates)[1 : 1 + OWN_RATES]
    for _ in range(1 + _EXTENSIONS):
        found = _train(config, rates, SEEDS[:1], workdir, place, load)
        rates.sort()
        best = min(rates, key=lambda rate: found[rate][SEEDS[0]])
        if best not in (rates[0], rates[-1]):
            break
        rates.append(best * (2.0 if best == rates[-1] else 0.5))
    _train(config, [best / 2, best, best * 2], SEEDS, workdir, place, load)


def _train(
    config: ConfigDict,
    rates: Sequence[float],
    seeds: Sequence[int],
    workdir: pathlib.Path,
    place: str,
    load: LoadOnce,
) -> Losses:
    """Trains the grid in a directory that is copied to the committed records; returns all that it holds."""
    directory = begun(workdir / place, RECORDS / place)
    grid = {LEARNING_RATE: tuple(rates), SEED: tuple(seeds)}
    sweep(sweep_config(config, {"rates": grid}, figure="rules", title=place, scale="cpu"), directory, load=load)
    ship(directory, RECORDS / place)
    return losses(place)


def losses(place: str) -> Losses:
    """The committed records of a directory; a diverged run counts as a constant guess."""
    read = read_sweep([RECORDS / place])
    chance = float(read.info.chance or np.nan)
    of: dict[float, dict[int, float]] = defaultdict(dict)
    for record in read.records:
        loss = record.loss(read.info.objective)
        of[record.point[LEARNING_RATE]][record.seed] = float(capped(np.array(np.nan if loss is None else loss), chance))
    return of


def chance(name: str) -> float:
    """The loss of the label frequencies of a task."""
    return float(read_info(RECORDS / name / WAYS[0] / "target").chance or np.nan)


def searched(found: Losses, way: str) -> list[float]:
    """The rate that each search takes: the lowest mean of its seeds."""
    return [min(found, key=lambda rate: np.mean([found[rate][seed] for seed in seeds])) for seeds in SEARCHES[way]]


def at_target(name: str, way: str) -> np.ndarray:
    """Losses by seed (S,): of a rule at its searches' rates, their mean; of the others at their own best rate."""
    found = losses(f"{name}/{way}/target")
    of = lambda rate: np.array([found[rate][seed] for seed in SEEDS])
    if way in SEARCHES:
        return np.mean([of(rate) for rate in searched(losses(f"{name}/{way}/proxy"), way)], axis=0)
    whole = [rate for rate in found if found[rate].keys() >= set(SEEDS)]
    return min((of(rate) for rate in whole), key=np.mean)
