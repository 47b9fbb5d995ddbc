"""The networks that a coordinate check compares: a config's network at several sizes, on one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from depthmup_flax.check.networks import Network, checked_network
from depthmup_flax.networks.adapters import Call, Linen
from depthmup_flax.rule.annotations import is_annotated
from depthmup_flax.rule.roles import param_info
from depthmup_flax.trainer.engine.experiment import NetworkExperiment, make_optimizer
from depthmup_flax.trainer.engine.losses import CrossEntropy
from depthmup_flax.trainer.engine.user_network import UserNetwork, rescaled
from depthmup_flax.util.types import ArrayTree

Build = Callable[[int, int], Network]


def sized_networks(experiment: NetworkExperiment, inputs: ArrayTree) -> Build:
    """``(width, depth) -> Network`` on ``inputs`` [B, ...], in training, with the optimizer of the config."""
    model = experiment.model
    if isinstance(model, UserNetwork):
        return lambda width, depth: _of_user(experiment, model, inputs, width, depth)
    return lambda width, depth: _of_ours(experiment, model, inputs, width, depth)


def loss_of_outputs(experiment: NetworkExperiment, targets: Any) -> dict[str, Any]:
    """The argument ``labels`` or ``loss`` of `coord_check`, for targets [B, ...]."""
    loss = experiment.loss
    if isinstance(loss, CrossEntropy):
        return {"labels": targets}
    return {"loss": lambda outputs: loss.mean(outputs, targets)}


def _of_ours(experiment: NetworkExperiment, model: nn.Module, inputs: Any, width: int, depth: int) -> Network:
    sized: Any = model.clone(width=width, depth=depth)
    info = param_info(sized, sized.base(), experiment.dataset.input_spec)
    optimizer = make_optimizer(experiment.config, info, experiment.rule)
    base = model.clone(width=model.base_width, depth=model.base_depth)
    return checked_network(sized, inputs, info=info, optimizer=optimizer, base=base, train=True)


def _of_user(experiment: NetworkExperiment, model: UserNetwork, inputs: Any, width: int, depth: int) -> Network:
    config, rule, sizes = experiment.config, experiment.rule, (width, depth)
    functions, info = model.functions(rule, *sizes), model.audited(inputs, rule, sizes).info
    functions = rescaled(functions, model.init_factors(inputs, rule, info, sizes))
    # Layers are annotated for this base: no other one can be that of the audit.
    annotated = functions.linen is not None and _has_annotations(functions.linen, inputs)
    base = model.functions(rule, *model.base_sizes).linen if annotated else None
    return checked_network(functions, inputs, info=info, optimizer=make_optimizer(config, info, rule), base=base)


def _has_annotations(model: nn.Module, inputs: ArrayTree) -> bool:
    leaves = jax.tree.leaves(Linen(model).shapes(inputs, Call(train=False))[0], is_leaf=is_annotated)
    return any(map(is_annotated, leaves))
