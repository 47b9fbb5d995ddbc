"""The coordinate check of a config."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.check.check import coord_check, require_plan
from depthmup_flax.check.report import Report
from depthmup_flax.config.fields import validate
from depthmup_flax.config.user_code import PYTHON
from depthmup_flax.networks.named import is_import_path
from depthmup_flax.search.study.checked_networks import loss_of_outputs, sized_networks
from depthmup_flax.trainer.engine.experiment import NetworkExperiment
from depthmup_flax.trainer.engine.from_config import build as build_experiment
from depthmup_flax.util.errors import InputError


def prepared_check(
    config: ConfigDict,
    *,
    widths: Sequence[int] = (),
    depths: Sequence[int] = (),
    width: int = 0,
    depth: int = 0,
    batch_size: int = 4,
    steps: int = 4,
    seeds: int = 4,
    tolerance: float = 0.2,
    spectral: bool = False,
) -> Callable[[], Report]:
    """A function that runs `coord_check` on a config's network, data, rule and optimizer.

    The batch is the first ``batch_size`` training examples without augmentation; the learning rate is constant. The
    config's width and depth are used only if it has no base sizes.

    Args:
      config: of a run.
      widths, depths: sizes to try, as those of `coord_check`.
      width, depth: of the networks whose depth or width varies; 0: the base's.
      batch_size: training examples.
      steps, seeds, tolerance, spectral: see `coord_check`.

    Raises:
      InputError: before the function is called, for a config or sizes that cannot be checked.
    """
    validate(config)
    config = config.copy_and_resolve_references()
    model_config = config.model
    for name in ("base_width", "base_depth"):
        if model_config[name] < 0:
            raise InputError(f"model.{name} is {model_config[name]}: use a positive number, or 0 for the model's own.")
    base_width, base_depth = (model_config[f"base_{name}"] or model_config[name] for name in ("width", "depth"))
    # With a base of 0, each network would be its own base.
    model_config.update(width=base_width, depth=base_depth, base_width=base_width, base_depth=base_depth)
    for name in ("dtype", "param_dtype", "stream_dtype"):
        if model_config.get(name) in ("bfloat16", "float16"):  # whose rounding exceeds the changes of a few steps
            model_config[name] = "float32"
    if "stage_sizes" in model_config:
        model_config.stage_sizes = ()
    plan: dict[str, Any] = {
        "width": width or base_width,
        "depth": depth or base_depth,
        "widths": widths,
        "depths": depths,
        "steps": steps,
        "seeds": seeds,
        "tolerance": tolerance,
    }
    require_plan(**plan)
    # The check does not use these, so values that only suit the config's own run do not fail it.
    config.optimizer.warmup_steps = 0
    if not config.data.name.startswith(PYTHON):  # whose batches may have one size
        config.train.batch_size = 1
    if is_import_path(model_config.name):
        model_config.audit = False  # the check itself says what is missing
    experiment = build_experiment(config)
    if not isinstance(experiment, NetworkExperiment):
        raise InputError(
            f"model.name is {model_config.name!r}: it gives a training step, and the check looks into a network. Use "
            "dm.coord_check with the network inside."
        )
    dataset = experiment.dataset
    if not 1 <= batch_size <= len(dataset.train):
        raise InputError(f"batch_size is {batch_size}: use between 1 and the {len(dataset.train)} training examples.")
    batch = dataset.train.read(np.arange(batch_size))
    inputs, targets = jax.device_get(dataset.prepare("none", None, jax.device_put(batch)))

    build, loss = sized_networks(experiment, inputs), loss_of_outputs(experiment, targets)
    rule = experiment.rule
    return lambda: coord_check(build, **loss, rule=rule, spectral=spectral, **plan)
