"""Warm-up length over width, depth and steps: residual MLP with Adam; neither paper varies it.

    depthmup sweep --config=reproduction/configs/sweeps/other_hparams_warmup.py --workdir=runs/warmup

Every layer is trained, at one rate, with a cosine. other_hparams_b1.py, _b2.py, _input_lr_factor.py and
_output_lr_factor.py vary other hyperparameters of the same networks. Results:
reproduction/pages/other_hparams.md.

Measured at scale ``cpu`` on two CPU cores: 240 runs, 7 minutes of training. At 600 steps, 16 to 64 cost the same within
0.006 at every size (n = 5); over 300 to 2400 steps the best warm-up follows steps^0.86 (0.27 to 1.4).
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file

WARMUP = "optimizer.warmup_steps"
# Field -> its name, and its values: at least five, around the usual one.
VALUES = {
    WARMUP: ("warm-up", (4, 16, 32, 64, 128, 256)),
    "optimizer.kwargs.b1": ("b1", tuple(1 - x for x in (0.8, 0.4, 0.2, 0.1, 0.05, 0.025))),
    "optimizer.kwargs.b2": ("b2", tuple(1 - x for x in (0.256, 0.064, 0.016, 0.004, 0.001, 0.00025))),
    "parametrization.input_lr_factor": ("input factor", powers_of_two(-4, 4, 2)),
    "parametrization.output_lr_factor": ("output factor", powers_of_two(-4, 4, 2)),
}


def get_config(scale: str = "cpu", x: str = WARMUP) -> ConfigDict:
    """The sweep along a field of `VALUES`."""
    name, values = VALUES[x]
    steps, rate = at_scale(scale, smoke=(20, 2**-7), cpu=(600, 2**-7), other=(6000, 2**-9))
    base = from_file("sweeps/muon", scale).base
    base.data.image_size = at_scale(scale, smoke=0, cpu=16, other=0)
    base.optimizer.update(name="adam", frozen=(), learning_rate=rate, warmup_steps=steps // 15)
    base.optimizer.kwargs.update(b1=0.9, b2=0.999)
    base.parametrization.update(input_lr_factor=1.0, output_lr_factor=1.0)
    base.train.update(steps=steps, average_steps=steps // 10, log_every=steps // 10)
    if x == WARMUP:
        values = at_scale(scale, smoke=(2, 16), cpu=values, other=tuple(10 * value for value in values))
    elif scale == "smoke":
        values = values[::4]
    common = {x: values, "seed": at_scale(scale, smoke=(0,), other=(0, 1, 2, 3, 4))}
    width, depth = base.model.base_width, base.model.base_depth
    grids = {
        "depths": {"model.depth": tuple(depth * k for k in at_scale(scale, smoke=(1, 2), other=(1, 4, 16))), **common},
        "widths": {"model.width": (4 * width,), **common},
        "joint": {"model.width": (2 * width,), "model.depth": (4 * depth,), **common},
    }
    if x == WARMUP and scale != "smoke":
        grids["lengths"] = {"train.steps": (steps // 2, 2 * steps, 4 * steps), **common}
    return sweep_config(
        base,
        grids,
        figure=f"other-hparams ({name})",
        title=f"The {name} over width and depth: residual MLP with Adam, every layer trained",
        scale=scale,
        x=x,
        extend=2 if x.endswith("_factor") else 0,  # whole numbers and averages cannot be extended
    )
