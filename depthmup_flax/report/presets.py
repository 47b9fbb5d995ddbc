"""Presets compared at one size and learning rate, from the records that ``depthmup tune --compare`` writes."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from depthmup_flax.report import settings
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
_TRAINED = ("model", "optimizer", "train", "data")  # of the settings, equal for all presets


def comparison_of(sweep: Sweep, directories: Sequence[pathlib.Path] = ()) -> Sweep | None:
    """``sweep`` itself if it compares presets, or the comparison below one of its directories, if there is one."""
    below = [directory / COMPARISON for directory in directories]
    candidates = [sweep, *(read_sweep([path]) for path in below if (path / "sweep.json").exists())]
    compares = lambda one: one.info.figure == COMPARISON and {PRESET, LEARNING_RATE, SEED} <= one.info.axes.keys()
    return next((one for one in candidates if compares(one) and one.records), None)


def comparison_data(sweep: Sweep) -> Json:
    """The comparison as JSON: sizes, rate, seeds, steps, what was trained, and each preset's measures."""
    first, axes = sweep.records[0], sweep.info.axes
    own = [(preset, [r for r in sweep.records if r.point.get(PRESET) == preset]) for preset in axes[PRESET]]
    rows = settings.settings_of([sweep.info.base], without=(LEARNING_RATE, SEED))
    return {
        "width": first.width,
        "depth": first.depth,
        "learning_rate": axes[LEARNING_RATE][0],
        "seeds": len(axes[SEED]),
        "steps": max(record.steps for record in sweep.records),
        "trained": {name: rows[name] for name in _TRAINED if name in rows},
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


def headline(data: Json) -> str:
    """`comparison_data` in a sentence."""
    results = "; ".join(f"{preset} {text}" for preset, text in _results(data))
    return f"Presets at width {data['width']}, depth {data['depth']}: {results}."


def comparison_lines(data: Json) -> list[str]:
    """`comparison_data` for a terminal: what was compared, a line per preset, what was trained."""
    runs = f"n = {data['seeds']} seeds, mean ± standard deviation" if data["seeds"] > 1 else "one seed"
    sizes = f"width {data['width']}, depth {data['depth']}"
    return [
        f"The target ({sizes}) at learning rate {data['learning_rate']:.4g}, {data['steps']:,} steps, {runs}:",
        *Table((), [(f"  {preset}", text) for preset, text in _results(data)], "<<").lines,
        "; ".join(f"{name}: {fields}" for name, fields in data["trained"].items()) + ".",
        "On the proxy all of these are the same network: the search tuned each of them.",
    ]


def _results(data: Json) -> list[tuple[str, str]]:
    """Each preset with its `result`."""
    lacking = lambda one: [f"{one['runs']} of {data['seeds']} runs ended"] * (one["runs"] != data["seeds"])
    return [(one["preset"], ", ".join(filter(None, (*lacking(one), result(one))))) for one in data["presets"]]


def result(one: Json) -> str:
    """``test accuracy 97.1 % ± 1.0 %, training loss 0.0019``: the first and the last of `measures` that there are.

    Of the runs that have not diverged; it says how many have.
    """
    text = [f"{one['diverged']} of {one['runs']} runs diverged"] if one["diverged"] else []
    measured = list(one["measures"])
    for field in dict.fromkeys([*measured[:1], *measured[-1:]]):
        name, form, factor = _MEASURES[field]
        mean, sd = one["measures"][field]["mean"], one["measures"][field]["sd"]
        spread = "" if sd is None else f" ± {form.format(factor * sd)}"
        text.append(f"{name} {form.format(factor * mean)}{spread}")
    return ", ".join(text)
