"""The papers' networks, by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from depthmup_flax.models.mlp import ResMLP
from depthmup_flax.models.resnet import ResNet, SimpleResNet
from depthmup_flax.models.transformers import GPT, ViT
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.util.errors import InputError, did_you_mean

# A new one is a class of `base.ResidualNetwork` or `TransformerNetwork`, and an entry here; a new `input_kind` also
# needs `_READS` of trainer/engine/from_config.py.
MODELS: dict[str, Any] = {"res_mlp": ResMLP, "simple_resnet": SimpleResNet, "resnet": ResNet, "vit": ViT, "gpt": GPT}

# Fields that `config.model` does not set: Linen's own, and those that the rest of the configuration gives.
_NOT_IN_CONFIG = ("parent", "name", "num_classes", "vocab_size", "rule", "param_dtype")


def model_fields(name: str) -> dict[str, Any]:
    """The fields that ``config.model`` may set for a model, with their defaults."""
    if name not in MODELS:
        raise InputError(f"model.name is {name!r}: {did_you_mean(name, MODELS)}")
    return {f.name: f.default for f in dataclasses.fields(MODELS[name]) if f.name not in _NOT_IN_CONFIG}


def create_model(name: str, *, num_classes: int, rule: Parametrization, **fields: Any) -> Any:
    """A model of `MODELS`, whose class explains its ``fields``; ``num_classes``: of outputs, or of tokens."""
    known = model_fields(name)
    for field in fields:
        if field not in known:
            raise InputError(f"model has no field {field!r} for {name!r}: {did_you_mean(field, known)}")
    outputs = "vocab_size" if MODELS[name].input_kind == "tokens" else "num_classes"
    return MODELS[name](**{outputs: num_classes}, rule=rule, **fields)


__all__ = ["GPT", "MODELS", "ResMLP", "ResNet", "SimpleResNet", "ViT", "create_model", "model_fields"]
