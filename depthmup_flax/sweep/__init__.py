"""Sweeps: python -m depthmup_flax.sweep --config=configs/sweeps/<id>.py --workdir=DIR"""

from depthmup_flax.sweep.grid import at_scale, powers_of_two, sweep_config

__all__ = ["at_scale", "powers_of_two", "sweep_config"]
