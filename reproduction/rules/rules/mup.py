"""muP: width only (arXiv:2203.03466)."""

import depthmup_flax as dm

RULE = dm.get_parametrization("mup")
