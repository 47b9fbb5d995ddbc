"""Tuning a small proxy of a large network: python -m depthmup_flax.tune --config=TARGET.py ..., or `tune`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depthmup_flax.tune.search import tune

__all__ = ["tune"]

if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> object:
        """`tune`, imported at its first use: the command line answers ``--help`` without Flax."""
        if name != "tune":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from depthmup_flax.tune.search import tune

        globals()[name] = tune
        return tune
