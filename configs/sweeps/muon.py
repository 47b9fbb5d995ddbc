"""Learning rate over width and depth with Muon and Adam: residual MLP; muon_gpt.py and muon_conv.py are others.

    depthmup sweep --config=sweeps/muon --workdir=runs/muon
    depthmup report runs/muon

Neither paper has Muon. Expected: the best rate is constant over width and depth under ``depth_mup`` and ``ode``; it
moves over depth under ``mup``, over width under ``sp``.

Measured at scale ``cpu`` on two CPU cores: 448 runs. The best rate follows width^-0.12 (95 % interval -0.21 to -0.02)
under ``depth_mup`` and width^-0.28 (-0.39 to -0.17) under ``sp``; depth^0.23 (0.18 to 0.28), and Adam's depth^0.31
(0.18 to 0.43). Muon's lowest loss is Adam's within 0.006 (n = 5).
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def res_mlp(scale: str) -> ConfigDict:
    """The residual MLP of the other sweeps on CIFAR-10."""
    base = from_file("cifar10_resmlp")
    width, depth = at_scale(scale, smoke=(16, 2), cpu=(32, 4), gpu=(128, 8), paper=(256, 8))
    base.model.update(width=width, depth=depth, base_width=width, base_depth=depth)
    base.data.update(test_examples=2000, augment="none")
    base.train.update(batch_size=64, steps=at_scale(scale, smoke=20, cpu=300, gpu=3000, paper=15000))
    return base


def gpt(scale: str) -> ConfigDict:
    """The GPT of configs/shakespeare_gpt.py."""
    base = from_file("shakespeare_gpt")
    width, depth = at_scale(scale, smoke=(16, 2), cpu=(32, 2), gpu=(128, 4), paper=(256, 4))
    base.model.update(width=width, depth=depth, base_width=width, base_depth=depth)
    base.data.context = at_scale(scale, smoke=16, cpu=32, other=256)
    base.train.update(batch_size=16, steps=at_scale(scale, smoke=20, cpu=200, gpu=3000, paper=10000))
    return base


def simple_resnet(scale: str) -> ConfigDict:
    """The convolutional network of B24 on CIFAR-10."""
    base = from_file("cifar10_resnet")
    width = at_scale(scale, smoke=16, cpu=32, gpu=64, paper=128)
    base.model.update(width=width, depth=3, base_width=width, base_depth=3)
    base.data.update(test_examples=2000, augment="none", image_size=at_scale(scale, smoke=16, cpu=16, other=0))
    base.train.update(batch_size=32, steps=at_scale(scale, smoke=20, cpu=150, gpu=3000, paper=15000))
    return base


RATES = {"res_mlp": powers_of_two(-11, -6), "gpt": powers_of_two(-9, -5), "simple_resnet": powers_of_two(-9, -5)}
BASES = {"res_mlp": res_mlp, "gpt": gpt, "simple_resnet": simple_resnet}


def get_config(scale: str = "cpu", model: str = "res_mlp") -> ConfigDict:
    """The sweep of a model of `BASES`."""
    base = BASES[model](scale)
    base.parametrization.branch_multiplier = 1.0
    steps = base.train.steps
    base.train.update(epochs=0.0, average_steps=max(1, steps // 6), log_every=max(1, steps // 20))
    base.optimizer.update(schedule="cosine", warmup_steps=steps // 10)
    if scale == "smoke" and model == "gpt":
        base.data.name = "text:README.md"
    elif scale == "smoke":
        base.data.update(name="synthetic", train_examples=256, test_examples=64)
    width, depth = base.model.base_width, base.model.base_depth
    sizes = at_scale(scale, smoke=(1, 2), cpu=(1, 2, 4), other=(1, 2, 4, 8))
    seeds = at_scale(scale, smoke=(0,), other=(0, 1, 2))

    def grid(optimizers: tuple[str, ...], presets: tuple[str, ...], axis: str, values: tuple[int, ...]) -> dict:
        rates = at_scale(scale, smoke=powers_of_two(-10, -6, 2), other=RATES[model])
        fields = {"optimizer.name": optimizers, "parametrization.preset": presets, f"model.{axis}": values}
        return {**fields, "optimizer.learning_rate": rates, "seed": seeds}

    widths, depths = (tuple(start * k for k in sizes) for start in (width, depth))
    both = grid(("muon", "adam"), ("depth_mup",), "depth", depths)
    grids = {
        "over width": grid(("muon",), ("depth_mup", "sp"), "width", widths),
        "over depth": grid(("muon",), ("depth_mup", "ode", "mup"), "depth", depths),
        "beside adam": {**both, "seed": at_scale(scale, smoke=(0,), other=(0, 1, 2, 3, 4))},
    }
    return sweep_config(
        base,
        grids,
        figure=f"muon ({model})",
        scale=scale,
        extend=2,
        title="Learning rate over width and depth with Muon, beside Adam",
    )
