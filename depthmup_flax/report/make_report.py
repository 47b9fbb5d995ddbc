"""From directories of records to files."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from depthmup_flax.errors import InputError
from depthmup_flax.files import write_atomically
from depthmup_flax.records import Sweep, read_sweep
from depthmup_flax.report import dynamics, figures, landscapes, page, tables
from depthmup_flax.report.analysis import Study, analyze
from depthmup_flax.report.loss_surfaces import roles, surfaces
from depthmup_flax.report.style import require_matplotlib, save


@dataclasses.dataclass(frozen=True)
class Report:
    """What was found and written.

    Attributes:
      data: the content of ``report.json``.
      text: tables and remarks for a terminal.
      paths: of all files, ``report.html`` first.
    """

    data: dict[str, Any]
    text: str
    paths: list[pathlib.Path]


def make_report(directories: Sequence[str | pathlib.Path], out: str | pathlib.Path) -> Report:
    """Reads one sweep, perhaps in several shards, and writes figures, ``report.html`` and ``report.json`` to ``out``.

    Raises:
      InputError: the directories hold no sweep or several; no run has ended; all runs diverged; no matplotlib.
    """
    require_matplotlib()
    sweep = read_sweep([pathlib.Path(directory) for directory in directories])
    study, turned = _studies(sweep)
    out = pathlib.Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out={out} cannot be a directory ({error.strerror}): name another.") from error
    data = tables.as_data(sweep, study)
    paths, pictures = [], []
    for name, figure in _figures(study, turned):
        written = save(figure, out, name)
        paths += written
        pictures.append((name, written[0], study if turned is None or not name.startswith("transfer_") else turned))
    html, as_json = out / "report.html", out / "report.json"
    write_atomically(html, page.render(data, pictures, study))
    write_atomically(as_json, json.dumps(data, indent=1) + "\n")
    return Report(data, tables.as_text(data, study), [html, as_json, *paths])


def _studies(sweep: Sweep) -> tuple[Study, Study | None]:
    """Along x, and along the second continuous axis if there is one."""
    info, records = sweep.info, sweep.records
    if not records:
        raise InputError(f"no run of the sweep {info.figure!r} has ended: wait, or run it.")
    parts = roles(info)
    found = surfaces(info, records, parts)
    if all((surface.diverged == surface.ended).all() for surface in found):
        raise InputError(
            f"all {len(records)} runs diverged ({parts.x.axis} from {parts.x.values[0]:g} to {parts.x.values[-1]:g}): "
            "sweep lower values of optimizer.learning_rate, or check the data."
        )
    study = analyze(info, found, parts.x, parts.second, sweep.planned.get(parts.x.axis, ()))
    if parts.second is None:
        return study, None
    turned, planned = [surface.swapped() for surface in found], sweep.planned.get(parts.second.axis, ())
    return study, analyze(info, turned, parts.second, parts.x, planned)


def _figures(study: Study, turned: Study | None) -> Iterator[tuple[str, Any]]:
    """Names and pictures, those that the sweep has enough for."""
    several = len(study.scale.values) > 1
    if several:
        yield "transfer", figures.draw_transfer(study)
    if turned is not None:
        yield f"transfer_{turned.scale.name.replace(' ', '_')}", figures.draw_transfer(turned)
    if several and study.axes:
        yield "optima", figures.draw_optima(study)
    yield "curves", dynamics.draw_curves(study)
    if several:
        yield "over_time", dynamics.draw_over_time(study)
    if turned is not None:
        yield "heatmap", landscapes.draw_heatmap(study, turned.scale)
    if len({row.curve.parameters for variant in study.variants for row in variant.rows}) >= 3:
        yield "parameters", landscapes.draw_parameters(study)
