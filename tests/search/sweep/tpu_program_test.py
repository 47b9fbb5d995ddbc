"""A sweep's program, compiled for a TPU that is not here."""

import re

import numpy as np
import pytest
import tpu_compiler  # noqa: F401  (skips where there is none)

from depthmup_flax import sweep_config
from depthmup_flax.config import default_config
from depthmup_flax.data import from_arrays
from depthmup_flax.plan.topologies import topology_devices
from depthmup_flax.search.sweep.grid import expand
from depthmup_flax.trainer.engine.device_batches import abstract_train_data
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.engine.lanes import LaneProgram, lane_mesh


def program_for_a_tpu(config, lanes):
    """The program of ``lanes`` learning rates on each chip, with small images."""
    devices = topology_devices("v5e:2x2")
    rates = tuple(1e-3 * 2**i for i in range(lanes * len(devices)))
    sweep = sweep_config(
        config, {"rates": {"optimizer.learning_rate": rates}}, figure="test", title="A test", scale="smoke"
    )
    pixels, labels = np.zeros((4096, 28, 28, 3), np.uint8), np.arange(4096) % 10
    dataset, runs = from_arrays(pixels, labels, pixels[:128], labels[:128], 10), expand(sweep)
    experiment = build(runs[0].config, load=lambda _: dataset)
    mesh = lane_mesh(devices)
    return LaneProgram(experiment, runs, mesh, lanes, True, abstract_train_data(dataset, mesh))


@pytest.mark.slow
def test_a_sweep_on_a_tpu_copies_neither_the_data_set_nor_kernels_nor_their_moments():
    config, lanes = default_config("res_mlp"), 8
    config.model.update(width=128, depth=2, dtype="bfloat16")
    config.train.update(batch_size=128)
    program = program_for_a_tpu(config, lanes)
    assert program.call_length.most > 1  # the host's time for a call is that of several steps
    copied = set(re.findall(r" = (\w+\[[\d,]+\])\S* (?:copy|transpose)\(", program.compiled.as_text()))
    kernels = {f"f32[{lanes},2352,128]", f"f32[{lanes},2,128,128]"}  # of the stem and of the blocks
    assert not copied & kernels, copied & kernels
    assert not any(shape.startswith("u8[4096") for shape in copied)


@pytest.mark.slow
def test_a_sweep_on_a_tpu_has_the_attention_of_xla():
    config = default_config("vit")
    config.model.update(width=32, depth=2, patch_size=7, dtype="bfloat16")
    program = program_for_a_tpu(config, lanes=2)
    assert "tpu_custom_call" not in program.compiled.as_text()
