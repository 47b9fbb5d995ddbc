"""Checks that a config's network keeps its sizes: python -m depthmup_flax.coord_check --config=configs/digits.py

Networks of several widths and depths train for a few steps on one batch of the config's data, with its optimizer and
learning rate. Exit code 0: everything is flat; 1: something is not, and the report says what and why; 2: bad input.
"""

from typing import Any

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

from depthmup_flax import cli
from depthmup_flax.coord_check import Network, Report, coord_check, linen_network
from depthmup_flax.errors import InputError

_CONFIG = cli.define_config(
    "Python file with get_config(); any field but width and depth can be set, --config.model.norm=layer."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory for records.jsonl, report.txt and coord_check.png.")
_WIDTHS = flags.DEFINE_list("widths", None, "Widths to try; default 4, 8 and 16 times the base. Empty: none.")
_DEPTHS = flags.DEFINE_list("depths", None, "Depths to try; default 4, 8 and 16 times the base. Empty: none.")
_WIDTH = flags.DEFINE_integer("width", 0, "Width at which depths are tried; default the base's.")
_DEPTH = flags.DEFINE_integer("depth", 0, "Depth at which widths are tried; default the base's.")
_STEPS = flags.DEFINE_integer("steps", 10, "Training steps.")
_SEEDS = flags.DEFINE_integer("seeds", 4, "Initial values per size.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 16, "Training examples in the batch.")
_TOLERANCE = flags.DEFINE_float("tolerance", 0.2, "Largest exponent that counts as flat; above 0, below 0.5.")
_SPECTRAL = flags.DEFINE_bool("spectral", False, "Also record the spectral norm of every weight's update.")


def main(argv: list[str]) -> int:
    """Prints the report; returns the exit code."""
    cli.require_no_arguments(argv)
    config = cli.resolved(_CONFIG)
    _require_sizes_by_flags(config.model, config_flags.get_override_values(flags.FLAGS["config"]))
    report = check_config(
        config,
        widths=_sizes("widths", _WIDTHS.value),
        depths=_sizes("depths", _DEPTHS.value),
        width=_WIDTH.value,
        depth=_DEPTH.value,
        steps=_STEPS.value,
        seeds=_SEEDS.value,
        batch_size=_BATCH_SIZE.value,
        tolerance=_TOLERANCE.value,
        spectral=_SPECTRAL.value,
    )
    print(report)
    if _WORKDIR.value:
        report.save(_WORKDIR.value)
        print(f"\nwritten to {_WORKDIR.value}")
    return 0 if report.ok else 1


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
    from depthmup_flax.experiment import build as build_experiment
    from depthmup_flax.experiment import make_optimizer
    from depthmup_flax.params import param_info

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


def _require_sizes_by_flags(model_config: ConfigDict, overrides: dict[str, Any]) -> None:
    """Width and depth of the config are not used where it has a base; what is set and not used is a mistake."""
    for name in ("width", "depth"):
        if f"model.{name}" in overrides and model_config[f"base_{name}"]:
            raise InputError(
                f"--config.model.{name}={overrides[f'model.{name}']} is not used by the check: choose the sizes with "
                f"--{name}s=A,B,C and --{name}=N, or the base with --config.model.base_{name}."
            )


def _sizes(name: str, values: list[str] | None) -> list[int] | None:
    if values is None:
        return None
    try:
        return [int(value) for value in values if value]
    except ValueError as error:
        raise InputError(
            f"--{name}={','.join(values)}: write whole numbers with commas, --{name}=64,128,256."
        ) from error


if __name__ == "__main__":
    cli.run(main)
