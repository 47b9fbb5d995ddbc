"""Figures as files."""

from __future__ import annotations

import pathlib

from matplotlib.figure import Figure

from depthmup_flax.report.style import pictures
from depthmup_flax.storage.files import write_atomically


def save(figure: Figure, out: pathlib.Path, name: str) -> list[pathlib.Path]:
    """Writes ``name.png`` and ``name.svg``, each complete or absent."""
    files = pictures(figure, name)
    for file, content in files.items():
        write_atomically(out / file, content)
    return [out / file for file in files]


def format_slope(value: float, half: float | None, digits: int = 2) -> str:
    """``-0.50 ± 0.03``."""
    return f"{value:.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else " (no interval)")
