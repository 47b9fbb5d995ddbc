"""CompleteP (arXiv:2505.01618 Table 1): branches times 1/r."""

import depthmup_flax as dm

RULE = dm.get_parametrization("completep")
