"""Damaged checkpoint files are detected, and the run resumes from an older checkpoint to the same end."""

import errno
import os
import pathlib
import pickle
import random
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from planted_sweeps import RATES, X, parabola, sweep_of, write
from small_runs import assert_same_run, config

from depthmup_flax import InputError
from depthmup_flax.devices.parallel import sharding
from depthmup_flax.storage.records.table import read_record_file
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.runs.checkpoint import Checkpointer, fingerprint
from depthmup_flax.util.errors import RunStopped

# Orbax closes an event loop too early when a file that it reads is damaged.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def restore():
    """A function that restores the latest readable checkpoint of a directory."""
    experiment = build(config())
    everywhere = sharding.replicated(sharding.make_mesh())
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), experiment.state_shapes()
    )

    def restore(directory):
        checkpointer = Checkpointer(directory, keep=2)
        try:
            return checkpointer.restore(abstract)
        finally:
            checkpointer.close()

    return restore


def after_damage(checkpoints, tmp_path, damage, trials, restore):
    """Steps that restoring gives after ``damage`` to a file of the latest checkpoint; states are as they were saved."""
    rng, steps = random.Random(2), []
    assert {p.name for p in checkpoints.glob("[0-9]*")} >= {"180", "240"}
    files = sorted(p for p in (checkpoints / "240").rglob("*") if p.is_file() and p.stat().st_size)
    saved = {}
    for step in (180, 240):
        shutil.copytree(checkpoints / str(step), tmp_path / f"alone-{step}" / str(step))
        saved[step] = restore(tmp_path / f"alone-{step}")[0]
    for trial in range(trials):
        copy = tmp_path / str(trial)
        shutil.copytree(checkpoints, copy)
        # Large files hold most of the arrays, small ones most of the metadata: half the trials for each.
        file = rng.choices(files, weights=[p.stat().st_size for p in files])[0] if trial % 2 else rng.choice(files)
        path = copy / file.relative_to(checkpoints)
        path.write_bytes(damage(rng, bytearray(path.read_bytes())))
        state, _ = restore(copy)
        step = int(state.step)
        jax.tree.map(np.testing.assert_array_equal, state, saved[step])
        assert (copy / "240.damaged").exists() == (step == 180)
        steps.append(step)
        shutil.rmtree(copy)
    return steps


def flip(rng, content):
    place = rng.randrange(len(content))
    content[place] ^= 1 << rng.randrange(8)
    return content


def truncate(rng, content):
    return content[: rng.randrange(len(content))]


@pytest.mark.parametrize(("damage", "trials"), [(flip, 8), (truncate, 4)])
def test_a_damaged_checkpoint_is_set_aside_and_the_previous_one_is_restored(
    damage, trials, undisturbed, tmp_path, restore, record_property
):
    steps = after_damage(undisturbed / "checkpoints", tmp_path, damage, trials, restore)
    record_property("faults detected", steps.count(180))
    record_property("faults without effect", steps.count(240))
    assert steps.count(180) >= trials / 4  # not all: some files are not read


def test_one_flipped_bit_changes_the_fingerprint():
    rng = np.random.default_rng(0)
    state = {"a": rng.normal(size=(7, 5)).astype(np.float32), "b": rng.integers(0, 9, 11).astype(np.int32)}
    state["c"] = rng.normal(size=6).astype(np.float16)
    before = fingerprint(state)
    for name in state:
        for _ in range(20):
            changed = {key: value.copy() for key, value in state.items()}
            bits = changed[name].reshape(-1).view(np.uint8)
            bits[rng.integers(len(bits))] ^= np.uint8(1 << rng.integers(8))
            after = fingerprint(changed)
            assert [a != b for a, b in zip(after, before, strict=True)] == [key == name for key in sorted(state)]


def test_a_run_with_a_truncated_latest_checkpoint_ends_as_an_undisturbed_one(undisturbed, tmp_path, caplog):
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    (run / "result.json").unlink()
    for data in (run / "checkpoints" / "240" / "state").rglob("d/*"):
        data.write_bytes(data.read_bytes()[:-100])
    train_and_evaluate(config(), run)
    assert "checkpoints/240 cannot be read" in caplog.text
    assert "240.damaged" in caplog.text
    assert (run / "checkpoints" / "240.damaged").is_dir()  # not deleted
    assert_same_run(run, undisturbed)


def test_if_no_checkpoint_can_be_read_the_run_is_refused_and_no_file_changes(undisturbed, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    (run / "result.json").unlink()
    for path in (run / "checkpoints").rglob("*"):
        if path.is_file() and path.stat().st_size > 200:
            path.write_bytes(b"x")
    contents = lambda: {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    before = contents()
    with pytest.raises(InputError, match=r"no checkpoint in .* can be read"):
        train_and_evaluate(config(), run)
    assert contents() == before


def test_nothing_is_unpickled_from_checkpoints_and_records(undisturbed, restore, tmp_path, monkeypatch):
    write(tmp_path / "sweep", sweep_of(parabola, {X: RATES}))

    def refuse(*args, **kwargs):
        pytest.fail("something is unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    state, meta = restore(undisturbed / "checkpoints")
    assert int(state.step) == meta["data_position"] / 16 == 240
    assert len(read_record_file(tmp_path / "sweep" / "records.jsonl")[0]) == len(RATES)


@pytest.mark.parametrize("kind", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE])
def test_an_error_of_the_system_is_no_damage(kind, undisturbed, tmp_path, restore, monkeypatch):
    copy = tmp_path / "checkpoints"
    shutil.copytree(undisturbed / "checkpoints", copy)
    manifest = copy / "240" / "state" / "manifest.ocdbt"
    manifest.write_bytes(b"what such a file system gives")
    usual = pathlib.Path.open

    def opened(path, *args, **kwargs):
        if path == manifest:
            raise OSError(kind, os.strerror(kind), str(path))
        return usual(path, *args, **kwargs)

    monkeypatch.setattr(pathlib.Path, "open", opened)
    before = sorted(copy.rglob("*"))
    with pytest.raises(RunStopped, match=os.strerror(kind)):
        restore(copy)
    assert sorted(copy.rglob("*")) == before
    monkeypatch.undo()
    assert int(restore(copy)[0].step) == 180  # now its content is what is wrong


def continued(workdir, *before):
    """The result of a command that continues a run; ``before``: words in front of the command."""
    settings = ["model.width=16", "model.depth=4", "train.batch_size=16", "train.steps=20", "train.eval_every=10"]
    fields = [f"--config.{setting}" for setting in settings]
    command = [
        *before,
        sys.executable,
        "-m",
        "depthmup_flax",
        "train",
        "--config=digits",
        f"--workdir={workdir}",
        *fields,
    ]
    (workdir / "result.json").unlink(missing_ok=True)
    return subprocess.run([*command, *fields], capture_output=True, text=True)


@pytest.mark.slow
def test_damage_and_what_may_not_be_read_are_said_without_a_traceback(tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "20"
    (tmp_path / "run").mkdir()
    assert continued(tmp_path / "run").returncode == 0
    (checkpoint / "state" / "d").chmod(0)
    if shutil.which("setpriv") and os.geteuid() == 0:
        stopped = continued(tmp_path / "run", "setpriv", "--bounding-set=-dac_override,-dac_read_search")
        assert stopped.returncode == 74
        assert "Permission denied" in stopped.stderr
        assert "Traceback" not in stopped.stderr
        assert checkpoint.is_dir()
    (checkpoint / "state" / "d").chmod(0o700)
    shutil.rmtree(checkpoint / "state" / "d")
    resumed = continued(tmp_path / "run")
    assert resumed.returncode == 0
    assert "20.damaged" in resumed.stderr
    assert "Traceback" not in resumed.stderr
