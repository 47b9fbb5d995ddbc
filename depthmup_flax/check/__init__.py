"""The coordinate check: initial values, gradients and updates must have the rule's sizes at all widths and depths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depthmup_flax.util.imports import imported_late

if TYPE_CHECKING:
    from depthmup_flax.check.check import coord_check
    from depthmup_flax.check.networks import Network, Source, checked_network
    from depthmup_flax.check.report import Report

__all__ = ["Network", "Report", "Source", "checked_network", "coord_check"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = imported_late(__name__)
