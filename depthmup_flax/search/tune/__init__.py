"""Tuning a small proxy of a large network: depthmup tune --config=TARGET.py, or `tune`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depthmup_flax.util.late_imports import imported_late, named_when_called

if TYPE_CHECKING:
    from depthmup_flax.search.tune.search import tune

__all__ = ["tune"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = imported_late(__name__, {"search": "tune"})

named_when_called(__name__)
