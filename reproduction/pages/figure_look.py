"""The look of the site's own figures: as wide as a phone shows legibly, with one font size."""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.figure import Figure

WIDTH = 5.6  # inches; a phone shows 11 points as 10 pixels, a larger screen as 15
_POINTS = 11
_TEXTS = ("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize")


def panels(count: int, height: float, **kwargs: Any) -> tuple[Figure, Any]:
    """A figure of a height in inches, and its panels side by side; ``kwargs`` as of ``Figure.subplots``."""
    matplotlib.rcParams.update(dict.fromkeys(_TEXTS, _POINTS))
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(1, count, **kwargs)
