"""With libtpu, which needs no TPU: topologies, and a small compilation of every model."""

import pytest
import tpu_compiler  # noqa: F401  (skips where there is none)
from data_sets import error

from depthmup_flax.config import default_config
from depthmup_flax.data.blank import PlannedData
from depthmup_flax.plan.compiled_step import compile_run
from depthmup_flax.plan.summary import make_plan
from depthmup_flax.plan.topologies import CHIPS, device_memory, topology_devices

pytestmark = pytest.mark.usefixtures("optimized")


@pytest.mark.parametrize("kind", ["v4", "v5e", "v5p", "v6e"])
def test_a_topology_has_the_devices_that_its_figures_are_for(kind):
    devices = topology_devices(CHIPS[kind].example)
    assert (devices[0].device_kind, device_memory(devices[0])) == CHIPS[kind][:2]
    assert len(devices) == (8 if kind in ("v4", "v5p") else 16)


def test_one_chip_and_two_slices_are_topologies_and_three_by_three_is_not():
    assert len(topology_devices("v5e:1x1")) == 1
    assert {device.slice_index for device in topology_devices("v5e:2x2", slices=2)} == {0, 1}
    assert "v5e:3x3" in error(topology_devices, "v5e:3x3")


LONG = ("simple_resnet", "vit")


def small(model):
    config = default_config(model)
    config.data.name = "tfds:cifar10"
    config.model.update(width=128, depth=2, dtype="bfloat16")
    if "resnet" in model:  # convolutions take long to compile
        config.model.update(width=16, depth=4)
        config.data.image_size = 16
    elif model == "vit":
        config.model.update(patch_size=8, num_heads=2)
    return config


@pytest.mark.parametrize("model", ["res_mlp", *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def test_the_step_of_a_model_is_planned_for_four_chips(model):
    config = small(model)
    config.mesh.fsdp = 2
    step = compile_run(config, topology_devices("v5e:2x2"), PlannedData())
    plan = make_plan(step)
    assert plan.memory.fits
    assert plan.gflops > 0
    assert "all-gather" in step.compiled.as_text()


def test_a_program_that_does_not_fit_is_refused_with_the_compilers_numbers():
    config = small("vit")
    config.data.image_size, config.train.batch_size, config.model.depth = 256, 16384, 8
    config.data.placement, config.model.scan = "stream", True
    plan = make_plan(compile_run(config, topology_devices("v5e:2x2"), PlannedData()))
    assert plan.memory.fits is False
    assert plan.memory.limit == CHIPS["v5e"].memory
    assert "TOO BIG" in str(plan)
