"""Sweeps: python -m depthmup_flax.sweep --config=configs/sweeps/<id>.py --workdir=DIR, or `sweep(config, directory)`.

A group is the runs that differ only in the seed and other numbers, and so share one compiled program.
A cohort is the runs of a group that train together now.
A lane is the place of one run in the vectorized program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from depthmup_flax.sweep.grid import at_scale, powers_of_two, sweep_config

if TYPE_CHECKING:
    from depthmup_flax.sweep.runner import sweep

__all__ = ["at_scale", "powers_of_two", "sweep", "sweep_config"]

if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> object:
        """`sweep`, imported at its first use: a config file of a sweep needs no Flax."""
        if name != "sweep":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from depthmup_flax.sweep.runner import sweep

        globals()[name] = sweep
        return sweep
