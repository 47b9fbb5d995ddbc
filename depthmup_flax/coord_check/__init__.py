"""The coordinate check: does everything keep its size as the network grows wider and deeper?

``python -m depthmup_flax.coord_check --config=...`` checks a config, `coord_check` any network.
"""

from depthmup_flax.coord_check.check import Report, coord_check
from depthmup_flax.coord_check.networks import Network, linen_network, nnx_network

__all__ = ["Network", "Report", "coord_check", "linen_network", "nnx_network"]
