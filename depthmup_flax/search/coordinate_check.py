"""The coordinate check of a config: its network at several sizes, on one batch."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.check.check import coord_check, require_plan
from depthmup_flax.check.networks import Network, checked_network
from depthmup_flax.check.report import Report
from depthmup_flax.config.fields import PYTHON, validate
from depthmup_flax.networks.import_paths import is_import_path
from depthmup_flax.storage.workdir import COORD_CHECK, claimed
from depthmup_flax.trainer.engine.from_config import build as build_experiment
from depthmup_flax.trainer.engine.losses import CROSS_ENTROPY
from depthmup_flax.trainer.engine.network_training import NetworkTraining, network_training
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.surroundings import own_surroundings
from depthmup_flax.util.types import ArrayTree


@own_surroundings()
def check_config(
    config: ConfigDict,
    *,
    widths: Sequence[int] = (),
    depths: Sequence[int] = (),
    width: int = 0,
    depth: int = 0,
    batch_size: int = 4,
    steps: int = 2,
    seeds: int = 4,
    tolerance: float = 0.2,
    workdir: str | os.PathLike[str] | None = None,
) -> Report:
    """`depthmup_flax.coord_check` of a config's network, data, rule and optimizer.

    The batch is the first ``batch_size`` training examples without augmentation; the learning rate is constant. The
    config's width and depth are used only if it has no base sizes.

    Args:
      config: of a run.
      widths, depths: sizes to try, as those of `coord_check`.
      width, depth: of the networks whose depth or width varies; 0: the base's.
      batch_size: training examples.
      steps, seeds, tolerance: see `coord_check`.
      workdir: gets the records, the report and the figure.

    Raises:
      InputError: before anything is trained, for a config or sizes that cannot be checked.
    """
    validate(config)
    config = config.copy_and_resolve_references()
    model = config.model
    base_width, base_depth = (model[f"base_{name}"] or model[name] for name in ("width", "depth"))
    # With a base of 0, each network would be its own base.
    model.update(width=base_width, depth=base_depth, base_width=base_width, base_depth=base_depth)
    for name in ("dtype", "param_dtype", "stream_dtype"):
        if model.get(name) in ("bfloat16", "float16"):  # whose rounding exceeds the changes of a few steps
            model[name] = "float32"
    if "stage_sizes" in model:
        model.stage_sizes = ()
    plan: dict[str, Any] = {"width": width or base_width, "depth": depth or base_depth}
    plan |= {"widths": widths, "depths": depths, "steps": steps, "seeds": seeds, "tolerance": tolerance}
    require_plan(**plan)
    # The check does not use these, so values that only suit the config's own run do not fail it.
    config.optimizer.warmup_steps = 0
    if not config.data.name.startswith(PYTHON):  # whose batches may have one size
        config.train.batch_size = 1
    if is_import_path(model.name):
        model.audit = False  # the check itself says what is missing
    experiment = build_experiment(config)
    if experiment.network is None:
        raise InputError(f"model.name is {model.name!r}, a training step: give dm.coord_check the network inside.")
    dataset, loss = experiment.dataset, experiment.network.loss
    if not 1 <= batch_size <= len(dataset.train):
        raise InputError(f"batch_size is {batch_size}: use between 1 and the {len(dataset.train)} training examples.")
    batch = dataset.train.read(np.arange(batch_size))
    inputs, targets = jax.device_get(dataset.prepare("none", None, jax.device_put(batch)))
    of_outputs: dict[str, Any] = {"labels": targets}
    if loss is not CROSS_ENTROPY:
        of_outputs = {"loss": lambda outputs: loss.metrics(outputs, targets)["loss"].mean()}
    build = functools.partial(_network, experiment.network, inputs)
    with claimed(workdir, COORD_CHECK) if workdir else contextlib.nullcontext() as claim:
        report = coord_check(build, **of_outputs, rule=experiment.rule, **plan)
        if claim is not None:
            report.write_to(claim.workdir)
    return report


def _network(training: NetworkTraining, inputs: ArrayTree, width: int, depth: int) -> Network:
    """The network of another size on ``inputs`` [B, ...], in training, with the optimizer of the config."""
    named, rule = training.named, training.rule
    of_size = (training.config, rule, training.hyperparameters, named, inputs, None, (width, depth))
    network = network_training(*of_size)
    # Our layers know their base: no other one can be that of the audit.
    base = named.functions(rule, named.base_sizes) if named.is_ours else None
    functions = network.functions(rule)
    return checked_network(functions, inputs, info=network.info, optimizer=network.optimizer, base=base)
