"""The hash of a run's config, by which records, results and resumed sweeps recognize the run.

It covers every field but `execution_fields`, and those of `LATER` that do as earlier runs did. A field that is
removed or renamed gives all runs other hashes: ``python -m reproduction.migrate DIRECTORY`` brings earlier records to
today's fields and names.
"""

from __future__ import annotations

import hashlib
import json

from depthmup_flax.util.errors import without_token
from depthmup_flax.util.types import Json

# In a stored config: module of the user -> digest; setting of JAX -> value that is not the usual one.
SOURCE, SETTINGS = "source", "jax"
# Fields that do not change what is trained: a run may be resumed with other values. Those of our models may be
# anything in a network of the user's.
_OF_MODELS = ("model.scan", "model.remat", "model.attention")
EXECUTION: tuple[str, ...] = (SOURCE, "mesh", "data.data_dir", "data.placement")
EXECUTION += ("train.eval_every", "train.eval_batch_size", "train.log_every", "train.reference", "train.writers")
EXECUTION += ("train.checkpoint", "train.checkpoint_every", "train.keep_checkpoints", "train.compare_replicas")
EXECUTION += ("train.same_code", "train.stop_off_course")

# Field that came later -> the value that means what runs did before; with it, their hashes stay.
LATER = {
    "optimizer.final_fraction": 0.0,
    "optimizer.decay_fraction": 0.2,
    "optimizer.decay_shape": "linear",
    "train.ema_decay": 0.0,
    "train.record_course": False,
    "label_smoothing": 0.0,
    "data.ignore_label": None,
}


def execution_of_model(tree: Json) -> tuple[str, ...]:
    """The fields of a config's network that do not change what it computes; a user's is named by an import path."""
    return () if ":" in tree.get("model", {}).get("name", "") else _OF_MODELS


def execution_fields(tree: Json) -> tuple[str, ...]:
    """The fields of a config that do not change what it trains."""
    return EXECUTION + execution_of_model(tree)


def json_text(tree: Json) -> str:
    """Indented JSON with sorted keys; equal trees give equal text."""
    return json.dumps(tree, indent=2, sort_keys=True) + "\n"


def without_execution(tree: Json) -> Json:
    """A config as JSON without `execution_fields`, and without those of `LATER` at their values: what a hash covers."""
    return _without(tree, execution_fields(tree), "")


def _without(tree: Json, execution: tuple[str, ...], path: str) -> Json:
    skipped = lambda name, value: name in execution or (name in LATER and LATER[name] == value)
    kept = {name: value for name, value in tree.items() if not skipped(path + name, value)}
    named = lambda value: without_token(value) if isinstance(value, str) else value
    return {k: _without(v, execution, f"{path}{k}.") if isinstance(v, dict) else named(v) for k, v in kept.items()}


def run_differences(stored: Json, current: Json, path: str = "") -> list[str]:
    """What makes two stored configs different runs: fields, and settings of JAX."""
    before, now = without_execution({SETTINGS: {}} | stored), without_execution({SETTINGS: {}} | current)
    return differences(before, now, path)


def changed_code(stored: Json, current: Json) -> list[str]:
    """A sentence about the user's modules that both of two stored configs know and that differ; none if all agree.

    None either if the current one says ``train.same_code``. Digests of an earlier version of this package, which have
    another form, are not compared.
    """
    if current.get("train", {}).get("same_code"):
        return []
    before, now = stored.get(SOURCE, {}), current.get(SOURCE, {})
    form = lambda digest: digest.rpartition(":")[0]
    comparable = [name for name in before.keys() & now.keys() if form(before[name]) == form(now[name])]
    changed = sorted(name for name in comparable if before[name] != now[name])
    return [f"the code of {', '.join(changed)} has changed since"] * bool(changed)


def differences(stored: object, current: object, path: str = "") -> list[str]:
    """``train.epochs: 3 there, 5 here`` for every leaf in which two JSON trees differ."""
    if not (isinstance(stored, dict) and isinstance(current, dict)):
        return [] if stored == current else [f"{path}: {stored!r} there, {current!r} here"]
    unset = "(not set)"
    result = []
    for key in sorted(stored.keys() | current.keys()):
        result += differences(stored.get(key, unset), current.get(key, unset), f"{path}.{key}" if path else key)
    return result


def run_hash(tree: Json) -> str:
    """Twelve hexadecimal digits of SHA-256 over `without_execution`: equal for equal training."""
    return hashlib.sha256(json_text(without_execution(tree)).encode()).hexdigest()[:12]


def run_hash_at(base: Json, point: Json) -> str:
    """`run_hash` of a base config with the dotted fields of ``point``."""
    return run_hash(_with(base, point))


def _with(tree: Json, point: Json) -> Json:
    """A copy of ``tree`` with dotted fields."""
    for path, value in point.items():
        name, _, rest = path.partition(".")
        tree = {**tree, name: _with(tree.get(name, {}), {rest: value}) if rest else value}
    return tree
