"""Four layers in a branch that starts at zero, alpha = 1 (ODE) against 1/2: residual MLP, SGD (B24 Fig. M.1).

    depthmup sweep --config=reproduction/configs/sweeps/zero_init.py --workdir=runs/zero_init

Claim: the best rate transfers over depth for both; early in training deeper is better under alpha = 1, worse under 1/2.
Both start from the identity, so that alpha acts through what is learned alone (pages/theory.md has the limit). A pilot
of one seed, at depths 2 and 16, chose the range of the rates.

Measured at scale ``cpu`` on two CPU cores: 384 runs, 6 minutes of training. The best rate stays within 0.1 octaves for
both (n = 8). Whether deeper is better or worse early is not resolved: the branches hardly act in 300 steps.
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 10's network, in B24's form, with every layer trained."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py"), scale)
    base, depth = parent.base, at_scale(scale, smoke=2, cpu=2, gpu=4, paper=4)
    base.model.update(
        depth=depth, base_depth=depth, block_depth=4, zero_init_branch=True, pre_nonlin=True, mean_subtraction=False
    )
    base.optimizer.update(name="sgd", frozen=())
    base.parametrization.branch_multiplier = 1.0
    grid = {
        "parametrization.preset": ("depth_mup", "ode"),
        "model.depth": at_scale(scale, smoke=(2, 4), cpu=(2, 4, 8, 16), gpu=(4, 8, 16, 32), paper=(4, 8, 16, 32, 64)),
        "optimizer.learning_rate": at_scale(scale, smoke=powers_of_two(-5, -3, 2), other=powers_of_two(-7, -2)),
        "seed": at_scale(scale, smoke=(0,), cpu=tuple(range(8)), other=(0, 1, 2)),
    }
    return sweep_config(
        base,
        {"depths": grid},
        figure="zero-init",
        title="Four layers in a branch that starts at zero, alpha = 1/2 and alpha = 1 (B24 Fig. M.1)",
        scale=scale,
        extend=2,
    )
