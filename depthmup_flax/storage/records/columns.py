"""Records as flat dictionaries and as columns, for pandas and other tools."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from depthmup_flax.storage.records.table import Record, read_sweep
from depthmup_flax.storage.workdir import buckets
from depthmup_flax.storage.workdir import directory as workdirs
from depthmup_flax.util.errors import InputError

_NESTED = ("point", "test_metrics", "versions")
_OWN = {field.name for field in dataclasses.fields(Record)} - set(_NESTED)


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Dotted field -> its last part, or the whole path if another field, or a field of `Record`, has that name."""
    paths = list(paths)
    last = [path.rpartition(".")[2] for path in paths]
    return {
        path: name if last.count(name) == 1 and name not in _OWN else path
        for path, name in zip(paths, last, strict=True)
    }


def flat(record: Record, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A record in one level: its fields, the axes under ``names``, by default `short_names`, and further test metrics.

    Without the versions of packages.
    """
    names = short_names(record.point) if names is None else names
    fields = {name: getattr(record, name) for name in ("run", "status", "width", "depth", "seed")}
    # Seed, width and depth of a point are fields of the record, too.
    sizes = {f"model.{name}" for name in ("width", "depth")} | {"seed"}
    axes = {names[path]: value for path, value in record.point.items() if path not in sizes}
    others = {name: value for name, value in vars(record).items() if name in _OWN and name not in fields}
    return {**fields, **axes, **others, **record.test_metrics}


def read_records(directory: str | os.PathLike[str]) -> dict[str, list[Any]]:
    """Column -> values, a row per run: ``pandas.DataFrame(dm.read_records("runs/sweep"))``.

    The columns are those of `flat`, and ``directory``; ``None`` where a run has no such value.

    Args:
      directory: of a sweep with its shards, of a search, or of a `Study`, which holds several of these.

    Raises:
      InputError: there are no records.
    """
    path = workdirs.as_path(directory)
    with buckets.reachable([path]):
        found = [path] if (path / "sweep.json").exists() else sorted(one.parent for one in path.glob("*/sweep.json"))
        if not found:
            raise InputError(f"{str(path)!r} holds no records: name the workdir of a sweep, a search or a Study.")
        rows = [row for one in found for row in _rows(one, path)]
    columns = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in columns}


def _rows(directory: pathlib.Path, parent: pathlib.Path) -> list[dict[str, Any]]:
    read = read_sweep([directory])
    names = short_names(read.info.axes)
    where = directory.name if directory != parent else "."
    return [{**flat(record, names), "directory": where} for record in read.records]
