"""Meshes of TPU slices that are not here: every layout is built or refused in one sentence."""

import pytest
import tpu_compiler  # noqa: F401  (skips where there is none)
from jax.experimental import topologies

from depthmup_flax import InputError
from depthmup_flax.devices import sharding
from depthmup_flax.plan.topologies import topology_devices


def layouts(count):
    divisors = [n for n in range(1, count + 1) if count % n == 0]
    return [(data, count // data) for data in divisors]


@pytest.mark.parametrize(
    ("name", "slices", "built", "refused"),
    [
        ("v4:2x2x2", 1, 4, 0),
        ("v5p:4x4x4", 1, 7, 0),
        ("v5e:8x16", 1, 8, 0),
        ("v6e:16x16", 1, 9, 0),
        # Refused: the slow network between slices carries data parallelism alone.
        ("v4:4x4x4", 2, 7, 1),
        ("v6e:16x16", 2, 9, 1),
        ("v5e:4x4", 4, 5, 2),
    ],
)
def test_every_mesh_of_a_tpu_is_built_or_refused_in_one_sentence(name, slices, built, refused):
    devices, found = topology_devices(name, slices), {"built": 0, "refused": 0}
    for layout in layouts(len(devices)):
        axes = dict(zip(sharding.MESH_AXES, layout, strict=True))
        if layout[0] % slices:
            with pytest.raises(InputError, match=rf"^mesh.data is {layout[0]}: it must be a multiple"):
                sharding.make_mesh(axes, devices)
            found["refused"] += 1
            continue
        mesh = sharding.make_mesh(axes, devices)
        assert mesh.devices.shape == layout
        assert {device.id for device in mesh.devices.flat} == {device.id for device in devices}
        # Between slices there is nothing but data parallelism.
        parts = mesh.devices.reshape(slices, -1)
        assert all(len({getattr(device, "slice_index", 0) for device in part}) == 1 for part in parts)
        found["built"] += 1
    assert found == {"built": built, "refused": refused}


def test_devices_that_are_half_a_chip_are_refused():
    cores = topologies.get_topology_desc("v4:2x2x2", "tpu").devices
    with pytest.raises(InputError, match=r"^the 16 devices of kind TPU v4 form no mesh: .* each as one device."):
        sharding.make_mesh(devices=cores)
