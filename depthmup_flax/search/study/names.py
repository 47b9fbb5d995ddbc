"""Names of a Study's values: short ones, such as ``learning_rate``, and dotted fields of the config.

Rooms below speak of fields and flags; `in_python` turns their errors into the names of a Study.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config, field_paths, set_field
from depthmup_flax.rule.parametrization import PRESETS, Parametrization
from depthmup_flax.util.errors import InputError, closest, shown

_SHORT = {"rule": "parametrization.preset", "optimizer": "optimizer.name", "width": "model.width"}
_KWARGS = "optimizer.kwargs."  # of a direction, which may have others than the config lists


def field_of(config: ConfigDict, name: str) -> str:
    """The dotted field that a name means: the field itself, or its last part if no other field has it.

    Raises:
      InputError: no field, or several.
    """
    if not isinstance(name, str):
        raise InputError(f"{name!r} is not a hyperparameter: use a name, such as 'learning_rate'.")
    known = field_paths(config)
    if name in known or (name.startswith(_KWARGS) and name != _KWARGS):
        return name
    if name in _SHORT:
        return _SHORT[name]
    fields = [path for path in known if path.rpartition(".")[2] == name]
    if not fields:
        near = closest(name, [*(path.rpartition(".")[2] for path in known), *_SHORT, *known])
        use = f"use hyper={{{name!r}: VALUE}} for what a dm.Task reads, or a field that depthmup config shows."
        raise InputError(f"{name} is not a hyperparameter of this study: {f'did you mean {near!r}?' if near else use}")
    if len(fields) > 1:
        raise InputError(f"{name} may be {' or '.join(fields)}: write the whole name, **{{{fields[0]!r}: VALUE}}.")
    return fields[0]


# Fields that a Study has under other names than their last part.
_ARGUMENTS = {path: name for name, path in _SHORT.items()} | {"model.name": "build", "data.name": "data"}
_SESSION = re.compile(r"'?(?:python:)?session:([^@\s']+)@[0-9a-f]{8}'?")  # of `depthmup_flax.networks.named.register`


def in_python(sentence: str, config: ConfigDict) -> str:
    """An error sentence with the arguments that the user of a Study typed, in place of fields and flags.

    ``config.grids.proxy.optimizer.learning_rate has '1e-3'`` becomes ``learning_rate has '1e-3'``, and ``--overwrite``
    ``overwrite=True``. Fields whose last part other fields have, too, stay whole.
    """
    known = field_paths(config)
    count = collections.Counter(path.rpartition(".")[2] for path in known)
    short = {path: _ARGUMENTS.get(path, name) for path in known if count[name := path.rpartition(".")[2]] == 1}
    short = {path: name for path, name in short.items() if not path.startswith("hyper.")}
    short |= {path: name for path, name in _ARGUMENTS.items() if path in known}
    paths = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    field = re.compile(rf"(?<![\w.'/])(?:--)?(?:config\.)?(?:grids\.\w+\.|base\.)?({paths})(?![\w.]*\w)")
    sentence = re.sub(r"\bdata\.name is 'python:session:[^']*': ", "data: ", sentence)
    sentence = _SESSION.sub(lambda match: match[1], sentence)
    sentence = field.sub(lambda match: short.get(match[1], match[1]), sentence)
    sentence = re.sub(r"--config\.(?:\w+\.)*(\w+)", r"\1", sentence).replace("config.extend", "extend")
    return re.sub(r"(?<![\w-])--(\w+)", r"\1", sentence.replace("--overwrite", "overwrite=True"))


def set_values(config: ConfigDict, values: Mapping[str, Any]) -> None:
    """Sets the fields that names of `field_of` mean; `InputError` for a value of another type."""
    for name, value in values.items():
        path = field_of(config, name)
        value = value.item() if hasattr(value, "item") else value  # NumPy's and JAX's numbers
        if path.startswith(_KWARGS) and path.removeprefix(_KWARGS) not in config.optimizer.kwargs:
            with config.unlocked():
                config.optimizer.kwargs[path.removeprefix(_KWARGS)] = value
        else:
            set_field(config, path, tuple(value) if isinstance(value, list) else value)


def rule_section(rule: str | Parametrization) -> dict[str, Any]:
    """The fields of ``config.parametrization`` for a preset, or for any rule, by the preset that is closest to it."""
    if isinstance(rule, str):
        return {"preset": rule}
    if not isinstance(rule, Parametrization):
        raise InputError(
            f"rule is {shown(rule)}: use the name of a preset, such as 'depth_mup', or a dm.Parametrization."
        )
    settable = [name for name in default_config().parametrization if name != "preset"]
    changes = {
        preset: {name: getattr(rule, name) for name in settable if getattr(rule, name) != getattr(known, name)}
        for preset, known in PRESETS.items()
    }
    same = [preset for preset, known in PRESETS.items() if known.replace(**changes[preset]) == rule]
    if not same:
        others = ", ".join(
            f.name for f in dataclasses.fields(rule) if f.name not in settable and getattr(rule, f.name) != f.default
        )
        raise InputError(f"rule has {others}, which no preset has: use dm.get_parametrization(PRESET, ...).")
    preset = min(same, key=lambda preset: len(changes[preset]))
    return {"preset": preset, **changes[preset]}
