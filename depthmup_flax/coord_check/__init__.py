"""The coordinate check: activations and updates must keep their size as the network grows wider and deeper.

``python -m depthmup_flax.coord_check --config=...`` checks a config; `coord_check` checks any network.
"""

from depthmup_flax.coord_check.check import coord_check
from depthmup_flax.coord_check.networks import Network, Source, linen_network, nnx_network
from depthmup_flax.coord_check.report import Report

__all__ = ["Network", "Report", "Source", "coord_check", "linen_network", "nnx_network"]
