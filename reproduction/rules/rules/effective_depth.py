"""muP in width; the rate falls as effective depth^-3/2 (abstract of arXiv:2602.07494, and of 2510.04327).

Effective depth is the shortest path from input to output, counting layers and residual additions. The weights of
branches start with variance 1/L of He's. Here a branch is multiplied by r^-1/2 instead: as functions of such a
weight, sign and gradient steps are then those with gamma = -1/2 on top of the rate that all layers share.
Only the abstracts could be read: this is our reading of them.
"""

import depthmup_flax as dm

# Branches in a block, and layers on the path besides them: stem, readout, the convolutions that double the channels.
BRANCHES, OTHERS = {"gpt": 2, "vit": 2}, {"simple_resnet": 5}


def RULE(width_ratio, depth_ratio, config):
    """The rates at a size."""
    model = config.model
    depth = lambda blocks: BRANCHES.get(model.name, 1) * blocks + OTHERS.get(model.name, 2)
    factor = (depth(model.depth) / depth(model.base_depth)) ** -1.5
    factors = {f"{role}_lr_factor": factor for role in dm.Role}
    return dm.Parametrization(alpha=0.5, gamma=-0.5, **factors)
