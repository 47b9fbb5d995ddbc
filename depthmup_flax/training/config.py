"""The configuration tree: every field with its default, in one place; and the checks that need no model.

A config file is Python: ``get_config()`` returns `default_config` with some fields changed. Sections pass straight to
what they configure, so their reference is there: ``parametrization`` to `Parametrization`, ``model`` to the model's
class, ``data`` to `depthmup_flax.data`, ``optimizer.kwargs`` to optax.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from depthmup_flax.data import DATA_DEFAULTS
from depthmup_flax.errors import InputError, did_you_mean
from depthmup_flax.models import MODELS, model_fields
from depthmup_flax.rule.parametrization import Parametrization, get_parametrization

# Fields that keep the preset's value unless set.
_RULE_FIELDS: Mapping[str, type] = {
    "alpha": float,
    "gamma": float,
    "width": str,
    "gamma0": float,
    "branch_multiplier": float,
    "input_lr_factor": float,
    "hidden_lr_factor": float,
    "output_lr_factor": float,
    "vector_lr_factor": float,
    "fixed_lr_factor": float,
}

# How a run is computed, watched and saved, but not what is trained: a run may go on with other values of these.
EXECUTION = (
    "mesh",
    "model.scan",
    "model.remat",
    "data.data_dir",
    "data.placement",
    "data.device_limit_mib",
    "data.read_threads",
    "train.eval_every",
    "train.eval_batch_size",
    "train.log_every",
    "train.checkpoint",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.stall_timeout_s",
)


def default_config(model: str = "res_mlp") -> ConfigDict:
    """The whole tree for a model of `depthmup_flax.models.MODELS`, with every field that a command line can set."""
    return ConfigDict(
        {
            "seed": 0,  # initial weights, data order, augmentation, dropout, and the sample of a language model
            "parametrization": {"preset": "depth_mup", **{k: placeholder(t) for k, t in _RULE_FIELDS.items()}},
            "model": {"name": model, **model_fields(model), "dtype": "float32"},
            "data": dict(DATA_DEFAULTS),
            "optimizer": {
                "name": "adam",  # sgd, momentum, adam, adamw, or any optax direction: lion, rmsprop, ...
                "learning_rate": 1e-3,  # eta, at the base model and at every size
                "schedule": "constant",  # after the warm-up: constant, or cosine to zero at the last step
                "warmup_steps": 0,  # linear from 0
                "weight_decay": 0.0,  # decoupled: a step removes eta(t) * this from a matrix, at every size
                "clip_rms": 0.0,  # largest root mean square of the scaled gradients; 0 is off
                "frozen": (),  # globs of parameter paths that stay at their initial values: ("stem", "readout")
                # To optax as they are, those that are set; a config file may add others that the optimizer takes.
                "kwargs": {
                    "momentum": placeholder(float),
                    "nesterov": placeholder(bool),
                    "b1": placeholder(float),
                    "b2": placeholder(float),
                    "eps": placeholder(float),
                },
            },
            # Devices along each axis; one may be -1, all that are left (`depthmup_flax.parallel.sharding`).
            "mesh": {
                "data": -1,  # copies of the parameters, each with a part of the batch
                "fsdp": 1,  # parts of the batch, of the parameters and of the optimizer's state
                "tensor": 1,  # parts of the features inside layers
            },
            "train": {
                "batch_size": 64,
                "accumulate": 1,  # parts of a batch whose gradients are computed one after another, for less memory
                "epochs": 20.0,
                "steps": 0,  # instead of epochs, if above 0
                "average_steps": 0,  # train_loss_avg is over this many last steps; 0 is the last epoch
                "eval_batch_size": 500,
                "eval_every": 0,  # steps between evaluations, each with a checkpoint; 0 is an epoch
                "log_every": 50,  # steps between lines of metrics
                "checkpoint": True,
                "checkpoint_every": 0,  # steps between checkpoints besides those of evaluations; 0 is none
                "keep_checkpoints": 2,  # the latest; the one with the best test accuracy is kept as well
                "stall_timeout_s": 600.0,  # streamed data: a batch that takes longer ends the run
            },
        }
    )


def validate(config: ConfigDict) -> None:
    """Checks names, types and ranges of everything that needs neither data nor a model.

    Raises:
      InputError: one sentence naming the field, its value and the remedy.
    """
    if "grids" in config:
        raise InputError("this config is a sweep's: run it with python -m depthmup_flax.sweep.")
    model_name = config.get("model", {}).get("name", "res_mlp")
    _require_known(config, default_config(model_name), "")
    if not isinstance(config.seed, int) or not 0 <= config.seed < 2**31:
        raise InputError(f"seed is {config.seed!r}: use a whole number from 0 to 2^31 - 1.")
    train, optimizer = config.train, config.optimizer
    for name in ("batch_size", "accumulate", "eval_batch_size", "log_every", "keep_checkpoints"):
        _require(f"train.{name}", train[name], whole=True, at_least=1)
    for name in ("steps", "average_steps", "eval_every", "checkpoint_every"):
        _require(f"train.{name}", train[name], whole=True, at_least=0)
    _require("train.epochs", train.epochs, at_least=0)
    _require("train.stall_timeout_s", train.stall_timeout_s, at_least=0.1)
    if not train.steps and not train.epochs:
        raise InputError("train.epochs and train.steps are both 0: set one of them.")
    _require("optimizer.learning_rate", optimizer.learning_rate, at_least=0)
    _require("optimizer.weight_decay", optimizer.weight_decay, at_least=0)
    _require("optimizer.clip_rms", optimizer.clip_rms, at_least=0)
    _require("optimizer.warmup_steps", optimizer.warmup_steps, whole=True, at_least=0)
    if optimizer.schedule not in ("constant", "cosine"):
        raise InputError(f"optimizer.schedule is {optimizer.schedule!r}: use 'constant' or 'cosine'.")
    make_parametrization(config)


def make_parametrization(config: ConfigDict) -> Parametrization:
    """The rule that ``config.parametrization`` describes: a preset with the fields that are set."""
    fields = config.parametrization.to_dict()
    preset = fields.pop("preset")
    return get_parametrization(preset, **{k: v for k, v in fields.items() if v is not None})


def optimizer_kwargs(config: ConfigDict) -> dict[str, Any]:
    """What ``config.optimizer.kwargs`` sets."""
    return {k: v for k, v in config.optimizer.kwargs.to_dict().items() if v is not None}


def from_file(path: str | pathlib.Path, *arguments: Any) -> ConfigDict:
    """What ``get_config(*arguments)`` of another config file returns, for a config that is derived from it.

    A config names its parent by ``pathlib.Path(__file__).with_name("parent.py")``.
    """
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    if spec is None or spec.loader is None or not pathlib.Path(path).is_file():
        raise InputError(f"config file {str(path)!r} cannot be read: name a Python file with get_config().")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(*arguments)


def listed(differences: Sequence[str], most: int = 5) -> str:
    """The first few of `differences`, for a sentence."""
    more = len(differences) - most
    return "; ".join(differences[:most]) + (f"; and {more} more" if more > 0 else "")


def field_paths(config: ConfigDict, prefix: str = "") -> list[str]:
    """Dotted names of all fields that are not sections: ``optimizer.learning_rate``."""
    paths: list[str] = []
    for name, value in config.items():
        paths += field_paths(value, f"{prefix}{name}.") if isinstance(value, ConfigDict) else [prefix + name]
    return paths


def get_field(config: ConfigDict, path: str) -> Any:
    """The value of a dotted field; ``None`` for one that is not set."""
    for name in path.split("."):
        config = config[name]
    return config


def set_field(config: ConfigDict, path: str, value: Any) -> None:
    """Sets a dotted field in place.

    Raises:
      InputError: there is no such field, or it is of another type.
    """
    *sections, name = path.split(".")
    try:
        for section in sections:
            config = config[section]
        config[name] = value
    except KeyError as error:
        raise InputError(f"config has no field {path!r}: {did_you_mean(name, config)}") from error
    except TypeError as error:
        raise InputError(f"{path} cannot be {value!r}: its type is that of {config[name]!r}.") from error


def to_json(config: ConfigDict) -> str:
    """The resolved config as indented JSON with sorted keys; the same text for equal configs."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def config_hash(config: ConfigDict) -> str:
    """Twelve hexadecimal digits of SHA-256 over everything but `EXECUTION`; the same for runs that train the same."""
    text = json.dumps(_without_execution(config.to_dict()), indent=2, sort_keys=True) + "\n"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run_differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """`differences` of two configs as JSON, but for `EXECUTION`: none if one run can go on as the other.

    A field that ``stored`` lacks was added since, and stands for its default.
    """
    name = stored.get("model", {}).get("name")
    defaults = json.loads(to_json(default_config(name))) if name in MODELS else {}
    return differences(_without_execution(_filled(stored, defaults)), _without_execution(current))


def _filled(tree: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    filled = {**defaults, **tree}
    for name, value in filled.items():
        if isinstance(value, Mapping) and isinstance(defaults.get(name), Mapping):
            filled[name] = _filled(value, defaults[name])
    return filled


def _without_execution(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    kept = {name: value for name, value in tree.items() if path + name not in EXECUTION}
    return {k: _without_execution(v, f"{path}{k}.") if isinstance(v, Mapping) else v for k, v in kept.items()}


def differences(stored: Any, current: Any, path: str = "") -> list[str]:
    """``train.epochs: 3 there, 5 here`` for every leaf in which two JSON trees differ."""
    if not (isinstance(stored, dict) and isinstance(current, dict)):
        return [] if stored == current else [f"{path}: {stored!r} there, {current!r} here"]
    missing = "(not set)"
    found = []
    for key in sorted(stored.keys() | current.keys()):
        where = f"{path}.{key}" if path else key
        found += differences(stored.get(key, missing), current.get(key, missing), where)
    return found


def _require_known(config: Any, known: Any, path: str) -> None:
    """Every field of ``config`` must be one of the defaults and the other way round; ``kwargs`` is optax's own."""
    for name in config:
        where = f"{path}{name}"
        if name not in known:
            raise InputError(f"config has no field {where!r}: {did_you_mean(name, known)}")
        if isinstance(known[name], ConfigDict) and name != "kwargs":
            if not isinstance(config[name], ConfigDict):
                raise InputError(f"config.{where} is {config[name]!r}: it is a section; set its fields.")
            _require_known(config[name], known[name], f"{where}.")
    for name in known:
        if name not in config:
            raise InputError(
                f"config lacks the field '{path}{name}': start from depthmup_flax.training.config.default_config()."
            )


def _require(name: str, value: Any, *, at_least: float, whole: bool = False) -> None:
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not at_least <= value < float("inf"):
        kind = "a whole number" if whole else "a number"
        raise InputError(f"{name} is {value!r}: use {kind} of at least {at_least:g}.")
