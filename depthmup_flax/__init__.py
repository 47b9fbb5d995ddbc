"""Depth-muP for Flax and Optax: tune a small network once, train a deeper, wider one with the same hyperparameters.

The rule is in `depthmup_flax.rule.parametrization`, whose docstring has the notation. Around it:

* `param_info` says what each parameter is (`Role`, width ratios, inside a residual branch or not) for a model whose
  parameters are `annotated`, as those of `depthmup_flax.nn.layers` and `depthmup_flax.models` are.
* `depthmup` turns any entrywise optax direction into an optimizer that follows the rule; `sgd` and `adamw` are ready.
* `param_table` prints every factor; `classify` places (alpha, gamma) in the phase diagram.

Importing this package starts no device and imports no TensorFlow.
"""

from depthmup_flax.errors import InputError
from depthmup_flax.infer import infer_info, rescale_init
from depthmup_flax.models import GPT, ResMLP, ResNet, SimpleResNet, ViT, create_model
from depthmup_flax.nn.layers import Conv, Dense, Norm, Readout, ResidualBranch
from depthmup_flax.rule.optimizer import adamw, clip_by_global_rms, depthmup, freeze, scale_by_depthmup, sgd
from depthmup_flax.rule.param_table import param_table
from depthmup_flax.rule.parametrization import (
    PRESETS,
    Parametrization,
    ParamInfo,
    Role,
    get_parametrization,
)
from depthmup_flax.rule.phase_diagram import Classification, classify
from depthmup_flax.rule.roles import Axes, annotated, param_info, residual_scope

__all__ = [
    "GPT",
    "PRESETS",
    "Axes",
    "Classification",
    "Conv",
    "Dense",
    "InputError",
    "Norm",
    "ParamInfo",
    "Parametrization",
    "Readout",
    "ResMLP",
    "ResNet",
    "ResidualBranch",
    "Role",
    "SimpleResNet",
    "ViT",
    "adamw",
    "annotated",
    "classify",
    "clip_by_global_rms",
    "create_model",
    "depthmup",
    "freeze",
    "get_parametrization",
    "infer_info",
    "param_info",
    "param_table",
    "rescale_init",
    "residual_scope",
    "scale_by_depthmup",
    "sgd",
]
