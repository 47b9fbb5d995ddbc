"""The coordinate check: activations and updates must keep their size as the network grows wider and deeper.

``depthmup check --config=...`` checks a config; `coord_check` checks any network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from depthmup_flax.lazy_names import imported_late

if TYPE_CHECKING:
    from depthmup_flax.coord_check.check import coord_check
    from depthmup_flax.coord_check.networks import Network, Source, linen_network, nnx_network
    from depthmup_flax.coord_check.report import Report

__all__ = ["Network", "Report", "Source", "coord_check", "linen_network", "nnx_network"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = imported_late(
        __name__, {"check": "coord_check", "networks": "Network Source linen_network nnx_network", "report": "Report"}
    )
