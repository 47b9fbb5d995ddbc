"""The rows of a run's ``metrics.jsonl`` as columns."""

from __future__ import annotations

import json
import pathlib

import numpy as np

from depthmup_flax.storage.workdir.files import read_lines

Columns = dict[str, np.ndarray]


def read_metrics(path: pathlib.Path) -> Columns:
    """One row per step with metrics: ``step`` (int64 [N]), ``train_loss`` and others (float64 [N]).

    A value is NaN if the step lacks it or it was not finite. A line that a crash has cut off is left out; without a
    file there are no rows.
    """
    rows: dict[int, dict[str, float | None]] = {}
    for line in read_lines(path) if path.exists() else []:
        try:
            row = json.loads(line)
            rows.setdefault(int(row.pop("step")), {}).update(row)
        except (ValueError, KeyError, AttributeError):
            continue
    names = dict.fromkeys(name for row in rows.values() for name in row)
    steps = sorted(rows)
    columns = {name: np.array([rows[step].get(name) for step in steps], np.float64) for name in names}
    return {"step": np.array(steps, np.int64), **columns}
