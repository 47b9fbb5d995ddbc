"""Programs that draw parameters compile at a lower level of optimization, unless a level is set."""

import jax
import numpy as np
import pytest

from depthmup_flax.config import default_config
from depthmup_flax.devices.host import drawing_options
from depthmup_flax.trainer.engine.from_config import build

LEVEL = "xla_backend_optimization_level"
UNOPTIMIZED = "jax_disable_most_optimizations"


@pytest.fixture
def options(monkeypatch):
    """`drawing_options` with this ``XLA_FLAGS`` and ``jax_disable_most_optimizations``."""

    def options(platform="cpu", flags="", unoptimized=False):
        monkeypatch.setenv("XLA_FLAGS", flags)
        jax.config.update(UNOPTIMIZED, unoptimized)
        try:
            return drawing_options(platform)
        finally:
            jax.config.update(UNOPTIMIZED, before)

    before = jax.config.values[UNOPTIMIZED]
    return options


def test_parameters_are_the_same_bit_for_bit_at_both_levels_of_optimization(options):
    config = default_config("res_mlp")  # at level 0, 95 of its numbers differ
    config.model.update(width=16, depth=4)
    experiment = build(config)
    at_default, drawn = (
        jax.device_get(jax.jit(lambda: experiment.workload.init({}), compiler_options=chosen)())
        for chosen in ({LEVEL: "3"}, options())
    )
    jax.tree.map(np.testing.assert_array_equal, drawn, at_default)


def test_only_a_cpu_has_options_and_a_level_that_is_set_stays(options):
    assert options(flags="--xla_force_host_platform_device_count=8") == {LEVEL: "2"}
    assert options("tpu") is None
    assert options(flags=f"--{LEVEL}=1") is None
    assert options(unoptimized=True) is None
