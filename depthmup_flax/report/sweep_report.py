"""From directories of records to figures, tables and a page."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from depthmup_flax.report import tables
from depthmup_flax.report.curves import LOSSES
from depthmup_flax.report.own_records import read_csv
from depthmup_flax.report.transfer import Analysis, analyze
from depthmup_flax.report.verdict import TOLERANCE
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.storage.files import as_path, read_json, write_atomically
from depthmup_flax.storage.run_tables import is_table
from depthmup_flax.storage.sweep_records import COMPLETED, ROUNDS, TEST, TRAIN, VALIDATION, Sweep, read_sweep
from depthmup_flax.util.errors import InputError, printable
from depthmup_flax.util.imports import installs
from depthmup_flax.util.types import Json

log = logging.getLogger(__name__)

_LADDER_CAPTION = (
    "Left: best rate against size, with its 95 % band to the target, and the curves. Right: the expected regret after "
    "one more size, against its cost."
)
_DRAWN_BY = ("matplotlib", "jinja2")  # optional dependencies


@dataclasses.dataclass(frozen=True)
class Report:
    """An analyzed sweep; print shows its text, a notebook its verdict, tables and main figure."""

    data: Json  # the content of ``report.json``
    text: str  # for a terminal
    paths: list[pathlib.Path]  # of all files, ``report.html`` first, if there is one
    html: str = dataclasses.field(default="", repr=False)  # for a notebook

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str | None:
        return self.html or None


def make_report(
    directories: Sequence[str | pathlib.Path],
    out: str | os.PathLike[str] | None = None,
    *,
    tolerance: float = TOLERANCE,
    loss: str | None = None,
    **of_table: Any,
) -> Report:
    """Reads the shards of one sweep and writes ``report.html``, ``report.json`` and figures.

    Without matplotlib and jinja2 there are no figures and no page.

    Args:
      directories: of the shards; or one file of runs of your own loop, see `own_records.read_csv`.
      out: directory of the files, each of which is replaced atomically; by default ``report``, or ``report_LOSS`` with
        a loss, in the first directory.
      tolerance: the regret that counts as small, as a share of what the base learned; see
        `depthmup_flax.report.verdict`.
      loss: of the last steps of training, ``train``; or after training, on the test set, ``test``, or on held-out
        training examples, ``validation``. ``None``: the sweep's objective.
      of_table: of a file: ``columns``, ``ignored``, ``initial_loss``, ``rule`` of `own_records.read_csv`.

    Raises:
      InputError: the directories hold no sweep or several, no run has ended, all runs diverged, or ``tolerance`` is
        not between 0 and 1.
      RunStopped: ``out`` cannot be written.
    """
    if isinstance(directories, (str, pathlib.Path)):
        raise InputError(f"directories is {str(directories)!r}: use several, [{str(directories)!r}].")
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance is {tolerance:g}: it must be above 0 and below 1, as in tolerance=0.02.")
    paths = [as_path(directory) for directory in directories]
    from_table = any(map(is_table, paths))
    if from_table and len(paths) > 1:
        raise InputError(
            f"{len(paths)} files are named: give one table of runs. Join them, with a column rule that tells them "
            "apart."
        )
    if of_table and not from_table:
        raise InputError(f"{', '.join(of_table)}: only a table of runs, such as runs.csv, takes it. Leave it out.")
    sweep = read_csv(paths[0], **of_table) if from_table else first_round(read_sweep(paths))
    if out is None:
        stem = paths[0].name.removesuffix(".gz").rpartition(".")[0] or f"{paths[0].name}_report"
        place = paths[0].with_name(stem) if from_table else paths[0]
        out = place / (f"report_{loss}" if loss else "report")
    analysis = analysis_of(sweep, loss)
    data = tables.as_data(sweep, analysis, tolerance, other_analysis(sweep, analysis))
    data["ladder"], ladder_files = ladder_in(paths[0])
    drawn, notebook = dict[str, bytes](), ""
    if all(map(importlib.util.find_spec, _DRAWN_BY)):
        from depthmup_flax.report import figures

        pictured = figures.drawn(analysis) + ([(_LADDER_CAPTION, ladder_files)] if ladder_files else [])
        html, notebook = tables.as_pages(data, analysis, pictured)
        drawn = {"report.html": html.encode()} | {name: file for _, files in pictured for name, file in files.items()}
    else:
        log.warning(f"no page and no figures: matplotlib or jinja2 is not installed. Run {installs('report')}.")
    files = drawn | {"report.json": (json.dumps(data, indent=1) + "\n").encode()}
    with workdirs.claimed(out, workdirs.REPORT, flag="--out") as claim:
        for name, content in files.items():
            write_atomically(claim.workdir / name, content)
    return Report(data, tables.as_text(data, analysis), [claim.workdir / name for name in files], notebook)


def ladder_in(directory: pathlib.Path) -> tuple[list[str], dict[str, bytes]]:
    """What the ladder of a search says, and its figure; nothing if the search has none."""
    if not (file := directory / "ladder.json").exists():
        return [], {}
    statement = [printable(str(line)) for line in read_json(file, "delete it").get("statement", ())]
    pictures = [directory / "ladder.svg", directory / "ladder.png"]
    return statement, {path.name: path.read_bytes() for path in pictures if all(one.exists() for one in pictures)}


def first_round(sweep: Sweep) -> Sweep:
    """The grid with which a search in rounds begins, as its random points lie on no curve; another sweep as it is."""
    if sweep.info.figure != ROUNDS:
        return sweep
    x = sweep.info.x
    grid = {axis: values for axis, values in sweep.planned.items() if axis != x}
    records = [r for r in sweep.records if all(r.point[axis] in values for axis, values in grid.items())]
    others = len(sweep.records) - len(records)
    note = (
        f"{others} runs at random points, or of the last round, are left out: tuned.py has the result of the search, "
        "or Study.tune returns it."
    )
    info = dataclasses.replace(sweep.info, axes={**grid, x: sorted({r.point[x] for r in records})})
    return dataclasses.replace(sweep, info=info, records=records, notes=[*sweep.notes, *([note] if others else [])])


def other_analysis(sweep: Sweep, analysis: Analysis) -> Analysis | None:
    """The sweep by another loss: test or validation, of these by training; ``None`` if a completed run lacks it."""
    completed = [record for record in sweep.records if record.status == COMPLETED]
    losses = [TEST, VALIDATION] if analysis.loss == TRAIN else [TRAIN]
    measured = [loss for loss in losses if all(record.loss(loss) is not None for record in completed)]
    return analysis_of(sweep, measured[0]) if measured else None


def analysis_of(sweep: Sweep, loss: str | None = None) -> Analysis:
    """A sweep analyzed along x, by ``loss`` of `make_report`; `InputError` if no run has ended, or one lacks it."""
    info, records = sweep.info, sweep.records
    loss = loss or info.objective
    if not records:
        reason = " ".join(sweep.notes) or "wait, or run it."
        raise InputError(f"no run of the sweep {info.figure!r} has ended: {reason}")
    lacking = sum(record.status == COMPLETED and record.loss(loss) is None for record in records)
    if lacking:
        raise InputError(f"{lacking} completed runs have no {LOSSES[loss]}: leave out loss={loss}.")
    # The planned values of x, if runs are left; once all have ended, a size without one of them lies in another grid.
    planned = () if 0 < info.runs <= len(records) else sweep.planned.get(info.x, ())
    return analyze(info, records, loss, planned, sweep.unfinished)
