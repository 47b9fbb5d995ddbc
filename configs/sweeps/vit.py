"""Start here. A vision transformer, with and without LayerNorm, learning rate over depth, Adam (B24 Fig. 3).

    depthmup sweep --config=sweeps/vit --workdir=runs/vit

Scales below ``paper`` train on CIFAR-10: a few hundred steps on Tiny ImageNet are too few. Claim: the best rate
transfers in every case, and depth helps more with the 1/sqrt(L) scaling.

Measured at scale ``cpu`` on two CPU cores: 744 runs, 9 minutes of training. Without norm, from depth 2 to 8 (n = 8):
0.3 +- 0.4 octaves and regret 0.001 under Depth-muP; 1.2 +- 0.4 octaves and regret 0.03 +- 0.02 under muP.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: norm and no norm, with a warm-up and a constant rate or a cosine."""
    base = from_file("tiny_imagenet_vit")
    width, depth = at_scale(scale, smoke=(16, 2), cpu=(32, 2), gpu=(64, 4), paper=(64, 4))
    base.model.update(width=width, depth=depth, base_width=width, base_depth=depth)
    if scale != "paper":
        base.data.update(
            name=at_scale(scale, smoke="synthetic", other="tfds:cifar10"),
            augment="none",
            image_size=at_scale(scale, smoke=8, cpu=16, gpu=32),
            test_examples=at_scale(scale, smoke=64, other=2000),
            train_examples=at_scale(scale, smoke=256, other=0),
        )
        base.model.patch_size = 4
        base.train.batch_size = at_scale(scale, smoke=16, cpu=32, gpu=64)
        steps = at_scale(scale, smoke=20, cpu=150, gpu=2000)
        base.train.update(epochs=0.0, steps=steps, average_steps=max(1, steps // 6), log_every=max(1, steps // 20))
        base.optimizer.warmup_steps = steps // 5
    common = {
        "parametrization.preset": ("depth_mup", "mup"),
        "model.depth": at_scale(scale, smoke=(2, 4), cpu=(2, 4, 8), gpu=(4, 8, 16, 32), paper=(4, 8, 16)),
        "optimizer.learning_rate": at_scale(
            scale,
            smoke=powers_of_two(-11, -7, 2),
            cpu=powers_of_two(-11, -6),
            gpu=powers_of_two(-13, -6),
            paper=powers_of_two(-14, -6),
        ),
        "seed": at_scale(scale, smoke=(0,), cpu=tuple(range(8)), other=(0, 1, 2)),
    }
    grids = {
        "norms": {
            **common,
            "model.norm": at_scale(scale, smoke=("layer",), other=("none", "layer")),
            "optimizer.schedule": ("constant",),
        },
        "cosine": {
            **common,
            "parametrization.preset": ("depth_mup",),
            "model.norm": ("none",),
            "optimizer.schedule": ("cosine",),
            "optimizer.learning_rate": (
                *common["optimizer.learning_rate"],
                *at_scale(scale, cpu=powers_of_two(-5, -5), other=()),  # best at the highest rate, after a look
            ),
        },
    }
    return sweep_config(
        base,
        grids,
        figure="vit",
        title="Learning rate over depth, vision transformer with Adam (B24 Fig. 3)",
        scale=scale,
    )
