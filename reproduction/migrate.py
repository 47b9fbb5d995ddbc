"""Bring records to today's config fields and names: python -m reproduction.migrate DIRECTORY

Rewrites every ``sweep.json``, ``records*.jsonl``, ``records*.jsonl.gz``, ``data.json``, ``limits.json`` and
``forecast.json`` in and below DIRECTORY: fields that the config has today get their default, with which a run is what
it was; fields that it no longer has go, if they have the value of `DROPPED`; `RENAMED` modules get their new name;
runs are renamed by today's hash. Everything else, losses and dates above all, stays as it is. A second
call changes nothing.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import pathlib
import re
import sys
from collections.abc import Mapping
from typing import Any

from depthmup_flax.config.fields import default_config, to_json
from depthmup_flax.data import DataConfig
from depthmup_flax.storage.run_hash import json_text, run_hash_at, without_execution
from depthmup_flax.storage.sweep_records import Record, SweepInfo
from depthmup_flax.util.types import Json

RENAMED = {"depthmup_flax.rule_benchmark.synthetic": "reproduction.rules.synthetic"}
# Fields that the config once had -> the value with which a run is what it is without the field.
DROPPED: Mapping[str, Any] = {
    "forecast": "",
    "data.suffixes": "jpg,jpeg,png",
    "data.on_bad_example": "error",
    "data.read_threads": 0,
    "data.device_limit_mib": 2048,
    "data.placement": "auto",
    "model.experts": 0,
    "model.experts_per_token": 2,
    "optimizer.decay_width_exponent": 0.0,
    "train.stall_timeout_s": 600.0,
    "train.compare_replicas": True,
    "train.stop_on_divergence": True,
    "train.keep_checkpoints": 2,
    "train.checkpoint_every": 0,
    "train.matmul_precision": "",
    "train.log_norms": False,
    "mesh.gradient_dtype": "",
    "mesh.tensor": 1,
}
_FREE = ("source", "jax", "hyper", "optimizer.kwargs")  # sections whose fields users and optimizers choose
_OTHER = object()  # equal to no value
_OLD_FIELDS = ("schema", "crc32")  # of files
_OF_REGISTRATION = ("date", "sha256", "course")  # of forecasts that a recipe's ladder keeps


def today(tree: Json, defaults: Json, path: str = "") -> Json:
    """A config, as JSON, with the fields of ``defaults``; ValueError for a field that may not go."""
    kept = dict(defaults)
    for name, value in tree.items():
        here = path + name
        if here in _FREE:
            kept[name] = value
        elif isinstance(value, dict) and isinstance(defaults.get(name, {}), dict) and here not in DROPPED:
            kept[name] = today(value, defaults.get(name, {}), here + ".")
        elif name in defaults:
            kept[name] = value
        elif DROPPED.get(here, value) != value or here not in DROPPED:
            raise ValueError(f"{here} is {value!r}, and today's config has no such field: see DROPPED.")
    return kept


def _config(base: Json) -> Json:
    """The config of a run or a sweep's base."""
    base = _renamed({name: value for name, value in base.items() if name != "code"})  # no part of a run's name today
    defaults = json.loads(to_json(default_config(base["model"]["name"])))
    return today(base, {name: value for name, value in defaults.items() if name != "source"})


def _data(fields: Json) -> Json:
    """The section ``data`` without the fields of execution."""
    defaults = json.loads(json.dumps(dataclasses.asdict(DataConfig())))
    return without_execution({"data": today(_renamed(fields), defaults, "data.")})["data"]


def _renamed(tree: Any) -> Any:
    """A tree, or a text, with `RENAMED` modules."""
    text = json.dumps(tree)
    for old, new in RENAMED.items():
        text = re.sub(rf"\b{re.escape(old)}\b", new, text)
    return json.loads(text)


def _sweep(directory: pathlib.Path) -> None:
    """A sweep's directory."""
    path = directory / "sweep.json"
    stored = {name: value for name, value in _renamed(json.loads(path.read_text())).items() if name not in _OLD_FIELDS}
    info = SweepInfo(**{**stored, "base": _config(stored["base"])})
    path.write_text(json.dumps(dataclasses.asdict(info), indent=1) + "\n")
    for file in [*directory.glob("records*.jsonl"), *directory.glob("records*.jsonl.gz")]:
        content = file.read_bytes()
        lines = (gzip.decompress(content) if file.suffix == ".gz" else content).decode().splitlines()
        text = "".join(f"{json.dumps(_record(json.loads(line), info.base))}\n" for line in lines)
        file.write_bytes(gzip.compress(text.encode(), mtime=0) if file.suffix == ".gz" else text.encode())


def _record(stored: Json, base: Json) -> Json:
    point = _renamed(stored["point"])
    point = {path: value for path, value in point.items() if DROPPED.get(path, _OTHER) != value}
    kept = {name: value for name, value in stored.items() if name not in _OLD_FIELDS}
    return dataclasses.asdict(Record(**{**kept, "point": point, "run": run_hash_at(base, point)}))


def _data_sets(path: pathlib.Path) -> None:
    """A sweep's ``data.json``: the fields of a data set -> its description."""
    stored = {name: value for name, value in _renamed(json.loads(path.read_text())).items() if name not in _OLD_FIELDS}
    path.write_text(
        json_text({json.dumps(_data(json.loads(name)), sort_keys=True): value for name, value in stored.items()})
    )


def _limits(path: pathlib.Path) -> None:
    """A theory figure's ``limits.json``."""
    stored = {name: value for name, value in json.loads(path.read_text()).items() if name not in _OLD_FIELDS}
    if "data" in stored["config"]:
        defaults = json.loads(json.dumps(dataclasses.asdict(DataConfig())))
        stored["config"]["data"] = today(stored["config"]["data"], defaults, "data.")
    path.write_text(json.dumps(stored, indent=1) + "\n")


def _forecast(path: pathlib.Path) -> None:
    """The forecast that a recipe's ladder keeps."""
    stored = json.loads(path.read_text())
    kept = {name: value for name, value in stored.items() if name not in (*_OLD_FIELDS, *_OF_REGISTRATION)}
    kept["config"] = without_execution(_config(kept["config"]))
    path.write_text(json_text(kept))


def main(directory: str) -> None:
    """Rewrites the files."""
    root = pathlib.Path(directory)
    for path in sorted(root.rglob("*.json")):
        if path.name == "sweep.json":
            _sweep(path.parent)
        elif path.name == "data.json" and (path.parent / "sweep.json").exists():
            _data_sets(path)
        elif path.name == "limits.json":
            _limits(path)
        elif path.name == "forecast.json":
            _forecast(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
