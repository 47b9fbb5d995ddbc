"""The coordinate check: activations and updates must keep their size as the network grows wider and deeper.

``depthmup check --config=...`` checks a config; `depthmup_flax.coord_check` checks any network::

    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    import depthmup_flax as dm

    rule = dm.get_parametrization("depth_mup")
    x, labels = jax.random.normal(jax.random.key(0), (8, 20)), jnp.arange(8)


    class Net(nn.Module):
        width: int
        depth: int

        @nn.compact
        def __call__(self, x):
            h = nn.Dense(self.width, name="stem")(x)
            for i in range(self.depth):
                y = nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
                h = h + rule.residual_multiplier(self.depth / 2) * y
            return dm.Readout(10, rule, width_ratio=self.width / 64, name="head")(h)


    def build(width, depth):
        info = dm.audit(Net(width, depth), Net(64, 2), x, rule=rule).info
        optimizer = dm.adamw(1e-3, info, rule)
        return dm.checked_network(Net(width, depth), x, info=info, optimizer=optimizer)


    sizes = {"width": 64, "depth": 4, "depths": (4, 8, 16)}
    report = dm.coord_check(build, labels, rule=rule, **sizes, steps=2, seeds=3)
    print(report)  # report.ok, report.causes, report.save(directory)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from depthmup_flax.util.imports import imported_late

if TYPE_CHECKING:
    from depthmup_flax.check.check import coord_check
    from depthmup_flax.check.networks import Network, Source, checked_network
    from depthmup_flax.check.report import Report

__all__ = ["Network", "Report", "Source", "checked_network", "coord_check"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = imported_late(
        __name__, {"check": "coord_check", "networks": "Network Source checked_network", "report": "Report"}
    )
