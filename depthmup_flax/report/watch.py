"""A report that follows a sweep while it runs."""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Callable, Sequence

from depthmup_flax.report.loss_surfaces import axis_name
from depthmup_flax.report.make_report import Report, require_share, write_report
from depthmup_flax.report.presets import comparison_of
from depthmup_flax.report.style import require_matplotlib
from depthmup_flax.report.tables import Claims
from depthmup_flax.report.yardstick import TOLERANCE
from depthmup_flax.storage.records.table import Record, Sweep, read_sweep
from depthmup_flax.storage.workdir import bucket_lock, buckets, lock
from depthmup_flax.util.errors import InputError

EVERY_S = 5.0  # between two reads of the records


@dataclasses.dataclass(frozen=True)
class State:
    """A sweep at one moment; ``planned`` is the number of runs of its grid, 0 if its files do not say it."""

    sweep: Sweep
    planned: int
    running: bool
    compared: Sweep | None = None  # the comparison of presets that belongs to it

    @property
    def complete(self) -> bool:
        """Whether no process trains it, and no planned run is missing."""
        return not self.running and 0 < len(self.sweep.records) >= self.planned


def look(directories: Sequence[pathlib.Path]) -> State:
    """The sweep in its directories now; errors as of `read_sweep`."""
    with buckets.reachable(directories):
        running = any(_is_training(directory) for directory in directories)  # before its last records are read
        sweep = read_sweep(directories)
        return State(sweep, sweep.info.runs, running, comparison_of(sweep, directories))


def _is_training(directory: pathlib.Path) -> bool:
    locks = bucket_lock if buckets.is_bucket(directory) else lock
    paths = [path for path in locks.locks_in(directory) if path.name.startswith(".lock-records")]
    return any(locks.busy(path) for path in paths)


def progress_line(state: State, headline: str = "") -> str:
    """Runs done of planned, diverged ones, the best so far, and the verdict if there is one."""
    records = state.sweep.records
    of = f" of {state.planned}" if state.planned else ""
    diverged = sum(record.train_loss_avg is None for record in records)
    parts = [f"{len(records)}{of} runs done", *([f"{diverged} diverged"] if diverged else []), *_best(state.sweep)]
    parts += [] if state.running or state.complete else ["waiting, as no process trains it"]
    return ", ".join(parts) + (f": {headline}" if headline else "")


def _best(sweep: Sweep) -> list[str]:
    loss: Callable[[Record], float] = lambda r: math.inf if r.train_loss_avg is None else r.train_loss_avg
    best = min(sweep.records, key=loss, default=None)
    if best is None or not math.isfinite(loss(best)):
        return []
    x, at = axis_name(sweep.info.x), best.point.get(sweep.info.x)
    value = f"{at:.3g}" if isinstance(at, (int, float)) else str(at)
    return [f"best loss {loss(best):.4g} (width {best.width}, depth {best.depth}, {x} {value})"]


def watch(
    directories: Sequence[pathlib.Path],
    out: str | pathlib.Path,
    *,
    tolerance: float = TOLERANCE,
    loss: str | None = None,
    claims: Claims | None = None,
    say: Callable[[str], None] = print,
    every_s: float = EVERY_S,
    opened: Callable[[pathlib.Path], None] = lambda page: None,
) -> Report | None:
    """Rewrites the report whenever runs have ended, until the sweep is complete or Ctrl-C.

    The page reloads every ``every_s`` seconds until the last report, which has all files and is returned; ``None`` if
    Ctrl-C came before the first. ``opened`` is called with the path of the first page. Errors are those of `read_sweep`
    and `write_report`.
    """
    require_matplotlib("page to rewrite")
    require_share(tolerance)
    write = functools.partial(write_report, out=out, tolerance=tolerance, loss=loss, claims=claims)
    reported, said, shown = -1, "", False
    try:
        while not (state := look(directories)).complete:
            headline = ""
            if len(state.sweep.records) != reported:
                reported = len(state.sweep.records)
                try:
                    report = write(state.sweep, refresh_s=every_s, compared=state.compared)
                except InputError as error:  # no run has ended, or no point has all of its seeds
                    headline = f"no report yet: {error}"
                else:
                    headline = report.data["headline"]
                    if not shown:
                        opened(report.paths[0])
                    shown = True
                if (line := progress_line(state, headline)) != said:
                    said = line
                    say(line)
            time.sleep(every_s)
    except KeyboardInterrupt:
        if not shown:
            say("stopped before the first report")
            return None
        say("stopped; the report is of the runs that have ended")
        state = look(directories)
    say(progress_line(state))
    report = write(state.sweep, compared=state.compared)
    if not shown:
        opened(report.paths[0])
    return report
