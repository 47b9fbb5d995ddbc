"""Devices: one mesh over all of them, batches split along it, everything else on every device."""

from __future__ import annotations

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from depthmup_flax.errors import InputError

DATA_AXIS = "data"


def make_mesh() -> Mesh:
    """A one-axis mesh (``data``) over all devices; GSPMD propagates shardings, so the axis is automatic."""
    return jax.make_mesh((jax.device_count(),), (DATA_AXIS,), axis_types=(AxisType.Auto,))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Splits the leading axis over ``data``."""
    return NamedSharding(mesh, PartitionSpec(DATA_AXIS))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def require_divisible(name: str, batch_size: int, mesh: Mesh) -> None:
    """``batch_size`` must be a multiple of the number of devices."""
    devices = mesh.shape[DATA_AXIS]
    if batch_size % devices:
        below = batch_size - batch_size % devices
        suggestion = f"{below} or {below + devices}" if below else f"{devices}"
        raise InputError(
            f"{name} is {batch_size}, which does not divide over {devices} devices: use {suggestion}, say."
        )
