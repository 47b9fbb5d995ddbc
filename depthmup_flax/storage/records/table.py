"""The table that a sweep writes and a report reads: one line of JSON per run, and the metadata of the sweep.

A sweep's directory holds ``sweep.json`` (`SweepInfo`: the base config and the axes) and one or more files
``records*.jsonl``, one per shard, optionally compressed as ``records*.jsonl.gz``. A `Record` is a run's difference from
the base config and its results.

A new field of `Record` or `SweepInfo` needs a default, which files without it get. A field of a later version is
ignored with a warning.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from depthmup_flax.storage.records.run_hash import RunNames, trained
from depthmup_flax.storage.workdir.files import open_lines, read_lines
from depthmup_flax.storage.workdir.seal import sealed, unsealed
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Json

SCHEMA = 1
COMPLETED, DIVERGED = "completed", "diverged"
MEANS_DIVERGED = "loss not finite"  # printed with their number: a loss may explode and stay finite
# Losses by which runs are compared: the mean at the end of training; after training, on held-out training examples, or
# on the test set.
OBJECTIVES = TRAIN, VALIDATION, TEST = "train", "validation", "test"
LOSS_FIELDS = {TRAIN: "train_loss_avg", VALIDATION: "validation_loss", TEST: "test_loss"}  # of `Record`

ROUNDS = "rounds"  # figure of a search that begins with a grid and goes on at random points
SEED, LEARNING_RATE = "seed", "optimizer.learning_rate"
# Config fields that one compiled program takes as numbers, like the seed. A change of any other field recompiles.
CONTINUOUS = (
    LEARNING_RATE,
    *(f"optimizer.{name}" for name in ("weight_decay", "clip_rms", "warmup_steps")),
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
    """One finished run. Numbers of a diverged run that are not finite are ``None``."""

    run: str  # hash of the run's config, the same that a single run writes (`depthmup_flax.storage.records.run_hash`)
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
    wall_time_s: float = 0.0  # the run's share of its program's wall time
    lanes: int = 1  # number of runs that the program trained together on one device
    device: str = "unknown"  # kind and number of devices
    versions: dict[str, str] = dataclasses.field(default_factory=dict)  # of Python and packages
    audit: str | None = None  # what a user's network lacks or hides, "" for nothing; None for our networks
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
    runs: int = 0  # of the grid when it was written; 0 if an earlier version wrote it
    # The cross-entropy of the best constant guess, in nats; None for other losses, or if an earlier version wrote it.
    chance: float | None = None
    unknown: tuple[str, ...] = ()  # fields of a later version in the file, which are ignored


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep as read from its directories."""

    info: SweepInfo  # its axes include the values by which the sweep extended the grid
    records: list[Record]
    notes: list[str]  # warnings about the files, such as a truncated line
    planned: dict[str, list[Any]] = dataclasses.field(default_factory=dict)  # axis -> values before the extension


class RecordWriter:
    """Appends records to a file, or writes parts of it to a bucket; see `storage.workdir.files.open_lines`."""

    def __init__(self, path: pathlib.Path) -> None:
        self._lines = open_lines(path)

    def write_records(self, records: Iterable[Record]) -> None:
        """Appends records and waits until they are on disk."""
        self._lines.write(dataclasses.asdict(record) for record in records)

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()


_Kind: TypeAlias = tuple[str, Callable[[Any], bool]]  # how a sentence names a value, and whether a value is one
_STRING: _Kind = ("a string", lambda value: type(value) is str)
_OBJECT: _Kind = ("an object", lambda value: type(value) is dict)
_COUNT: _Kind = ("a whole number of at least 0, below 2^62", lambda value: type(value) is int and 0 <= value < 2**62)
_SIZE: _Kind = ("a whole number of at least 1, below 2^62", lambda value: type(value) is int and 1 <= value < 2**62)
_LOSS: _Kind = ("a number or null", lambda value: type(value) is float or value is None)
_EVALUATED = ("test_loss", "test_accuracy", "validation_loss", "validation_accuracy")
_FIELDS: dict[str, _Kind] = {
    **dict.fromkeys(("run", "device"), _STRING),
    **dict.fromkeys(("point", "versions", "test_metrics"), _OBJECT),
    **dict.fromkeys(("seed", "steps"), _COUNT),
    **dict.fromkeys(("width", "depth", "parameters", "slice_steps", "lanes"), _SIZE),
    **dict.fromkeys(("train_loss", "train_loss_avg", *_EVALUATED), _LOSS),
    "status": (f"{COMPLETED} or {DIVERGED}", lambda value: value in (COMPLETED, DIVERGED)),
    "train_loss_slices": (
        "a list of numbers and null",
        lambda value: type(value) is list and all(type(item) is float or item is None for item in value),
    ),
    "wall_time_s": ("a finite number", lambda value: type(value) is float and math.isfinite(value)),
    "diverged_at_step": ("a whole number or null", lambda value: type(value) is int or value is None),
    "audit": ("a string or null", lambda value: type(value) is str or value is None),
    "commit": ("a string or null", lambda value: type(value) is str or value is None),
}
_NUMBERS = {"train_loss", "train_loss_avg", *_EVALUATED, "wall_time_s", "train_loss_slices"}
_REQUIRED = {f.name for f in dataclasses.fields(Record) if f.default is f.default_factory is dataclasses.MISSING}


def read_record_file(path: pathlib.Path) -> tuple[list[Record], list[str]]:
    """The records of one file, and warnings: a truncated last line, fields of a later version.

    Raises:
      InputError: another line is not a record; names the line and the field.
    """
    records: list[Record] = []
    notes: list[str] = []
    unknown: set[str] = set()
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(_record(unsealed(line), unknown))
        except (ValueError, RecursionError) as error:
            wrong = error if isinstance(error, InputError) else f"not what was written ({error})"
            if wrong is not error and number == len(lines):  # no line end after it
                note = "the last line was torn by a crash and is ignored. Rerunning the sweep repeats that run."
                notes.append(f"{path}: {note}")
                break
            raise InputError(
                f"{path}, line {number}: {wrong}. Delete the line; rerunning the sweep repeats that run."
            ) from error
    if unknown:
        notes.append(f"{path}: fields of a later version are ignored: {', '.join(sorted(unknown))}.")
    return records, notes


def _record(fields: Any, unknown: set[str]) -> Record:
    """A record of JSON; adds names that are not fields to ``unknown``. `InputError` says what is wrong."""
    if type(fields) is not dict:
        raise InputError(f"{_shown(fields)} is not a record")
    if fields.keys() != _FIELDS.keys():
        unknown |= {_shown(name) for name in fields.keys() - _FIELDS.keys()}
        fields = {name: value for name, value in fields.items() if name in _FIELDS}
        if missing := _REQUIRED - fields.keys():
            raise InputError(f"the record has no {', '.join(sorted(missing))}")
    for name in _NUMBERS & fields.keys():
        value = fields[name]
        fields[name] = [_as_float(item) for item in value] if type(value) is list else _as_float(value)
    if wrong := _wrong(fields, _FIELDS):
        raise InputError(wrong)
    return Record(**fields)


def _wrong(fields: Json, kinds: Mapping[str, _Kind]) -> str:
    """The first field that is not of its kind, in a sentence; empty if there is none."""
    for name, value in fields.items():
        described, is_one = kinds[name]
        if not is_one(value):
            return f"{name} is {_shown(value)}: it must be {described}"
    return ""


def _as_float(value: Any) -> Any:
    """A whole number as a float, if it is in the range of floats; other values unchanged."""
    return float(value) if type(value) is int and abs(value) < 10**300 else value


def _shown(value: Any) -> str:
    """The first characters of a value's JSON, for a sentence."""
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_runs(sources: Iterable[tuple[pathlib.Path, SweepInfo]]) -> tuple[dict[str, Record], list[str]]:
    """Hash of a run -> its record, for all record files in directories of one sweep; and warnings.

    A record whose name does not fit its point is left out, so that the sweep repeats the run. Of several records of a
    run the last one counts.

    Raises:
      InputError: see `read_record_file`.
    """
    records: dict[str, Record] = {}
    notes: list[str] = []
    foreign: list[str] = []
    count = differing = 0
    for directory, info in sources:
        if info.unknown:
            later = f"fields of a later version are ignored: {', '.join(info.unknown)}."
            notes.append(f"{directory / 'sweep.json'}: {later}")
        names = RunNames(info.base)
        for path in sorted([*directory.glob("records*.jsonl"), *directory.glob("records*.jsonl.gz")]):
            read, warnings = read_record_file(path)
            notes += warnings
            count += len(read)
            for record in read:
                run = names.name(record.run, record.point) if _is_consistent(record) else None
                if run is None:
                    foreign.append(f"{_shown(record.run)} of {path}")
                    continue
                other = records.get(run)
                differing += other is not None and _result(other) != _result(record)
                records[run] = record if run == record.run else dataclasses.replace(record, run=run)
    if foreign:
        notes.append(
            f"{len(foreign)} of {count} records left out: their hash, their point and the base config in sweep.json do "
            f"not fit together (the first: run {foreign[0]}). Rerunning the sweep repeats their runs."
        )
    if differing:
        notes.append(
            f"runs that are recorded twice with different results: {differing}. The last record of each counts."
        )
    return records, notes


def _is_consistent(record: Record) -> bool:
    """Whether the numbers that a record repeats from its point are those of the point."""
    point, seed, width, depth = record.point, record.seed, record.width, record.depth
    stated = (point.get(SEED, seed), point.get("model.width", width), point.get("model.depth", depth))
    return stated == (seed, width, depth)


def _result(record: Record) -> tuple[object, ...]:
    return record.status, record.train_loss_avg, record.steps


def read_sweep(directories: Sequence[pathlib.Path]) -> Sweep:
    """Merges the shards of one sweep: all record files of all directories, see `read_runs`.

    Raises:
      InputError: no directory is given, one holds no sweep, or two hold different sweeps (names the field).
    """
    if not directories:
        raise InputError("no directory was given: name at least one that a sweep wrote.")
    infos = [read_info(directory) for directory in directories]
    for directory, info in zip(directories, infos, strict=True):
        names = [
            name for name in ("figure", "scale", "x", "objective") if getattr(info, name) != getattr(infos[0], name)
        ]
        names += [] if _same_training(info.base, infos[0].base) else ["base"]
        names += ["axes"] if info.axes.keys() != infos[0].axes.keys() else []
        if names:
            raise InputError(
                f"{str(directories[0])!r} and {str(directory)!r} are not parts of one sweep: their {', '.join(names)} "
                "differ. Report each by itself."
            )
    runs, notes = read_runs(zip(directories, infos, strict=True))
    planned = {axis: _distinct(value for info in infos for value in info.axes[axis]) for axis in infos[0].axes}
    # A sweep may extend its grid beyond the planned values.
    run_values = {axis: [run.point[axis] for run in runs.values() if axis in run.point] for axis in planned}
    axes = {axis: _distinct([*values, *run_values[axis]]) for axis, values in planned.items()}
    x = infos[0].x
    if x in axes and all(isinstance(value, (int, float)) for value in axes[x]):
        axes[x].sort()
    return Sweep(dataclasses.replace(infos[0], axes=axes), list(runs.values()), notes, planned)


def _same_training(base: Json, other: Json) -> bool:
    """Whether runs of two base configs train the same and have time slices of the same length."""
    lengths = [tree.get("train", {}).get("log_every") for tree in (base, other)]
    return trained(base) == trained(other) and lengths[0] == lengths[1]


def read_info(directory: pathlib.Path) -> SweepInfo:
    """Reads ``sweep.json``; `InputError` if it is absent, damaged or of a later version."""
    path = directory / "sweep.json"
    try:
        fields = unsealed(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{str(directory)!r} holds no sweep: {path.name} cannot be read. Name the --workdir of a sweep."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not what a sweep writes ({error}): use another directory.") from error
    if type(fields) is not dict:
        fields = {}
    fields = {"runs": 0, "objective": TRAIN, "chance": None, **fields}  # earlier versions do not write these
    own = {name: fields.pop(name, None) for name in _INFO_FIELDS}
    if wrong := _wrong(own, _INFO_FIELDS):
        raise InputError(f"{path} is not what a sweep writes ({wrong}): restore it, or use another directory.")
    if own.pop("schema") > SCHEMA:
        raise InputError(f"{path} was written by a later version of this package: update the package.")
    return SweepInfo(**own, unknown=tuple(map(_shown, fields)))


def _has_sections(base: Any) -> bool:
    sections = ("model", "parametrization", "train")
    return type(base) is dict and all(type(base.get(name, {})) is dict for name in sections)


_INFO_FIELDS: dict[str, _Kind] = {
    **dict.fromkeys(("figure", "title", "scale", "x"), _STRING),
    "axes": ("an object of lists", lambda axes: type(axes) is dict and all(type(axes[name]) is list for name in axes)),
    "base": ("a config, with objects model, parametrization and train", _has_sections),
    "objective": (", ".join(OBJECTIVES), lambda value: value in OBJECTIVES),
    "schema": _SIZE,
    "runs": _COUNT,
    "chance": _LOSS,
}


def info_to_json(info: SweepInfo) -> str:
    """The text of ``sweep.json``."""
    fields = dataclasses.asdict(info)
    del fields["unknown"]
    return sealed(json.dumps({"schema": SCHEMA, **fields}, indent=1) + "\n")


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Every value once, in order of appearance."""
    firsts: dict[Any, Any] = {}
    for value in values:
        firsts.setdefault(json.dumps(value) if isinstance(value, (list, dict)) else value, value)
    return list(firsts.values())
