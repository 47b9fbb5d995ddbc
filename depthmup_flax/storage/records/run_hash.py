"""The hash of a run's config, by which records, results and resumed sweeps recognize the run.

Committed records keep their hashes, so a new field of the config is listed here: in `EXECUTION` or in `ADDED`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping
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
    "data.device_limit_mib",
    "data.read_threads",
    "data.on_bad_example",  # "error" trains on no bad example: a run that met one may be resumed with "skip"
    "train.eval_every",
    "train.eval_batch_size",
    "train.log_every",
    "train.log_norms",
    "train.writers",
    "train.checkpoint",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.stall_timeout_s",
    "train.stop_on_divergence",
    "train.compare_replicas",
)

# Fields, or whole sections, that are newer than the committed records -> their default, with which a run is what it was
# before. Hashes omit a field that has its default.
ADDED: Mapping[str, Any] = {
    "parametrization.inner_gamma": None,
    "data.suffixes": "jpg,jpeg,png",
    "data.validation_fraction": 0.0,
    "model.num_kv_heads": 0,
    "model.qk_norm": False,
    "model.mlp": "gelu",
    "model.mlp_features": 0,
    "model.experts": 0,
    "model.experts_per_token": 2,
    "model.stream_dtype": "",
    "optimizer.decay_width_exponent": 0.0,
    "train.matmul_precision": "",
    "loss": "cross_entropy",
    "hyper": {},
}


def json_text(tree: Json) -> str:
    """Indented JSON with sorted keys; equal trees give equal text."""
    return json.dumps(tree, indent=2, sort_keys=True) + "\n"


def without_execution(tree: Json) -> Json:
    """A config as JSON without the fields of `EXECUTION`."""
    return _without(tree, lambda path, _: path in EXECUTION)


def trained(tree: Json) -> Json:
    """The part of a config, as JSON, that a run's hash covers."""
    if isinstance(tree.get("train"), dict):  # the oldest records lack this field, and hashes have it
        tree = {**tree, "train": {"accumulate": 1, **tree["train"]}}
    return _without(without_execution(tree), lambda path, value: path in ADDED and ADDED[path] == value)


def _without(tree: Json, dropped: Callable[[str, Any], bool], path: str = "") -> Json:
    kept = {name: value for name, value in tree.items() if not dropped(path + name, value)}
    return {k: _without(v, dropped, f"{path}{k}.") if isinstance(v, dict) else v for k, v in kept.items()}


def run_hash(tree: Json) -> str:
    """Twelve hexadecimal digits of SHA-256 over the `trained` fields: equal for equal training."""
    return _digest(json_text(trained(tree)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class RunNames:
    """The hashes of the runs of one base config; fast, because a sweep may have 100,000."""

    def __init__(self, base: Json) -> None:
        self._base = base
        self._hasher = functools.cache(self._make_hasher)

    def name(self, run: str, point: Json) -> str | None:
        """`run_hash` of the run at ``point`` if its record may be named ``run``, else ``None``.

        The oldest records are named by the hash of the whole config.
        """
        name = self.hash(point)
        return name if run == name or run == self._hasher(tuple(point), whole=True)(point) else None

    def hash(self, point: Json) -> str | None:
        """`run_hash` of the base config with the fields of ``point``; ``None`` if the base has no place for one."""
        return self._hasher(tuple(point), whole=False)(point)

    def _make_hasher(self, paths: tuple[str, ...], whole: bool) -> Callable[[Json], str | None]:
        """The hash of points with these fields. Only their values are encoded, into the text of the other fields."""
        text = lambda tree: json_text(tree if whole else trained(tree))
        tree = _with(self._base, {path: f"\0{number}" for number, path in enumerate(paths)})
        if tree is None:
            return lambda point: None
        if any(f"{path}.".startswith(f"{name}.") for name in ADDED for path in paths):  # whether they count depends
            return lambda point: _digest(text(_with(self._base, point)))
        first, *rest = re.split(r'"\\u0000(\d+)"', text(tree))
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
