"""Learning rate over batch size and training steps: a small GPT on text with Adam.

    depthmup sweep --config=reproduction/configs/sweeps/batch_and_steps_gpt.py --workdir=runs/batch_and_steps_gpt
        --config.base.data.name=text:path/to/tinyshakespeare.txt

Like batch_and_steps.py, at fewer sizes. An example is 16 characters. Batch size varies twice: around 64 in runs of
9,600 examples, and around 128 in runs of 38,400.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file

BATCH, STEPS = 64, 150  # of the base run


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    base = from_file("shakespeare_gpt")
    base.model.update(width=32, depth=2, base_width=32, base_depth=2)
    base.data.context = 16
    base.optimizer.update(warmup_steps=STEPS // 10)
    base.train.update(batch_size=BATCH, steps=STEPS, average_steps=STEPS // 10, log_every=75)
    rates = at_scale(scale, smoke=powers_of_two(-9, -5, 2), other=powers_of_two(-8, -4))
    seeds = at_scale(scale, smoke=(0,), other=(0, 1, 2, 3, 4))

    def curve(batch: int, steps: int, k: float) -> dict:
        """One batch size and number of steps; ``k``: of the averages' inverse times."""
        return {
            "train.batch_size": batch,
            "train.steps": steps,
            "train.average_steps": max(1, steps // 10),
            "optimizer.warmup_steps": steps // 10,
            "optimizer.kwargs.b1": 1 - 0.1 * k,
            "optimizer.kwargs.b2": 1 - 0.001 * k,
            "optimizer.learning_rate": rates,
            "seed": seeds,
        }

    grids = {}
    longer = at_scale(scale, smoke=(), other=(32, 64, 128, 256, 512))
    for name, base_batch, examples, batches in (
        ("batch", BATCH, BATCH * STEPS, at_scale(scale, smoke=(32, 64), other=(16, 32, 64, 256))),
        ("long_batch", 128, 128 * 300, longer),
    ):
        for batch in batches:
            grids[f"{name}_{batch}"] = curve(batch, examples // batch, 1.0)
            grids[f"{name}_{batch}_time"] = curve(batch, examples // batch, batch / base_batch)
    for steps in at_scale(scale, smoke=(15, 30), other=(150, 300, 600, 1200)):
        grids[f"steps_{steps}"] = curve(16, steps, 1.0)
    return sweep_config(
        base,
        grids,
        figure="batch and steps (GPT)",
        scale=scale,
        extend=2,
        title="Learning rate over batch size and training steps, a small GPT with Adam",
    )
