"""Learning rate over depth: ResNet-18 without norm and deeper networks, SGD with momentum (B24 Fig. B.6).

    depthmup sweep --config=sweeps/imagenet --workdir=runs/imagenet
        --config.base.data.name=folder:path/to/tiny-imagenet-200

Scales below ``paper`` train on Tiny ImageNet. Claim: the best rate and the learning curves are those of the base.

Measured at scale ``cpu`` on two CPU cores: 80 runs, 6 minutes of training. The shift from depth 8 to 16 is -0.5 +- 1.2
octaves, which costs 0.002 (n = 8).
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: ResNet-18 and its depth extrapolations."""
    base = from_file("imagenet_resnet18")
    width = at_scale(scale, smoke=2, cpu=4, gpu=16, paper=64)
    base.model.update(width=width, base_width=width)
    if scale != "paper":
        base.data.update(
            name=at_scale(scale, smoke="synthetic", other="folder:tiny-imagenet-200"),
            image_size=at_scale(scale, smoke=32, cpu=32, gpu=64),
            augment="none",
            train_examples=at_scale(scale, smoke=256, other=0),
            test_examples=at_scale(scale, smoke=64, other=1000),
        )
        base.model.stem = "cifar" if scale != "gpu" else "imagenet"
        steps = at_scale(scale, smoke=20, cpu=150, gpu=1000)
        base.train.update(epochs=0.0, steps=steps, average_steps=max(1, steps // 5), log_every=max(1, steps // 20))
        base.train.batch_size = at_scale(scale, smoke=16, cpu=32, gpu=128)
    else:
        base.train.log_every = 500
    grid = {
        "model.depth": at_scale(scale, smoke=(4, 8), cpu=(8, 16), gpu=(8, 16, 32), paper=(8, 16, 24)),
        "optimizer.learning_rate": at_scale(
            scale,
            smoke=powers_of_two(-8, -4, 2),
            cpu=powers_of_two(-8, -4),
            other=powers_of_two(-10, -3),
        ),
        "seed": at_scale(scale, smoke=(0,), cpu=tuple(range(8)), paper=(0,), other=(0, 1, 2)),
    }
    return sweep_config(
        base,
        {"depths": grid},
        figure="imagenet",
        title="Learning rate over depth, ResNet-18 without norm and deeper (B24 Fig. B.6)",
        scale=scale,
        extend=1,
    )
