"""The papers' theory over finite networks: lines are `depthmup_flax.theory`, points are networks in training.

``python -m depthmup_flax.limits --config=configs/limits/ntk.py --workdir=runs/ntk`` measures what its records lack and
then draws ``<figure>.png`` and writes ``report.txt`` from the records alone.

Every figure is a module of this package with four functions, see `depthmup_flax.limits.run.Figure`.
"""

from depthmup_flax.limits.run import limits_config, run

__all__ = ["limits_config", "run"]
