"""The target with the tuned values, under its own preset and under others: what the rule changes."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config
from depthmup_flax.data import LoadOnce
from depthmup_flax.report.presets import COMPARISON, PRESET, comparison_data, comparison_lines
from depthmup_flax.rule.parametrization import PRESETS
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.records import LEARNING_RATE, SEED, Sweep, read_info
from depthmup_flax.util.errors import InputError, did_you_mean


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
    grid = {PRESET: (own, *names), LEARNING_RATE: (base.optimizer.learning_rate,), SEED: tuple(seeds)}
    config = sweep_config(base, {"presets": grid}, figure=COMPARISON, title="Presets at the target", scale="target")
    records = sweep(config, directory, load=load)
    compared = Sweep(read_info(directory), records, [])
    return "\n".join(comparison_lines(comparison_data(compared)))
