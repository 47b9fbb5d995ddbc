"""Learning rate over depth and width: convolutional ResNet without norm, SGD (B24 Fig. 1 and B.2).

    depthmup sweep --config=reproduction/configs/sweeps/lr_width_depth_conv.py --workdir=runs/lr_conv
    depthmup report runs/lr_conv

Claim: under Depth-muP the best rate is the same at every depth and width; under muP it transfers over width alone, and
deep networks diverge; under the standard parametrization it transfers over neither, with 1/sqrt(L) not over width.

Measured at scale ``cpu`` on two CPU cores: 447 runs, 1.2 hours beside other jobs. The best rate follows depth^(-0.34 +-
0.48) under Depth-muP, with regret 0.03 (0 to 0.13) at depth 24, and depth^(-1.19 +- 0.35) under muP, with a regret
larger by 0.12 (0.005 to 0.23) (n = 3).
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def base_config(scale: str) -> ConfigDict:
    """The run at the base depth and width, which other sweeps of the convolutional network start from."""
    base = from_file("cifar10_resnet")
    width = at_scale(scale, smoke=16, cpu=32, gpu10=128, other=64)
    base.model.update(width=width, depth=6, base_width=width, base_depth=6)
    if scale == "smoke":
        base.data.update(name="synthetic", train_examples=256, test_examples=64)
    elif scale in ("cpu", "gpu10"):
        base.data.update(image_size=16, test_examples=2000)
    if scale == "gpu10":
        base.model.base_width = 32  # at the base's width sp_sqrt_depth has depth_mup's runs
    if scale != "paper":
        base.data.augment = "none"
        steps = at_scale(scale, smoke=20, cpu=200, gpu10=3128, gpu=1000)
        base.train.update(epochs=0.0, steps=steps, average_steps=max(1, steps // 6), log_every=max(1, steps // 20))
    else:
        base.train.log_every = 781
    return base


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    base = base_config(scale)
    width = base.model.width
    around_the_papers = lambda *octaves: tuple(0.046 * rate for rate in powers_of_two(*octaves))
    rates = at_scale(
        scale,
        smoke=powers_of_two(-6, -2, 2),
        cpu=powers_of_two(-7, -1),
        gpu10=around_the_papers(-1.5, 1.5, 0.5),
        gpu=powers_of_two(-8, -1),
        paper=around_the_papers(-4, 3, 1),
    )
    common = {
        "parametrization.preset": at_scale(
            scale,
            smoke=("depth_mup", "sp"),
            gpu10=("depth_mup", "mup", "sp_sqrt_depth"),
            other=("depth_mup", "mup", "sp"),
        ),
        "optimizer.learning_rate": rates,
        "seed": at_scale(scale, smoke=(0,), other=(0, 1, 2)),
    }
    depths = at_scale(
        scale,
        smoke=(3, 6),
        cpu=(3, 6, 12, 24),
        gpu10=(6, 12, 24, 48),
        gpu=(3, 6, 12, 24, 48),
        paper=(3, 6, 9, 12, 18, 30),
    )
    widths = at_scale(
        scale,
        smoke=(width, 2 * width),
        cpu=(width // 2, width, 2 * width),
        gpu10=(),
        gpu=(width, 2 * width, 4 * width, 8 * width),
        paper=(64, 128, 256, 512),
    )
    # With SGD, sp_sqrt_depth has depth_mup's runs at the base's width and sp's at the base's depth: both must grow.
    joint = {
        "parametrization.preset": ("depth_mup", "sp_sqrt_depth"),
        "model.width": (2 * width,),
        "model.depth": (2 * base.model.depth,),
    }
    grids = {
        "depths": {**common, "model.depth": depths},
        "widths": {**common, "model.width": widths},
        "joint": {**common, **joint},
        "joint, base": {**common, "parametrization.preset": ("sp_sqrt_depth",)},
    }
    if scale == "gpu10":
        grids = {"depths": grids["depths"]}
    return sweep_config(
        base,
        grids,
        figure="lr-width-depth (conv)",
        scale=scale,
        extend=2,
        title="Learning rate over depth and width, convolutional ResNet with SGD (B24 Fig. 1)",
    )
