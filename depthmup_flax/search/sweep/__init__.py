"""Sweeps: depthmup sweep --config=sweeps/NAME, or `sweep(config, directory)`.

A group: runs that differ only in the seed, the preset and other numbers, and so share a compiled program.
A cohort: the runs of a group that train together now.
A lane: the place of one run in the vectorized program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from depthmup_flax.util.late_imports import imported_late, named_when_called

if TYPE_CHECKING:
    from depthmup_flax.search.sweep.grid import at_scale, powers_of_two, sweep_config
    from depthmup_flax.search.sweep.runner import sweep

__all__ = ["at_scale", "powers_of_two", "sweep", "sweep_config"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = imported_late(__name__, {"grid": "at_scale powers_of_two sweep_config", "runner": "sweep"})

named_when_called(__name__)
