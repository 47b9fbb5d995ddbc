"""Whether the copies of an array that devices hold are equal."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.util.errors import RunStopped
from depthmup_flax.util.types import ArrayTree


@jax.jit  # traced once per shape: parameters and optimizer states share them
def _fingerprint(x: jax.Array) -> jax.Array:
    """``sum_i (2 i + 1) b_i mod 2^32`` over the elements ``b_i`` as unsigned integers: any flipped bit changes it.

    A flipped bit adds an odd number times a power of two below 2^32; integer sums are exact.
    """
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    # 64-bit numbers become two of 32 bits, along a new last axis.
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * min(x.dtype.itemsize, 4)}")).astype(jnp.uint32)
    index = jnp.zeros(bits.shape, jnp.uint32)
    for axis in range(bits.ndim):  # a reshape would gather a sharded array
        stride = math.prod(bits.shape[axis + 1 :]) % 2**32
        index += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(stride)
    return jnp.sum((2 * index + 1) * bits, dtype=jnp.uint32)


def require_equal_copies(state: ArrayTree) -> None:
    """Compares the copies that devices hold of each array, or of each part of one, bit by bit.

    ``state`` is sharded over one mesh; all processes call this together and get the same answer: `RunStopped` if copies
    differ, by broken hardware or different input.
    """
    paths, leaves = zip(*jax.tree_util.tree_leaves_with_path(state), strict=True)
    mesh = leaves[0].sharding.mesh
    if mesh.size == 1:
        return
    specs = tuple(leaf.sharding.spec for leaf in leaves)
    everywhere = NamedSharding(mesh, PartitionSpec())
    table = np.asarray(jax.device_get(_of_each_device(leaves, mesh, specs, everywhere)))
    found = [
        (path_name(path), *differing)
        for path, leaf, column in zip(paths, leaves, table.T, strict=True)
        for differing in _differing(leaf, dict(zip(mesh.devices.flat, column.tolist(), strict=True)))
    ]
    if not found:
        return
    name, devices, equal = found[0]
    name = name.removeprefix("carry/")
    where = " and ".join(f"device {device.id} of process {device.process_index}" for device in devices)
    than = f"the {equal} equal copies on other devices" if equal else "each other"
    more = f" (and {len(found) - 1} more arrays)" if len(found) > 1 else ""
    raise RunStopped(
        f"the copies of {name}{more} on {where} differ from {than}: a device has computed or stored a wrong number, so "
        "no checkpoint is written. Check that machine or leave it out, and rerun the command to resume from the last "
        "checkpoint. To turn this comparison off: train.compare_replicas=False."
    )


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _of_each_device(
    leaves: Sequence[jax.Array], mesh: Mesh, specs: tuple[PartitionSpec, ...], everywhere: NamedSharding
) -> jax.Array:
    """Fingerprints of the parts of ``leaves`` on each device, uint32 ``[devices, leaves]``, on all devices."""

    def of_parts(*parts: jax.Array) -> jax.Array:
        return jnp.stack([_fingerprint(part) for part in parts])[None]

    rows = jax.shard_map(
        of_parts, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(mesh.axis_names), check_vma=False
    )(*leaves)
    return jax.lax.with_sharding_constraint(rows, everywhere)


def _differing(leaf: jax.Array, numbers: dict[jax.Device, int]) -> Iterator[tuple[list[jax.Device], int]]:
    """For each part of an array whose copies differ: the devices in the minority, and the size of the majority.

    ``numbers``: the fingerprint on each device. Without a majority: all devices of the part, and 0.
    """
    holders: dict[str, list[jax.Device]] = {}
    for device, part in leaf.sharding.devices_indices_map(leaf.shape).items():
        holders.setdefault(str(part), []).append(device)
    for devices in holders.values():
        ((majority, count), *others) = Counter(numbers[device] for device in devices).most_common()
        if others and 2 * count > len(devices):
            yield [device for device in devices if numbers[device] != majority], count
        elif others:
            yield devices, 0
