"""Names of topologies: what is refused in one sentence, with or without the compilers."""

import jax
import pytest
from data_sets import error

from depthmup_flax.plan import topologies
from depthmup_flax.plan.topologies import environment_for, topology_devices, with_shape


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v9:2x2", "--topology is 'v9:2x2'"),
        ("v5litepod-12", "or v5e-16"),
        ("h100:8", "GPUs"),
        ("v5e", "write a slice as v5e:4x4"),
        ("v5e:2x0", "write a slice as v5e:4x4"),
        ("v6e:2xtwo", "write a slice as v6e:4x4"),
    ],
)
def test_a_topology_that_does_not_exist_is_refused_with_an_example(name, says):
    message = error(topology_devices, name)
    assert says in message


@pytest.mark.parametrize(
    ("rented", "topology"),
    [
        ("v5litepod-1", "v5e:1x1"),
        ("v5litepod-8", "v5e:2x4"),
        ("v5e-32", "v5e:4x8"),
        ("v6e-256", "v6e:16x16"),
        ("v5e-12", "v5e-12"),
        ("v5p-32", "v5p-32"),  # counts cores, and has three dimensions
        ("v5e:4x8", "v5e:4x8"),
    ],
)
def test_a_slice_may_be_named_as_it_is_rented(rented, topology):
    assert with_shape(rented) == topology


def test_slices_are_for_tpus():
    assert "at least 1" in error(topology_devices, "v5e:2x2", 0)
    assert "slices of an absent TPU" in error(topology_devices, "here", 2)


def test_the_devices_here_are_jax_s():
    assert topology_devices("here") == jax.devices()
    assert topologies.device_memory(jax.devices()[0]) is None  # a CPU has no figures


def _raises(exception):
    def get(**_):
        raise exception

    return get


@pytest.mark.parametrize(
    ("name", "exception", "says"),
    [
        ("v5e:2x2", RuntimeError("JAX TPU support not installed"), 'pip install ".[plan]"'),
        ("v5e:3x3", jax.errors.JaxRuntimeError('INVALID_ARGUMENT: "v5e:3x3" is odd\nat line 3'), '("v5e:3x3" is odd)'),
    ],
)
def test_a_compiler_that_is_missing_or_refuses_is_one_sentence(name, exception, says, monkeypatch):
    monkeypatch.setattr(topologies.topologies, "get_topology_desc", _raises(exception))
    assert says in error(topology_devices, name)


def test_the_environment_of_a_compiler_keeps_what_a_user_has_set():
    found = environment_for("v5e:2x2", {"TPU_SKIP_MDS_QUERY": "0", "TPU_WORKER_HOSTNAMES": "WARNING: could not find"})
    assert found["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"
    assert found["TPU_WORKER_HOSTNAMES"] == "localhost"
    assert "TPU_SKIP_MDS_QUERY" not in found
    assert environment_for("here", {}) == environment_for("v9:2x2", {}) == {}
