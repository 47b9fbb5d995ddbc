"""The papers' theory figures: lines by `reproduction.theory`, points measured on trained networks.

``python -m reproduction.limits --config=reproduction/configs/limits/ntk.py`` measures the cases that have no record
yet, then writes ``ntk.png``, ``ntk.svg`` and ``report.txt`` from the records alone.

`pipeline` lists the figures; each is a module with the four functions of `reproduction.limits.pipeline.Figure`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from depthmup_flax.util.imports import imported_late

if TYPE_CHECKING:
    from reproduction.limits.pipeline import limits_config, run

__all__ = ["limits_config", "run"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = imported_late(__name__)
