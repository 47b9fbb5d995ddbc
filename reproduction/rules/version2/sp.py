"""The standard parametrization: the framework's defaults and one learning rate, which alone is tuned."""

import depthmup_flax as dm

RULE = dm.get_parametrization("sp")
