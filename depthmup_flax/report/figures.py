"""The table of a report's figures. A new figure is a function that draws an analysis on a sheet, and an entry here."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

from depthmup_flax.report.landscape_figures import draw_heatmap, draw_parameters
from depthmup_flax.report.sheet import Sheet
from depthmup_flax.report.style import drawable, file_name
from depthmup_flax.report.time_figures import draw_curves, draw_over_time
from depthmup_flax.report.transfer import Analysis
from depthmup_flax.report.transfer_figures import draw_optima, draw_transfer
from depthmup_flax.storage.records.table import TRAIN


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure that a report may have. In name and caption, ``{x}`` stands for the analysis's hyperparameter."""

    name: str  # of its files, without suffix
    draw: Callable[[Analysis, Sheet], None]
    shown: Callable[[Analysis], bool]  # whether an analysis has enough data for it
    caption: str  # how to read it
    second: bool = False  # whether it shows the analysis along the second hyperparameter


_several_values = lambda analysis: len(analysis.scale.values) > 1
_TRANSFER = (
    "Loss against {x}, a line per size. Stars mark optima, the dashed line the base's. "
    "The {x} transfers if the stars lie on the dashed line and larger networks have a lower loss."
)

FIGURES = (  # the first that an analysis has is the page's main one
    Figure("transfer", draw_transfer, _several_values, _TRANSFER),
    Figure("transfer_{x}", draw_transfer, lambda analysis: True, _TRANSFER, second=True),
    Figure(
        "optima",
        draw_optima,
        lambda analysis: _several_values(analysis) and any(len(axis.sizes) > 1 for axis in analysis.axes),
        "The best {x} of each size. A flat line means transfer; the slope is the exponent of size.",
    ),
    Figure(
        "curves",
        draw_curves,
        lambda analysis: analysis.loss == TRAIN,
        "Every size trained with the grid's value nearest to the base's best {x}. With transfer, the curves coincide "
        "early in training and larger networks end lower.",
    ),
    Figure(
        "over_time",
        draw_over_time,
        lambda analysis: _several_values(analysis) and analysis.loss == TRAIN,
        "The best {x} if training had stopped earlier. A flat line means that it is settled early.",
    ),
    Figure(
        "heatmap",
        draw_heatmap,
        lambda analysis: analysis.other is not None,
        "Inside the red line the loss is close to the lowest, so one hyperparameter can be "
        "traded for the other along it; its slope is the rate of exchange.",
    ),
    Figure(
        "parameters",
        draw_parameters,
        lambda analysis: len({row.curve.parameters for row in analysis.rows}) >= 3,
        "The lowest loss of each size against its parameter count. Steeper lines gain more per parameter.",
    ),
)


def figures_of(analysis: Analysis, second: Analysis | None) -> Iterator[tuple[str, str, Callable[[Sheet], None]]]:
    """File name, caption and drawing function of each figure of an analysis, and of the one along the second axis."""
    for figure in FIGURES:
        of = second if figure.second else analysis
        if of is not None and figure.shown(of):
            name, caption = (text.format(x=of.scale.name) for text in (figure.name, figure.caption))
            yield file_name(name), caption, functools.partial(figure.draw, drawable(of))
