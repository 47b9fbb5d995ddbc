"""Learning rate over depth with BatchNorm and LayerNorm: ResNet of He et al., SGD (B24 Fig. 2, B.4, B.5).

    depthmup sweep --config=reproduction/configs/sweeps/norm.py --workdir=runs/norm

Claim: norms make deep networks trainable without depth scaling, but the best rate varies less with it.

Measured at scale ``cpu`` on two CPU cores: 384 runs, 15 minutes of training, n = 4. BatchNorm: from depth 8 to 16 the
best rate stays at 0.3 with the scaling (+0.1 +- 0.7 octaves), and the loss with it; without, the loss rises by 0.1.
LayerNorm: the loss does the same; the best rate falls by an octave with the scaling and by 2.7 or more without.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: ResNet-18 and its depth extrapolations."""
    base = from_file("cifar10_resnet18")
    width = at_scale(scale, smoke=2, cpu=4, gpu=16, paper=64)
    base.model.update(width=width, base_width=width)
    if scale == "smoke":
        base.data.update(name="synthetic", image_size=16, train_examples=256, test_examples=64)
    elif scale == "cpu":
        base.data.update(image_size=16, test_examples=2000)
    if scale != "paper":
        base.data.augment = "none"
        steps = at_scale(scale, smoke=20, cpu=100, gpu=1000)
        base.train.update(epochs=0.0, steps=steps, average_steps=max(1, steps // 6), log_every=max(1, steps // 20))
    else:
        base.train.log_every = 781
    common = {
        "model.norm": at_scale(scale, smoke=("batch",), other=("batch", "layer")),
        "model.depth": at_scale(scale, smoke=(4, 8), cpu=(4, 8, 16), gpu=(8, 16, 32, 64), paper=(8, 16, 24, 32)),
        "optimizer.learning_rate": at_scale(
            scale,
            smoke=powers_of_two(-4, 0, 2),
            cpu=powers_of_two(-6, 1),
            gpu=powers_of_two(-7, 1),
            paper=powers_of_two(-8, 1),
        ),
        "seed": at_scale(scale, smoke=(0,), cpu=tuple(range(4)), other=(0, 1, 2)),
    }
    grids = {
        "scaled": {**common, "parametrization.preset": ("depth_mup",)},
        # The figure's unscaled networks have no multiplier at all.
        "unscaled": {
            **common,
            "parametrization.preset": ("mup",),
            "parametrization.branch_multiplier": (1.0,),
        },
    }
    if scale == "smoke":  # deep convolutional networks take long to compile
        del grids["unscaled"]
    return sweep_config(
        base,
        grids,
        figure="norm",
        title="Learning rate over depth with norms, with and without depth scaling (B24 Fig. 2, B.4)",
        scale=scale,
    )
