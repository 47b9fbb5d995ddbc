"""Whether the copies of an array that devices hold are equal."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.util.errors import RunStopped
from depthmup_flax.util.types import ArrayTree


def require_equal_copies(state: ArrayTree) -> None:
    """Raises `RunStopped` if copies that devices hold of an array, or of a part of one, differ in their `_fingerprint`.

    ``state`` is sharded over one mesh; all processes call this together and get the same answer.
    """
    paths, leaves = zip(*jax.tree_util.tree_leaves_with_path(state), strict=True)
    if len(leaves[0].sharding.device_set) == 1:  # also under `jax.disable_jit`, whose arrays have no mesh
        return
    mesh = leaves[0].sharding.mesh
    table = np.asarray(jax.device_get(_of_each_device(leaves, mesh, tuple(leaf.sharding.spec for leaf in leaves))))
    for path, leaf, column in zip(paths, leaves, table.T, strict=True):
        number = dict(zip(mesh.devices.flat, column.tolist(), strict=True))
        holders: dict[str, list[jax.Device]] = {}
        for device, part in leaf.sharding.devices_indices_map(leaf.shape).items():
            holders.setdefault(str(part), []).append(device)
        for devices in holders.values():
            majority, count = Counter(number[device] for device in devices).most_common(1)[0]
            if count == len(devices):
                continue
            most = 2 * count > len(devices)
            differing = [device for device in devices if not most or number[device] != majority]
            where = " and ".join(f"device {device.id} of process {device.process_index}" for device in differing)
            than = f"the {count} equal copies on other devices" if most else "each other"
            raise RunStopped(
                f"the copies of {path_name(path).removeprefix('carry/')} on {where} differ from {than}: a device has "
                "computed or stored a wrong number, so no checkpoint is written. Check that machine or leave it out, "
                "and rerun the command to resume from the last checkpoint. To turn this comparison off: "
                "train.compare_replicas=False."
            )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _of_each_device(leaves: Sequence[jax.Array], mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> jax.Array:
    """Fingerprints of the parts of ``leaves`` on each device, uint32 ``[devices, leaves]``, on all devices."""
    of_parts = lambda *parts: jnp.stack([_fingerprint(part) for part in parts])[None]
    rows = jax.shard_map(
        of_parts, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(mesh.axis_names), check_vma=False
    )(*leaves)
    return jax.lax.with_sharding_constraint(rows, NamedSharding(mesh, PartitionSpec()))


@jax.jit  # traced once per shape: parameters and optimizer states share them
def _fingerprint(x: jax.Array) -> jax.Array:
    """The sum of the elements as unsigned integers, modulo 2^32: a flipped bit changes it."""
    x = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else x
    # 64-bit numbers become two of 32 bits, along a new last axis.
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * min(x.dtype.itemsize, 4)}"))
    return jnp.sum(bits, dtype=jnp.uint32)
