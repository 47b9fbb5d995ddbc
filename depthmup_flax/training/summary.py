"""The lines that a run prints when it starts and when it ends."""

from __future__ import annotations

import pathlib

import jax
from jax.sharding import Mesh

from depthmup_flax.records import DIVERGED
from depthmup_flax.training.experiment import Experiment
from depthmup_flax.training.run_outcome import PREEMPTED
from depthmup_flax.types import Json


def describe_run(experiment: Experiment, mesh: Mesh, directory: pathlib.Path) -> str:
    """Model, rule, data, devices and work directory, a line each."""
    config, data = experiment.config, experiment.dataset
    rule, model = experiment.parametrization, config.model
    place = "streamed" if data.placement == "stream" else "on the device"
    return (
        f"model  {model.name}, width {model.width} (base {model.base_width or model.width}), "
        f"depth {model.depth} (base {model.base_depth or model.depth}), {experiment.parameters:,} parameters\n"
        f"rule   {config.parametrization.preset}, alpha {rule.alpha:g}, gamma {rule.gamma:g}; "
        f"{config.optimizer.name}, learning rate {config.optimizer.learning_rate:g}\n"
        f"data   {data.name}, {len(data.train):,} train and {len(data.test):,} test "
        f"{data.describe()}, {place}\n"
        f"run    {experiment.total_steps} steps of {config.train.batch_size} on {jax.device_count()} "
        f"{jax.devices()[0].device_kind} device(s){_layout(mesh)}, work directory {directory}"
    )


def summary(result: Json) -> str:
    """``completed: 700 steps, test accuracy 97.3%, ...`` for the content of ``result.json``."""
    if result["status"] == PREEMPTED:
        return f"preempted after step {result['steps']}, {result['wall_time_s']:.0f} s"
    if result["status"] == DIVERGED:
        return f"diverged: the loss was not finite at step {result['diverged_at_step']}, {result['wall_time_s']:.0f} s"
    return (
        f"completed: {result['steps']} steps, train loss {result['train_loss_avg']:.4f}, "
        f"test loss {result['test_loss']:.4f}, test accuracy {result['test_accuracy']:.1%}, "
        f"{result['wall_time_s']:.0f} s"
    )


def _layout(mesh: Mesh) -> str:
    """`` (data 2, fsdp 4) of 2 processes``; empty for one process whose devices only split the batch."""
    sizes = [f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1]
    layout = f" ({', '.join(sizes)})" if sizes and mesh.shape["data"] != mesh.size else ""
    return layout + (f" of {jax.process_count()} processes" if jax.process_count() > 1 else "")
