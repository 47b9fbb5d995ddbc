"""Injected faults: kills, signals, full disks, lost files. Runs resume and end as undisturbed ones, bit for bit."""

import contextlib
import shutil
import signal
import subprocess
import threading
import time
import types

import processes
import pytest
from small_runs import a_sweep, assert_same_run, config, outcomes

from depthmup_flax import InputError
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.trainer.engine.device_batches import read_ahead
from depthmup_flax.util import errors


def saving(workdir):
    """Whether a checkpoint is being written."""
    return any(workdir.glob("checkpoints/*.orbax-checkpoint-tmp*"))


def assert_resumes_to_the_same_end(workdir, log, undisturbed):
    last = processes.Process(log, processes.train, config(), workdir)
    assert last.wait() == 0, last.text()
    assert "resuming after step" in last.text()
    assert "step 240/240" in last.text()
    assert_same_run(workdir, undisturbed)


def test_a_run_killed_while_it_starts_trains_and_saves_ends_as_an_undisturbed_one(undisturbed, tmp_path):
    run, workdir = config(checkpoint_every=5), tmp_path / "run"

    def kill(log, moment):
        process = processes.Process(tmp_path / log, processes.train, run, workdir)
        moment(process)
        process.send(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.text()

    def until_saving(process):
        process.wait_for("model  ")
        while process.running() and not saving(workdir):
            time.sleep(0.001)

    kill("start", lambda process: time.sleep(0.1))
    kill("training", lambda process: process.wait_for("step 20/240"))
    saves = 0
    while not saving(workdir):  # again if the save ended before the kill
        saves += 1
        kill(f"save-{saves}", until_saving)
    assert not (workdir / "result.json").exists()
    assert_resumes_to_the_same_end(workdir, tmp_path / "last.log", undisturbed)


def test_a_signal_saves_the_current_step_and_the_run_resumes_from_it(undisturbed, tmp_path):
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


@pytest.mark.slow
def test_sigterm_stops_a_sweep_in_mid_training_and_it_resumes_to_the_same_records(tmp_path):
    longer = a_sweep(rates=2, depths=(2,))
    longer.base.train.update(steps=300, log_every=100)
    sweep(longer, tmp_path / "whole", lanes=2)
    process = processes.Process(tmp_path / "first.log", processes.sweep, longer, tmp_path / "parts", lanes=2)
    process.wait_for("at a time")
    process.send(signal.SIGTERM)
    assert process.wait() == errors.PREEMPTED, process.text()
    second = processes.Process(tmp_path / "second.log", processes.sweep, longer, tmp_path / "parts", lanes=2)
    assert second.wait() == 0, second.text()
    assert "resume after step" in second.text()
    assert outcomes(tmp_path / "parts") == outcomes(tmp_path / "whole")


@pytest.mark.slow
def test_sigterm_during_an_evaluation_interrupts_it(undisturbed, tmp_path):
    first = processes.Process(tmp_path / "first.log", processes.train_with_slow_evaluation, config(), tmp_path / "run")
    first.wait_for("evaluating")
    first.send(signal.SIGTERM)
    assert first.wait(30) == errors.PREEMPTED, first.text()
    assert "preempted: saving the state" in first.text()
    assert "preempted after step 60," in first.text()
    second = processes.Process(tmp_path / "second.log", processes.train, config(), tmp_path / "run")
    assert second.wait() == 0, second.text()
    assert_same_run(tmp_path / "run", undisturbed)  # including the row of that evaluation


@pytest.mark.slow
def test_a_run_with_checkpoints_switched_off_resumes_from_existing_ones(undisturbed, tmp_path):
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


@pytest.fixture
def disk(tmp_path):
    """A file system of 2 MiB, and a function that remounts it with other options."""
    where = tmp_path / "disk"
    where.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = mount("size=2m")
    if done.returncode:
        pytest.skip(f"no file system can be mounted: {done.stderr.strip()}")
    yield where, lambda options: mount(f"remount,{options}").check_returncode()
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.mark.slow
def test_a_full_disk_stops_a_run_with_a_message_and_it_resumes_when_there_is_room(disk, undisturbed, tmp_path):
    where, remount = disk
    (where / "other").write_bytes(bytes(1_900_000))
    first = processes.Process(tmp_path / "first.log", processes.train, config(checkpoint_every=10), where / "run")
    assert first.wait() == errors.STOPPED, first.text()
    assert "cannot be written any more (No space left on device): make room" in first.text()
    remount("size=64m")
    second = processes.Process(tmp_path / "second.log", processes.train, config(), where / "run")
    assert second.wait() == 0, second.text()
    assert_same_run(where / "run", undisturbed)


@pytest.mark.parametrize("placement", ["stream", "device"])
def test_reading_ahead_gives_every_item_in_order_then_the_error_and_leaves_no_thread(placement):
    def items():
        yield from range(5)
        raise InputError("the sixth is damaged")

    before, dataset = set(threading.enumerate()), types.SimpleNamespace(placement=placement)
    with contextlib.closing(read_ahead(dataset, items())) as ahead:
        assert [next(ahead) for _ in range(5)] == list(range(5))
        with pytest.raises(InputError, match="the sixth is damaged"):
            next(ahead)
    with contextlib.closing(read_ahead(dataset, iter([1]))) as ahead:
        assert list(ahead) == [1]
    with contextlib.closing(read_ahead(dataset, iter(lambda: time.sleep(0.1), 1))) as ahead:
        next(ahead)
    assert not set(threading.enumerate()) - before  # one could abort the end of Python
