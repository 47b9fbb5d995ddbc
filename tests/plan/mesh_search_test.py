"""The search over meshes: which are compiled, their order, and what it prints."""

from types import SimpleNamespace

import pytest

from depthmup_flax.config import default_config
from depthmup_flax.plan.estimate import Memory
from depthmup_flax.plan.mesh_search import compilations, meshes, search, table
from depthmup_flax.util.errors import InputError

GIB = 2**30


@pytest.mark.parametrize("devices", [1, 4, 6, 8, 64, 256])
def test_meshes_use_all_devices_and_differ(devices):
    shapes = [tuple(mesh.values()) for mesh in meshes(devices)]
    assert all(data * fsdp * tensor == devices for data, fsdp, tensor in shapes)
    assert (devices, 1, 1) in shapes
    assert len(set(shapes)) == len(shapes) <= 6


def estimated(config):
    """Four chips: fsdp is slow, tensor too large, remat=full the fastest."""
    if config.mesh.fsdp == 4:
        raise InputError("train.batch_size is 62.")
    step = 0.01 * config.mesh.fsdp - 0.004 * (config.model.remat == "full")
    memory = Memory(0, 0, 0, (20 if config.mesh.tensor > 1 else 3) * GIB, 16 * GIB)
    return SimpleNamespace(memory=memory, seconds=SimpleNamespace(step=step))


@pytest.mark.parametrize(("remat", "tried"), [("dots", ["dots", "none", "full"]), ("none", ["none", "dots", "full"])])
def test_the_best_mesh_is_tried_with_every_remat_and_what_cannot_run_comes_last(remat, tried):
    config = default_config("vit")
    config.model.remat = remat
    found = list(search(config, 4, estimated))
    assert len(found) == compilations(4)
    assert [one.setting["model.remat"] for one in found if one.setting["mesh.data"] == 4] == tried
    lines = table(found).splitlines()
    assert "4 x 1 x 1" in lines[0]
    assert "remat full" in lines[0]
    assert "GiB too much" in lines[-3]
    assert "cannot run: train.batch_size is 62." in lines[-2]
    assert lines[-1] == (
        "best: --config.mesh.data=4 --config.mesh.fsdp=1 --config.mesh.tensor=1 --config.model.remat=full"
    )
