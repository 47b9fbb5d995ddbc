"""A table of runs that somebody's own loop trained, as a sweep."""

from __future__ import annotations

import csv
import math
import pathlib
from typing import Any

from depthmup_flax.storage.sweep_records import COMPLETED, DIVERGED, LEARNING_RATE, Record, Sweep, SweepInfo
from depthmup_flax.util.errors import InputError

_SIZES = {"width": "model.width", "depth": "model.depth"}
_FIELDS = {**_SIZES, "seed": "seed", "learning_rate": LEARNING_RATE, "rule": "parametrization.preset"}
_LOSSES = ("initial_loss", "loss")
_NEEDED = ("width", "depth", "learning_rate", *_LOSSES)
_WHOLE = ("width", "depth", "seed")


def read_csv(path: pathlib.Path) -> Sweep:
    """A line per run: ``width,depth,learning_rate,seed,initial_loss,loss``, and further columns of what runs differ in.

    ``initial_loss`` is that of the first steps: what a run learned is measured from there. A loss that is empty, NaN or
    infinite is that of a diverged run. The base is the smallest width and depth; a column ``rule`` tells rules and
    controls apart.

    Raises:
      InputError: the file has no such line, lacks a column, or has a number that cannot be read.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    if lacking := [name for name in _NEEDED if not rows or name not in rows[0]]:
        raise InputError(
            f"{str(path)!r} has no {'line' if not rows else f'column {lacking[0]!r}'}: it needs the columns "
            f"{', '.join(_NEEDED)}, and may have seed, rule and others; a line per run."
        )
    records = [_record(row, f"{str(path)!r}, line {number}") for number, row in enumerate(rows, 2)]
    axes = {axis: sorted({record.point[axis] for record in records}) for axis in records[0].point}
    base = {"model": {f"base_{name}": axes[axis][0] for name, axis in _SIZES.items()}}
    info = SweepInfo(path.stem, f"Runs of {path.name}", "own", LEARNING_RATE, axes, base, runs=len(records))
    return Sweep(info, records, [], axes)


def _record(row: dict[str, Any], where: str) -> Record:
    if None in row or None in row.values():
        raise InputError(f"{where}, has another number of cells than the first line.")
    values = {"seed": 0.0, **{name: _value(text) for name, text in row.items()}}
    values |= {name: math.nan for name in _LOSSES if values[name] == ""}
    for name in (*_NEEDED, "seed"):
        if not isinstance(value := values[name], float):
            raise InputError(f"{where}: {name} is {value!r}: write a number.")
        if name in _WHOLE and not value.is_integer():
            raise InputError(f"{where}: {name} is {value:g}: use a whole number.")
    values |= {name: int(values[name]) for name in _WHOLE}
    finite = math.isfinite(values["loss"])
    return Record(
        run=where,
        status=COMPLETED if finite else DIVERGED,
        point={_FIELDS.get(name, name): value for name, value in values.items() if name not in _LOSSES},
        width=values["width"],
        depth=values["depth"],
        parameters=0,
        seed=values["seed"],
        steps=0,
        train_loss=None,
        train_loss_avg=values["loss"] if finite else None,
        slice_steps=1,
        train_loss_slices=[values["initial_loss"]],
    )


def _value(text: str) -> Any:
    """A number where the text is one."""
    try:
        return float(text)
    except ValueError:
        return text
