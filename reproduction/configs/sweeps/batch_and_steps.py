"""Learning rate over batch size and training steps: residual MLP with Adam.

    depthmup sweep --config=reproduction/configs/sweeps/batch_and_steps.py --workdir=runs/batch_and_steps

One curve over the rate for each batch size at the same number of examples, with Adam's betas as they are and with the
time that they average over kept in examples; and for each number of steps at the same batch size.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file

BATCH, STEPS = 128, 600  # at which no hyperparameter is rescaled


def curve(batch: int, steps: int, rates: Sequence[float], seeds: int, **kwargs: float) -> Mapping[str, Any]:
    """A grid of one batch size and number of steps, with a warm-up over a tenth of the run."""
    return {
        "train.batch_size": batch,
        "train.steps": steps,
        "train.average_steps": max(1, steps // 10),
        "optimizer.warmup_steps": steps // 10,
        **{f"optimizer.kwargs.{name}": value for name, value in kwargs.items()},
        "optimizer.learning_rate": rates,
        "seed": tuple(range(seeds)),
    }


def base_config(scale: str) -> ConfigDict:
    """The run at which no hyperparameter is rescaled: a cosine, and a warm-up over a tenth of the steps."""
    base = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py")).base
    if scale == "smoke":
        base.data.update(name="synthetic", train_examples=256, test_examples=64)
    base.optimizer.update(schedule="cosine", warmup_steps=STEPS // 10)
    base.train.update(batch_size=BATCH, steps=STEPS, average_steps=STEPS // 10, log_every=150)
    return base


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    base = base_config(scale)
    base.optimizer.kwargs.update(b1=0.9, b2=0.999)
    rates = at_scale(scale, smoke=powers_of_two(-11, -7, 2), other=powers_of_two(-12, -5))
    seeds = at_scale(scale, smoke=1, other=5)
    batches = at_scale(scale, smoke=(64, 128), other=(32, 64, 128, 256, 512, 1024, 2048))
    lengths = at_scale(scale, smoke=(15, 30), other=(300, 600, 1200, 2400))
    examples = at_scale(scale, smoke=30 * BATCH, other=STEPS * BATCH)
    grids = {}
    for batch in batches:
        k = batch / BATCH
        higher = (*rates, *powers_of_two(-4, -3)) if batch > 256 else rates
        b1 = max(0.0, 1 - 0.1 * k)  # at 2048 no average is as short
        grids[f"batch_{batch}"] = curve(batch, examples // batch, higher, seeds, b1=0.9, b2=0.999)
        grids[f"batch_{batch}_time"] = curve(batch, examples // batch, higher, seeds, b1=b1, b2=1 - 0.001 * k)
    for steps in lengths:
        k = lengths[1] / steps
        higher = (*rates, 2.0**-4) if steps == 300 else rates
        grids[f"steps_{steps}"] = curve(BATCH, steps, higher, seeds, b1=0.9, b2=0.999)
        grids[f"steps_{steps}_time"] = curve(BATCH, steps, higher, seeds, b1=1 - 0.1 * k, b2=1 - 0.001 * k)
    return sweep_config(
        base,
        grids,
        figure="batch and steps (MLP)",
        scale=scale,
        extend=2,
        title="Learning rate over batch size and training steps, residual MLP with Adam",
    )
