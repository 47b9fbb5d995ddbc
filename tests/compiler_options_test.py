"""Programs that draw parameters compile at a lower level of optimization, unless a level is set."""

import jax
import numpy as np
import pytest

from depthmup_flax.compiler_options import drawing_options
from depthmup_flax.training.config import default_config
from depthmup_flax.training.experiment import build


@pytest.fixture
def no_level(monkeypatch):
    """Neither the variable nor JAX's setting of the tests."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def test_parameters_are_the_same_bit_for_bit_at_both_levels_of_optimization(no_level):
    config = default_config("simple_resnet")
    config.model.update(width=16, depth=4)
    experiment = build(config)
    at_default, drawn = (
        jax.device_get(jax.jit(experiment.init_state, compiler_options=options)())
        for options in ({"xla_backend_optimization_level": "3"}, drawing_options("cpu"))
    )
    jax.tree.map(np.testing.assert_array_equal, drawn, at_default)


def test_only_a_cpu_has_options_and_a_level_of_the_user_stays(no_level, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    assert drawing_options("cpu") == {"xla_backend_optimization_level": "2"}
    assert drawing_options("tpu") is None
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=1")
    assert drawing_options("cpu") is None
    monkeypatch.delenv("XLA_FLAGS")
    jax.config.update("jax_disable_most_optimizations", True)
    assert drawing_options("cpu") is None
