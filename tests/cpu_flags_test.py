"""Which flags of XLA's CPU compiler the commands set, and when."""

import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys

import jax
import numpy as np
import pytest

from depthmup_flax import cpu_flags
from depthmup_flax.config import default_config
from depthmup_flax.training.experiment import build

HERE = importlib.metadata.version("jaxlib"), platform.machine(), cpu_flags.this_processor()


# What a flag makes slower although it helps on average; docs/performance.md says so.
SLOWER = {("0.10.2", "AMD EPYC, family 25, model 1"): {"SimpleResNet 32x6, 1 lane"}}


def test_flags_are_set_only_where_they_were_measured_to_help():
    for one in cpu_flags.FLAGS:
        like = one.faster_on[0]
        processor = cpu_flags.Processor(like.vendor or "any", like.family or "99", like.model or "9")
        assert cpu_flags.flags_for(one.jaxlib, one.machines[0], processor) == [one.flag]
        assert not cpu_flags.flags_for(one.jaxlib, "riscv64", processor)
        assert not cpu_flags.flags_for(f"{one.jaxlib}.dev0", one.machines[0], processor)
        excepted = {f"AMD EPYC, family {family}, model {model}" for _, family, model in one.except_on}
        assert excepted <= set(one.measured)
        for where, times in one.measured.items():
            mean = lambda times: statistics.geometric_mean(times.values())
            if where not in excepted:
                assert mean(times) < 0.98, where
                assert min(times.values()) < 0.95, where
                slower = {network for network, time in times.items() if time >= 1.05}
                assert slower <= SLOWER.get((one.jaxlib, where), set()), where
            else:
                assert max(times.values()) > 1.05, where
                others = [other.measured.get(where) for other in cpu_flags.FLAGS if other.jaxlib == one.jaxlib]
                assert mean(times) >= 0.99 or any(mean(other) < mean(times) for other in others if other), where


def test_a_processor_gets_the_flag_of_its_model_else_of_its_vendor_else_of_all():
    flags = lambda *processor: cpu_flags.flags_for("0.12.0.1", "x86_64", cpu_flags.Processor(*processor))
    assert flags("AuthenticAMD", "26", "2") == ["--xla_cpu_experimental_ynn_fusion_type=dot,reduce"]
    assert flags("AuthenticAMD", "25", "17") == flags("GenuineIntel", "6", "143") == flags() == []
    flags = lambda *processor: cpu_flags.flags_for("0.10.2", "x86_64", cpu_flags.Processor(*processor))
    assert flags("AuthenticAMD", "25", "1") == ["--xla_cpu_experimental_ynn_fusion_type=dot,reduce"]
    assert flags("AuthenticAMD", "25", "17") == []
    assert flags("AuthenticAMD", "26", "2") == flags() == ["--xla_cpu_experimental_ynn_fusion_type=dot"]


def test_flags_of_the_user_stay_alone():
    given = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    assert cpu_flags.choose_cpu_flags(given) == []
    assert given == {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}


def test_chosen_flags_are_in_the_environment():
    environment = {}
    chosen = cpu_flags.choose_cpu_flags(environment)
    assert chosen == cpu_flags.flags_for(*HERE)
    assert environment == ({"XLA_FLAGS": " ".join(chosen)} if chosen else {})


def printed(code):
    """What a process without ``XLA_FLAGS`` prints."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-c", f"import os\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


@pytest.mark.skipif(not cpu_flags.flags_for(*HERE), reason="no flag was measured to help here")
def test_the_compiler_here_knows_the_flags():
    chosen = "from depthmup_flax.cpu_flags import choose_cpu_flags; choose_cpu_flags()"
    product = "import jax.numpy as jnp; print(os.environ['XLA_FLAGS'], (jnp.ones((8, 8)) @ jnp.ones((8, 8))).sum())"
    assert printed(f"{chosen}\n{product}") == f"{' '.join(cpu_flags.flags_for(*HERE))} 512.0"


def test_an_imported_library_sets_none():
    code = "import depthmup_flax, depthmup_flax.sweep, depthmup_flax.tune; print('XLA_FLAGS' in os.environ)"
    assert printed(code) == "False"


def test_the_processor_is_known_on_linux():
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        assert all(cpu_flags.this_processor())


def test_parameters_are_the_same_bit_for_bit_at_both_levels_of_optimization():
    config = default_config("simple_resnet")
    config.model.update(width=16, depth=4)
    experiment = build(config)
    at_default, drawn = (
        jax.device_get(jax.jit(experiment.init_state, compiler_options=options)())
        for options in ({"xla_backend_optimization_level": "3"}, cpu_flags.drawing_options("cpu"))
    )
    jax.tree.map(np.testing.assert_array_equal, drawn, at_default)
    assert cpu_flags.drawing_options("tpu") is None
