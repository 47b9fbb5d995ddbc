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
_NEEDED = ("width", "depth", "learning_rate", "initial_loss", "loss")


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
    point, losses = dict[str, Any](), dict[str, float]()
    for name, text in row.items():
        if name is None or text is None:
            raise InputError(f"{where}, has {'more' if name is None else 'fewer'} cells than the first line.")
        if name in ("initial_loss", "loss"):
            losses[name] = _number(text or "nan", name, where)
        else:
            numeric = name in _FIELDS and name != "rule"
            point[_FIELDS.get(name, name)] = _number(text, name, where) if numeric else _value(text)
    for path in ("model.width", "model.depth", "seed"):
        if (value := point.setdefault(path, 0)) != int(value):
            raise InputError(f"{where}: {path.rpartition('.')[2]} is {value:g}: use a whole number.")
        point[path] = int(value)
    loss, finite = losses["loss"], math.isfinite(losses["loss"])
    return Record(
        run=where,
        status=COMPLETED if finite else DIVERGED,
        point=point,
        width=point["model.width"],
        depth=point["model.depth"],
        parameters=0,
        seed=point["seed"],
        steps=0,
        train_loss=None,
        train_loss_avg=loss if finite else None,
        slice_steps=1,
        train_loss_slices=[losses["initial_loss"]],
    )


def _number(text: str, name: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{where}: {name} is {text!r}: write a number.") from error


def _value(text: str) -> float | str:
    """A number where the text is one."""
    try:
        return float(text)
    except ValueError:
        return text
