"""The coordinate check of a config: its network, data, rule and optimizer."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.coord_check.check import Report, coord_check
from depthmup_flax.coord_check.networks import Network, linen_network
from depthmup_flax.errors import InputError
from depthmup_flax.rule.roles import param_info
from depthmup_flax.training.experiment import build as build_experiment
from depthmup_flax.training.experiment import make_optimizer


def check_config(
    config: ConfigDict,
    *,
    widths: list[int] | None = None,
    depths: list[int] | None = None,
    width: int = 0,
    depth: int = 0,
    batch_size: int = 16,
    **kwargs: Any,
) -> Report:
    """`coord_check` of a config's network, data, rule and optimizer; ``kwargs`` go to it.

    Sizes are 4, 8 and 16 times the base unless given; ``width`` (0: the base's) is that of the networks whose depth
    varies, ``depth`` likewise. The config's own are not used, unless they are the base's. The first ``batch_size``
    training examples are the batch, unaugmented; the learning rate is constant.
    """
    config = config.copy_and_resolve_references()
    model_config = config.model
    for name in ("base_width", "base_depth"):
        if model_config[name] < 0:
            raise InputError(f"model.{name} is {model_config[name]}: use a positive number, or 0 for the model's own.")
    base_width, base_depth = (model_config[f"base_{name}"] or model_config[name] for name in ("width", "depth"))
    # Both sizes given: a base of 0 would be each network's own.
    model_config.update(width=base_width, depth=base_depth, base_width=base_width, base_depth=base_depth)
    if "stage_sizes" in model_config:
        model_config.stage_sizes = ()
    # The check has a batch and a learning rate of its own: what a run would need must not fail it.
    config.train.batch_size, config.optimizer.warmup_steps = 1, 0
    experiment = build_experiment(config)
    dataset = experiment.dataset
    if not 1 <= batch_size <= len(dataset.train):
        raise InputError(f"batch_size is {batch_size}: use between 1 and the {len(dataset.train)} training examples.")
    batch = dataset.train.read(np.arange(batch_size))
    inputs, labels = jax.device_get(dataset.prepare("none", None, jax.device_put(batch)))

    def build(width: int, depth: int) -> Network:
        model = experiment.model.clone(width=width, depth=depth)
        info = param_info(model, model.base(), dataset.input_spec)
        optimizer = make_optimizer(config, info, experiment.parametrization)
        return linen_network(model, inputs, info=info, optimizer=optimizer, train=True)

    return coord_check(
        build,
        labels,
        rule=experiment.parametrization,
        width=width or base_width,
        depth=depth or base_depth,
        widths=[base_width * k for k in (4, 8, 16)] if widths is None else widths,
        depths=[base_depth * k for k in (4, 8, 16)] if depths is None else depths,
        say=lambda text: print(text, flush=True),
        **kwargs,
    )
