"""The traced step of an earlier start is used only where it is the same step, and changes no number."""

import importlib
import os
import re
import shutil
import sys

import jax
import jax.numpy as jnp
import joined
import numpy as np
import processes
import pytest
from small_runs import assert_same_run, config

from depthmup_flax.parallel import sharding
from depthmup_flax.training.loop import train_and_evaluate
from depthmup_flax.training.stored_trace import Traces

FIELDS = [f"--config.{field}" for field in ("model.width=8", "model.depth=2", "train.steps=4", "train.eval_every=2")]


class Step:
    """A step that counts how often it is traced, from one start after another."""

    __name__ = "step"

    def __init__(self, directory, factor=3.0):
        self.directory, self.factor, self.traces = directory, factor, 0

    def __call__(self, state, rows):
        self.traces += 1
        return {"x": state["x"] * self.factor + rows.sum()}

    def start(self, size=4, facts="config", code=(), step=None):
        """What a start computes, and whether it traced the step."""
        place = sharding.replicated(sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1}))
        state = {"x": jax.ShapeDtypeStruct((size,), jnp.float32, sharding=place)}
        rows = jax.ShapeDtypeStruct((2,), jnp.int32, sharding=place)
        before = self.traces
        reused = Traces(self.directory, code).reused(step or self, (state, rows), {"x": place}, {"facts": facts})
        program = jax.jit(reused, out_shardings={"x": place})
        result = program({"x": jnp.arange(size, dtype=jnp.float32)}, np.array([1, 2], np.int32))
        np.testing.assert_array_equal(result["x"], np.arange(size) * self.factor + 3)
        return self.traces > before


@pytest.fixture
def step(tmp_path):
    directory = tmp_path / "cache"
    directory.mkdir()
    step = Step(directory)
    assert step.start()
    assert not step.start()
    return step


def test_another_config_shape_setting_or_code_is_traced_again(step, tmp_path):
    assert step.start(facts="another config")
    assert step.start(size=5)
    with jax.default_matmul_precision("float32"):
        assert step.start()
    file = tmp_path / "config.py"
    file.write_text("width = 8")
    assert step.start(code=[str(file)])
    assert not step.start(code=[str(file)])
    file.write_text("width = 16")
    assert step.start(code=[str(file)])


def test_a_module_that_was_edited_deleted_or_comes_from_another_directory_is_traced_again(step, tmp_path, monkeypatch):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "models_of_a_user.py").write_text("depth = 1")

    def imported_from(name):
        with monkeypatch.context() as context:
            context.syspath_prepend(tmp_path / name)
            sys.modules.pop("models_of_a_user", None)
            importlib.import_module("models_of_a_user")
        return tmp_path / name / "models_of_a_user.py"

    file = imported_from("here")
    assert step.start(facts="models")
    assert not step.start(facts="models")
    file.write_text("depth = 22")
    assert step.start(facts="models")
    assert not step.start(facts="models")
    os.utime(file, (1, 1))
    assert step.start(facts="models")
    imported_from("there")
    assert step.start(facts="models")
    assert not step.start(facts="models")
    (tmp_path / "there" / "models_of_a_user.py").unlink()
    assert step.start(facts="models")
    del sys.modules["models_of_a_user"]


@pytest.mark.parametrize("place", [0, 40, -100])
def test_a_damaged_file_is_traced_again_and_replaced(place, step):
    (file,) = step.directory.iterdir()
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    for damaged in (bytes(content), bytes(content[:place]), b""):
        file.write_bytes(damaged)
        assert step.start()
        assert not step.start()


def test_what_cannot_be_stored_is_traced_as_ever(step):
    def calls_python(state, rows):
        return jax.tree.map(lambda x: jax.pure_callback(np.copy, x, x), step(state, rows))

    files = set(step.directory.iterdir())
    for _ in range(2):
        assert step.start(facts="python", step=calls_python)
    assert set(step.directory.iterdir()) == files
    shutil.rmtree(step.directory)
    assert step.start()


def test_a_run_with_a_stored_trace_is_the_run_without_bit_for_bit(tmp_path):
    run = config()
    run.train.update(steps=40, eval_every=20)
    (tmp_path / "cache").mkdir()
    train_and_evaluate(run, tmp_path / "traced")
    for name in ("stored", "reused"):
        train_and_evaluate(run, tmp_path / name, traces=Traces(tmp_path / "cache"))
        assert_same_run(tmp_path / name, tmp_path / "traced")
    assert len(list((tmp_path / "cache").iterdir())) == 1


def start(directory, home, fields=FIELDS, devices=1):
    """What ``train.py`` traced, and how many programs it compiled."""
    arguments = [f"--workdir={directory}", *fields]
    process = processes.Process(
        directory.with_suffix(".log"), joined.train_py_with_cache_home, home, arguments, devices
    )
    assert process.wait() == 0, process.text()
    compiled, traced = re.findall(r"compiled (\d+)\ntraced (.*)", process.text())[-1]  # of this start: it appends
    return traced.split(), int(compiled)


def test_a_restart_traces_neither_the_step_nor_the_initial_state_and_compiles_nothing(tmp_path):
    traced, compiled = start(tmp_path / "run", tmp_path / "home")
    assert "init_state" in traced
    assert traced.count("_take_steps") == 2
    assert compiled > 0
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "4")
    (tmp_path / "run" / "result.json").unlink()
    traced, compiled = start(tmp_path / "run", tmp_path / "home")
    assert "init_state" not in traced
    assert traced.count("_take_steps") == 1  # a call of the stored one
    assert compiled == 0
    assert (tmp_path / "run" / "checkpoints" / "4").exists()


@pytest.mark.slow
def test_eight_devices_train_the_same_with_a_stored_trace(tmp_path):
    fields = [*FIELDS, "--config.mesh.fsdp=2", "--config.mesh.tensor=2"]
    process = processes.Process(tmp_path / "log", joined.train_py, [f"--workdir={tmp_path / 'traced'}", *fields], 8)
    assert process.wait() == 0, process.text()
    for name in ("stored", "reused"):
        traced, _ = start(tmp_path / name, tmp_path / "home", fields, devices=8)
        assert_same_run(tmp_path / name, tmp_path / "traced")
    assert traced.count("_take_steps") == 1
