"""The curves of training runs: loss, accuracy and other metrics over steps, from their ``metrics.jsonl``."""

from __future__ import annotations

import dataclasses
import logging
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from depthmup_flax.report import page, style
from depthmup_flax.report.settings import settings_of
from depthmup_flax.report.sweep_report import Report, written
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.storage.files import as_path, reachable, read_json
from depthmup_flax.storage.sweep_records import DIVERGED
from depthmup_flax.trainer.runs.directory import Columns, read_metrics
from depthmup_flax.util.errors import InputError, printable
from depthmup_flax.util.table import Table
from depthmup_flax.util.types import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")  # prefixes of columns
MOST_POINTS = 400  # of a line
_LOG_RATIO = 20.0  # of the highest to the lowest value, from which an axis is logarithmic
_RESTORE = "restore it, or name another run"
_LOOKS: dict[str, dict[str, Any]] = {
    "train": {"linestyle": "-", "linewidth": 1.4},
    "validation": {"linestyle": "--", "linewidth": 1.0, "marker": "s", "markersize": 4},
    "test": {"linestyle": "--", "linewidth": 1.0, "marker": "o", "markersize": 4},
}
CAPTION = (
    "Solid: training, a mean over the steps since the row before; marks: evaluations. "
    f"More than {MOST_POINTS} rows are averaged in groups."
)


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run as its directory shows it."""

    name: str
    metrics: Columns
    settings: Mapping[str, str]  # name -> what was trained
    result: Json | None  # of ``result.json``; ``None`` until the run has ended
    in_use: bool  # whether a process trains it

    def points(self, split: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values (N,) of a metric where it is finite."""
        values = self.metrics.get(f"{split}_{metric}", np.full(len(self.metrics["step"]), np.nan))
        return self.metrics["step"][np.isfinite(values)], values[np.isfinite(values)]

    @property
    def latest(self) -> dict[str, float]:
        """The last finite value of each metric: ``{"train loss": 0.0033, "test loss": 0.0558}``."""
        names = [(split, metric) for metric in metrics_of([self]) for split in SPLITS]
        return {f"{split} {metric}": float(y[-1]) for split, metric in names if len(y := self.points(split, metric)[1])}

    def __str__(self) -> str:
        """``digits: completed, 368 steps; train loss 0.0033, test loss 0.0558 (lowest 0.0501 at step 230)``."""
        step, result = self.metrics["step"][-1], self.result
        if result is None:
            status = f"step {step}, {'training' if self.in_use else 'not finished: the same command resumes it'}"
        elif result.get("status") == DIVERGED:
            status = f"diverged at step {result.get('diverged_at_step')}"
        else:
            status = f"completed, {result.get('steps')} steps"
        texts = {name: f"{name} {value:.4g}" for name, value in self.latest.items()}
        for split in SPLITS[1:]:
            steps, losses = self.points(split, "loss")
            if len(losses) and (best := losses.argmin()) < len(losses) - 1:
                texts[f"{split} loss"] += f" (lowest {losses[best]:.4g} at step {steps[best]})"
        return f"{self.name}: {status}; {', '.join(texts.values())}"


def metrics_of(runs: Sequence[Run]) -> list[str]:
    """The metrics of training or of evaluations that any run has, loss and accuracy first."""
    columns = [name.partition("_") for run in runs for name in run.metrics]
    names = dict.fromkeys(metric for split, _, metric in columns if split in SPLITS and metric)
    return sorted(names, key=lambda name: {"loss": 0, "accuracy": 1}.get(name, 2))


def report_runs(directories: Sequence[str | pathlib.Path], out: str | pathlib.Path) -> Report:
    """Reads training runs, finished or not, and writes ``report.html``, ``history.png`` and ``history.svg``.

    Without matplotlib and jinja2 nothing is written.

    Args:
      directories: of runs, whatever they train.
      out: directory of the files, each of which is replaced atomically.

    Raises:
      InputError: a directory holds no run that has logged metrics.
      RunStopped: ``out`` cannot be written.
    """
    runs = read_runs([as_path(directory) for directory in directories])
    data = {"runs": [{"run": run.name, "result": run.result, **run.latest} for run in runs]}
    lines = list(map(str, runs))
    if not style.draws_pages():
        log.warning("no page and no figure: %s", style.NO_PAGE)
        return Report(data, "\n".join(lines), [])
    import matplotlib

    title = f"Training of {runs[0].name}" if len(runs) == 1 else f"Training of {len(runs)} runs"
    with matplotlib.rc_context(style.STYLE):
        files = style.pictures(draw(runs), "history")
    names = dict.fromkeys(name for run in runs for name in run.settings)
    rows = [(name, *(printable(run.settings.get(name, "")) for run in runs)) for name in names]
    trained = Table(("", *(run.name for run in runs)), rows, "<" * (len(runs) + 1))
    whole = [
        page.Section(texts=lines, pictures=[page.picture(CAPTION, files)]),
        page.Section("What was trained", table=trained),
    ]
    cell = page.Section(texts=lines, pictures=[page.picture(title, files, kind="png")])
    paths = written({"report.html": page.rendered(title, whole).encode(), **files}, out)
    return Report(data, "\n".join(lines), paths, page.rendered(title, [cell], whole=False))


def read_runs(directories: Sequence[pathlib.Path]) -> list[Run]:
    """The runs in their directories; see `report_runs`."""
    short = [directory.name for directory in directories]
    names = short if len(set(short)) == len(short) else list(map(str, directories))
    with reachable(directories):
        return [_read(directory, printable(name)) for directory, name in zip(directories, names, strict=True)]


def _read(directory: pathlib.Path, name: str) -> Run:
    in_use = workdirs.in_use(directory / ".lock")  # before its last rows are read
    metrics, ended = read_metrics(directory / "metrics.jsonl"), directory / "result.json"
    if not len(metrics["step"]):
        raise InputError(f"the run in {str(directory)!r} has logged no metrics yet: wait for its first row.")
    trained = settings_of([read_json(directory / "config.json", _RESTORE)])
    return Run(name, metrics, trained, read_json(ended, _RESTORE) if ended.exists() else None, in_use)


def draw(runs: Sequence[Run]) -> Figure:
    """A panel for every metric that a run logs in training or in evaluations, a color per run."""
    from matplotlib.lines import Line2D

    metrics = metrics_of(runs)
    columns = max(1, min(len(metrics), style.COLUMNS))
    figure, grid = style.canvas(math.ceil(len(metrics) / columns), columns)
    style.hide_unused(grid.flat[len(metrics) :])
    for metric, axes in zip(metrics, grid.flat, strict=False):
        values = np.concatenate([_draw_run(axes, run, metric, f"C{k % 10}") for k, run in enumerate(runs)])
        if len(values) and 0 < values.min() < values.max() / _LOG_RATIO:
            style.log_y(axes)
        axes.set(xlabel="step", ylabel=metric)
        axes.set_xlim(left=0)
    colors = [Line2D([], [], color=f"C{k % 10}", label=run.name, linewidth=3) for k, run in enumerate(runs)]
    splits = {name.partition("_")[0] for run in runs for name in run.metrics}
    kinds = [Line2D([], [], color="0.3", label=split, **look) for split, look in _LOOKS.items() if split in splits]
    grid[0, -1].legend(handles=[*colors, *kinds], loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _draw_run(axes: Axes, run: Run, metric: str, color: str) -> np.ndarray:
    """Draws one run; returns the values."""
    drawn = [np.zeros(0)]
    for split in SPLITS:
        steps, values = thinned(*run.points(split, metric))
        if len(steps):
            point = {"marker": "."} if len(steps) == 1 else {}  # a line of one point is invisible
            axes.plot(steps, values, color=color, **point | _LOOKS[split])
        drawn.append(values)
    return np.concatenate(drawn)


def thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) -> at most `MOST_POINTS`: steps and values, averaged in groups of neighbors."""
    if len(steps) <= MOST_POINTS:
        return steps, values
    means = lambda x: np.array([group.mean() for group in np.array_split(x, MOST_POINTS)])
    return means(steps), means(values)
