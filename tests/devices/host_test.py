"""The cache of compiled programs, to which no other user can write, and compiler options for drawing parameters."""

import functools
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import joined
import numpy as np
import processes
import pytest

from depthmup_flax.config import default_config
from depthmup_flax.devices.host import cache_compilations, drawing_options, drawn
from depthmup_flax.trainer.engine.from_config import build

CACHE = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_enable_xla_caches",
)
LEVEL = "xla_backend_optimization_level"
UNOPTIMIZED = "jax_disable_most_optimizations"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The user's cache, where ``JAX_COMPILATION_CACHE_DIR`` is not set."""
    before = {name: jax.config.values[name] for name in CACHE}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "depthmup_flax"
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.slow
def test_a_start_in_another_work_directory_with_the_cache_at_another_path_compiles_nothing_again(tmp_path):
    fields = [f"--config.{field}" for field in ("model.width=8", "model.depth=2", "train.steps=2")]

    def start(name, home):
        arguments = [f"--workdir={tmp_path / 'runs' / name}", *fields]
        process = processes.Process(tmp_path / name, joined.train_py_with_cache_home, home, arguments)
        assert process.wait() == 0, process.text()
        return [int(number) for number in re.search(r"read (\d+) compiled (\d+)", process.text()).groups()]

    _, compiled = start("first", tmp_path / "home")
    assert compiled > 0
    (tmp_path / "home").rename(tmp_path / "moved")
    read, compiled = start("second", tmp_path / "moved")
    assert read > 0
    assert compiled == 0


def test_a_program_that_was_half_written_by_a_killed_process_is_dropped(home):
    home.mkdir(mode=0o700)
    for name in ("half-cache", "whole-cache", "whole-atime", "lost-atime"):
        (home / name).write_bytes(bytes(8))
    cache_compilations()
    assert sorted(path.name for path in home.iterdir()) == ["lost-atime", "whole-atime", "whole-cache"]


def test_only_the_user_can_write_to_the_cache(home):
    cache_compilations()
    assert jax.config.jax_compilation_cache_dir == str(home)
    assert os.stat(home).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, None])
def test_a_cache_that_others_can_write_to_or_that_cannot_be_made_is_not_used(mode, home, logged):
    if mode is None:
        home.touch()
    else:
        home.mkdir()
        os.chmod(home, mode)
    cache_compilations()
    assert jax.config.jax_compilation_cache_dir is None
    assert "compiled programs are not kept" in logged.text


def test_a_compilation_cache_that_the_user_names_takes_the_place_of_ours(tmp_path):
    before = jax.config.values["jax_compilation_cache_dir"]
    assert before
    cache_compilations()
    assert jax.config.values["jax_compilation_cache_dir"] == before


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


@pytest.mark.slow
def test_parameters_are_the_same_bit_for_bit_at_both_levels_of_optimization(options):
    config = default_config("res_mlp")  # at level 0, 95 of its numbers differ
    config.model.update(width=16, depth=4)
    experiment = build(config)
    at_default, drawn = (
        jax.device_get(jax.jit(lambda: experiment.init({}), compiler_options=chosen)())
        for chosen in ({LEVEL: "3"}, options())
    )
    jax.tree.map(np.testing.assert_array_equal, drawn, at_default)


def test_values_drawn_one_by_one_are_those_of_a_program_and_more_layers_compile_nothing(caplog):
    def init(layers, key):
        normal = lambda layer: jax.random.normal(jax.random.fold_in(key, layer), (3, 5)) * jnp.sqrt(0.1)
        return {"layers": [normal(layer) for layer in range(layers)], "zero": 0.0}

    def compilations(layers):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level("WARNING"):
            values = drawn(functools.partial(init, layers), jax.random.key(0))
        return values, sum("Finished XLA compilation" in line for line in caplog.messages)

    values, of_two = compilations(2)
    of_program = jax.jit(functools.partial(init, 2))(jax.random.key(0))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), values, of_program)
    assert of_two > 0
    assert compilations(4)[1] == 0


def test_only_a_cpu_has_options_and_a_level_that_is_set_stays(options):
    assert options(flags="--xla_force_host_platform_device_count=8") == {LEVEL: "1"}
    assert options("tpu") is None
    assert options(flags=f"--{LEVEL}=1") is None
    assert options(unoptimized=True) is None


@pytest.mark.parametrize("own", [False, True])
def test_small_programs_are_kept_also_in_a_directory_that_jaxs_variable_names(own, tmp_path):
    """In a process of its own, as JAX reads its variables when it starts."""
    code = (
        "import jax, os\n"
        "from depthmup_flax.devices.host import cache_compilations\n"
        "cache_compilations()\n"
        "jax.jit(lambda x: x + 1)(1.0)\n"
    )
    place = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)} if own else {"XDG_CACHE_HOME": str(tmp_path)}
    free = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")}
    subprocess.run(
        [sys.executable, "-c", code], env=free | place | {"JAX_ENABLE_COMPILATION_CACHE": "true"}, check=True
    )
    assert list(tmp_path.rglob("*-cache"))
