"""The networks that a coordinate check compares: a config's network at several sizes, on one batch."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from depthmup_flax.auditing.given_model import arguments_of
from depthmup_flax.auditing.initial_scale import multiplied
from depthmup_flax.check.networks import Activations, Network, linen_network, nnx_network
from depthmup_flax.networks.library_adapters import training_flags
from depthmup_flax.networks.model_functions import ModelFunctions
from depthmup_flax.rule.annotations import is_annotated
from depthmup_flax.rule.info_trees import flatten_info, is_nnx, path_name
from depthmup_flax.rule.roles import init_shapes, param_info
from depthmup_flax.trainer.engine.experiment import NetworkExperiment, make_optimizer
from depthmup_flax.trainer.engine.losses import CrossEntropy
from depthmup_flax.trainer.engine.user_network import UserNetwork
from depthmup_flax.util.types import ArrayTree, InfoTree

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
    network = linen_network(sized, inputs, info=info, optimizer=optimizer, train=True)
    return _with_base(network, model.clone(width=model.base_width, depth=model.base_depth))


def _of_user(experiment: NetworkExperiment, model: UserNetwork, inputs: Any, width: int, depth: int) -> Network:
    config, rule, sizes = experiment.config, experiment.rule, (width, depth)
    functions, info = model.functions(rule, *sizes), model.audited(inputs, rule, sizes).info
    factors = model.init_factors(inputs, rule, info, sizes)
    if functions.nnx is not None:
        info = _like_nnx(functions.nnx, info)
    parts = {"info": info, "optimizer": make_optimizer(config, info, rule)}
    if functions.linen is not None:
        flags = training_flags(type(functions.linen).__call__, True)
        network = linen_network(functions.linen, inputs, **parts, **flags)
        if _has_annotations(functions.linen, inputs):
            network = _with_base(network, model.functions(rule, *model.base_sizes).linen)
    else:
        network = _pure(functions, inputs, **parts) if functions.nnx is None else _nnx(functions.nnx, inputs, **parts)
    factor_of = collections.defaultdict(lambda: 1.0, factors)
    return dataclasses.replace(network, init=lambda key: multiplied(network.init(key), factor_of))


def _nnx(make: Callable[[jax.Array], Any], inputs: Any, **parts: Any) -> Network:
    from flax import nnx

    def training(rngs: nnx.Rngs) -> nnx.Module:
        module: nnx.Module = make(rngs())
        module.train()
        return module

    shapes = nnx.eval_shape(lambda: make(jax.random.key(0)))
    return nnx_network(training, inputs, **parts, **training_flags(type(shapes).__call__, True))


def _like_nnx(make: Callable[[jax.Array], Any], info: InfoTree) -> InfoTree:
    """``info``, nested dictionaries, in the structure of the module's ``nnx.state``."""
    from flax import nnx

    params = nnx.state(nnx.eval_shape(lambda: make(jax.random.key(0))), nnx.Param)
    flat, structure = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda x: is_nnx(x, "Variable"))
    of_path = flatten_info(info)
    return jax.tree.unflatten(structure, [of_path[path_name(path)] for path, _ in flat])


def _pure(functions: ModelFunctions, inputs: Any, **parts: Any) -> Network:
    """A network of which only the outputs are seen; running averages stay at their initial values."""
    key = jax.random.key(0)
    _, state = jax.jit(functions.init)(key, inputs)

    def apply(params: ArrayTree) -> tuple[Any, Activations]:
        return functions.apply(params, state, inputs, train=True, key=key)[0], {}

    return Network(lambda key: functions.init(key, inputs)[0], apply, **parts)


def _with_base(network: Network, base: Any) -> Network:
    """The network, of which the layers are annotated for this base: no other one can be the base of its audit."""
    return dataclasses.replace(network, source=network.source and dataclasses.replace(network.source, base=base))


def _has_annotations(model: nn.Module, inputs: ArrayTree) -> bool:
    leaves = init_shapes(model, *arguments_of(inputs), **training_flags(type(model).__call__, False))
    return any(map(is_annotated, jax.tree.leaves(leaves, is_leaf=is_annotated)))
