"""From directories of records to figures, tables and a page."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from depthmup_flax.records.table import COMPLETED, Record, Sweep, read_sweep
from depthmup_flax.report import landscape_figures, page, points, tables, time_figures, transfer_figures, verdict
from depthmup_flax.report.loss_surfaces import TEST, TRAIN, roles, surfaces
from depthmup_flax.report.sheet import Sheet
from depthmup_flax.report.style import drawable, file_name, pictures, require_matplotlib
from depthmup_flax.report.transfer import Study, analyze
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Json
from depthmup_flax.workdir import buckets
from depthmup_flax.workdir import directory as workdirs
from depthmup_flax.workdir.files import write_atomically


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of ``report.json``, tables and warnings for a terminal, and all files, ``report.html`` first."""

    data: Json
    text: str
    paths: list[pathlib.Path]


def make_report(
    directories: Sequence[str | pathlib.Path],
    out: str | pathlib.Path,
    *,
    tolerance: float = verdict.TOLERANCE,
    loss: str = TRAIN,
    claims: tables.Claims = tables.no_claims,
) -> Report:
    """Reads the shards of one sweep and writes ``report.html``, ``report.json``, tables and figures to ``out``.

    A file in ``out`` is the old one or the new one at any moment, also after a crash. ``tolerance``: the regret that
    counts as small, as a share of the base's lowest loss. ``loss``: that of the last steps of training, ``train``, or
    that on the test set, ``test``, which curves over time do not have. ``claims``: judges statements about the sweep's
    figure, as `depthmup_flax.papers.claims.as_data` does those of the papers.

    Raises:
      InputError: the directories hold no sweep or several, no run has ended, all runs diverged, ``tolerance`` is no
        share, or matplotlib is not installed.
      RunStopped: ``out`` cannot be written.
    """
    require_matplotlib()
    paths = [workdirs.as_path(directory) for directory in directories]
    with buckets.reachable(paths):
        sweep = read_sweep(paths)
    return write_report(sweep, out, tolerance=tolerance, loss=loss, claims=claims)


def write_report(
    sweep: Sweep,
    out: str | pathlib.Path,
    *,
    tolerance: float = verdict.TOLERANCE,
    loss: str = TRAIN,
    claims: tables.Claims = tables.no_claims,
    refresh_s: float | None = None,
) -> Report:
    """The second half of `make_report`: from a sweep to files.

    ``refresh_s``: every how many seconds the page loads itself again, while the sweep runs; PNG and SVG files are then
    left as they are.
    """
    require_share(tolerance)
    study, swapped = studies(sweep, loss)
    with workdirs.claimed(out, workdirs.REPORT, flag="--out") as claim:
        data = tables.as_data(sweep, study, tolerance, claims)
        files: dict[str, bytes] = {}
        panels = []
        for name, shown, draw in _figures(study, swapped):
            name = file_name(name)
            apart = Sheet(apart=True)
            draw(apart)
            panels.append((name, apart, shown))
            if refresh_s is None:
                whole = Sheet()
                draw(whole)
                files |= pictures(whole.drawn(), name)
        files["tables.csv"] = points.tables_csv(data).encode()
        files["points.csv"] = points.points_csv(study).encode()
        page_files = {
            "report.html": page.render(data, panels, study, files, refresh_s).encode(),
            "report.json": (json.dumps(data, indent=1) + "\n").encode(),
        }
        written = page_files | files
        for name, content in written.items():
            write_atomically(claim.directory / name, content)
    return Report(data, tables.as_text(data, study), [claim.directory / name for name in written])


def require_share(tolerance: float) -> None:
    """Raises `InputError` for a tolerance that is no share of a loss."""
    if not 0 < tolerance < 1:
        raise InputError(f"--tolerance is {tolerance:g}: it must be above 0 and below 1, as in --tolerance=0.01.")


def studies(sweep: Sweep, loss: str = TRAIN) -> tuple[Study, Study | None]:
    """A sweep analyzed along x and, if there is one, along the second continuous axis.

    Raises InputError if no run has ended, all runs diverged, or a completed one lacks that loss.
    """
    info, records = sweep.info, sweep.records
    if not records:
        reason = " ".join(sweep.notes) or "wait, or run it."
        raise InputError(f"no run of the sweep {info.figure!r} has ended: {reason}")
    parts = roles(info)
    if lacking := _without_test_loss(records) if loss == TEST else 0:
        raise InputError(f"{lacking} completed runs have no test loss: leave out --loss=test.")
    grids = surfaces(info, records, parts, loss)
    if all((surface.diverged == surface.ended).all() for surface in grids):
        raise InputError(
            f"all {len(records)} runs diverged ({parts.x.axis} from {parts.x.values[0]:g} to {parts.x.values[-1]:g}): "
            "sweep lower values of optimizer.learning_rate, or check the data."
        )
    study = analyze(info, grids, parts.x, parts.second, sweep.planned.get(parts.x.axis, ()), loss)
    if parts.second is None:
        return study, None
    planned = sweep.planned.get(parts.second.axis, ())
    return study, analyze(info, [surface.swapped() for surface in grids], parts.second, parts.x, planned, loss)


def _without_test_loss(records: Sequence[Record]) -> int:
    """The number of completed runs whose data had no test examples."""
    return sum(record.status == COMPLETED and record.test_loss is None for record in records)


def _figures(study: Study, swapped: Study | None) -> Iterator[tuple[str, Study, Callable[[Sheet], None]]]:
    """Name, study and drawing, for each figure that the sweep has enough sizes for; the main one first."""
    several, drawn = len(study.scale.values) > 1, drawable(study)
    if several:
        yield "transfer", study, partial(transfer_figures.draw_transfer, drawn)
    if swapped is not None:
        name = f"transfer_{swapped.scale.name.replace(' ', '_')}"
        yield name, swapped, partial(transfer_figures.draw_transfer, drawable(swapped))
    if several and any(len(axis.sizes) > 1 for axis in study.axes):
        yield "optima", study, partial(transfer_figures.draw_optima, drawn)
    if study.loss == TRAIN:
        yield "curves", study, partial(time_figures.draw_curves, drawn)
    if several and study.loss == TRAIN:
        yield "over_time", study, partial(time_figures.draw_over_time, drawn)
    if drawn.other is not None:
        yield "heatmap", study, partial(landscape_figures.draw_heatmap, drawn, drawn.other)
    if len({row.curve.parameters for row in study.rows}) >= 3:
        yield "parameters", study, partial(landscape_figures.draw_parameters, drawn)
