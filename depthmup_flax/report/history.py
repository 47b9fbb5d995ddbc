"""The history of training runs: loss, accuracy and other metrics over steps, from their ``metrics.jsonl``."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from depthmup_flax.report import settings
from depthmup_flax.report.make_report import Report
from depthmup_flax.report.style import NO_MATPLOTLIB, has_matplotlib, pictures
from depthmup_flax.storage.records.table import DIVERGED
from depthmup_flax.storage.workdir import bucket_lock, buckets, lock
from depthmup_flax.storage.workdir import directory as workdirs
from depthmup_flax.storage.workdir.files import read_json, write_atomically
from depthmup_flax.trainer.runs.directory import Columns, read_metrics
from depthmup_flax.util import notebook_html
from depthmup_flax.util.errors import InputError, printable
from depthmup_flax.util.types import Json

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")  # prefixes of columns
_FIRST = ("loss", "accuracy")  # metrics
_RESTORE = "restore it, or name another run"


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
    def off_course_since(self) -> float | None:
        """The step at which the run left the band of its forecast; ``None`` if it did not, or has none."""
        since = self.metrics.get("off_course_since", np.zeros(0))
        return next(iter(since[np.isfinite(since)]), None)

    @property
    def latest(self) -> dict[str, float]:
        """The last finite value of each metric: ``{"train loss": 0.0033, "test loss": 0.0558}``."""
        names = [(split, metric) for metric in metrics_of([self]) for split in SPLITS]
        return {f"{split} {metric}": float(y[-1]) for split, metric in names if len(y := self.points(split, metric)[1])}

    def __str__(self) -> str:
        """``digits: completed, 368 steps; train loss 0.0033, test loss 0.0558, lowest 0.0501 at step 230``."""
        step, result = self.metrics["step"][-1], self.result
        if result is None:
            status = f"step {step}, {'training' if self.in_use else 'not finished: the same command resumes it'}"
        elif result.get("status") == DIVERGED:
            status = f"diverged at step {result.get('diverged_at_step')}"
        else:
            status = f"completed, {result.get('steps')} steps"
        if self.off_course_since is not None:
            status += f", off course since step {self.off_course_since:.0f}"
        texts = {name: f"{name} {value:.4g}" for name, value in self.latest.items()}
        for split in SPLITS[1:]:
            steps, losses = self.points(split, "loss")
            if len(losses) and (best := losses.argmin()) < len(losses) - 1:
                texts[f"{split} loss"] += f" (lowest {losses[best]:.4g} at step {steps[best]})"
        return f"{self.name}: {status}; {', '.join(texts.values())}"


def metrics_of(runs: Sequence[Run]) -> list[str]:
    """The metrics of training or of evaluations that any run has, loss and accuracy first."""
    columns = [name.partition("_") for run in runs for name in run.metrics]
    found = dict.fromkeys(metric for split, _, metric in columns if split in SPLITS and metric)
    return [*(name for name in _FIRST if name in found), *(name for name in found if name not in _FIRST)]


def make_history(directories: Sequence[str | pathlib.Path], out: str | pathlib.Path) -> Report:
    """Reads training runs, finished or not, and writes ``report.html``, ``history.png`` and ``history.svg``.

    Without matplotlib nothing is written.

    Args:
      directories: of runs, whatever they train.
      out: directory of the files, each of which is replaced atomically.

    Raises:
      InputError: a directory holds no run that has logged metrics.
      RunStopped: ``out`` cannot be written.
    """
    runs = read_runs([workdirs.as_path(directory) for directory in directories])
    data = {"runs": [{"run": run.name, "result": run.result, **run.latest} for run in runs]}
    text = "\n".join(map(str, runs))
    if not has_matplotlib():
        log.warning("no page and no figure: %s", NO_MATPLOTLIB)
        return Report(data, text, [])
    files, notebook = _drawn(runs)
    with workdirs.claimed(out, workdirs.REPORT, flag="--out") as claim:
        for name, content in files.items():
            write_atomically(claim.directory / name, content)
    return Report(data, text, [claim.directory / name for name in files], notebook)


def _drawn(runs: Sequence[Run]) -> tuple[dict[str, bytes], str]:
    """The page and the figure by file name, and the HTML for a notebook."""
    from depthmup_flax.report import document, history_figure, sheet  # import matplotlib, which is optional

    title = f"Training of {runs[0].name}" if len(runs) == 1 else f"Training of {len(runs)} runs"
    history_figure.draw(runs, whole := sheet.Sheet())
    history_figure.draw(runs, apart := sheet.Sheet(apart=True))
    files, lines = pictures(whole.figure, "history"), list(map(str, runs))
    body = (
        f"<h1>{escape(title)}</h1>\n<ul>{document.items(lines)}</ul>\n"
        + document.picture("history", history_figure.CAPTION, apart, files, level=2)
        + f"<h2>What was trained</h2>\n{_settings(runs)}"
    )
    notebook = notebook_html.items(lines) + notebook_html.image(files["history.png"], title)
    return {"report.html": document.document(title, body).encode(), **files}, notebook


def read_runs(directories: Sequence[pathlib.Path]) -> list[Run]:
    """The runs in their directories; see `make_history`."""
    short = [directory.name for directory in directories]
    names = short if len(set(short)) == len(short) else list(map(str, directories))
    with buckets.reachable(directories):
        return [_read(directory, name) for directory, name in zip(directories, names, strict=True)]


def _read(directory: pathlib.Path, name: str) -> Run:
    locks = bucket_lock if buckets.is_bucket(directory) else lock
    in_use = any(locks.busy(path) for path in locks.locks_in(directory))  # before its last rows are read
    metrics, ended = read_metrics(directory / "metrics.jsonl"), directory / "result.json"
    if not len(metrics["step"]):
        raise InputError(f"the run in {str(directory)!r} has logged no metrics yet: wait for its first row.")
    trained = settings.settings_of_run(read_json(directory / "config.json", _RESTORE))
    return Run(printable(name), metrics, trained, read_json(ended, _RESTORE) if ended.exists() else None, in_use)


def _settings(runs: Sequence[Run]) -> str:
    """What was trained, a column per run."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    head = "".join(f'<th scope="col">{escape(run.name)}</th>' for run in runs)
    cells = lambda name: "".join(f"<td>{escape(printable(run.settings.get(name, '')))}</td>" for run in runs)
    lines = "".join(f'<tr><th scope="row">{escape(name)}</th>{cells(name)}</tr>\n' for name in names)
    table = f'<table class="facts"><thead><tr><td></td>{head}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<div class="scroll" tabindex="0" role="region" aria-label="What was trained">{table}</div>\n'
