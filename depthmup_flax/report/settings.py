"""What the runs of a report trained, from their configs: model, rule, optimizer, frozen layers, length, data, loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from depthmup_flax.report.loss_surfaces import number
from depthmup_flax.report.transfer import Analysis
from depthmup_flax.storage.records import SEED, SweepInfo
from depthmup_flax.storage.run_hash import EXECUTION
from depthmup_flax.util.types import Json

_SIZES = ("model.width", "model.depth", "model.stage_sizes")
_OF_TEXT = ("data.context", "data.tokenizer")
_MOST_VALUES = 8  # of a field that are listed
_IN_A_LINE = ("model", "rule", "optimizer", "frozen layers", "training", "data")

Values: TypeAlias = Mapping[str, list[Any]]  # dotted config field -> its values in the curves, each once


def settings(info: SweepInfo, analysis: Analysis) -> dict[str, str]:
    """Names of settings -> their values. Of a field in which curves differ: all values; the curves' names have it.

    The axes along each curve are left out; so are fields that are not set, or zero where zero switches them off.
    """
    along = {analysis.scale.axis, analysis.other.axis if analysis.other else "", *_SIZES}
    return _rows([_flat(info.base) | surface.point for surface in analysis.surfaces], along)


def settings_of_run(config: Json, without: Collection[str] = ()) -> dict[str, str]:
    """Names of settings -> their values, from a run's config; with the sizes, and without fields that are not set."""
    return _rows([_flat(config)], without) | {"seed": str(config.get(SEED, ""))}


def _rows(points: Sequence[Json], without: Collection[str]) -> dict[str, str]:
    """The settings of several points; each is dotted config field -> value."""
    values = _values(points, {SEED, *EXECUTION, *without})
    fixed = "optimizer.frozen" in values and values["optimizer.frozen"] == [[]]
    rows = {
        "model": _one("model.name", values),
        "fields of the model": _fields("model", values),
        "rule": _listed(_one("parametrization.preset", values), _fields("parametrization", values)),
        "optimizer": _listed(_one("optimizer.name", values), _fields("optimizer", values)),
        "frozen layers": "none, every layer is trained" if fixed else _one("optimizer.frozen", values),
        "training": _length(values),
        "data": _listed(_one("data.name", values), _fields("data", values)),
        "loss": _one("loss", values),
        "hyper": _fields("hyper", values),
    }
    return {name: text for name, text in rows.items() if text}


def sentence(rows: Mapping[str, str]) -> str:
    """The main rows of `settings` in one line."""
    return "; ".join(f"{name}: {rows[name]}" for name in _IN_A_LINE if name in rows)


def _values(points: Sequence[Json], without: Collection[str]) -> Values:
    values: dict[str, list[Any]] = {}
    for point in points:
        for path, value in point.items():
            if path not in without and value not in values.setdefault(path, []):
                values[path].append(value)
    is_text = any(str(name).startswith("text:") for name in values.get("data.name", []))
    return {path: of_path for path, of_path in values.items() if is_text or path not in _OF_TEXT}


def _flat(tree: Json, path: str = "") -> Json:
    """Dotted config field -> value."""
    flat: Json = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{path}{name}.") if isinstance(value, dict) else {path + name: value}
    return flat


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else number(value)


def _one(path: str, values: Values) -> str:
    """``adam``, ``adam or muon``, or ``0.25 to 4 (48 values)``."""
    found = values.get(path, [])
    numbers = all(isinstance(value, (int, float)) for value in found)
    if numbers and len(found) > _MOST_VALUES:
        return f"{number(min(found))} to {number(max(found))} ({len(found)} values)"
    return " or ".join(map(_shown, sorted(found) if numbers else found))


def _listed(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _fields(section: str, values: Values) -> str:
    """The fields of a section that are set and have no place of their own: ``norm=none, sigma=1``."""
    named = (f"{section}.name", "parametrization.preset", "optimizer.frozen")
    paths = [path for path in values if path.startswith(f"{section}.") and path not in named]
    off: tuple[Any, ...] = (None, "", [], *([] if section == "parametrization" else [0]))
    shown = {path: len(values[path]) > 1 or values[path][0] not in off for path in paths}
    short = lambda path: path.removeprefix(f"{section}.").removeprefix("kwargs.")
    return ", ".join(f"{short(path)}={_one(path, values)}" for path in paths if shown[path])


def _length(values: Values) -> str:
    """``200 steps of 64 examples``, or ``20 epochs in steps of 64 examples``."""
    steps, epochs, batch = (_one(f"train.{name}", values) for name in ("steps", "epochs", "batch_size"))
    length = f"{steps} steps" if steps not in ("", "0") else f"{epochs} epochs in steps" if epochs else ""
    return f"{length} of {batch} examples" if length and batch else length
