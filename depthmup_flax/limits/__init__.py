"""The papers' theory figures: lines are computed by `depthmup_flax.theory`, points are measured on trained networks.

``python -m depthmup_flax.limits --config=configs/limits/ntk.py --workdir=runs/ntk`` measures the cases that have no
record yet, then writes ``ntk.png``, ``ntk.svg`` and ``report.txt`` from the records alone.

`pipeline` lists the figures; each is a module with the four functions of `depthmup_flax.limits.pipeline.Figure`.
"""

from depthmup_flax.limits.pipeline import limits_config, run

__all__ = ["limits_config", "run"]
