"""What the runs of a report trained, from their configs: model, rule, optimizer, frozen layers, length, data, loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from depthmup_flax.report.loss_surfaces import number
from depthmup_flax.report.transfer import Analysis
from depthmup_flax.storage.records import SEED, SweepInfo
from depthmup_flax.storage.run_hash import EXECUTION
from depthmup_flax.util.types import Json

_SIZES = ("model.width", "model.depth", "model.stage_sizes")
_OF_TEXT = ("data.context", "data.tokenizer")
_MOST_VALUES = 8  # of a field that are listed
_IN_A_LINE = ("model", "rule", "optimizer", "frozen layers", "training", "data")


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
    hidden, values = {SEED, *EXECUTION, *without}, dict[str, list[Any]]()
    for point in points:
        for path, value in point.items():
            if path not in hidden and value not in values.setdefault(path, []):
                values[path].append(value)
    if not any(str(name).startswith("text:") for name in values.get("data.name", [])):
        values = {path: of_path for path, of_path in values.items() if path not in _OF_TEXT}
    one = lambda path: _one(values.get(path, []))
    listed = lambda section, first: ", ".join(filter(None, (one(f"{section}.{first}"), _fields(section, values))))
    steps, epochs, batch = (one(f"train.{name}") for name in ("steps", "epochs", "batch_size"))
    length = f"{steps} steps" if steps not in ("", "0") else f"{epochs} epochs in steps" if epochs else ""
    none_frozen = values.get("optimizer.frozen") == [[]]
    rows = {
        "model": one("model.name"),
        "fields of the model": _fields("model", values),
        "rule": listed("parametrization", "preset"),
        "optimizer": listed("optimizer", "name"),
        "frozen layers": "none, every layer is trained" if none_frozen else one("optimizer.frozen"),
        "training": f"{length} of {batch} examples" if length and batch else length,
        "data": listed("data", "name"),
        "loss": one("loss"),
        "hyper": _fields("hyper", values),
    }
    return {name: text for name, text in rows.items() if text}


def sentence(rows: Mapping[str, str]) -> str:
    """The main rows of `settings` in one line."""
    return "; ".join(f"{name}: {rows[name]}" for name in _IN_A_LINE if name in rows)


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
    shown = lambda value: ", ".join(map(str, value)) if isinstance(value, list) else number(value)
    return " or ".join(map(shown, sorted(values) if numbers else values))


def _fields(section: str, values: Mapping[str, list[Any]]) -> str:
    """The fields of a section that are set and have no place of their own: ``norm=none, sigma=1``."""
    named = (f"{section}.name", "parametrization.preset", "optimizer.frozen", "data.suffixes")
    off: tuple[Any, ...] = (None, "", [], *([] if section == "parametrization" else [0]))
    texts = []
    for path, of_path in values.items():
        if path.startswith(f"{section}.") and path not in named and (len(of_path) > 1 or of_path[0] not in off):
            texts.append(f"{path.removeprefix(f'{section}.').removeprefix('kwargs.')}={_one(of_path)}")
    return ", ".join(texts)
