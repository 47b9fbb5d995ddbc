"""A rule's factors for the parameters of one model, as a table that any framework reads with ``json``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from depthmup_flax.frameworks.group_factors import group_factors
from depthmup_flax.rule import info_trees
from depthmup_flax.rule.parametrization import PRESETS, Parametrization, ParamInfo, require_parametrization
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import InfoTree

FORMAT = "depthmup rule table"
VERSION = 1


def export(info: InfoTree, rule: Parametrization = PRESETS["depth_mup"]) -> dict[str, Any]:
    """The factors of each parameter relative to the base model, for ``json.dump``.

    Args:
      info: an audit, or its ``info``.
      rule: the parametrization.

    Returns:
      ``format``, ``version``; ``rule``: its numbers, and ``presets``: its names; ``parameters``: how many there are;
      ``digest``, ``base_digest``: `shapes_digest` of the model and of its base, which a reader compares with its own;
      ``rows``: each with

      * ``pattern``: a regular expression for whole names, ``matches``: how many. Each parameter has one row;
      * ``role``, ``width_in``, ``width_out``, ``depth_ratio``: what it is, and its ratios to the base model;
      * ``init_ratio``: initial standard deviation over the base model's; ``null``: the initializer's own, and so it is
        of what starts constant. ``carried`` multiplies the result, to which ``shift`` is added;
      * ``adam``, ``sgd``: multipliers ``rate`` of the learning rate, ``decay`` of a weight decay that the rate
        multiplies (0: none), and Adam's ``epsilon`` (`depthmup_flax.frameworks.group_factors`). Without ``sgd``, the
        rule is not for it.

    Raises:
      InputError: optimizers refuse the info under this rule; or parts of a parameter have different factors.
    """
    require_parametrization(rule)
    infos = info_trees.flatten_info(info)
    by_optimizer = {"adam": group_factors(info, rule, "adam")}
    if not rule.normalized_updates_only:
        by_optimizer["sgd"] = group_factors(info, rule, "sgd")
    values: dict[str, dict[str, Any]] = {}
    for name, leaf in infos.items():
        values[name] = _values(leaf, rule)
        for optimizer, factors in by_optimizer.items():
            own = factors[name]
            values[name][optimizer] = {"rate": own.rate, "decay": own.decay}
            if optimizer == "adam":
                values[name][optimizer]["epsilon"] = own.epsilon
    record = info_trees.audit_of(info)
    base = record.base if record is not None else {}
    return {
        "format": FORMAT,
        "version": VERSION,
        "rule": {name: float(value) for name, value in rule.numbers().items()},
        "presets": [name for name, preset in PRESETS.items() if preset == rule],
        "parameters": len(infos),
        "digest": shapes_digest({name: leaf.shape for name, leaf in infos.items()}),
        "base_digest": shapes_digest(base) if base else None,
        "rows": _rows(values),
    }


def shapes_digest(shapes: Mapping[str, Iterable[int]]) -> str:
    """SHA-256 of one line for each parameter, sorted: its name, a space, its shape as ``128x512``."""
    lines = sorted(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _values(info: ParamInfo, rule: Parametrization) -> dict[str, Any]:
    """A row without names and optimizers."""
    carried = float(info.factor(rule))
    return {
        "role": info.role_name,
        "width_in": info.width_in,
        "width_out": info.width_out,
        "depth_ratio": info.depth_ratio,
        "init_ratio": rule.init_ratio(info),
        "carried": carried,
        "shift": info.offset * (carried - 1) if info.offset else 0.0,
    }


def _rows(values: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for equal layers with equal values."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, row in values.items():
        groups.setdefault((info_trees.template(name), repr(row)), []).append(name)
    templates = [template for template, _ in groups]
    rows = []
    for (template, _), names in groups.items():
        is_whole = templates.count(template) == 1
        pattern = _pattern(names[0]) if is_whole else _alternatives(names)
        rows.append({"pattern": pattern, "matches": len(names), **values[names[0]]})
    _require_one_row_each(rows, values)
    return rows


def _pattern(name: str) -> str:
    """Of a name with any numbers."""
    return "^" + "[0-9]+".join(map(re.escape, re.split(r"\d+", name))) + "$"


def _alternatives(names: Iterable[str]) -> str:
    """Of these names alone."""
    return "^(" + "|".join(map(re.escape, names)) + ")$"


def _require_one_row_each(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> None:
    patterns = [re.compile(row["pattern"]) for row in rows]
    for name in names:
        count = sum(pattern.match(name) is not None for pattern in patterns)
        if count != 1:
            raise InputError(f"parameter {name!r} has {count} rows in the table: rename it, it must have one.")
