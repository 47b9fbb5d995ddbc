"""The config tree: fields with defaults, the checks that need no model, and comparison of configs.

A config file is Python: ``get_config()`` returns `default_config` with some fields changed. ``depthmup config`` shows
the comments of the fields below, of `Parametrization`, ``DataConfig`` and the models.

A new field changes the hash of every run, unless `storage.run_hash` lists it; one that a compiled program
takes as a number stands in `storage.sweep_records.CONTINUOUS`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import placeholder

from depthmup_flax.data import DATA_DEFAULTS
from depthmup_flax.models import MODELS, model_fields
from depthmup_flax.networks import user_code
from depthmup_flax.networks.import_paths import is_import_path, project_code, resolve
from depthmup_flax.rule.parametrization import Parametrization, get_parametrization
from depthmup_flax.storage.provenance import unusual_settings
from depthmup_flax.storage.run_hash import SETTINGS, SOURCE, json_text, run_hash
from depthmup_flax.util.errors import InputError, closest, did_you_mean, require_number, shown
from depthmup_flax.util.types import Json

# Fields of `Parametrization`; by default they have the preset's value.
_LR_FACTORS = ("input_lr_factor", "hidden_lr_factor", "output_lr_factor", "vector_lr_factor", "fixed_lr_factor")
MATMUL_PRECISIONS = ("highest", "tensorfloat32", "bfloat16")  # names of `jax.default_matmul_precision`
# Type of a field -> what to use, and an example.
TYPES: dict[type, tuple[str, str]] = {
    bool: ("True or False", "True"),
    int: ("a whole number", "8"),
    float: ("a number", "0.5"),
    str: ("a name", "name"),
    tuple: ("a tuple", "('a', 'b')"),
}
PYTHON = "python:"  # before the colon of `config.data.name`
_SIZES = {"width": 64, "depth": 4, "base_width": 0, "base_depth": 0}
_PLAIN = (bool, int, float, str)
WRITERS = ("jsonl", "tensorboard", "wandb")
_NUMBERS = ("alpha", "gamma", "inner_gamma", "gamma0", "branch_multiplier", *_LR_FACTORS)
_RULE_FIELDS = {"width": str, **dict.fromkeys(_NUMBERS, float)}


class Config(ConfigDict):
    """A `ConfigDict` that takes numbers of NumPy and JAX, and 1e3 for a whole number; `InputError` for another type."""

    def __init__(self, fields: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(**options)
        for name, value in (fields or {}).items():
            self[name] = Config(value) if isinstance(value, dict) else value

    def __setitem__(self, name: str, value: Any) -> None:
        kind = self.get_type(name) if name in self else object
        is_array = hasattr(value, "tolist") and not isinstance(value, jax.core.Tracer)  # of a lane, being traced
        plain = value.tolist() if is_array else value
        exact = kind is int and isinstance(plain, float) and plain.is_integer()
        try:
            super().__setitem__(name, int(plain) if exact else plain)
        except TypeError as error:
            raise InputError(f"{name} is {shown(value)}: use {TYPES.get(kind, ('a section',))[0]}.") from error


def default_config(model: str = "res_mlp") -> ConfigDict:
    """The config of a model, with every field that a command line can set.

    ``model`` is a name of `depthmup_flax.models.MODELS`, or the import path of your own class or function, such as
    ``my_package.net:Net``: what it takes are the fields of ``config.model``.
    """
    return Config(
        {
            "seed": 0,  # of initial weights, data order, augmentation, dropout and a language model's sample
            # The rule: a preset, in which single fields may be replaced.
            "parametrization": {
                "preset": "depth_mup",  # depth_mup, completep, mup, sp, ...: docs/parametrizations.md
                **{name: placeholder(kind) for name, kind in _RULE_FIELDS.items()},
            },
            # The network: the sizes, those of its base model, and the fields of its class.
            "model": {
                "name": model,  # the model's class: res_mlp, simple_resnet, resnet, vit, gpt; or my_package.net:Net
                **model_section(model),
            },
            # cross_entropy, squared_error, or my_package.losses:name, called with outputs and targets; gives a scalar.
            "loss": "cross_entropy",
            "label_smoothing": 0.0,  # cross_entropy: the share of a label that is spread over all classes in training
            # Numbers that a training step of your own reads; a config file or the command line adds them.
            "hyper": {},
            # The examples, and how they are read.
            "data": {**DATA_DEFAULTS, "ignore_label": placeholder(int)},
            # The optax direction, its learning rate and weight decay.
            "optimizer": {
                # sgd, momentum, adam, adamw, lion, ... of optax; muon, adamh, muonh; or my_package.optimizers:mine
                "name": "adam",
                "learning_rate": 1e-3,  # eta; the same at the base model and at every size
                "schedule": "constant",  # then: constant, cosine, linear, wsd, rsqrt; or my_package.schedules:name
                "warmup_steps": 0,  # steps in which the rate rises linearly from 0
                "final_fraction": 0.0,  # cosine, linear, wsd: of the rate, after the last step
                "decay_fraction": 0.2,  # wsd: of the steps, those at the end in which the rate falls; after the warm-up
                "decay_shape": "linear",  # wsd: linear, cosine, or sqrt, which is 1 - sqrt(part of the decay)
                "weight_decay": 0.0,  # decoupled: a step removes eta(t) * this from a matrix, at every size
                "decay_width_exponent": 0.0,  # of hidden matrices: decay is times their width ratio to this power
                "clip_rms": 0.0,  # largest root mean square of the scaled gradients; 0: no clipping
                "frozen": (),  # globs of parameter paths that keep their initial values: ("stem", "readout")
                # Arguments of the optax direction, by default optax's. A config file may add others.
                "kwargs": {
                    "nesterov": placeholder(bool),  # sgd, momentum, adam, adamw, muon: Nesterov's momentum
                    "momentum": placeholder(float),  # momentum: decay of the average of gradients
                    "b1": placeholder(float),  # adam and the like: decay of the average of gradients
                    "b2": placeholder(float),  # adam and the like: decay of the average of squared gradients
                    "eps": placeholder(float),  # adam and the like: added to the denominator
                },
            },
            # Devices along each axis; one may be -1, all the others (`depthmup_flax.devices.sharding`).
            "mesh": {
                "data": -1,  # copies of the parameters, each with a part of the batch
                "fsdp": 1,  # parts of the batch, the parameters and the optimizer state
            },
            # Length of the training, evaluations, checkpoints.
            "train": {
                "batch_size": 64,  # examples of a step, on all devices together
                "accumulate": 1,  # parts of a batch, one after another, for less memory; BatchNorm sees each alone
                "epochs": 20.0,  # passes over the training examples; may be a fraction
                "steps": 0,  # steps of training; if above 0, replaces epochs
                "ema_decay": 0.0,  # of an exponential average of the parameters, evaluated, too, as ema_loss; 0: none
                "average_steps": 0,  # train_loss_avg is the mean over this many last steps; 0: the last epoch
                "eval_batch_size": 500,  # examples evaluated at a time
                "eval_every": 0,  # steps between evaluations, each with a checkpoint; 0: an epoch
                "matmul_precision": "",  # of float32 products: "", in full in our networks; tensorfloat32, bfloat16
                "log_every": 50,  # steps between rows of metrics
                "record_course": False,  # measures updates, gradients and parameters by role in the first third
                "reference": "",  # with record_course, the proxy's workdir: warns where this run is off its course
                "stop_off_course": False,  # with reference: ends the run there, with an error, after a checkpoint
                "writers": ("jsonl", "tensorboard"),  # of metrics: jsonl, which is needed, tensorboard, wandb
                "checkpoint": True,  # save at evaluations and when preempted, so that the run can be resumed
                "checkpoint_every": 0,  # steps between further checkpoints; 0: none
                "keep_checkpoints": 2,  # how many of the latest
                "compare_replicas": True,  # the run stops if copies of an array on several devices differ at a save
                "same_code": False,  # resume although code, or batches of a stream, have changed: you know best
            },
        }
    )


def model_section(name: str) -> dict[str, Any]:
    """The fields of ``config.model`` besides the name, with their defaults; of a user's model, those that it takes."""
    if not is_import_path(name):
        if name not in MODELS:
            meant = did_you_mean(name, MODELS)
            raise InputError(f"model.name is {name!r}: {meant} Your own has an import path, my_package.net:Net.")
        scan = FieldReference("auto", field_type=object)  # or a bool or a number
        return {**model_fields(name), "scan": scan, "dtype": "float32"}
    own = user_code.model_fields(resolve(name, "model.name"))
    for taken in ("name", "audit", "audited_output", "rescale_init"):
        if taken in own:
            raise InputError(f"model.name is {name!r}: it takes {taken!r}, a field that every model has. Rename it.")
    for size in ("width", "depth"):
        if size not in own:
            raise InputError(f"model.name is {name!r}: it takes no {size!r}. Name a function build(width, depth, ...).")
    unset = lambda default: default is None or default is user_code.MISSING
    plain = lambda default: unset(default) or isinstance(default, _PLAIN)  # code keeps functions, types and arrays
    given = {
        field: tuple(default) if isinstance(default, list) else default
        for field, default in own.items()
        if plain(default) or (isinstance(default, (tuple, list)) and all(map(plain, default)))
    }
    return {
        **{field: placeholder(object) if unset(default) else default for field, default in given.items()},
        **{size: value for size, value in _SIZES.items() if unset(given.get(size))},
        "audit": True,  # refuse to train if the audit finds that multipliers are missing
        "audited_output": placeholder(object),  # of several outputs, the one that the audit reads: an index or a key
        "rescale_init": True,  # give initial values the rule's standard deviations, as dm.rescale_init does
    }


_default_of_ours = functools.cache(default_config)  # to be read: a sweep validates 100,000 configs

_COUNTS = ("batch_size", "accumulate", "eval_batch_size", "log_every", "keep_checkpoints")
_PERIODS = ("steps", "average_steps", "eval_every", "checkpoint_every")
_WHOLE = {"below": 2**31, "whole": True}
# Fields, and the numbers that they take, as arguments of `require_number`.
_RANGES: Sequence[tuple[Sequence[str], Mapping[str, Any]]] = (
    # A model refuses 0 itself, and says of which runs of a sweep.
    (["seed", *(f"model.{size}" for size in _SIZES)], {"least": 0, **_WHOLE}),
    ([f"train.{name}" for name in _COUNTS], {"least": 1, **_WHOLE}),
    (["optimizer.warmup_steps", *(f"train.{name}" for name in _PERIODS)], {"least": 0, **_WHOLE}),
    (("train.epochs", "optimizer.weight_decay", "optimizer.clip_rms"), {"least": 0}),
    (("train.ema_decay", "label_smoothing"), {"least": 0, "below": 1}),
    (("optimizer.learning_rate",), {"above": 0}),
)


def require_command(config: ConfigDict, command: str) -> None:
    """Raises `InputError` unless a config is one that this command takes: train, for a single run, or sweep."""
    own = "sweep" if "grids" in config else "train"
    if own != command:
        of = {"sweep": "a sweep's", "train": "a run's"}[own]
        raise InputError(f"this config is {of}: run it with depthmup {own}. depthmup config lists configs by command.")


def validate(config: ConfigDict) -> None:
    """Checks what needs neither data nor model; they and `trainer.engine` check the rest. Raises `InputError`."""
    require_command(config, "train")
    _require_fields(config)
    for paths, limits in _RANGES:
        for path in paths:
            require_number(path, get_field(config, path), **limits)
    _require_train(config.train)
    frozen = config.optimizer.frozen
    if isinstance(frozen, str) or not all(isinstance(pattern, str) for pattern in frozen):
        raise InputError(f"optimizer.frozen is {frozen!r}: use a tuple of patterns, such as ('stem', 'readout').")
    if config.label_smoothing and config.loss != "cross_entropy":
        raise InputError(f"label_smoothing is {config.label_smoothing!r}: it is of loss='cross_entropy'. Use 0.")
    if config.data.ignore_label is not None and config.loss != "cross_entropy":
        ignored = config.data.ignore_label
        raise InputError(f"data.ignore_label is {ignored}: it is of loss='cross_entropy'. Leave it out, as None.")
    make_parametrization(config)


def _require_fields(config: ConfigDict) -> None:
    """The config has all fields that its model's has, and no others."""
    name = config.get("model", {}).get("name", "res_mlp")
    default = _default_of_ours(name) if name in MODELS else default_config(name)
    given, known = map(field_paths, (config, default))
    for path in given:
        if path not in known and not path.startswith(_OPEN):
            raise InputError(unknown_field(default, path))
    for path in known:
        if path not in given and not path.startswith(_OPEN):
            raise InputError(f"config lacks {path!r}: start from depthmup_flax.config.default_config().")
    own = user_code.model_fields(resolve(name, "model.name")) if is_import_path(name) else {}
    for field, default in own.items():
        if default is user_code.MISSING and config.model.get(field) is None:
            raise InputError(f"model.{field} is not set: {name} has no default for it. Set it.")


def _require_train(train: ConfigDict) -> None:
    """Fields of ``config.train`` that are no plain numbers, or go together."""
    if not train.steps and not train.epochs:
        raise InputError("train.epochs and train.steps are both 0: set one of them.")
    if train.matmul_precision not in ("", *MATMUL_PRECISIONS):
        raise InputError(
            f"train.matmul_precision is {train.matmul_precision!r}: use {', '.join(MATMUL_PRECISIONS)}, or ''."
        )
    if train.reference and not train.record_course:
        raise InputError("train.reference is set, and train.record_course is False: set it to True, to be compared.")
    if not {"jsonl"} <= set(train.writers) <= set(WRITERS):
        raise InputError(f"train.writers is {train.writers!r}: use jsonl, which is needed, tensorboard, wandb.")


_OPEN = ("optimizer.kwargs.", "hyper.")  # sections to which a config file may add fields


def make_parametrization(config: ConfigDict) -> Parametrization:
    """The rule of ``config.parametrization``: its preset, with the fields that are set."""
    fields = config.parametrization.to_dict()
    preset = fields.pop("preset")
    return get_parametrization(preset, **{k: v for k, v in fields.items() if v is not None})


def field_paths(config: ConfigDict) -> list[str]:
    """Dotted names of all fields, such as ``optimizer.learning_rate``."""
    return list(flatten_dict(config.to_dict(), sep="."))


def get_field(config: ConfigDict, path: str) -> Any:
    """The value of a dotted field; ``None`` if it is not set."""
    for name in path.split("."):
        config = config[name]
    return config


def set_field(config: ConfigDict, path: str, value: Any) -> None:
    """Sets a dotted field in place; `InputError` if there is none, or for a value of another type."""
    sections, _, name = path.rpartition(".")
    try:
        section = get_field(config, sections) if sections else config
        section[name]  # KeyError: an assignment could add the field
    except (KeyError, TypeError) as error:
        raise InputError(unknown_field(config, path)) from error
    try:
        section[name] = value
    except InputError as error:
        raise InputError(f"{sections}.{error}" if sections else str(error)) from error


def set_model(config: ConfigDict, name: str) -> None:
    """Replaces ``config.model`` by the section of another model; the sizes keep their values."""
    if name == config.model.name:
        return
    section, before = Config({"name": name, **model_section(name)}), config.model
    for size in ("width", "depth", "base_width", "base_depth"):
        section[size] = before[size]
    with config.unlocked():
        config.model = section


def set_size(config: ConfigDict, width: int, depth: int) -> None:
    """Sets the network's width and depth in place; stages that sum to another depth become the model's own choice."""
    if "stage_sizes" in config.model and depth != config.model.depth:
        config.model.stage_sizes = ()
    config.model.update(width=width, depth=depth)


def closest_field(config: ConfigDict, name: str) -> str | None:
    """The field that ends with ``name``, else the one whose last part is closest; axes of a sweep before its base."""
    known = sorted(field_paths(config), key=lambda path: not path.startswith("grids."))
    ending = [path for path in known if f".{path}".endswith(f".{name}")]
    by_end = {path.rpartition(".")[2]: path for path in reversed(known)}
    return ending[0] if ending else by_end.get(closest(name.rpartition(".")[2], by_end) or "")


def unknown_field(config: ConfigDict, path: str) -> str:
    """The error about a dotted field that ``config`` lacks, with the closest field, or those of the last section."""
    missing = f"config has no field {path!r}"
    if path.startswith("optimizer.kwargs."):
        return f"{missing}: set it in a config file, config.{path} = VALUE, if the optimizer takes it."
    if meant := closest_field(config, path):
        return f"{missing}: did you mean {meant!r}?"
    name, section = "config", config
    for part in path.split(".")[:-1]:
        if part not in section or not isinstance(section[part], ConfigDict):
            break
        name, section = part, section[part]
    return f"{missing}: {name} has {', '.join(section)}."


def to_json(config: ConfigDict) -> str:
    """The config as indented JSON with sorted keys, digests of the user's modules, and unusual settings of JAX."""
    code = code_of(config)
    return json_text(config.to_dict() | ({SOURCE: code} if code else {}) | _settings())


def from_json(stored: Json) -> ConfigDict:
    """The config that `to_json` wrote; fields that it lacks have their defaults."""
    stored = {name: value for name, value in stored.items() if name not in (SOURCE, SETTINGS)}
    config = default_config(str(stored.get("model", {}).get("name")))
    config.update(_with_tuples(stored))
    return config


def _with_tuples(value: Any) -> Any:
    """``value`` with the tuples that JSON turned into lists."""
    if isinstance(value, dict):
        return {name: _with_tuples(item) for name, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def config_hash(config: ConfigDict) -> str:
    """`run_hash` of the config, and of JAX's settings if they are unusual."""
    return run_hash(config.to_dict() | _settings())


def names_users_code(config: ConfigDict) -> bool:
    """Whether a config names a network, data, a loss, an optimizer or a schedule of the user's own."""
    if "model" not in config:  # of a figure of theory
        return False
    named = (config.model.name, config.loss, config.optimizer.name, config.optimizer.schedule)
    return config.data.name.startswith(PYTHON) or any(map(is_import_path, named))


def code_of(config: ConfigDict) -> dict[str, str]:
    """`project_code` for a config with code of the user's own; else empty."""
    return project_code() if names_users_code(config) else {}


def code_version(config: ConfigDict) -> dict[str, str]:
    """`code_of` as one digest, to be recorded beside the versions of packages."""
    code = json_text(code_of(config))
    return {"your code": hashlib.sha256(code.encode()).hexdigest()[:16]} if names_users_code(config) else {}


def _settings() -> Json:
    return {SETTINGS: unusual} if (unusual := unusual_settings()) else {}


ANOTHER = "restore it, set train.same_code for edited code, choose another directory, or set overwrite to start again."
