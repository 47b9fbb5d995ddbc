"""The target with the tuned values, under its own preset and under others: what the rule changes."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config
from depthmup_flax.data import LoadOnce
from depthmup_flax.records.table import COMPLETED, LEARNING_RATE, SEED, Record
from depthmup_flax.rule.parametrization import PRESETS
from depthmup_flax.sweep.grid import sweep_config
from depthmup_flax.sweep.runner import sweep
from depthmup_flax.util.errors import InputError, did_you_mean
from depthmup_flax.util.text_table import aligned

COMPARISON = "compare"  # directory below the search's
_PRESET = "parametrization.preset"


def require_presets(names: Sequence[str], target: ConfigDict) -> None:
    """`InputError` unless ``names`` are presets other than the target's own, each given once."""
    own = target.parametrization.preset
    for name in names:
        if name not in PRESETS:
            raise InputError(f"--compare has {name!r}: {did_you_mean(name, PRESETS)}")
        if name == own:
            raise InputError(f"--compare has {name!r}, the target's own preset: name others, such as sp.")
        if names.count(name) > 1:
            raise InputError(f"--compare has {name!r} twice: give each preset once.")


def compare_presets(
    target: ConfigDict, names: Sequence[str], seeds: Sequence[int], directory: pathlib.Path, load: LoadOnce
) -> str:
    """Trains ``target`` under its own preset and under ``names``, as a sweep in ``directory``; returns a table.

    At the proxy's size all width and depth ratios are 1, so that every preset is the same network: the search on the
    proxy was a search for each of them.

    Args:
      target: the large network with the tuned values; every run is trained on one device.
      names: of presets.
      seeds: of the runs of each.
      directory: keeps the records.
      load: the data.
    """
    base = target.copy_and_resolve_references()
    base.mesh = default_config().mesh
    own = base.parametrization.preset
    grid = {_PRESET: (own, *names), LEARNING_RATE: (base.optimizer.learning_rate,), SEED: tuple(seeds)}
    config = sweep_config(base, {"presets": grid}, figure="compare", title="Presets at the target", scale="target")
    records = sweep(config, directory, load=load)
    rows = [(f"  {name}", result([r for r in records if r.point[_PRESET] == name])) for name in (own, *names)]
    sizes = f"width {base.model.width}, depth {base.model.depth}"
    runs = f"n = {len(seeds)} seeds, mean ± standard deviation" if len(seeds) > 1 else "one seed"
    return "\n".join(
        [
            f"The target ({sizes}) at learning rate {base.optimizer.learning_rate:.4g}, {runs}:",
            *aligned(rows, "<<"),
            "On the proxy all of these are the same network: the search tuned each of them.",
        ]
    )


# Field of a record -> its name, form and factor.
_LOSS = "{:.3g}", 1
_SHOWN = {
    "test_accuracy": ("test accuracy", "{:.1f} %", 100),
    "test_loss": ("test loss", *_LOSS),
    "validation_accuracy": ("validation accuracy", "{:.1f} %", 100),
    "validation_loss": ("validation loss", *_LOSS),
    "train_loss_avg": ("training loss", *_LOSS),
}


def result(records: Sequence[Record]) -> str:
    """``test accuracy 97.1 % ± 1.0 %, training loss 0.0019``: the first and the last of `_SHOWN` that there are.

    Of the runs that have not diverged; it says how many have.
    """
    completed = [record for record in records if record.status == COMPLETED]
    diverged = len(records) - len(completed)
    text = [f"{diverged} of {len(records)} runs diverged"] if diverged else []
    measured = [field for field in _SHOWN if completed and getattr(completed[0], field) is not None]
    for field in dict.fromkeys([*measured[:1], *measured[-1:]]):
        name, form, factor = _SHOWN[field]
        values = [factor * getattr(record, field) for record in completed]
        spread = f" ± {form.format(np.std(values, ddof=1))}" if len(values) > 1 else ""
        text.append(f"{name} {form.format(np.mean(values))}{spread}")
    return ", ".join(text)
