"""Which rule moves less here? The best rate at a proxy and at one larger size, under several rules."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config.fields import set_size
from depthmup_flax.report.optimum import Estimate, weighted_sum
from depthmup_flax.report.sweep_report import analysis_of
from depthmup_flax.report.transfer import Analysis, Variant
from depthmup_flax.report.verdict import NOT_RESOLVED
from depthmup_flax.search.ladder.law import Size
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.sweep_records import COMPARISON, LEARNING_RATE, SEED, read_sweep
from depthmup_flax.util.table import Table

_PRESET = "parametrization.preset"
_OCTAVES = (-2, -1, 0, 1, 2)  # of the rates, from the tuned one
_EXTEND = 2  # rates that may be added at each end


def compare_rules(
    proxy: ConfigDict,
    size: Size,
    names: Sequence[str],
    seeds: Sequence[int],
    directory: pathlib.Path,
    objective: str,
    **options: Any,
) -> str:
    """Trains the proxy and a larger size under the proxy's rule and others, as a sweep; returns a table and a sentence.

    Args:
      proxy: with the tuned values.
      size: the larger one.
      names: of the other presets.
      seeds: of each rate.
      directory: of the sweep.
      objective: the loss that is compared.
      options: of `depthmup_flax.sweep`.
    """
    config, rate = proxy.copy_and_resolve_references(), proxy.optimizer.learning_rate
    set_size(config, size.width, size.depth)
    axes = {
        _PRESET: (proxy.parametrization.preset, *names),
        LEARNING_RATE: tuple(float(f"{rate * 2.0**octave:.4g}") for octave in _OCTAVES),
        SEED: tuple(seeds),
    }
    sizes = {"proxy": (proxy.model.width, proxy.model.depth), "larger": (size.width, size.depth)}
    grids = {name: {"model.width": (w,), "model.depth": (d,), **axes} for name, (w, d) in sizes.items()}
    title = f"Rules at the proxy and at {size}"
    config = sweep_config(
        config, grids, figure=COMPARISON, title=title, scale="ladder", extend=_EXTEND, objective=objective
    )
    sweep(config, directory, **options)
    start = f"{proxy.model.width} x {proxy.model.depth}"
    head = f"From {start} to {size}, n = {len(seeds)} seeds, ± half of the 95 % interval:"
    return f"{head}\n{comparison(analysis_of(read_sweep([directory])))}"


def comparison(analysis: Analysis) -> str:
    """Drift and regret of each variant at its largest size, ± half of the 95 % interval; and which one moves less."""
    moved = {variant.name: _moved(variant) for variant in analysis.variants}
    rows = [(name, *map(_shown, known)) for name, known in moved.items()]
    table = Table(("rule", "drift, octaves", "regret, % of what is learned"), rows, "<>>")
    (first, (own, _)), *others = moved.items()
    return "\n".join([str(table), *(_sentence(first, own, name, other) for name, (other, _) in others)])


def _moved(variant: Variant) -> tuple[Estimate | None, Estimate | None]:
    """How far the best rate moves from the base's, and what the base's rate costs; ``None`` if it is not known."""
    row, base = max(variant.rows, key=lambda row: row.size), variant.base.optimum
    learned = variant.initial_loss - base.loss.value if base else math.nan
    regret = weighted_sum([100 / learned], [row.regret]) if isinstance(row.regret, Estimate) and learned > 0 else None
    return row.shift if row.bracketed else None, regret


def _sentence(first: str, own: Estimate | None, name: str, other: Estimate | None) -> str:
    """Which of two rules moves less, by the difference of their distances over common seeds."""
    if own is None or other is None:
        unknown = first if own is None else name
        return f"{NOT_RESOLVED}: {unknown} has no best rate inside of its rates."
    less = _size_of(own) - _size_of(other)
    low, high = less.interval or (-math.inf, math.inf)
    if low <= 0 <= high:
        return f"{NOT_RESOLVED} whether {first} or {name} moves less ({_shown(less)} octaves)."
    ordered = (first, name) if high < 0 else (name, first)
    return f"{' moves less than '.join(ordered)} ({_shown(less)} octaves)."


def _size_of(estimate: Estimate) -> Estimate:
    draws = None if estimate.draws is None else np.abs(estimate.draws)
    return dataclasses.replace(estimate, value=abs(estimate.value), draws=draws)


def _shown(estimate: Estimate | None) -> str:
    if estimate is None:
        return "unknown"
    half = estimate.half_width
    return f"{estimate.value:.2g}" if half is None else f"{estimate.value:.2g} ± {half:.2g}"
