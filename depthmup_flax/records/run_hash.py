"""The hash of a run's config, by which records, results and resumed sweeps recognize the run. JSON only: no Flax.

A hash must outlive versions of this package, so a new field of the config is listed here, in `EXECUTION` or in `ADDED`.
Records of the first version are named by the hash of the whole config; `RunNames` recognizes them too.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import re
from collections.abc import Mapping
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
    "data.on_bad_example",  # "error" trains on no bad example, so a run that met one may go on with "skip"
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

# Fields, or whole sections, that are newer than the committed records -> the value with which a run is what it was
# before, which is also their default. Hashes leave them out while they have it, so that records keep their names.
ADDED: Mapping[str, Any] = {
    "parametrization.inner_gamma": None,
    "data.suffixes": "jpg,jpeg,png",
    "model.num_kv_heads": 0,
    "model.qk_norm": False,
    "model.mlp": "gelu",
    "model.mlp_features": 0,
    "model.experts": 0,
    "model.experts_per_token": 2,
    "optimizer.decay_width_exponent": 0.0,
}

# Fields that hashes have although they are newer than the first records -> the value with which a run is what it was
# before. A config without them has it.
_LACKED_AT_FIRST: Mapping[str, Any] = {"train.accumulate": 1}


def json_text(tree: Json) -> str:
    """Indented JSON with sorted keys; equal trees give equal text."""
    return json.dumps(tree, indent=2, sort_keys=True) + "\n"


def without_execution(tree: Json, path: str = "") -> Json:
    """A config as JSON without the fields of `EXECUTION`."""
    kept = {name: value for name, value in tree.items() if path + name not in EXECUTION}
    return {k: without_execution(v, f"{path}{k}.") if isinstance(v, dict) else v for k, v in kept.items()}


def trained(tree: Json) -> Json:
    """A config as JSON with the fields that a run's hash is of."""
    return _without_added(without_execution(_completed(tree)))


def _completed(tree: Json) -> Json:
    """The config with the fields of `_LACKED_AT_FIRST`, where it has their section."""
    for path, value in _LACKED_AT_FIRST.items():
        section, _, name = path.rpartition(".")
        if isinstance(tree.get(section), dict):
            tree = {**tree, section: {name: value, **tree[section]}}
    return tree


def _without_added(tree: Json, path: str = "") -> Json:
    kept = {name: value for name, value in tree.items() if value != ADDED.get(path + name, _NEVER)}
    return {k: _without_added(v, f"{path}{k}.") if isinstance(v, dict) else v for k, v in kept.items()}


_NEVER = object()  # equals no value


def run_hash(tree: Json) -> str:
    """Twelve hexadecimal digits of SHA-256 over the `trained` fields: equal for equal training."""
    return hashlib.sha256(json_text(trained(tree)).encode()).hexdigest()[:12]


class RunNames:
    """The hashes of the runs of one base config; fast, as a sweep may have 100,000."""

    def __init__(self, base: Json) -> None:
        self._base = base
        self._template = functools.cache(self._make_template)

    def name(self, run: str, point: Json) -> str | None:
        """`run_hash` of the run at ``point``, if a version of this package calls that run ``run``; else ``None``.

        Versions before `EXECUTION` named a run by the hash of its whole config.
        """
        name = self.hash(point)
        return name if run == name or run == self._hash(point, whole=True) else None

    def hash(self, point: Json) -> str | None:
        """`run_hash` of the base config with the fields of ``point``; ``None`` if the base has no place for one."""
        return self._hash(point, whole=False)

    def _hash(self, point: Json, whole: bool) -> str | None:
        paths = tuple(point)
        newer = _newer(paths)  # a hash may leave these out, so their values are a part of the template
        template = self._template(paths, json.dumps({path: point[path] for path in newer}) if newer else "{}", whole)
        if template is None:
            return None
        start, parts = template
        digest = start.copy()
        digest.update("".join([_nested(point[path], depth) + text for path, depth, text in parts]).encode())
        return digest.hexdigest()[:12]

    def _make_template(self, paths: tuple[str, ...], newer: str, whole: bool) -> tuple[Any, list[Any]] | None:
        """SHA-256 of the config's text before the first of ``paths``; then path, depth and the text that follows."""
        tree = copy.deepcopy(self._base)
        for path, value in {**{path: _MARK + path for path in paths}, **json.loads(newer)}.items():
            *sections, name = path.split(".")
            section = tree
            for word in sections:
                section = section.setdefault(word, {})
                if not isinstance(section, dict):
                    return None
            section[name] = value
        first, *rest = re.split(_MARKED, json_text(tree if whole else trained(tree)))
        marked = [json.loads(f'"{path}"') for path in rest[::2]]
        parts = [(path, path.count(".") + 1, text) for path, text in zip(marked, rest[1::2], strict=True)]
        return hashlib.sha256(first.encode()), parts


@functools.cache
def _newer(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are fields of `ADDED`, or in one of its sections."""
    return tuple(path for path in paths if any(path == name or path.startswith(f"{name}.") for name in ADDED))


# A string that is no value of a config, and how JSON writes it before a path.
_MARK = "\x00"
_MARKED = r'"\\u0000((?:[^"\\]|\\.)*)"'


def _nested(value: Any, depth: int) -> str:
    """The JSON text of a value that ``depth`` sections hold."""
    if type(value) in (int, float):  # most values; much faster than json.dumps
        return repr(value)
    return json.dumps(value, indent=2, sort_keys=True).replace("\n", "\n" + depth * "  ")
