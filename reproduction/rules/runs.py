"""The runs that a rule's score needs: trains those that the records lack, and reads scores from the records."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import logging
import pathlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from depthmup_flax.data import LoadOnce
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED, Record, read_sweep
from depthmup_flax.storage.workdir import as_path
from depthmup_flax.util.errors import InputError
from reproduction.rules.rule_file import FIELDS, Rule
from reproduction.rules.score import Score, capped, score
from reproduction.rules.tasks import AROUND, FACTORS, PROXY, TARGET_SEEDS, TARGETS, TASKS, TUNING_SEEDS, Task

log = logging.getLogger(__name__)

SHIPPED = pathlib.Path(__file__).with_name("records")
# A task's files there -> their names in a work directory, where a sweep appends to records.jsonl.
FILES = {"sweep.json": "sweep.json", "data.json": "data.json", "records.jsonl.gz": "records.shipped.jsonl.gz"}
_PATHS = ("model.width", "model.depth", *(f"parametrization.{name}" for name in FIELDS))

Values: TypeAlias = tuple[Any, ...]  # of `_PATHS`: a size and a rule's numbers there
Candidate: TypeAlias = tuple[Any, ...]  # of `_PATHS`, and a learning rate
Scores: TypeAlias = dict[str, dict[int, Score]]  # task -> nominal cost -> score


@dataclasses.dataclass(frozen=True)
class Losses:
    """The losses of a task's records, and which of them come with the package."""

    of: Mapping[Candidate, Mapping[int, float]]  # candidate -> seed -> loss, NaN if it diverged
    chance: float
    shipped: frozenset[Candidate]
    core_s: float  # of all shipped runs


def benchmark(
    rule: Rule, others: Sequence[Rule], names: Sequence[str], workdir: str | pathlib.Path, lanes: int | None = None
) -> list[tuple[Rule, Scores]]:
    """The scores of ``rule``, whose missing runs are trained in ``workdir``, and those that records give ``others``.

    Raises:
      InputError: the rule covers none of the tasks, or ``workdir`` holds records of other tasks.
    """
    load, losses = LoadOnce(), {}
    covered = [name for name in names if covers(rule, TASKS[name])]
    if not covered:
        raise InputError(f"RULE of {rule.name} covers none of {', '.join(names)}: name other tasks, --tasks=...")
    if left := [name for name in names if name not in covered]:
        log.warning("%s does not cover %s, which is left out", rule.name, ", ".join(left))
    for name in covered:
        directory = begun(as_path(workdir) / name, SHIPPED / name)
        if not ((directory / "sweep.json").exists() and all_scores(rule, {name: read_losses(name, directory)})):
            train_missing(rule, name, directory, lanes, load)
        losses[name] = read_losses(name, directory)
    return [(one, all_scores(one, losses)) for one in (rule, *others)]


def covers(rule: Rule, task: Task) -> bool:
    """Whether the rule has values at every size of a task."""
    return all(values_at(rule, task, sizes) is not None for sizes in (PROXY, *TARGETS.values()))


def train_missing(rule: Rule, name: str, directory: pathlib.Path, lanes: int | None, load: LoadOnce) -> None:
    """Trains the runs of ``rule``, which covers the task, that its directory does not have."""
    task = TASKS[name]

    def train(grids: Sequence[tuple[Values | None, Sequence[float], Sequence[int]]]) -> None:
        axes = (*_PATHS, LEARNING_RATE, SEED)
        products = {
            f"grid{number}": dict(zip(axes, (*((value,) for value in values or ()), rates, seeds), strict=True))
            for number, (values, rates, seeds) in enumerate(grids)
        }
        config = sweep_config(task.config(), products, figure="rule_benchmark", title=f"Rules on {name}", scale="cpu")
        sweep(config, directory, lanes=lanes, load=load)

    train([(values_at(rule, task, PROXY, factor), task.rates, TUNING_SEEDS) for factor in _factors(rule)])
    rate, factor = tuned(rule, task, read_losses(name, directory))
    around = [rate * times for times in AROUND]
    train([(values_at(rule, task, sizes, factor), around, TARGET_SEEDS) for sizes in TARGETS.values()])


def ship(source: pathlib.Path, place: pathlib.Path) -> None:
    """Copies a task's sweep, its records in the order of their points, in which they are compressed best."""
    place.mkdir(parents=True, exist_ok=True)
    for file in ("sweep.json", "data.json"):
        (place / file).write_bytes((source / file).read_bytes())
    records = sorted(read_sweep([source]).records, key=lambda record: json.dumps(record.point, sort_keys=True))
    lines = "".join(f"{json.dumps(dataclasses.asdict(record))}\n" for record in records)
    (place / "records.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))


def begun(directory: pathlib.Path, shipped: pathlib.Path) -> pathlib.Path:
    """The directory of a task, which begins with the records that are shipped."""
    if shipped.is_dir() and not (directory / "sweep.json").exists():
        directory.mkdir(parents=True, exist_ok=True)
        for file, copy in reversed(FILES.items()):  # sweep.json last, so that a copy that was cut off is repeated
            (directory / copy).write_bytes((shipped / file).read_bytes())
    return directory


def values_at(rule: Rule, task: Task, sizes: tuple[int, int], factor: float = 1.0) -> Values | None:
    """The values of `_PATHS` at ratios of width and depth; ``None`` if the rule does not cover that.

    ``factor`` multiplies the second tuned hyperparameter.
    """
    config = task.config()
    config.model.update(width=task.width * sizes[0], depth=task.depth * sizes[1])
    fields = rule.fields(config)
    if fields is None:
        return None
    if rule.second:
        fields[rule.second] *= factor
    return (config.model.width, config.model.depth, *(fields[name] for name in FIELDS))


def _factors(rule: Rule) -> Sequence[float]:
    return FACTORS if rule.second else (1.0,)


def read_losses(name: str, directory: pathlib.Path) -> Losses:
    """The records of a task in ``directory``; all of them count as shipped if the package has none."""
    read, shipped = read_sweep([directory]), SHIPPED / name
    of: dict[Candidate, dict[int, float]] = defaultdict(dict)
    for record in read.records:
        loss = record.loss(read.info.objective)
        of[_candidate(record)][record.seed] = np.nan if loss is None else loss
    committed = read_sweep([shipped]).records if shipped.is_dir() and shipped != directory else read.records
    core_s = sum(record.wall_time_s * int(record.device.split()[0]) for record in committed)
    return Losses(of, float(read.info.chance or np.nan), frozenset(map(_candidate, committed)), core_s)


def _candidate(record: Record) -> Candidate:
    return tuple(record.point[path] for path in (*_PATHS, LEARNING_RATE))


def tuned(rule: Rule, task: Task, losses: Losses) -> tuple[float, float]:
    """The learning rate and the factor of the second hyperparameter with the lowest mean loss on the proxy."""
    means = {}
    for factor in _factors(rule):
        values = values_at(rule, task, PROXY, factor) or ()
        for rate in task.rates:
            of = losses.of[(*values, rate)]
            means[rate, factor] = capped(np.array([of[seed] for seed in TUNING_SEEDS]), losses.chance).mean()
    return min(means, key=means.__getitem__)


def all_scores(rule: Rule, losses: Mapping[str, Losses]) -> Scores:
    """The scores at the tasks that the rule covers and whose records have its runs."""
    found: Scores = {}
    for name in losses:
        if covers(rule, TASKS[name]):
            with contextlib.suppress(KeyError):  # a run that the records lack
                found[name] = scores(rule, name, losses[name])
    return found


def scores(rule: Rule, name: str, losses: Losses) -> dict[int, Score]:
    """Nominal cost -> score of ``rule`` at a task that it covers; `KeyError` if the records lack a run of it."""
    task = TASKS[name]
    rate, factor = tuned(rule, task, losses)
    return {cost: _score(losses, values_at(rule, task, sizes, factor) or (), rate) for cost, sizes in TARGETS.items()}


def _score(losses: Losses, values: Values, rate: float) -> Score:
    own = [(*values, rate * times) for times in AROUND]
    there = [one for one in losses.shipped if one[:2] == values[:2] and losses.of[one].keys() >= set(TARGET_SEEDS)]
    candidates = list(dict.fromkeys([*own, *there]))
    return score(
        np.array([[losses.of[one][seed] for seed in TARGET_SEEDS] for one in candidates]),
        losses.chance,
        reference=[candidates.index(one) for one in there],
        own=range(len(own)),
        transferred=AROUND.index(1.0),
    )
