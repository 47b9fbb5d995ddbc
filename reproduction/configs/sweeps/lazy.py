"""The lazy parametrization (NTK) against Depth-muP, learning rate over width: residual MLP, SGD (B24 App. C and J).

    depthmup sweep --config=reproduction/configs/sweeps/lazy.py --workdir=runs/lazy

Claim: a parametrization whose features stop moving as width grows has a limit, but wide and narrow networks learn
differently, so that the best rate transfers worse over width.

Measured at scale ``cpu`` on two CPU cores: 352 runs. From width 16 to 256 the best rate falls by 1.0 +- 0.7 octaves
under Depth-muP and by 3.2 +- 0.5 lazily (n = 8); but the base's rate is next to divergence, and diverges at width 64.
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 10 over width, with SGD and every layer trained."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py"), scale)
    base, width = parent.base, at_scale(scale, smoke=16, cpu=16, gpu=64, paper=64)
    base.model.update(width=width, base_width=width)
    base.optimizer.update(name="sgd", frozen=())
    grid = {
        "parametrization.preset": ("depth_mup", "ntk"),
        "model.width": tuple(m * width for m in at_scale(scale, smoke=(1, 2), cpu=(1, 4, 16), other=(1, 4, 16))),
        "optimizer.learning_rate": at_scale(scale, smoke=powers_of_two(-5, -3, 2), other=powers_of_two(-7, -1)),
        "seed": at_scale(scale, smoke=(0,), cpu=tuple(range(8)), other=(0, 1, 2)),
    }
    return sweep_config(
        base,
        {"widths": grid},
        figure="lazy",
        title="Learning rate over width, Depth-muP and the lazy parametrization (B24 App. C, J)",
        scale=scale,
        extend=2,
    )
