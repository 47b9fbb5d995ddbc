"""Sweeps: python -m depthmup_flax.sweep --config=configs/sweeps/<id>.py --workdir=DIR

A group is the runs that differ only in the seed and other numbers, and so share one compiled program.
A cohort is the runs of a group that train together now.
A lane is the place of one run in the vectorized program.
"""

from depthmup_flax.sweep.grid import at_scale, powers_of_two, sweep_config

__all__ = ["at_scale", "powers_of_two", "sweep_config"]
