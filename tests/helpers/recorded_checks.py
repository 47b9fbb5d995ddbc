"""Coordinate checks that take recorded sizes in place of training: they trace, judge and diagnose as any other.

``RECORD=1 python -m pytest tests/check`` trains and records again, after a change of what is measured.
"""

import contextlib
import json
import os
import pathlib
from unittest import mock

from depthmup_flax.check import check
from depthmup_flax.check.records import EVERYTHING, Record

TRAIN = False  # checks train, and nothing is recorded
_DIRECTORY = pathlib.Path(__file__).parents[1] / "check" / "recorded"


@contextlib.contextmanager
def recorded(name):
    """`coord_check` inside of it gets the records of this name."""
    path, train = _DIRECTORY / f"{name}.json", check.train_networks

    def record(measurements, say):
        records = train(measurements, say)
        path.write_text(_stored(records), encoding="utf-8")
        return records

    def read(measurements, say):
        del say
        return list(_records(json.loads(path.read_text(encoding="utf-8")), measurements))

    instead = train if TRAIN else record if os.environ.get("RECORD") else read
    with mock.patch.object(check, "train_networks", instead):
        yield


def _stored(records):
    """A line per quantity: sizes in ascending order, of each four digits per seed; without what is not judged."""
    last = {r.axis: r.step for r in records if r.group == EVERYTHING and r.quantity == "activation"}
    rows = {}
    for r in records:
        judged = r.quantity != "update"
        if r.quantity == "activation":
            judged = r.group == EVERYTHING and r.step in (0, last[r.axis])
        if judged:
            key = f"{r.axis}|{r.group}|{r.quantity}|{r.name}|{r.step}"
            rows.setdefault(key, {}).setdefault(r.size, []).append(float(f"{r.value:.4g}"))
    sizes = {axis: {r.size for r in records if r.axis == axis} for axis in last}
    rows = {key: values for key, values in rows.items() if values.keys() == sizes[key.partition("|")[0]]}
    listed = lambda values: json.dumps([values[size] for size in sorted(values)], separators=(",", ":"))
    lines = (f"{json.dumps(key)}:{listed(values)}" for key, values in rows.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _records(rows, measurements):
    sizes = sorted({m.size for m in measurements})
    for key, values in rows.items():
        axis, group, quantity, name, step = key.split("|")
        for size, of_seeds in zip((size for size in sizes if size.axis == axis), values, strict=True):
            for seed, value in enumerate(of_seeds):
                yield Record(*size, seed, group, int(step), quantity, name, value)
