"""Depth-muP, the default of this package (TP6 Table 1; B24 Table 1)."""

import depthmup_flax as dm

RULE = dm.get_parametrization("depth_mup")
