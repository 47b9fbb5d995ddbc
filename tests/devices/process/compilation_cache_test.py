"""Compiled programs are kept in the user's cache, to which no other user can write, and which stays small."""

import hashlib
import math
import os
import re

import jax
import jax.numpy as jnp
import joined
import processes
import pytest
from jax._src import compilation_cache

from depthmup_flax.devices.process.compilation_cache import _delete_oldest, cache_compilations

OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_enable_xla_caches",
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The user's cache, where ``JAX_COMPILATION_CACHE_DIR`` is not set."""
    before = {name: jax.config.values[name] for name in OPTIONS}
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
    assert not (tmp_path / "runs" / "first" / "compiled").exists()
    (tmp_path / "home").rename(tmp_path / "moved")
    read, compiled = start("second", tmp_path / "moved")
    assert read > 0
    assert compiled == 0


def test_only_the_user_can_write_to_the_cache(home):
    cache_compilations()
    assert jax.config.jax_compilation_cache_dir == str(home)
    assert os.stat(home).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_cache_that_others_can_write_to_is_not_used_and_a_line_says_why(mode, home, logged):
    home.mkdir()
    os.chmod(home, mode)
    cache_compilations()
    assert jax.config.jax_compilation_cache_dir is None
    assert logged.messages == [
        "compiled programs are not kept for the next start: "
        f"other users can write to the directory, run chmod go-w on it: {home}"
    ]


@pytest.mark.parametrize(("mode", "used"), [(0o777, False), (0o707, False), (0o1777, True), (0o755, True)])
def test_a_cache_that_others_could_replace_is_not_used(mode, used, home, logged):
    home.parent.chmod(mode)
    cache_compilations()
    assert (jax.config.jax_compilation_cache_dir == str(home)) == used
    assert ("replace" in logged.text) != used


@pytest.mark.parametrize("library", ["installed", "zstd"])
def test_a_program_with_a_flipped_bit_is_compiled_anew(library, home, monkeypatch):
    if library == "zstd":
        monkeypatch.setattr(compilation_cache, "zstandard", pytest.importorskip("zstandard"))
    cache_compilations()
    compilation_cache.reset_cache()
    try:
        for flip in range(12):
            jax.clear_caches()
            assert jax.jit(lambda x: jnp.sin(x) * 3)(2.0) == pytest.approx(3 * math.sin(2.0), rel=1e-5)
            (entry,) = home.glob("jit__lambda*-cache")
            content = bytearray(entry.read_bytes())
            assert hashlib.sha256(content[:-32]).digest() == content[-32:]  # a damaged one was replaced
            content[(flip * 7919) % len(content)] ^= 1 << flip % 8
            entry.write_bytes(content)
    finally:
        compilation_cache.reset_cache()


def test_the_cache_of_another_user_is_not_used(home, logged, monkeypatch):
    home.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(home).st_uid + 1)
    cache_compilations()
    assert jax.config.jax_compilation_cache_dir is None
    assert "another user owns the directory" in logged.text


def test_a_home_that_cannot_be_written_costs_the_cache_and_nothing_else(home, logged):
    home.touch()
    cache_compilations()
    assert jax.config.jax_compilation_cache_dir is None
    assert "File exists" in logged.text


def test_a_compilation_cache_that_the_user_names_takes_the_place_of_ours(tmp_path):
    before = dict(jax.config.values)
    assert before["jax_compilation_cache_dir"]
    cache_compilations()
    assert dict(jax.config.values) == before


def test_the_programs_that_were_not_used_for_longest_are_deleted_beyond_the_limit(tmp_path):
    for number, used in enumerate((30.0, 10.0, 40.0, 20.0)):
        path = tmp_path / f"program{number}-cache"
        path.write_bytes(bytes(100))
        os.utime(path, (used, 5.0))
    (tmp_path / "directory").mkdir()
    _delete_oldest(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.glob("*-cache")) == ["program0-cache", "program2-cache"]
