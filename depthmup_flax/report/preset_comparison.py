"""Presets compared at one size and learning rate, from the records that ``depthmup tune --compare`` writes."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from depthmup_flax.storage.sweep_records import COMPLETED, LEARNING_RATE, SEED, Record, Sweep, read_sweep
from depthmup_flax.util.table import Table
from depthmup_flax.util.types import Json

COMPARISON = "compare"  # the sweep's figure, and its directory below the search's
PRESET = "parametrization.preset"
# Field of a record -> its name, form and factor.
_LOSS = "{:.3g}", 1
_MEASURES = {
    "test_accuracy": ("test accuracy", "{:.1f} %", 100),
    "test_loss": ("test loss", *_LOSS),
    "validation_accuracy": ("validation accuracy", "{:.1f} %", 100),
    "validation_loss": ("validation loss", *_LOSS),
    "train_loss_avg": ("training loss", *_LOSS),
}


def comparison_of(directories: Sequence[pathlib.Path]) -> Sweep | None:
    """The comparison below one of a search's directories, if there is one with records."""
    below = [directory / COMPARISON for directory in directories]
    sweeps = (read_sweep([path]) for path in below if (path / "sweep.json").exists())
    return next((one for one in sweeps if one.info.figure == COMPARISON and one.records), None)


def comparison_data(sweep: Sweep) -> Json:
    """The comparison as JSON: sizes, rate, seeds, steps, and each preset's measures."""
    first, axes = sweep.records[0], sweep.info.axes
    own = [(preset, [r for r in sweep.records if r.point.get(PRESET) == preset]) for preset in axes[PRESET]]
    return {
        "width": first.width,
        "depth": first.depth,
        "learning_rate": axes[LEARNING_RATE][0],
        "seeds": len(axes[SEED]),
        "steps": max(record.steps for record in sweep.records),
        "presets": [{"preset": preset, **measures(records)} for preset, records in own],
    }


def measures(records: Sequence[Record]) -> Json:
    """Runs that ended, those that diverged, and mean and standard deviation of the others' measures."""
    completed, of_field = [record for record in records if record.status == COMPLETED], {}
    for field in _MEASURES:
        if completed and getattr(completed[0], field) is not None:
            values = [getattr(record, field) for record in completed]
            sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
            of_field[field] = {"mean": float(np.mean(values)), "sd": sd}
    return {"runs": len(records), "diverged": len(records) - len(completed), "measures": of_field}


def comparison_lines(data: Json) -> list[str]:
    """`comparison_data` for a terminal: what was compared, and a line per preset."""
    seeds = data["seeds"]
    runs = f"n = {seeds} seeds, mean ± standard deviation" if seeds > 1 else "one seed"
    sizes = f"width {data['width']}, depth {data['depth']}"
    rows = [(f"  {one['preset']}", result(one, seeds)) for one in data["presets"]]
    return [
        f"The target ({sizes}) at learning rate {data['learning_rate']:.4g}, {data['steps']:,} steps, {runs}:",
        *Table((), rows, "<<").lines,
        "On the proxy all of these are the same network: the search tuned each of them.",
    ]


def result(one: Json, seeds: int) -> str:
    """``test accuracy 97.1 % ± 1.0 %, training loss 0.0019``: the first and the last of `measures` that there are.

    Of the runs that have not diverged; it says how many have, and if fewer than ``seeds`` have ended.
    """
    text = [f"{one['runs']} of {seeds} runs ended"] if one["runs"] != seeds else []
    text += [f"{one['diverged']} of {one['runs']} runs diverged"] if one["diverged"] else []
    measured = list(one["measures"])
    for field in dict.fromkeys([*measured[:1], *measured[-1:]]):
        name, form, factor = _MEASURES[field]
        mean, sd = one["measures"][field]["mean"], one["measures"][field]["sd"]
        spread = "" if sd is None else f" ± {form.format(factor * sd)}"
        text.append(f"{name} {form.format(factor * mean)}{spread}")
    return ", ".join(text)
