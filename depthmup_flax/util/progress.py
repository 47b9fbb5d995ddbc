"""A progress bar on the terminal of a command; in logs, callers write a line now and then."""

from __future__ import annotations

import datetime
import time

import rich
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from depthmup_flax.util import messages

_EVERY_S = 0.1  # between two updates


class Bar:
    """A bar with a text behind it, on the last line of the terminal: lines that are written appear above it."""

    def __init__(self, total: float) -> None:
        columns = BarColumn(bar_width=10), TextColumn("{task.description}")
        self._progress, self._shown = Progress(*columns, auto_refresh=False, transient=True), 0.0
        self._task = self._progress.add_task("", total=total)
        self._progress.start()

    def show(self, done: float, text: str, total: float | None = None) -> None:
        """Moves the bar to ``done`` and replaces its text; calls that are close in time change nothing."""
        if (now := time.monotonic()) - self._shown >= _EVERY_S:
            self._progress.update(self._task, completed=done, total=total, description=escape(text), refresh=True)
            self._shown = now

    def close(self) -> None:
        """Removes it from the terminal."""
        self._progress.stop()


def bar(total: float) -> Bar | None:
    """A bar if the process is a command on a terminal, without ``--quiet``; else ``None``."""
    return Bar(total) if messages.rewrites_lines() and not rich.get_console().is_dumb_terminal else None


def clock(seconds: float) -> str:
    """``0:04:20``."""
    return str(datetime.timedelta(seconds=round(seconds)))
