"""The width-depth spectral condition (abstract of arXiv:2603.00541v2): r^-1/2 with one matrix in a branch, else 1/r.

With one transformation in a branch the condition is Depth-muP's, with two or more CompleteP's; for Muon too, whose
update has the spectral norm that the condition asks for. The paper's table of hyperparameters could not be read.
"""

import depthmup_flax as dm


def RULE(width_ratio, depth_ratio, config):
    """The rule for a model's branches."""
    one = config.model.name == "simple_resnet" or config.model.get("block_depth") == 1
    return dm.get_parametrization("depth_mup" if one else "completep")
