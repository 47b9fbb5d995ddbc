"""The table that a sweep writes and a report reads: one line of JSON per run, and what is common to all of them.

A sweep's directory holds ``sweep.json``, the base config with the meaning of the sweep, and one or more files
``records*.jsonl`` (several when the grid was split into shards). A record is a difference to the base config and what
came of it.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from depthmup_flax.errors import InputError
from depthmup_flax.files import JsonLines

SCHEMA = 1
COMPLETED, DIVERGED = "completed", "diverged"

SEED, LEARNING_RATE = "seed", "optimizer.learning_rate"
# Fields of a config whose values are numbers inside one compiled program, as the seed is; all others are structural.
CONTINUOUS = (
    LEARNING_RATE,
    "optimizer.weight_decay",
    "optimizer.clip_rms",
    "optimizer.warmup_steps",
    "optimizer.kwargs.momentum",
    "optimizer.kwargs.b1",
    "optimizer.kwargs.b2",
    "optimizer.kwargs.eps",
    "parametrization.gamma0",
    "parametrization.branch_multiplier",
    "parametrization.input_lr_factor",
    "parametrization.hidden_lr_factor",
    "parametrization.output_lr_factor",
    "parametrization.vector_lr_factor",
    "parametrization.fixed_lr_factor",
)


@dataclasses.dataclass(frozen=True)
class Record:
    """One run that has ended.

    Attributes:
      run: hash of its whole config (`depthmup_flax.training.config.config_hash`), the same that ``train.py`` writes.
      status: ``completed``, or ``diverged`` (its loss was not finite at some step); numbers of a diverged run that
        are not finite are ``None``.
      point: dotted config field -> value, for every axis of the sweep: ``{"model.depth": 8, "seed": 0}``. The base
        config with these values is the run's config.
      width, depth, parameters: of the network.
      seed: of initial values, data order and augmentation.
      steps: training steps taken.
      train_loss: of the last step.
      train_loss_avg: mean over the last epoch, or the last ``train.average_steps``; what the papers plot.
      slice_steps: length of a time slice; the last one may be shorter.
      train_loss_slices: mean training loss of each time slice.
      test_loss, test_accuracy: at the end; ``None`` for a diverged run.
      diverged_at_step: the first step whose loss was not finite, or ``None``.
      wall_time_s: its share of the time that the program took.
      lanes: how many runs the program trained at the same time on one device.
      device: kind and number of devices.
      versions: of Python and packages.
      commit: of the source tree, ``-dirty`` if files were changed; ``None`` outside one.
    """

    run: str
    status: str
    point: dict[str, Any]
    width: int
    depth: int
    parameters: int
    seed: int
    steps: int
    train_loss: float | None
    train_loss_avg: float | None
    slice_steps: int
    train_loss_slices: list[float | None]
    test_loss: float | None
    test_accuracy: float | None
    diverged_at_step: int | None
    wall_time_s: float
    lanes: int
    device: str
    versions: dict[str, str]
    commit: str | None


@dataclasses.dataclass(frozen=True)
class SweepInfo:
    """What the runs of a sweep have in common; the content of ``sweep.json``.

    Attributes:
      figure: the id of the figure that it makes, such as ``lr-width-depth``.
      title: a sentence for people.
      scale: ``smoke``, ``cpu``, ``gpu`` or ``paper``.
      x: the axis along which an optimum is looked for, such as ``optimizer.learning_rate``.
      axes: dotted config field -> its values in the whole grid, in the grid's order.
      base: the base config, as a tree of JSON.
    """

    figure: str
    title: str
    scale: str
    x: str
    axes: dict[str, list[Any]]
    base: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """One sweep's directories, read.

    Attributes:
      info: common to all; its axes have the values of every record.
      records: of all runs that have ended.
      notes: what is to be said about how they were read.
      planned: axis -> the values of the grid before it was extended.
    """

    info: SweepInfo
    records: list[Record]
    notes: list[str]
    planned: dict[str, list[Any]] = dataclasses.field(default_factory=dict)


class RecordWriter(JsonLines):
    """`JsonLines` of records; a run whose line was torn is not recorded and so runs again."""

    def write_records(self, records: Iterable[Record]) -> None:
        """Appends, and waits for the disk."""
        self.write(dataclasses.asdict(record) for record in records)


def read_records(path: pathlib.Path) -> tuple[list[Record], list[str]]:
    """The records of one file, and a sentence if its last line is torn.

    Raises:
      InputError: another line is not a record.
    """
    names = {field.name for field in dataclasses.fields(Record)}
    records: list[Record] = []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            if number == len(lines):  # no line end after it
                return records, [
                    f"{path}: the last line was torn by a crash and is left out; its run will be repeated."
                ]
            raise InputError(
                f"{path}, line {number}: not JSON ({error}); delete the line, its run is repeated."
            ) from error
        if not isinstance(fields, dict) or fields.keys() != names:
            raise InputError(f"{path}, line {number}: not a record of this version; use another directory.")
        records.append(Record(**fields))
    return records, []


def read_sweep(directories: Sequence[pathlib.Path]) -> Sweep:
    """Merges the shards of one sweep: every ``records*.jsonl`` of every directory; a run that occurs twice counts once.

    Raises:
      InputError: a directory holds no sweep, or another sweep than the first (says which field differs).
    """
    info: SweepInfo | None = None
    records: dict[str, Record] = {}
    notes: list[str] = []
    for directory in directories:
        found = read_info(directory)
        if info is None:
            info = found
        else:
            _require_same(info, found, directories[0], directory)
            info = dataclasses.replace(info, axes=_merged(info.axes, found.axes))
        for path in sorted(directory.glob("records*.jsonl")):
            new, said = read_records(path)
            records.update({record.run: record for record in new})
            notes += said
    if info is None:
        raise InputError("no directory was given: name at least one that a sweep wrote.")
    return Sweep(_with_values_of(info, records.values()), list(records.values()), notes, info.axes)


def read_info(directory: pathlib.Path) -> SweepInfo:
    """``sweep.json``; InputError if it is absent or not this version's."""
    path = directory / "sweep.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("schema") != SCHEMA:
            raise InputError(f"{path} was written by another version of this package: run the sweep again.")
        return SweepInfo(**fields)
    except OSError as error:
        raise InputError(f"{str(directory)!r} holds no sweep ({path.name}: {error.strerror}).") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not what a sweep writes ({error}): use another directory.") from error


def info_to_json(info: SweepInfo) -> str:
    """The text of ``sweep.json``."""
    return json.dumps({"schema": SCHEMA, **dataclasses.asdict(info)}, indent=1) + "\n"


def _require_same(first: SweepInfo, other: SweepInfo, first_dir: pathlib.Path, other_dir: pathlib.Path) -> None:
    for name in ("figure", "scale", "x", "base"):
        if getattr(first, name) != getattr(other, name):
            differ = (
                f"{getattr(first, name)!r} and {getattr(other, name)!r}" if name != "base" else "another base config"
            )
            raise InputError(
                f"{str(first_dir)!r} and {str(other_dir)!r} are not parts of one sweep ({name}: {differ}): "
                "report them one by one."
            )
    if first.axes.keys() != other.axes.keys():
        raise InputError(
            f"{str(first_dir)!r} and {str(other_dir)!r} are not parts of one sweep (axes {', '.join(first.axes)} and "
            f"{', '.join(other.axes)}): report them one by one."
        )


def _with_values_of(info: SweepInfo, records: Iterable[Record]) -> SweepInfo:
    """With the values that records have beyond the grid, which a sweep may extend."""
    axes = {path: list(values) for path, values in info.axes.items()}
    for record in records:
        for path, values in axes.items():
            if path in record.point and record.point[path] not in values:
                values.append(record.point[path])
    if info.x in axes and all(isinstance(value, (int, float)) for value in axes[info.x]):
        axes[info.x].sort()
    return dataclasses.replace(info, axes=axes)


def _merged(first: dict[str, list[Any]], other: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: values + [v for v in other[name] if v not in values] for name, values in first.items()}
