"""The parts of a config that name the user's own code."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import placeholder

from depthmup_flax.models import MODELS, model_fields
from depthmup_flax.networks import fields as user_fields
from depthmup_flax.networks.named import digests, is_import_path, resolve
from depthmup_flax.util.errors import InputError, did_you_mean

# Before the colon of `config.data.name`.
PYTHON = "python:"
_SIZES = {"width": 64, "depth": 4, "base_width": 0, "base_depth": 0}
_PLAIN = (bool, int, float, str)


def model_section(name: str) -> dict[str, Any]:
    """The fields of ``config.model`` besides the name, with their defaults; of a user's model, those that it takes."""
    if not is_import_path(name):
        if name not in MODELS:
            meant = did_you_mean(name, MODELS)
            raise InputError(f"model.name is {name!r}: {meant} Your own has an import path, my_package.net:Net.")
        scan = FieldReference("auto", field_type=object)  # or a bool
        return {**model_fields(name), "scan": scan, "dtype": "float32"}
    own = user_fields.model_fields(resolve(name, "model.name"))
    for taken in ("name", "audit", "audited_output", "rescale_init"):
        if taken in own:
            raise InputError(f"model.name is {name!r}: it takes {taken!r}, a field that every model has. Rename it.")
    for size in ("width", "depth"):
        if size not in own:
            raise InputError(
                f"model.name is {name!r}: it takes no {size!r}. Name a function build(width, depth, ...) that returns "
                "the model."
            )
    given = {field: _default(value) for field, value in own.items() if _is_settable(value)}
    sizes = {size: value for size, value in _SIZES.items() if size not in given or _is_unset(given[size])}
    return {
        **given,
        **sizes,
        "audit": True,  # refuse to train if the audit finds that multipliers are missing
        "audited_output": placeholder(object),  # of several outputs, the one that the audit reads: an index or a key
        "rescale_init": True,  # give initial values the rule's standard deviations, as dm.rescale_init does
    }


def _is_unset(value: Any) -> bool:
    return isinstance(value, FieldReference) and value.get() is None


def _is_settable(default: Any) -> bool:
    """Whether a config can hold a default; functions, types and arrays stay as the code has them."""
    if default is user_fields.MISSING or default is None or isinstance(default, _PLAIN):
        return True
    return isinstance(default, (tuple, list)) and all(isinstance(item, _PLAIN) for item in default)


def _default(value: Any) -> Any:
    if value is user_fields.MISSING or value is None:
        return placeholder(object)
    return tuple(value) if isinstance(value, list) else value


def require_set(config: ConfigDict) -> None:
    """Raises `InputError` for a field of the user's model that has neither a default nor a value."""
    name = config.model.name
    if not is_import_path(name):
        return
    for field, default in user_fields.model_fields(resolve(name, "model.name")).items():
        if default is user_fields.MISSING and config.model.get(field) is None:
            raise InputError(
                f"model.{field} is not set: {name} has no default for it. Set it, --config.model.{field}=VALUE."
            )


def code_of(config: ConfigDict) -> dict[str, str]:
    """Module, or object of the process, -> digest of the user's code that a config names; empty for our own parts."""
    if "model" not in config:  # of a figure of theory
        return {}
    named = [config.model.name, config.get("loss", ""), config.data.name.removeprefix(PYTHON)]
    own = [name for name in named[:2] if is_import_path(name)]
    if config.data.name.startswith(PYTHON):
        own.append(named[2])
    return digests(own)
