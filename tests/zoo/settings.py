"""The base size and the rules of the zoo."""

import depthmup_flax as dm

BASE_WIDTH, BASE_DEPTH = 16, 2
RULE = dm.get_parametrization("depth_mup", branch_multiplier=0.5)
# For one block that is used at every depth: the branches add up coherently, so each is divided by their number.
LOOPED_RULE = dm.get_parametrization("ode", branch_multiplier=0.5)
