"""The hash of a run's config, by which records, results and resumed sweeps recognize the run.

It covers every field but those of `EXECUTION`. So a field that is added to the config, or removed, gives all runs other
hashes: ``python -m reproduction.migrate DIRECTORY`` brings earlier records to today's fields and names.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

from depthmup_flax.util.types import Json

# Fields that do not change what is trained: a run may be resumed with other values.
EXECUTION = (
    "mesh",
    "model.scan",
    "model.remat",
    "model.attention",
    "data.data_dir",
    "data.placement",
    "train.eval_every",
    "train.eval_batch_size",
    "train.log_every",
    "train.writers",
    "train.checkpoint",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.compare_replicas",
)


def json_text(tree: Json) -> str:
    """Indented JSON with sorted keys; equal trees give equal text."""
    return json.dumps(tree, indent=2, sort_keys=True) + "\n"


def without_execution(tree: Json, path: str = "") -> Json:
    """A config as JSON without the fields of `EXECUTION`; what a run's hash covers."""
    kept = {name: value for name, value in tree.items() if path + name not in EXECUTION}
    return {k: without_execution(v, f"{path}{k}.") if isinstance(v, dict) else v for k, v in kept.items()}


def run_hash(tree: Json) -> str:
    """Twelve hexadecimal digits of SHA-256 over `without_execution`: equal for equal training."""
    return _digest(json_text(without_execution(tree)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class RunNames:
    """The hashes of the runs of one base config; fast, because a sweep may have 100,000."""

    def __init__(self, base: Json) -> None:
        self._base = base
        self._hasher = functools.cache(self._make_hasher)

    def hash(self, point: Json) -> str | None:
        """`run_hash` of the base config with the fields of ``point``; ``None`` if the base has no place for one."""
        return self._hasher(tuple(point))(point)

    def _make_hasher(self, paths: tuple[str, ...]) -> Callable[[Json], str | None]:
        """The hash of points with these fields. Only their values are encoded, into the text of the other fields."""
        tree = _with(self._base, {path: f"\0{number}" for number, path in enumerate(paths)})
        if tree is None:
            return lambda point: None
        first, *rest = re.split(r'"\\u0000(\d+)"', json_text(without_execution(tree)))
        marked = [paths[int(number)] for number in rest[::2]]
        parts = [(path, path.count(".") + 1, after) for path, after in zip(marked, rest[1::2], strict=True)]
        return lambda point: _digest(first + "".join([_nested(point[p], depth) + after for p, depth, after in parts]))


def _with(tree: Json, point: Json) -> Json | None:
    """A copy of ``tree`` with dotted fields; ``None`` if one would lie inside a value."""
    for path, value in point.items():
        name, _, rest = path.partition(".")
        if rest:
            section = tree.get(name, {})
            value = _with(section, {rest: value}) if isinstance(section, dict) else None
            if value is None:
                return None
        tree = {**tree, name: value}
    return tree


def _nested(value: Any, depth: int) -> str:
    """The JSON text of a value inside ``depth`` sections."""
    if type(value) in (int, float):  # most values; much faster than json.dumps
        return repr(value)
    return json.dumps(value, indent=2, sort_keys=True).replace("\n", "\n" + depth * "  ")
