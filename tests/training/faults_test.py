"""Faults made on purpose: whatever happens to a run, what it has written is whole, and it goes on to the same end.

Each run is compared with one that nothing happened to: bit for bit in its last checkpoint, its metrics and its result.
"""

import contextlib
import json
import os
import pathlib
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import processes
import pytest
from PIL import Image

from depthmup_flax import InputError, errors
from depthmup_flax.errors import RunStopped
from depthmup_flax.parallel import sharding
from depthmup_flax.records import read_records
from depthmup_flax.sweep.grid import sweep_config
from depthmup_flax.sweep.runner import sweep
from depthmup_flax.training.checkpoint import Checkpointer, fingerprint
from depthmup_flax.training.config import default_config
from depthmup_flax.training.device_batches import Waiting, read_ahead
from depthmup_flax.training.experiment import build
from depthmup_flax.training.loop import train_and_evaluate

KILLS, SWEEP_KILLS = 20, 8


def config(**train):
    found = default_config()
    found.model.update(width=16, depth=4)
    found.train.update(batch_size=16, steps=240, eval_every=60, log_every=20, **train)
    return found


def last_state(workdir):
    steps = [int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()]
    path = workdir / "checkpoints" / str(max(steps)) / "state"
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here),
        dict(ocp.StandardCheckpointer().metadata(path.absolute()).item_metadata),
    )
    return ocp.StandardCheckpointer().restore(path.absolute(), shapes)


def assert_same_run(found, expected):
    jax.tree.map(np.testing.assert_array_equal, last_state(found), last_state(expected))
    for name, drop in (("metrics.jsonl", "images_per_s"), ("result.json", "wall_time_s")):
        ours, theirs = (
            [{k: v for k, v in json.loads(line).items() if k != drop} for line in text.splitlines()]
            if name.endswith("jsonl")
            else {k: v for k, v in json.loads(text).items() if k != drop}
            for text in ((directory / name).read_text() for directory in (found, expected))
        )
        assert ours == theirs


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The run that nothing happens to."""
    workdir = tmp_path_factory.mktemp("undisturbed")
    train_and_evaluate(config(), workdir)
    return workdir


# -- processes that end ---------------------------------------------------------------------------------------------


def test_a_run_killed_at_twenty_random_moments_ends_as_one_that_was_not(undisturbed, tmp_path, record_property):
    rng, in_a_save, steps = random.Random(0), 0, 240
    run = config(checkpoint_every=3)
    for kill in range(KILLS):
        process = processes.Process(tmp_path / f"{kill}.log", processes.train, run, tmp_path / "run")
        # Every fourth falls somewhere into the start, the others into training and its checkpoints.
        if kill % 4:
            process.wait_for("model  ")
        time.sleep(rng.uniform(0.0, 0.8))
        process.send(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.text()
        in_a_save += bool(list((tmp_path / "run").glob("checkpoints/*.orbax-checkpoint-tmp*")))
    record_property("kills during a save", in_a_save)
    assert in_a_save  # the moments were well chosen
    assert not (tmp_path / "run" / "result.json").exists()
    last = processes.Process(tmp_path / "last.log", processes.train, run, tmp_path / "run")
    assert last.wait() == 0, last.text()
    assert "resuming after step" in last.text()
    assert f"step {steps}/{steps}" in last.text()
    assert_same_run(tmp_path / "run", undisturbed)


def a_sweep():
    base = default_config()
    base.model.update(width=8, depth=2)
    base.data.update(name="synthetic", train_examples=64, test_examples=16)
    base.train.update(batch_size=8, steps=6, log_every=2)
    grid = {"optimizer.learning_rate": [2.0**-k for k in range(4, 13)], "seed": (0, 1), "model.depth": (2, 3)}
    return sweep_config(base, {"rates": grid}, figure="faults", title="Faults.", scale="smoke")


def outcomes(workdir):
    records = [record for path in workdir.glob("records*.jsonl") for record in read_records(path)[0]]
    assert len({record.run for record in records}) == len(records)  # each once
    return {record.run: {**vars(record), "wall_time_s": None} for record in records}


def test_a_sweep_killed_at_random_moments_has_the_records_of_one_that_was_not(tmp_path, record_property):
    sweep(a_sweep(), tmp_path / "whole", lanes=2)
    rng, kills, kept, torn = random.Random(1), 0, 0, 0
    workdirs = [tmp_path / "parts-0"]
    while kills < SWEEP_KILLS:
        log = tmp_path / f"{kills}-{len(workdirs)}.log"
        process = processes.Process(log, processes.sweep, a_sweep(), workdirs[-1], lanes=2, keep_every_s=0.0)
        if kills % 4:
            process.wait_for("at a time", "resume after step")
        records = workdirs[-1] / "records.jsonl"
        if kills == SWEEP_KILLS - 1:  # chance alone may leave this one out
            while process.running() and not (records.exists() and records.stat().st_size):
                time.sleep(0.01)
        else:
            time.sleep(rng.uniform(0.0, 1.5))
        process.send(signal.SIGKILL)
        if process.wait() == 0:  # the sweep is small: another one
            workdirs.append(tmp_path / f"parts-{len(workdirs)}")
            continue
        kills += 1
        kept += (workdirs[-1] / "unfinished").exists()
        torn += records.exists() and 0 < len(records.read_text().splitlines()) < 36
    record_property("with runs in training kept", kept)
    record_property("with some runs recorded", torn)
    assert kept  # it is saved at every step
    assert torn
    for workdir in workdirs:
        sweep(a_sweep(), workdir, lanes=2)
        assert outcomes(workdir) == outcomes(tmp_path / "whole")
        assert not list((workdir / "unfinished").glob("*"))


def test_sigterm_saves_the_very_step_and_the_run_goes_on_from_it(undisturbed, tmp_path):
    process = processes.Process(tmp_path / "first.log", processes.train, config(), tmp_path / "run")
    process.wait_for("step 20/240")
    process.send(signal.SIGTERM)
    assert process.wait() == errors.PREEMPTED, process.text()
    step = int(process.text().partition("preempted after step ")[2].split(",")[0])
    assert 20 <= step < 240
    second = processes.Process(tmp_path / "second.log", processes.train, config(), tmp_path / "run")
    assert second.wait() == 0, second.text()
    assert f"resuming after step {step}" in second.text()
    assert_same_run(tmp_path / "run", undisturbed)


def test_sigterm_ends_a_sweep_in_the_middle_of_runs_which_go_on_to_the_same_records(tmp_path):
    longer = a_sweep()
    longer.base.train.update(steps=300, log_every=100)
    longer.grids.rates.optimizer.learning_rate = (0.01, 0.02)
    sweep(longer, tmp_path / "whole", lanes=2)
    process = processes.Process(tmp_path / "first.log", processes.sweep, longer, tmp_path / "parts", lanes=2)
    process.wait_for("at a time")
    process.send(signal.SIGTERM)
    assert process.wait() == errors.PREEMPTED, process.text()
    second = processes.Process(tmp_path / "second.log", processes.sweep, longer, tmp_path / "parts", lanes=2)
    assert second.wait() == 0, second.text()
    assert "resume after step" in second.text()
    assert outcomes(tmp_path / "parts") == outcomes(tmp_path / "whole")


def test_sigterm_in_the_middle_of_an_evaluation_is_answered_before_its_end(undisturbed, tmp_path):
    first = processes.Process(tmp_path / "first.log", processes.train_with_slow_evaluation, config(), tmp_path / "run")
    first.wait_for("evaluating")
    first.send(signal.SIGTERM)
    assert first.wait(30) == errors.PREEMPTED, first.text()
    assert "preempted: saving the state" in first.text()
    assert "preempted after step 60," in first.text()
    second = processes.Process(tmp_path / "second.log", processes.train, config(), tmp_path / "run")
    assert second.wait() == 0, second.text()
    assert_same_run(tmp_path / "run", undisturbed)  # the row of that evaluation, too


def test_a_run_whose_checkpoints_are_switched_off_goes_on_from_those_it_has(undisturbed, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "240")
    off = config(checkpoint=False)
    process = processes.Process(tmp_path / "log", processes.train, off, run)
    assert process.wait() == 0, process.text()
    assert "resuming after step 180" in process.text()
    assert sorted(path.name for path in (run / "checkpoints").iterdir() if path.name.isdigit())[-1] == "180"
    stopped = processes.Process(tmp_path / "stopped", processes.train, config(checkpoint=False), tmp_path / "none")
    stopped.wait_for("step 20/240")
    stopped.send(signal.SIGTERM)
    assert stopped.wait() == errors.STOPPED, stopped.text()  # a launcher must not count on it
    assert "train.checkpoint is False: progress since the start is lost" in stopped.text()


def test_a_whole_sweep_that_is_overwritten_takes_what_was_kept_of_its_runs_with_it(tmp_path):
    (tmp_path / "unfinished" / "records.0-of-2").mkdir(parents=True)
    sweep(a_sweep(), tmp_path, lanes=0, overwrite=True)
    assert not (tmp_path / "unfinished").exists()


# -- disks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, of 2 MiB."""
    where = tmp_path / "disk"
    where.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = mount("size=2m")
    if done.returncode:
        pytest.skip(f"no file system of its own could be mounted: {done.stderr.strip()}")
    yield where, lambda options: mount(f"remount,{options}").check_returncode()
    subprocess.run(["umount", "-l", str(where)], check=True)


def test_a_full_disk_ends_a_run_with_a_sentence_and_it_goes_on_when_there_is_room(disk, undisturbed, tmp_path):
    where, remount = disk
    (where / "other").write_bytes(bytes(1_700_000))
    first = processes.Process(tmp_path / "first.log", processes.train, config(checkpoint_every=10), where / "run")
    assert first.wait() == errors.STOPPED, first.text()
    assert "cannot be written any more (No space left on device): make room" in first.text()
    remount("size=64m")
    second = processes.Process(tmp_path / "second.log", processes.train, config(), where / "run")
    assert second.wait() == 0, second.text()
    assert_same_run(where / "run", undisturbed)


@pytest.fixture
def lock_up(tmp_path):
    """Makes directories read-only, for the superuser too, and writable again."""
    locked = []

    def attribute(sign, directories):
        command = ["chattr", f"{sign}i", *map(str, directories)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def lock(*directories):
        if not directories:
            attribute("-", locked)
            locked.clear()
            return
        locked.extend(directories)
        attribute("+", directories).check_returncode()

    try:
        tried = attribute("+", [tmp_path])
    except FileNotFoundError:
        pytest.skip("there is no chattr")
    if tried.returncode:
        pytest.skip(f"directories here cannot be made read-only: {tried.stderr.strip()}")
    attribute("-", [tmp_path])
    yield lock
    lock()


def test_a_workdir_that_becomes_read_only_ends_a_run_with_a_sentence_and_it_goes_on_later(
    lock_up, undisturbed, tmp_path
):
    run, workdir = config(checkpoint_every=10), tmp_path / "run"
    first = processes.Process(tmp_path / "first.log", processes.train, run, workdir)
    first.wait_for("step 20/240")
    lock_up(workdir, workdir / "checkpoints")
    assert first.wait() == errors.STOPPED, first.text()
    assert "cannot be written any more (Operation not permitted)" in first.text()
    with pytest.raises(InputError, match=r"cannot be written to \(Operation not permitted\): choose another"):
        train_and_evaluate(run, workdir)  # said before anything is compiled
    lock_up()
    second = processes.Process(tmp_path / "second.log", processes.train, run, workdir)
    assert second.wait() == 0, second.text()
    assert_same_run(workdir, undisturbed)


# -- files that change ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_checkpoints(undisturbed):
    """How to restore the latest of several, here of steps 180 and 240."""
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

    assert {p.name for p in (undisturbed / "checkpoints").glob("[0-9]*")} >= {"180", "240"}
    return restore


def after_damage(checkpoints, tmp_path, damage, trials, restore):
    """Steps that restoring gives after ``damage`` to a file of the latest checkpoint; states are as they were saved."""
    rng, steps = random.Random(2), []
    files = sorted(p for p in (checkpoints / "240").rglob("*") if p.is_file() and p.stat().st_size)
    saved = {}
    for step in (180, 240):
        shutil.copytree(checkpoints / str(step), tmp_path / f"alone-{step}" / str(step))
        saved[step] = restore(tmp_path / f"alone-{step}")[0]
    for trial in range(trials):
        copy = tmp_path / str(trial)
        shutil.copytree(checkpoints, copy)
        # Large files hold most of the numbers, small ones most of the meaning: as often the ones as the others.
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


@pytest.mark.parametrize(("damage", "trials"), [(flip, 40), (truncate, 20)])
def test_a_damaged_checkpoint_is_never_believed_and_the_one_before_is_used(
    damage, trials, undisturbed, tmp_path, two_checkpoints, record_property
):
    steps = after_damage(undisturbed / "checkpoints", tmp_path, damage, trials, two_checkpoints)
    record_property("faults found", steps.count(180))
    record_property("faults without effect", steps.count(240))
    assert steps.count(180) >= trials / 4  # some files are not needed


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


def test_a_truncated_latest_checkpoint_costs_steps_but_not_the_end(undisturbed, tmp_path, caplog):
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    (run / "result.json").unlink()
    for data in (run / "checkpoints" / "240" / "state").rglob("d/*"):
        data.write_bytes(data.read_bytes()[:-100])
    train_and_evaluate(config(), run)
    assert "240.damaged" in caplog.text
    assert_same_run(run, undisturbed)


def test_if_no_checkpoint_can_be_read_that_is_said_and_nothing_is_touched(undisturbed, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    (run / "result.json").unlink()
    for path in (run / "checkpoints").rglob("*"):
        if path.is_file() and path.stat().st_size > 200:
            path.write_bytes(b"x")
    before = {path: path.read_bytes() for path in (run / "checkpoints").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"no checkpoint in .* can be read"):
        train_and_evaluate(config(), run)
    assert {path: path.read_bytes() for path in (run / "checkpoints").rglob("*") if path.is_file()} == before


def test_nothing_is_unpickled_from_checkpoints_and_records(undisturbed, two_checkpoints, tmp_path, monkeypatch):
    sweep(a_sweep(), tmp_path, lanes=0)

    def refuse(*args, **kwargs):
        pytest.fail("something is unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    state, meta = two_checkpoints(undisturbed / "checkpoints")
    assert int(state.step) == meta["data_position"] / 16 == 240
    assert len(read_records(tmp_path / "records.jsonl")[0]) == 36


# -- clocks and data ------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_changes_nothing(undisturbed, tmp_path, monkeypatch):
    """It is set before every look at it, days ahead or back: nothing that is waited for may depend on it."""
    now, rng = time.time, random.Random(0)
    monkeypatch.setattr(time, "time", lambda: now() + rng.uniform(-1e6, 1e6))
    result = train_and_evaluate(config(checkpoint_every=30), tmp_path / "run")
    monkeypatch.undo()
    assert 0 < result["wall_time_s"] < 600
    assert_same_run(tmp_path / "run", undisturbed)


@pytest.fixture
def images(tmp_path):
    """A folder with two classes of 40 training and 4 test images."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("val", 4)):
        for name in ("cat", "dog"):
            directory = tmp_path / "images" / split / name
            directory.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(directory / f"{i:02}.png")
    return tmp_path / "images"


def streamed(images, **train):
    found = config(**train)
    found.data.update(name=f"folder:{images}", placement="stream")
    found.train.update(steps=120, eval_every=40, batch_size=8)
    return found


def test_an_image_that_vanishes_is_named_and_the_run_goes_on_when_it_is_back(images, tmp_path):
    train_and_evaluate(streamed(images), tmp_path / "whole")
    lost = images / "train" / "cat" / "07.png"
    first = processes.Process(tmp_path / "first.log", processes.train, streamed(images), tmp_path / "run")
    first.wait_for("step 20/120")
    content = lost.read_bytes()
    lost.unlink()
    assert first.wait() == errors.BAD_INPUT, first.text()
    assert str(lost) in first.text().splitlines()[-1]
    lost.write_bytes(content)
    second = processes.Process(tmp_path / "second.log", processes.train, streamed(images), tmp_path / "run")
    assert second.wait() == 0, second.text()
    # Not a step was lost: the state was saved when the batch did not come.
    assert int(second.text().partition("resuming after step ")[2].split()[0]) >= 20
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_read_that_hangs_ends_the_run_in_bounded_time_and_it_goes_on_later(images, tmp_path):
    train_and_evaluate(streamed(images), tmp_path / "whole")
    stuck = images / "train" / "dog" / "11.png"
    run = streamed(images, stall_timeout_s=2.0)
    first = processes.Process(tmp_path / "first.log", processes.train, run, tmp_path / "run")
    first.wait_for("step 20/120")
    aside = stuck.rename(tmp_path / "aside.png")
    os.mkfifo(stuck)  # whoever opens it waits for a writer
    assert first.wait(60) == errors.STOPPED, first.text()
    assert "gave no batch for 2 s: check its storage" in first.text()
    stuck.unlink()
    aside.rename(stuck)
    second = processes.Process(tmp_path / "second.log", processes.train, run, tmp_path / "run")
    assert second.wait() == 0, second.text()
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_reading_ahead_gives_every_item_in_order_and_then_what_went_wrong():
    def items():
        yield from range(5)
        raise InputError("the sixth is damaged")

    ahead = read_ahead(items(), 2, Waiting(10.0), "the source")
    assert [next(ahead) for _ in range(5)] == list(range(5))
    with pytest.raises(InputError, match="the sixth is damaged"):
        next(ahead)
    slow = read_ahead(iter(lambda: time.sleep(5), 1), 1, Waiting(0.1), "the source")
    with pytest.raises(RunStopped, match=r"the source gave no batch for 0\.1 s"):
        next(slow)
    with contextlib.closing(read_ahead(iter([1]), 1, Waiting(5.0), "the source")) as short:
        assert list(short) == [1]


def test_a_program_that_is_stopped_by_its_storage_ends_though_a_reader_still_hangs(images, tmp_path):
    """The interpreter would wait for the thread that hangs; the command line does not."""
    settings = tmp_path / "settings.py"
    settings.write_text(
        "from depthmup_flax.training.config import default_config\n"
        "def get_config():\n"
        "    config = default_config()\n"
        "    config.model.update(width=8, depth=2)\n"
        f"    config.data.update(name='folder:{images}', placement='stream')\n"
        "    config.train.update(batch_size=8, steps=100000, log_every=10, stall_timeout_s=1.0)\n"
        "    return config\n"
    )
    root = pathlib.Path(__file__).parents[2]
    command = [sys.executable, "train.py", f"--config={settings}", f"--workdir={tmp_path / 'run'}"]
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(
            command, cwd=root, stdout=log, stderr=log, env={**os.environ, "JAX_PLATFORMS": "cpu"}
        )
        until = time.monotonic() + 120
        while "step 10/" not in (tmp_path / "log").read_text():
            assert running.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        for image in (images / "train" / "cat").iterdir():
            image.unlink()
            os.mkfifo(image)
        assert running.wait(60) == errors.STOPPED
    assert (tmp_path / "log").read_text().splitlines()[-1].startswith("error: data set 'folder:")
