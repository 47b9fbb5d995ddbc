"""The table that a sweep writes and a report reads: one line of JSON per run, and the metadata of the sweep.

A sweep's directory holds ``sweep.json`` (`SweepInfo`: the base config and the axes) and one or more files
``records*.jsonl``, one per shard, optionally compressed as ``records*.jsonl.gz``. A `Record` is a run's difference from
the base config and its results.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from depthmup_flax.errors import InputError
from depthmup_flax.types import Json
from depthmup_flax.workdir.files import open_lines, read_lines

SCHEMA = 1
COMPLETED, DIVERGED = "completed", "diverged"

SEED, LEARNING_RATE = "seed", "optimizer.learning_rate"
# Config fields that one compiled program takes as numbers, like the seed. A change of any other field recompiles.
CONTINUOUS = (
    LEARNING_RATE,
    *(f"optimizer.{name}" for name in ("weight_decay", "clip_rms", "warmup_steps")),
    *(f"optimizer.kwargs.{name}" for name in ("momentum", "b1", "b2", "eps")),
    *(f"parametrization.{name}" for name in ("gamma0", "branch_multiplier")),
    *(f"parametrization.{role}_lr_factor" for role in ("input", "hidden", "output", "vector", "fixed")),
)


@dataclasses.dataclass(frozen=True)
class Record:
    """One finished run. Numbers of a diverged run that are not finite are ``None``."""

    run: str  # hash of the run's config, the same that train.py writes (`training.config.config_hash`)
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
    test_loss: float | None  # after training, like the accuracy; None for a diverged run
    test_accuracy: float | None
    diverged_at_step: int | None  # the first step whose loss was not finite
    wall_time_s: float  # the run's share of its program's wall time
    lanes: int  # number of runs that the program trained together on one device
    device: str  # kind and number of devices
    versions: dict[str, str]  # of Python and packages
    commit: str | None  # of the source tree, with -dirty if files were changed; None outside a repository


@dataclasses.dataclass(frozen=True)
class SweepInfo:
    """Metadata of a sweep, the content of ``sweep.json``."""

    figure: str  # id of the figure that the sweep reproduces, such as "lr-width-depth"
    title: str  # of the report
    scale: str  # smoke, cpu, gpu or paper
    x: str  # the axis whose optimum is measured, such as optimizer.learning_rate
    axes: dict[str, list[Any]]  # dotted config field -> its values in the whole grid, in the grid's order
    base: Json  # the base config


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep as read from its directories."""

    info: SweepInfo  # its axes include the values by which the sweep extended the grid
    records: list[Record]
    notes: list[str]  # warnings about the files, such as a truncated line
    planned: dict[str, list[Any]] = dataclasses.field(default_factory=dict)  # axis -> values before the extension


class RecordWriter:
    """Appends records to a file, or writes parts of it to a bucket; see `depthmup_flax.workdir.files.open_lines`."""

    def __init__(self, path: pathlib.Path) -> None:
        self._lines = open_lines(path)

    def write_records(self, records: Iterable[Record]) -> None:
        """Appends records and waits until they are on disk."""
        self.write(dataclasses.asdict(record) for record in records)

    def write(self, values: Iterable[Any]) -> None:
        """Appends a line of JSON per value; returns when they are stored."""
        self._lines.write(values)

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()


def read_records(path: pathlib.Path) -> tuple[list[Record], list[str]]:
    """The records of one file, and a warning if its last line is truncated; `InputError` if another is no record."""
    names = set(Record.__annotations__)
    records: list[Record] = []
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            if number == len(lines):  # no line end after it
                note = "the last line was torn by a crash and is ignored. Rerunning the sweep repeats that run."
                return records, [f"{path}: {note}"]
            raise InputError(
                f"{path}, line {number}: not JSON ({error}). Delete the line; rerunning the sweep repeats that run."
            ) from error
        if not isinstance(fields, dict) or fields.keys() != names:
            raise InputError(f"{path}, line {number}: not a record of this version. Use another directory.")
        records.append(Record(**fields))
    return records, []


def read_sweep(directories: Sequence[pathlib.Path]) -> Sweep:
    """Merges the shards of one sweep: all record files of all directories; a run that occurs twice counts once.

    Raises:
      InputError: no directory is given, one holds no sweep, or two hold different sweeps (names the field).
    """
    if not directories:
        raise InputError("no directory was given: name at least one that a sweep wrote.")
    infos: list[SweepInfo] = []
    records: dict[str, Record] = {}
    notes: list[str] = []
    for directory in directories:
        infos.append(info := read_info(directory))
        names = [name for name in ("figure", "scale", "x", "base") if getattr(info, name) != getattr(infos[0], name)]
        names += ["axes"] if info.axes.keys() != infos[0].axes.keys() else []
        if names:
            raise InputError(
                f"{str(directories[0])!r} and {str(directory)!r} are not parts of one sweep: their {', '.join(names)} "
                "differ. Report each by itself."
            )
        for path in sorted([*directory.glob("records*.jsonl"), *directory.glob("records*.jsonl.gz")]):
            new, warnings = read_records(path)
            records.update({record.run: record for record in new})
            notes += warnings
    planned = {axis: _union(info.axes[axis] for info in infos) for axis in infos[0].axes}
    # A sweep may extend its grid beyond the planned values.
    axes = {
        axis: _union([values, *([record.point[axis]] for record in records.values() if axis in record.point)])
        for axis, values in planned.items()
    }
    x = infos[0].x
    if x in axes and all(isinstance(value, (int, float)) for value in axes[x]):
        axes[x].sort()
    return Sweep(dataclasses.replace(infos[0], axes=axes), list(records.values()), notes, planned)


def read_info(directory: pathlib.Path) -> SweepInfo:
    """Reads ``sweep.json``; `InputError` if it is absent, damaged or of another version."""
    path = directory / "sweep.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("schema") == SCHEMA:
            return SweepInfo(**fields)
    except OSError as error:
        raise InputError(
            f"{str(directory)!r} holds no sweep: {path.name} cannot be read. Name the --workdir of a sweep."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not what a sweep writes ({error}): use another directory.") from error
    raise InputError(f"{path} was written by another version of this package: run the sweep again.")


def info_to_json(info: SweepInfo) -> str:
    """The text of ``sweep.json``."""
    return json.dumps({"schema": SCHEMA, **dataclasses.asdict(info)}, indent=1) + "\n"


def _union(groups: Iterable[Sequence[Any]]) -> list[Any]:
    """Every value once, in order of appearance."""
    values: list[Any] = []
    for group in groups:
        values += [value for value in group if value not in values]
    return values
