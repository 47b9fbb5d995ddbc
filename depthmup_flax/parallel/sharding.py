"""Devices: the mesh, and how batches, parameters, optimizer state and activations lie on it.

The mesh has three axes. ``data`` and ``fsdp`` split batches; ``fsdp`` splits parameters and optimizer state as well
(each device gathers a layer's when it computes it); ``tensor`` splits the features inside layers. Where a parameter is
split follows from the logical axes that it is `depthmup_flax.annotated` with, by `PARAM_RULES`; values are those of one
device, up to the order of sums. GSPMD inserts the communication.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from depthmup_flax.errors import InputError
from depthmup_flax.rule.annotations import AxisNames
from depthmup_flax.rule.info_trees import path_name

MESH_AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")
TENSOR_AXIS = "tensor"

# Mesh axis -> logical axes of a parameter, best first: the first that the parameter has, and whose size it divides, is
# split. Features inside a branch come before the stream's, so that a branch needs one sum over ``tensor`` (Megatron-LM,
# arXiv:1909.08053, sec. 3). What no rule fits is on every device: vectors are small.
PARAM_RULES: Mapping[str, tuple[str, ...]] = {
    "tensor": ("inner_out", "inner_in", "width_out"),
    "fsdp": ("width_in", "width_out", "inner_in", "inner_out", "fixed_in", "fixed_out"),
}


def mesh_shape(axes: Mapping[str, int], devices: int) -> tuple[int, ...]:
    """Devices along `MESH_AXES`, for ``config.mesh``: one number may be -1, which is all that are left.

    Raises:
      InputError: the numbers do not multiply to ``devices``.
    """
    sizes = {name: axes[name] for name in MESH_AXES}
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != -1):
            raise InputError(f"mesh.{name} is {size!r}: use a number of devices, or -1 for all that are left.")
    said = ", ".join(f"{name}={size}" for name, size in sizes.items())
    if list(sizes.values()).count(-1) > 1:
        raise InputError(f"mesh is {said}: only one number can be -1.")
    known = math.prod(size for size in sizes.values() if size != -1)
    if devices % known or (known != devices and -1 not in sizes.values()):
        remedy = (
            "set mesh.data=-1" if devices % known == 0 else f"use numbers that divide {devices}, such as mesh.data=-1"
        )
        raise InputError(f"mesh is {said}, but there are {devices} devices: {remedy}.")
    return tuple(devices // known if size == -1 else size for size in sizes.values())


def make_mesh(axes: Mapping[str, int] | None = None, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh over all devices of all processes, or over some; without ``axes`` they are all along ``data``.

    Axes are automatic: GSPMD propagates shardings.

    Raises:
      InputError: see `mesh_shape`.
    """
    shape = mesh_shape(axes or {"data": -1, "fsdp": 1, "tensor": 1}, len(devices or jax.devices()))
    return jax.make_mesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES), devices=devices)


def batch_shards(mesh: Mesh) -> int:
    """Parts that a batch is split into."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Splits the leading axis over ``data`` and ``fsdp``."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def require_divisible(batch_size: int, accumulate: int, mesh: Mesh) -> None:
    """``train.batch_size`` must be a multiple of its parts on devices times ``train.accumulate``."""
    shards = batch_shards(mesh)
    parts = shards * accumulate
    if batch_size % parts:
        below = batch_size - batch_size % parts
        suggestion = f"{below} or {below + parts}" if below else f"{parts}"
        each = f"{shards} devices" + (f" times train.accumulate = {accumulate}" if accumulate > 1 else "")
        raise InputError(f"train.batch_size is {batch_size}, which does not divide over {each}: use {suggestion}, say.")


# -- parameters ---------------------------------------------------------------------------------------------------


def param_spec(names: AxisNames, shape: Sequence[int], mesh: Mesh) -> PartitionSpec:
    """How a parameter with these logical axes lies on ``mesh``: `PARAM_RULES`."""
    placed: list[str | None] = [None] * len(shape)
    if sum(name not in (None, "layers") for name in names) > 1:
        for mesh_axis, rule in PARAM_RULES.items():
            size = mesh.shape[mesh_axis]
            fitting = (
                names.index(name)
                for name in rule
                if name in names and placed[names.index(name)] is None and shape[names.index(name)] % size == 0
            )
            dimension = next(fitting, None) if size > 1 else None
            if dimension is not None:
                placed[dimension] = mesh_axis
    return PartitionSpec(*placed)


def state_shardings(state: Any, axes: Mapping[str, AxisNames], mesh: Mesh) -> Any:
    """A tree of shardings for a training state, or any part of one.

    An array whose path ends with a parameter's path and has its shape lies as the parameter does: the parameter itself,
    and what an optimizer keeps for it (momentum, second moments, averages). All else is on every device.

    Args:
      state: tree of arrays or of shapes.
      axes: path of a parameter -> its logical axes, from `depthmup_flax.rule.roles.axes_from_annotations`.
      mesh: where.
    """

    def place(path: Any, leaf: Any) -> NamedSharding:
        parts = path_name(path).split("/")
        for start in range(len(parts)):
            names = axes.get("/".join(parts[start:]))
            if names is not None and len(names) == len(leaf.shape):
                return NamedSharding(mesh, param_spec(names, leaf.shape, mesh))
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(place, state)


# -- batches ------------------------------------------------------------------------------------------------------


def local_rows(mesh: Mesh, size: int) -> np.ndarray:
    """The rows of a batch of ``size`` that the devices of this process hold, ascending."""
    parts = batch_sharding(mesh).addressable_devices_indices_map((size,)).values()
    return np.unique(np.concatenate([np.arange(size)[index] for index in parts if index is not None]))


def put_batch(batch: Any, rows: np.ndarray, size: int, mesh: Mesh) -> Any:
    """Arrays over all processes, split as `batch_sharding` says, from the `local_rows` that this one has read."""
    split = batch_sharding(mesh)

    def put(x: np.ndarray) -> jax.Array:
        def part(index: Any) -> np.ndarray:  # a tuple of slices
            start, stop, _ = index[0].indices(size)
            first = int(np.searchsorted(rows, start))
            return x[first : first + stop - start]

        return jax.make_array_from_callback((size, *x.shape[1:]), split, part)

    return jax.tree.map(put, batch)


def put_everywhere(tree: Any, mesh: Mesh) -> Any:
    """Host arrays, the same in all processes, whole on every device."""
    put: Callable[[np.ndarray], jax.Array] = lambda x: jax.make_array_from_callback(
        x.shape, replicated(mesh), lambda _: x
    )
    return jax.tree.map(put, tree)


# -- activations --------------------------------------------------------------------------------------------------

# The mesh that a program is traced for. A JAX context, so that programs for other meshes do not share a trace.
_mesh = jax.make_user_context(None)


@contextlib.contextmanager
def activations_on(mesh: Mesh) -> Iterator[None]:
    """Within, `stream` and `inner` tell the compiler where activations lie; outside they do nothing."""
    with _mesh(mesh if mesh.size > 1 else None):
        yield


def gathered(param: jax.Array, names: AxisNames) -> jax.Array:
    """A parameter as a layer computes with it: whole along ``fsdp``, so that its gradient is first summed whole, too.

    Left to itself, GSPMD may divide the sum over the batch among both of its axes, and on a mesh of three axes of two
    devices each it then sums wrongly (seen with jax 0.10.2 on CPU: ``x @ w`` with ``w`` split both ways).
    """
    mesh = _mesh.value
    if mesh is None or mesh.shape["fsdp"] == 1:
        return param
    spec = param_spec(names, param.shape, mesh)
    whole = PartitionSpec(*(axis if axis != "fsdp" else None for axis in spec))
    # First as it lies: a loop over layers would else carry the whole stack gathered.
    param = jax.lax.with_sharding_constraint(param, NamedSharding(mesh, spec))
    return jax.lax.with_sharding_constraint(param, NamedSharding(mesh, whole))


def gathers() -> bool:
    """Whether `gathered` does anything in the program that is being traced."""
    return _mesh.value is not None and _mesh.value.shape["fsdp"] > 1


def keeps_all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """A policy of ``jax.checkpoint``: the backward pass gathers again, or all parameters would lie whole till then."""
    return primitive.name != "sharding_constraint"


def stream(x: jax.Array) -> jax.Array:
    """``[B, ...]``: a residual stream is split along the batch, and whole along its features."""
    return _constrain(x, PartitionSpec(BATCH_AXES))


def inner(x: jax.Array) -> jax.Array:
    """``[B, ..., features]``: features inside a branch are split over ``tensor``, as the weights that make them are."""
    return _constrain(x, PartitionSpec(BATCH_AXES, *[None] * (x.ndim - 2), TENSOR_AXIS))


def _constrain(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    mesh = _mesh.value
    if mesh is None or x.ndim < 2:
        return x
    whole = (*spec, *[None] * (x.ndim - len(spec)))
    for size, axes in zip(x.shape, whole, strict=True):
        names = (axes,) if isinstance(axes, str) else axes or ()
        if size % math.prod(mesh.shape[name] for name in names):
            return x  # such as the one example of an initialization
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
