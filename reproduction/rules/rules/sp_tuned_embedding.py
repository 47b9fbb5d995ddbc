"""SP, one learning rate for all layers; the embedding's or stem's is tuned besides it on the proxy."""

import depthmup_flax as dm

RULE = dm.get_parametrization("sp")
TUNED = ("learning_rate", "input_lr_factor")
