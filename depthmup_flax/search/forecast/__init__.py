"""The loss of a large network before it is trained: depthmup forecast --config=FILE.py, or `forecast`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depthmup_flax.util.late_imports import imported_late, named_when_called

if TYPE_CHECKING:
    from depthmup_flax.search.forecast.ladder import LadderPlan
    from depthmup_flax.search.forecast.recipe import Allocation, Recipe
    from depthmup_flax.search.forecast.registered import Checked, Registered
    from depthmup_flax.search.forecast.target_loss import forecast

__all__ = ["Allocation", "Checked", "LadderPlan", "Recipe", "Registered", "forecast"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = imported_late(
        __name__,
        {
            "ladder": "LadderPlan",
            "recipe": "Allocation Recipe",
            "registered": "Checked Registered",
            "target_loss": "forecast",
        },
    )

named_when_called(__name__)
