"""SP with learning rates per layer, full alignment (arXiv:2407.05872): Adam 1, 1/m, 1/m, as public code states it.

SGD has m^1/2, m^-1/2, 1/m: its gradients at initialization fall as m^-1/2, except the readout's. Norm scales are
treated as embeddings. The paper has neither Muon nor depth.
"""

import depthmup_flax as dm

ADAM, SGD = (0, -1, -1), (0.5, -0.5, -1)  # exponents of m: embedding, hidden, readout


def RULE(width_ratio, depth_ratio, config):
    """The rates at a size."""
    if config.optimizer.name == "muon":
        return None
    first, hidden, readout = (width_ratio**power for power in (SGD if config.optimizer.name == "momentum" else ADAM))
    factors = {"input": first, "vector": first, "hidden": hidden, "output": readout}
    return dm.get_parametrization("sp", **{f"{role}_lr_factor": factor for role, factor in factors.items()})
