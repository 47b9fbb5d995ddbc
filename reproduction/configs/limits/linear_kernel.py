"""The feature kernel of linear residual networks over layer time, before and after one step (B24 Fig. 7).

    python -m reproduction.limits --config=reproduction/configs/limits/linear_kernel.py --workdir=runs/linear_kernel

Claim: mean profiles approach theory at infinite depth as L^-1, and a network's profile approaches theory at its depth
as N^-1 in square error. Theory is the corrected formula; B24 Eq. 7 as printed is drawn too. 2 minutes on two cores.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale
from reproduction.limits import limits_config


def get_config(scale: str = "cpu") -> ConfigDict:
    """Theories, wide networks over depth, and networks of one depth over width."""
    return limits_config(
        "linear_kernel",
        title="Feature kernel of linear residual networks before and after one step (B24 Fig. 7)",
        scale=scale,
        seed=0,  # of initial weights
        learning_rate=1.0,  # eta_0, the rate of the one step of SGD
        gamma0=1.0,  # feature-learning strength
        target=1.0,  # y, the label of the input
        # depths at which theory is computed
        theory_depths=at_scale(scale, smoke=(2, 4), other=tuple(2**k for k in range(2, 10))),
        profile_width=at_scale(scale, smoke=32, other=1000),  # width of the networks whose depth varies
        # depths of the networks of profile_width
        depths=at_scale(scale, smoke=(2,), cpu=(4, 8, 16, 32, 64), gpu=(4, 8, 16, 32, 64, 128, 256)),
        profile_seeds=at_scale(scale, smoke=16, cpu=32, gpu=256),  # networks at each of the depths
        # widths of the networks of width_depth
        widths=at_scale(scale, smoke=(8, 16, 32), cpu=(32, 64, 128, 256, 512), gpu=(64, 128, 256, 512, 1024, 2048)),
        width_depth=at_scale(scale, smoke=2, other=16),  # depth of the networks whose width varies
        seeds=at_scale(scale, smoke=16, cpu=128, gpu=256),  # networks of the largest width; more of smaller ones
        lanes=at_scale(scale, smoke=16, cpu=1, gpu=4),  # networks trained at a time
    )
