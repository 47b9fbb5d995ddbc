"""What the runs of a report trained, from their configs: a line for each section, with the fields that are set."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from depthmup_flax.report.loss_surfaces import number
from depthmup_flax.report.transfer import Analysis
from depthmup_flax.storage.run_hash import EXECUTION
from depthmup_flax.storage.sweep_records import SEED, SweepInfo
from depthmup_flax.util.types import Json

_SIZES = ("model.width", "model.depth", "model.stage_sizes")
_MOST_VALUES = 8  # of a field that are listed


def settings(info: SweepInfo, analysis: Analysis) -> dict[str, str]:
    """Sections of a sweep's config -> their fields. Of a field in which curves differ: all values.

    The axes along each curve are left out, and fields that are not set.
    """
    along = {SEED, analysis.scale.axis, analysis.other.axis if analysis.other else "", *_SIZES}
    return settings_of([_flat(info.base) | surface.point for surface in analysis.surfaces], along)


def settings_of(configs: Sequence[Json], without: Collection[str] = ()) -> dict[str, str]:
    """Sections of several runs' configs, nested or by dotted field, -> their fields that are set."""
    hidden, values = {*EXECUTION, *without}, dict[str, list[Any]]()
    for config in configs:
        for path, value in _flat(config).items():
            if hidden.isdisjoint((path, path.partition(".")[0])) and value not in values.setdefault(path, []):
                values[path].append(value)
    rows: dict[str, list[str]] = {}
    for path, of_path in values.items():
        section, _, field = path.partition(".")
        off: tuple[Any, ...] = (None, "", [], *([] if section == "parametrization" else [0]))  # 0 switches most off
        if len(of_path) > 1 or of_path[0] not in off:
            rows.setdefault(section, []).append(f"{field}={_one(of_path)}" if field else _one(of_path))
    return {section: ", ".join(fields) for section, fields in rows.items()}


def _flat(tree: Json, path: str = "") -> Json:
    """Dotted config field -> value."""
    flat: Json = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{path}{name}.") if isinstance(value, dict) else {path + name: value}
    return flat


def _one(values: Sequence[Any]) -> str:
    """``adam``, ``adam or muon``, or ``0.25 to 4 (48 values)``."""
    numbers = all(isinstance(value, (int, float)) for value in values)
    if numbers and len(values) > _MOST_VALUES:
        return f"{number(min(values))} to {number(max(values))} ({len(values)} values)"
    shown = lambda value: " and ".join(map(str, value)) if isinstance(value, list) else number(value)
    return " or ".join(map(shown, sorted(values) if numbers else values))
