"""The table that a sweep writes and a report reads: one line of JSON per run, and the metadata of the sweep.

A sweep's directory holds ``sweep.json`` (`SweepInfo`: the base config and the axes) and one or more files
``records*.jsonl``, one per shard, optionally compressed as ``records*.jsonl.gz``. A `Record` is a run's difference from
the base config and its results.

A new field of `Record` or `SweepInfo` needs a default, which records without it get.
"""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from depthmup_flax.storage.files import as_path, from_fields, json_object, read_lines, reading
from depthmup_flax.storage.run_hash import changed_code, differences, run_differences, run_hash_at
from depthmup_flax.util.errors import InputError, listed, shown
from depthmup_flax.util.types import Json

COMPLETED, DIVERGED = "completed", "diverged"
MEANS_DIVERGED = "loss not finite"  # printed with their number: a loss may explode and stay finite
# Losses by which runs are compared: the mean at the end of training; after training, on held-out training examples, or
# on the test set.
OBJECTIVES = TRAIN, VALIDATION, TEST = "train", "validation", "test"
AUTO = "auto"
OBJECTIVE_CHOICES = (AUTO, *OBJECTIVES)  # auto: the one that suits the data and the task
LOSS_FIELDS = {TRAIN: "train_loss_avg", VALIDATION: "validation_loss", TEST: "test_loss"}  # of `Record`

ROUNDS = "rounds"  # figure of a search that begins with a grid and goes on at random points
COMPARISON = "compare"  # figure of the presets that a search has compared, and its directory below the search's
OWN = "own"  # scale of a table of somebody's own runs
SEED, LEARNING_RATE = "seed", "optimizer.learning_rate"
# Config fields that one compiled program takes as numbers, like the seed. A change of any other field recompiles.
CONTINUOUS = (
    LEARNING_RATE,
    *(f"optimizer.{name}" for name in ("weight_decay", "clip_rms", "warmup_steps", "decay_fraction", "final_fraction")),
    *(f"optimizer.kwargs.{name}" for name in ("momentum", "b1", "b2", "eps")),
    *(f"parametrization.{name}" for name in ("gamma0", "branch_multiplier")),
    *(f"parametrization.{role}_lr_factor" for role in ("input", "hidden", "output", "vector", "fixed")),
)


def is_continuous(path: str) -> bool:
    """Whether a config field is one of `CONTINUOUS`, or a hyperparameter of a user's own training step."""
    return path in CONTINUOUS or path.startswith("hyper.")


def finite_or_none(value: float) -> float | None:
    """``None`` for NaN and infinities, which JSON does not have."""
    return value if math.isfinite(value) else None


@dataclasses.dataclass(frozen=True)
class Record:
    """One finished run, as `search.sweep.runner` fills it in. Numbers of a diverged run are ``None`` unless finite."""

    run: str  # hash of the run's config, the same that a single run writes (`depthmup_flax.storage.run_hash`)
    status: str  # "completed", or "diverged" if the loss was not finite at some step
    point: Json  # dotted config field -> value for every axis; the base config with these is the run's config
    width: int
    depth: int
    parameters: int
    seed: int  # of initialization, data order and augmentation
    steps: int  # training steps taken
    train_loss: float | None  # of the last step
    train_loss_avg: float | None  # over the last epoch or train.average_steps; what the papers plot
    slice_steps: int  # per time slice; the last slice may be shorter
    train_loss_slices: list[float | None]  # mean training loss of each time slice
    test_loss: float | None = None  # after training, like the accuracy; None for a diverged run
    test_accuracy: float | None = None
    # Likewise, of a run with data.validation_fraction, which does not see the test set.
    validation_loss: float | None = None
    validation_accuracy: float | None = None
    test_metrics: dict[str, float | None] = dataclasses.field(default_factory=dict)  # other metrics of the evaluation
    diverged_at_step: int | None = None  # the first step whose loss was not finite
    diverged_in: str | None = None  # what was not finite, such as "the training loss"
    wall_time_s: float = 0.0  # the run's share of its program's wall time
    lanes: int = 1  # number of runs that the program trained together on one device
    device: str = "unknown"  # kind and number of devices
    versions: dict[str, str] = dataclasses.field(default_factory=dict)  # of Python and packages
    # Steps of the first third and what the rule keeps equal there: name -> column (`rule.measures`).
    course: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    audit: str | None = None  # what a network lacks or hides, "" for nothing; None for a training step, or older
    commit: str | None = None  # of the source tree, with -dirty if files were changed; None outside a repository

    def loss(self, objective: str) -> float | None:
        """The loss of `OBJECTIVES`; ``None`` of a diverged run, and where it was not measured."""
        loss: float | None = getattr(self, LOSS_FIELDS[objective])
        return loss if self.status == COMPLETED else None


@dataclasses.dataclass(frozen=True)
class SweepInfo:
    """Metadata of a sweep, the content of ``sweep.json``."""

    figure: str  # id of the figure that the sweep reproduces, such as "lr-width-depth"
    title: str  # of the report
    scale: str  # of the config: smoke, cpu, ...
    x: str  # the axis whose optimum is measured, such as optimizer.learning_rate
    axes: dict[str, list[Any]]  # dotted config field -> its values in the whole grid, in the grid's order
    base: Json  # the base config
    objective: str = TRAIN  # the loss of `OBJECTIVES` by which runs are compared
    runs: int = 0  # of the grid when it was written; 0 if that is not known
    chance: float | None = None  # the cross-entropy of the best constant guess, in nats; None for other losses


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep as read from its directories."""

    info: SweepInfo  # its axes include the values by which the sweep extended the grid
    records: list[Record]
    notes: list[str]  # warnings about the files, such as a truncated line
    planned: dict[str, list[Any]] = dataclasses.field(default_factory=dict)  # axis -> values before the extension
    # Width and depth -> values of x of which no run has ended, of a table of somebody's own runs.
    unfinished: Mapping[tuple[int, int], Sequence[float]] = dataclasses.field(default_factory=dict)


def read_record_file(path: pathlib.Path) -> tuple[list[Record], list[str]]:
    """The records of one file, and a warning if its last line is torn."""
    records: list[Record] = []
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(from_fields(Record, json_object(line), path))
        except (ValueError, TypeError, RecursionError) as error:
            if isinstance(error, ValueError) and number == len(lines):  # no line end after it
                note = "the last line was torn by a crash and is ignored. Rerunning the sweep repeats that run."
                return records, [f"{path}: {note}"]
            raise InputError(f"{path}, line {number} is no record ({error}): delete the line, and rerun.") from error
    return records, []


def read_runs(sources: Iterable[tuple[pathlib.Path, SweepInfo]]) -> tuple[dict[str, Record], list[str]]:
    """Hash of a run -> its record, for all record files in directories of one sweep; and warnings.

    A record whose name does not fit its point is left out, so that the sweep repeats the run. Of several records of a
    run the last one counts.
    """
    records: dict[str, Record] = {}
    notes: list[str] = []
    foreign: list[str] = []
    count = 0
    for directory, info in sources:
        for path in sorted([*directory.glob("records*.jsonl"), *directory.glob("records*.jsonl.gz")]):
            read, warnings = read_record_file(path)
            notes += warnings
            count += len(read)
            for record in read:
                if record.run != run_hash_at(info.base, record.point):
                    foreign.append(f"{record.run} of {path}")
                    continue
                records[record.run] = record
    if foreign:
        notes.append(
            f"{len(foreign)} of {count} records left out: their hash, their point and the base config in sweep.json do "
            f"not fit together (the first: run {foreign[0]}). Rerunning the sweep repeats their runs."
        )
    return records, notes


def read_sweep(directories: Sequence[pathlib.Path]) -> Sweep:
    """Merges the shards of one sweep: all record files of all directories, see `read_runs`."""
    if not directories:
        raise InputError("no directory was given: name at least one that a sweep wrote.")
    infos = [read_info(directory) for directory in directories]
    for directory, info in zip(directories, infos, strict=True):
        if differing := changed_code(infos[0].base, info.base) + sweep_differences(infos[0], info):
            raise InputError(f"{str(directory)!r} is of another sweep ({listed(differing)}): report each alone.")
    runs, notes = read_runs(zip(directories, infos, strict=True))
    planned_runs = max(info.runs for info in infos)
    if len(runs) < planned_runs:
        notes.append(
            f"{len(runs)} of {planned_runs} runs have ended: the sweep is not complete. Rerun its command, or "
            "those of all shards."
        )
    planned = {axis: _distinct(value for info in infos for value in info.axes[axis]) for axis in infos[0].axes}
    # A sweep may extend its grid beyond the planned values.
    run_values = {axis: [run.point[axis] for run in runs.values() if axis in run.point] for axis in planned}
    axes = {axis: _distinct([*values, *run_values[axis]]) for axis, values in planned.items()}
    x = infos[0].x
    if x in axes and all(isinstance(value, (int, float)) for value in axes[x]):
        axes[x].sort()
    return Sweep(dataclasses.replace(infos[0], axes=axes), list(runs.values()), notes, planned)


def sweep_differences(stored: SweepInfo, current: SweepInfo) -> list[str]:
    """What makes two sweeps different ones, `differences` for a sentence."""
    changed = run_differences(stored.base, current.base, "base")
    # Time slices of the same length, so that one figure can show them all.
    length, ours = (sweep.base.get("train", {}).get("log_every") for sweep in (stored, current))
    changed += differences(length, ours, "base.train.log_every")
    for name in ("figure", "scale", "x", "objective"):
        changed += differences(getattr(stored, name), getattr(current, name), name)
    if stored.axes.keys() != current.axes.keys():
        changed.append(f"axes: {', '.join(stored.axes)} there, {', '.join(current.axes)} here")
    return changed


def read_info(directory: pathlib.Path) -> SweepInfo:
    """Reads ``sweep.json``; `InputError` if it is absent or damaged."""
    path = directory / "sweep.json"
    if not path.exists():
        raise InputError(f"{str(directory)!r} holds no sweep: name the workdir of a sweep.")
    with reading(path, "use another directory"):
        info = from_fields(SweepInfo, json_object(path.read_text(encoding="utf-8")), path)
        for name in _SECTIONS & info.base.keys():
            if not isinstance(info.base[name], dict):
                raise TypeError(f"its base.{name} is {shown(info.base[name])}, which is no section")
        return info


def info_to_json(info: SweepInfo) -> str:
    """The text of ``sweep.json``."""
    return json.dumps(dataclasses.asdict(info), indent=1) + "\n"


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Every value once, in order of appearance."""
    firsts: dict[Any, Any] = {}
    for value in values:
        firsts.setdefault(json.dumps(value) if isinstance(value, (list, dict)) else value, value)
    return list(firsts.values())


_SECTIONS = {"model", "optimizer", "train", "parametrization", "data", "hyper", "mesh"}  # of a base config
_NESTED = ("point", "test_metrics", "versions", "course")
_OWN = {field.name for field in dataclasses.fields(Record)} - set(_NESTED)


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Dotted field -> its last part, or the whole path if another field, or a field of `Record`, has that name."""
    paths = list(paths)
    last = [path.rpartition(".")[2] for path in paths]
    return {
        path: name if last.count(name) == 1 and name not in _OWN else path
        for path, name in zip(paths, last, strict=True)
    }


def flat(record: Record, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A record in one level: its fields, the axes under ``names`` (by default `short_names`), and more test metrics."""
    names = short_names(record.point) if names is None else names
    fields = {name: getattr(record, name) for name in ("run", "status", "width", "depth", "seed")}
    # Seed, width and depth of a point are fields of the record, too.
    sizes = {f"model.{name}" for name in ("width", "depth")} | {"seed"}
    axes = {names.get(path, path): value for path, value in record.point.items() if path not in sizes}
    others = {name: value for name, value in vars(record).items() if name in _OWN and name not in fields}
    return {**fields, **axes, **others, **record.test_metrics}


def read_records(workdir: str | os.PathLike[str]) -> dict[str, list[Any]]:
    """Column -> values, a row per run: ``pandas.DataFrame(dm.read_records("runs/sweep"))``.

    The columns are those of `flat`, and ``directory``; ``None`` where a run has no such value.

    Args:
      workdir: of a sweep with its shards, of a search, or of a `Study`, which holds several of these.

    Raises:
      InputError: there are no records.
    """
    path = as_path(workdir)
    found = [path] if (path / "sweep.json").exists() else sorted(one.parent for one in path.glob("*/sweep.json"))
    if not found:
        raise InputError(f"{str(path)!r} holds no records: name the workdir of a sweep, a search or a Study.")
    rows: list[dict[str, Any]] = []
    for one in found:
        read = read_sweep([one])
        names, where = short_names(read.info.axes), "." if one == path else one.name
        rows += [{**flat(record, names), "directory": where} for record in read.records]
    columns = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in columns}
