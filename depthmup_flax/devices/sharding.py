"""The device mesh, and the sharding of batches, parameters, optimizer state and activations on it.

The mesh has two axes, which split batches. ``fsdp`` also splits parameters and optimizer state; a device gathers those
of the layer that it computes. `param_spec` derives the sharding of a parameter from its logical axes, which Flax keeps
in a box around it (``flax.linen.with_logical_partitioning``). GSPMD inserts the communication. Results equal those of
one device up to the order of sums, which are rounded to the dtype of the layers.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, HostBatch

MESH_AXES = BATCH_AXES = ("data", "fsdp")

AxisNames = tuple[str | None, ...]  # logical axes of a parameter, one for each dimension

# Of the logical axes the first that a parameter has, and that `fsdp` divides, is split. The others count matrices: the
# layers of a stack, the window of a convolution.
_SPLIT = ("width_in", "width_out", "inner_in", "inner_out", "fixed_in", "fixed_out", "vocab_in", "vocab_out")


def mesh_shape(axes: Mapping[str, int], devices: int) -> tuple[int, ...]:
    """Number of devices along each of `MESH_AXES`. One number in ``axes`` may be -1: all other devices."""
    sizes = {name: axes[name] for name in MESH_AXES}
    rest = list(sizes.values()).count(-1)
    known = math.prod(size for size in sizes.values() if size != -1)
    is_number = all(size > 0 or size == -1 for size in sizes.values())
    if not is_number or rest > 1 or devices % known or (known != devices and not rest):
        raise InputError(
            f"mesh is {', '.join(f'{name}={size}' for name, size in sizes.items())}: use numbers of devices, of which "
            f"one may be -1 (all others), and whose product is the number of devices, {devices}."
        )
    return tuple(devices // known if size == -1 else size for size in sizes.values())


def make_mesh(axes: Mapping[str, int] | None = None, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of ``devices``, by default of all processes; without ``axes`` all along ``data``. See `mesh_shape`.

    ``data`` spans the TPU slices, which a slower network connects. Axes may share a dimension of a slice's torus.
    """
    devices = jax.devices() if devices is None else devices
    shape = mesh_shape(axes or {"data": -1, "fsdp": 1}, len(devices))
    # JAX also calls hosts of GPUs slices. Their devices are numbered host by host, so `data` spans hosts first anyway.
    on_tpu = devices[0].platform == "tpu"
    slices = len({getattr(device, "slice_index", 0) for device in devices}) if on_tpu else 1
    data, fsdp = shape
    if data % slices:
        raise InputError(f"mesh.data is {data}: it must be a multiple of the number of TPU slices, {slices}.")
    try:
        if slices == 1:
            arranged = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
        else:
            arranged = mesh_utils.create_hybrid_device_mesh(
                (data // slices, fsdp), (slices, 1), devices, allow_split_physical_axes=True
            )
    except (AssertionError, NotImplementedError, ValueError) as error:
        raise InputError(
            f"the {len(devices)} devices of kind {devices[0].device_kind} form no mesh: JAX needs all chips of a "
            "slice, each as one device. Use a whole slice."
        ) from error
    return Mesh(arranged, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def platform(mesh: Mesh) -> str:
    """``cpu``, ``gpu`` or ``tpu``: the target of the programs of ``mesh``, whatever this host has."""
    return str(mesh.devices.flat[0].platform)


def batch_shards(mesh: Mesh) -> int:
    """Number of parts of a batch."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Splits the leading axis over ``data`` and ``fsdp``."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def require_divisible(batch_size: int, accumulate: int, mesh: Mesh, hint: str = "") -> None:
    """`InputError`, ending with ``hint``, unless a batch is a multiple of ``data * fsdp * train.accumulate``."""
    shards = batch_shards(mesh)
    if batch_size % (shards * accumulate):
        raise InputError(
            f"train.batch_size is {batch_size}: it must be a multiple of {shards * accumulate}, {shards} devices times "
            f"train.accumulate={accumulate}.{hint}"
        )


def param_spec(names: AxisNames, shape: Sequence[int], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """The sharding of a parameter with these logical axes: of at most one axis, over ``fsdp``; of a vector none."""
    split: list[str | None] = [None] * len(shape)
    if mesh.shape["fsdp"] > 1 and sum(name in _SPLIT for name in names) > 1:
        dimensions = (names.index(name) for name in _SPLIT if name in names)
        if fitting := [d for d in dimensions if shape[d] % mesh.shape["fsdp"] == 0]:
            split[fitting[0]] = "fsdp"
    return PartitionSpec(*split)


def logical_axes(params: ArrayTree) -> dict[str, AxisNames]:
    """Path -> logical axes of every parameter, array or shape, that is in one of Flax's boxes."""
    is_box = lambda x: isinstance(x, nn.LogicallyPartitioned)
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_box)
    return {path_name(path): tuple(leaf.names) for path, leaf in leaves if is_box(leaf)}


def state_shardings(state: ArrayTree, axes: Mapping[str, AxisNames], mesh: Mesh | AbstractMesh) -> ArrayTree:
    """A tree of `NamedSharding` for a training state, or for a part of one.

    Arrays whose path ends with the path of a parameter, and that have its rank, are sharded like it: the parameter, and
    the optimizer's momentum, second moments and averages. All other arrays are replicated. ``axes`` maps paths of
    parameters to their `logical_axes`.
    """

    def place(path: jax.tree_util.KeyPath, leaf: jax.Array | jax.ShapeDtypeStruct) -> NamedSharding:
        parts = path_name(path).split("/")
        for start in range(len(parts)):
            names = axes.get("/".join(parts[start:]))
            if names is not None and len(names) == len(leaf.shape):
                return NamedSharding(mesh, param_spec(names, leaf.shape, mesh))
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(place, state)


def local_rows(mesh: Mesh, size: int) -> np.ndarray:
    """Indices, ascending, of the rows of a batch of ``size`` that the devices of this process hold."""
    slices = batch_sharding(mesh).addressable_devices_indices_map((size,)).values()
    return np.unique(np.concatenate([np.arange(size)[index] for index in slices if index is not None]))


def put_batch(batch: HostBatch, rows: np.ndarray, size: int, mesh: Mesh) -> dict[str, jax.Array]:
    """A batch of ``size`` over all processes, sharded by `batch_sharding`; ``rows`` are this process' `local_rows`."""

    def put(x: np.ndarray) -> jax.Array:
        def shard(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None  # the mesh has devices of this process
            start, stop, _ = index[0].indices(size)
            first = int(np.searchsorted(rows, start))
            return x[first : first + stop - start]

        return jax.make_array_from_callback((size, *x.shape[1:]), batch_sharding(mesh), shard)

    return jax.tree.map(put, batch)


def put_everywhere(tree: HostBatch, mesh: Mesh) -> dict[str, jax.Array]:
    """Replicates host arrays, equal in all processes, on every device."""
    return jax.tree.map(lambda x: jax.make_array_from_callback(x.shape, replicated(mesh), lambda _: x), tree)


# JAX contexts, so programs with different values do not share a trace: the mesh and the platform that a program is
# traced for.
_mesh = jax.make_user_context(None)
_platform = jax.make_user_context(None)


@contextlib.contextmanager
def activations_on(mesh: Mesh) -> Iterator[None]:
    """A context in which `stream` and `gathered` constrain shardings; outside they return their argument."""
    with traced_for(mesh), _mesh(mesh):
        yield


def traced_for(mesh: Mesh) -> contextlib.AbstractContextManager[None]:
    """A context in which `target_platform` is that of ``mesh``."""
    return _platform(platform(mesh))


def traced_platform() -> str | None:
    """The target platform of the sharded program being traced; ``None`` outside of `activations_on`."""
    return None if _mesh.value is None else platform(_mesh.value)


def target_platform() -> str | None:
    """The target platform of any program being traced in `traced_for`, else ``None``."""
    return _platform.value


def gathered(param: jax.Array, names: AxisNames) -> jax.Array:
    """A parameter as a product needs it: whole along ``fsdp``. Its gradient is summed into the parameter's own parts.

    If the same axis splits a batch and a parameter, GSPMD may compute a wrong product (jax 0.10.2 and 0.12.0). A table
    for look-ups needs no `gathered`.
    """
    mesh = _mesh.value
    if mesh is None or mesh.shape["fsdp"] == 1:
        return param
    return _gathered(param, NamedSharding(mesh, param_spec(names, param.shape, mesh)), replicated(mesh))


def _split_then_whole(param: jax.Array, split: NamedSharding, whole: NamedSharding) -> jax.Array:
    # The first constraint keeps a loop over layers from carrying the whole stack gathered.
    return jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(param, split), whole)


_gathered = jax.custom_jvp(_split_then_whole, nondiff_argnums=(1, 2))


@_gathered.defjvp
def _gathered_jvp(
    split: NamedSharding, whole: NamedSharding, params: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # A transposed constraint constrains the gradient: a whole one would be summed on every device.
    return _split_then_whole(*params, split, whole), jax.lax.with_sharding_constraint(*tangents, split)


def on_whole_matrices(function: Callable[[jax.Array], jax.Array], x_BxIxO: jax.Array) -> jax.Array:
    """``function`` of a stack of matrices, spread over devices so that each has whole ones.

    Splits move from rows and columns to the stack by one mesh axis after another, and back: for one axis GSPMD
    exchanges parts (all-to-all), for two at once it would gather the stack on every device. If there are fewer matrices
    than devices, several devices have the same matrix.
    """
    mesh = _mesh.value
    if mesh is None or mesh.size == 1:
        return function(x_BxIxO)
    axes: tuple[str, ...] = ()
    free, steps = PartitionSpec.UNCONSTRAINED, []
    for axis in ("fsdp", "data"):
        if mesh.shape[axis] > 1 and math.prod(mesh.shape[name] for name in axes) < len(x_BxIxO):
            axes = (*axes, axis)
            steps.append(PartitionSpec(axes, free, free))
    steps.append(PartitionSpec(axes))
    for spec in steps:
        x_BxIxO = jax.lax.with_sharding_constraint(x_BxIxO, NamedSharding(mesh, spec))
    y_BxIxO = function(x_BxIxO)
    for spec in reversed(steps):
        y_BxIxO = jax.lax.with_sharding_constraint(y_BxIxO, NamedSharding(mesh, spec))
    return y_BxIxO


def gathers() -> bool:
    """Whether `gathered` has an effect in the program that is being traced."""
    return _mesh.value is not None and _mesh.value.shape["fsdp"] > 1


def stream(x: jax.Array) -> jax.Array:
    """``[B, ...]``: splits a residual stream along the batch, with whole features."""
    mesh = _mesh.value
    if mesh is not None and mesh.size > 1 and divides(x):
        x = jax.lax.with_sharding_constraint(x, batch_sharding(mesh))
    if target_platform() == "gpu" and divides(x):
        # The gradient of learned positions is a sum over the batch, for which XLA:GPU would store a whole stream with
        # the batch last: 1.18 times the step of ViT-S, by the roofline of the compiled program. Of the operand of a
        # layout constraint GSPMD would gather all parts.
        return on_parts(row_major, x)
    return x


def row_major(x: jax.Array) -> jax.Array:
    """``x``, stored with its last axis contiguous."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def divides(x: jax.Array) -> bool:
    """Whether the devices can have equal parts of a batch: not of the single example of an initialization."""
    return _mesh.value is None or len(x) % batch_shards(_mesh.value) == 0


def on_parts(function: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """``function`` on each device's examples of arrays that `divides`."""
    mesh, spec = _mesh.value, PartitionSpec(BATCH_AXES)
    if mesh is None or mesh.size == 1:
        return function(*arrays)
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(*arrays)
