"""How early the best rate is settled: vision transformer without norm, Adam, longer runs (B24 Fig. B.3, b and c).

    depthmup sweep --config=reproduction/configs/sweeps/how_long_vit.py --workdir=runs/how_long_vit

Claim: the best rate of the first few epochs is that of the end, at every depth. CIFAR-10 below scale ``paper``.

Measured at scale ``cpu`` on two CPU cores: 72 runs. The rate of the first 10 to 15 % of the steps costs 0.001 (0 to
0.029) at depth 2 and 0.004 (0 to 0.017) at depth 8 (n = 6): not resolved.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 3 under Depth-muP, longer, at two depths."""
    parent = from_file("sweeps/vit", scale)
    base, norms = parent.base, parent.grids.norms
    if scale in ("cpu", "gpu"):
        steps = at_scale(scale, cpu=450, gpu=8000)
        base.train.update(steps=steps, average_steps=steps // 10, log_every=steps // 30)
    grid = {
        "model.norm": ("none",),
        "model.depth": at_scale(scale, smoke=(2, 4), cpu=(2, 8), gpu=(4, 16), paper=(4, 16)),
        "optimizer.learning_rate": norms.optimizer.learning_rate,
        "seed": at_scale(scale, smoke=(0,), cpu=tuple(range(6)), other=(0, 1, 2)),
    }
    return sweep_config(
        base,
        {"depths": grid},
        figure="how-long (ViT)",
        title="The best rate over training time, vision transformer (B24 Fig. B.3)",
        scale=scale,
    )
