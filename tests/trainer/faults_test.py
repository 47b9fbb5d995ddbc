"""Injected faults: kills, signals, full disks, lost files. Runs resume and end as undisturbed ones, bit for bit."""

import contextlib
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time

import numpy as np
import processes
import pytest
from PIL import Image
from small_runs import a_sweep, assert_same_run, config, outcomes

from depthmup_flax import InputError
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.trainer.engine.device_batches import Waiting, read_ahead
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.util import errors
from depthmup_flax.util.errors import RunStopped

KILLS, SWEEP_KILLS = 8, 4


def saving(workdir):
    """Whether a checkpoint is being written."""
    return any(workdir.glob("checkpoints/*.orbax-checkpoint-tmp*"))


def checkpoints(workdir):
    """The steps of the complete checkpoints."""
    return {path.name for path in workdir.glob("checkpoints/*") if path.name.isdigit()}


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


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_as_an_undisturbed_one(undisturbed, tmp_path, record_property):
    rng, in_a_save = random.Random(0), 0
    run, workdir = config(checkpoint_every=3), tmp_path / "run"
    for kill in range(KILLS):
        process = processes.Process(tmp_path / f"{kill}.log", processes.train, run, workdir)
        # A quarter of the kills falls into each of start, compilation, training and saves.
        if kill % 4:
            process.wait_for("model  ")
        if kill % 4 == 2:
            saved = checkpoints(workdir)
            while process.running() and checkpoints(workdir) == saved:
                time.sleep(0.001)
        if kill % 4 == 3:
            while process.running() and not saving(workdir):
                time.sleep(0.0005)
        time.sleep(rng.uniform(0.0, (0.8, 0.4, 0.03, 0.002)[kill % 4]))
        process.send(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.text()
        in_a_save += saving(workdir)
    record_property("kills during a save", in_a_save)
    assert in_a_save  # or the moments are badly chosen
    assert not (workdir / "result.json").exists()
    assert_resumes_to_the_same_end(workdir, tmp_path / "last.log", undisturbed)


@pytest.mark.slow
def test_a_sweep_killed_between_its_records_has_the_records_of_an_undisturbed_one(tmp_path):
    small = a_sweep(rates=3)
    sweep(small, tmp_path / "whole", lanes=2)
    process = processes.Process(tmp_path / "log", processes.sweep, small, tmp_path / "parts", lanes=2, keep_every_s=0.0)
    records = tmp_path / "parts" / "records.jsonl"
    while process.running() and not (records.exists() and records.stat().st_size):
        time.sleep(0.01)
    process.send(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, process.text()
    assert 0 < len(records.read_text().splitlines()) < 12
    sweep(small, tmp_path / "parts", lanes=2)
    assert outcomes(tmp_path / "parts") == outcomes(tmp_path / "whole")
    assert not list((tmp_path / "parts" / "unfinished").glob("*"))


@pytest.mark.slow
def test_a_sweep_killed_at_random_moments_has_the_records_of_an_undisturbed_one(tmp_path, record_property):
    sweep(a_sweep(), tmp_path / "whole", lanes=2)
    rng, kills, in_training, partial = random.Random(1), 0, 0, 0
    workdirs = [tmp_path / "parts-0"]
    while kills < SWEEP_KILLS:
        log = tmp_path / f"{kills}-{len(workdirs)}.log"
        process = processes.Process(log, processes.sweep, a_sweep(), workdirs[-1], lanes=2, keep_every_s=0.0)
        if kills % 4:
            process.wait_for("at a time", "resume after step")
        records = workdirs[-1] / "records.jsonl"
        if kills == SWEEP_KILLS - 1:  # random moments may miss this one
            while process.running() and not (records.exists() and records.stat().st_size):
                time.sleep(0.01)
        else:
            time.sleep(rng.uniform(0.0, 1.5))
        process.send(signal.SIGKILL)
        if process.wait() == 0:  # the sweep is small: another one
            workdirs.append(tmp_path / f"parts-{len(workdirs)}")
            continue
        kills += 1
        in_training += (workdirs[-1] / "unfinished").exists()
        partial += records.exists() and 0 < len(records.read_text().splitlines()) < 36
    record_property("kills with saved runs in training", in_training)
    record_property("kills with some runs recorded", partial)
    assert in_training  # it is saved at every step
    assert partial
    for workdir in workdirs:
        sweep(a_sweep(), workdir, lanes=2)
        assert outcomes(workdir) == outcomes(tmp_path / "whole")
        assert not list((workdir / "unfinished").glob("*"))


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(signal.SIGHUP, id="SIGHUP", marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_the_current_step_and_the_run_resumes_from_it(number, undisturbed, tmp_path):
    process = processes.Process(tmp_path / "first.log", processes.train, config(), tmp_path / "run")
    process.wait_for("step 20/240")
    process.send(number)
    assert process.wait() == errors.PREEMPTED, process.text()
    step = int(process.text().partition("preempted after step ")[2].split(",")[0])
    assert 20 <= step < 240
    second = processes.Process(tmp_path / "second.log", processes.train, config(), tmp_path / "run")
    assert second.wait() == 0, second.text()
    assert f"resuming after step {step}" in second.text()
    assert_same_run(tmp_path / "run", undisturbed)


def train_under_nohup(run, workdir):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return processes.train(run, workdir)


@pytest.mark.slow
def test_under_nohup_the_end_of_the_terminal_changes_nothing(undisturbed, tmp_path):
    process = processes.Process(tmp_path / "log", train_under_nohup, config(), tmp_path / "run")
    process.wait_for("step 20/240")
    process.send(signal.SIGHUP)
    assert process.wait() == 0, process.text()
    assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_a_run_whose_terminal_is_closed_saves_and_exits_with_75(tmp_path):
    """Nothing can be printed any more."""

    def own_terminal():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, the run would inherit that it is ignored

    ours, its = os.openpty()
    command = [sys.executable, "train.py", f"--workdir={tmp_path}", "--config.train.steps=1000000"]
    small = ["--config.model.width=8", "--config.model.depth=2", "--config.train.log_every=10"]
    process = subprocess.Popen(
        command + small,
        cwd=processes.ROOT,
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    try:
        os.close(its)
        shown, until = b"", time.monotonic() + 60
        while b"test loss" not in shown:
            assert time.monotonic() < until, shown
            shown += os.read(ours, 4096)
        os.close(ours)
        assert process.wait(60) == errors.PREEMPTED
    finally:
        process.kill()
    assert checkpoints(tmp_path)


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


@pytest.mark.slow
def test_a_workdir_that_becomes_read_only_stops_a_run_with_a_message_and_it_resumes_later(
    lock_up, undisturbed, tmp_path
):
    run, workdir = config(checkpoint_every=10), tmp_path / "run"
    first = processes.Process(tmp_path / "first.log", processes.train, run, workdir)
    first.wait_for("step 20/240")
    lock_up(workdir, workdir / "checkpoints")
    assert first.wait() == errors.STOPPED, first.text()
    assert "cannot be written any more (Operation not permitted)" in first.text()
    with pytest.raises(InputError, match=r"cannot be written to \(Operation not permitted\): choose another"):
        train_and_evaluate(run, workdir)  # before anything is compiled
    lock_up()
    second = processes.Process(tmp_path / "second.log", processes.train, run, workdir)
    assert second.wait() == 0, second.text()
    assert_same_run(workdir, undisturbed)


@pytest.mark.slow
def test_a_clock_that_jumps_changes_nothing(undisturbed, tmp_path, monkeypatch):
    """Every reading of the clock is days ahead or back: no wait may depend on it."""
    now, rng = time.time, random.Random(0)
    monkeypatch.setattr(time, "time", lambda: now() + rng.uniform(-1e6, 1e6))
    result = train_and_evaluate(config(checkpoint_every=30), tmp_path / "run")
    monkeypatch.undo()
    assert 0 < result["wall_time_s"] < 600
    assert_same_run(tmp_path / "run", undisturbed)


def image_folder(directory):
    """A folder with two classes of 40 training and 4 test images."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("val", 4)):
        for name in ("cat", "dog"):
            path = directory / split / name
            path.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(path / f"{i:02}.png")
    return directory


def streamed(images, **train):
    run = config(**train)
    run.data.update(name=f"folder:{images}", placement="stream")
    run.train.update(steps=120, eval_every=40, batch_size=8)
    return run


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """A folder of images, and the work directory of an undisturbed run that streams them."""
    directory = tmp_path_factory.mktemp("stream")
    images = image_folder(directory / "images")
    train_and_evaluate(streamed(images), directory / "whole")
    return images, directory / "whole"


@pytest.mark.slow
def test_an_image_that_vanishes_is_named_and_the_run_resumes_when_it_is_back(stream, tmp_path):
    images, whole = stream
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
    # No step is lost: the state was saved when the batch did not come.
    assert int(second.text().partition("resuming after step ")[2].split()[0]) >= 20
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_read_that_hangs_stops_the_run_in_bounded_time_and_it_resumes_later(stream, tmp_path):
    images, whole = stream
    run, hangs = streamed(images, stall_timeout_s=2.0), tmp_path / "hangs"
    arguments = processes.with_hanging_reads, images, hangs, processes.train, run, tmp_path / "run"
    first = processes.Process(tmp_path / "first.log", *arguments)
    first.wait_for("step 20/120")
    hangs.touch()
    assert first.wait(60) == errors.STOPPED, first.text()
    assert "gave no batch for 2 s: check its storage" in first.text()
    hangs.unlink()
    second = processes.Process(tmp_path / "second.log", *arguments)
    assert second.wait() == 0, second.text()
    assert_same_run(tmp_path / "run", whole)


def test_reading_ahead_gives_every_item_in_order_and_then_the_error():
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


def test_closed_reading_ahead_leaves_no_thread_which_could_abort_the_end_of_python():
    before = set(threading.enumerate())
    with contextlib.closing(read_ahead(iter(lambda: time.sleep(0.1), 1), 1, Waiting(5.0), "the source")) as ahead:
        next(ahead)
    assert not set(threading.enumerate()) - before


@pytest.mark.slow
def test_a_program_stopped_by_its_storage_exits_while_a_reader_still_hangs(tmp_path):
    """The interpreter would wait for the thread that hangs; the command line does not."""
    images = image_folder(tmp_path / "images")
    settings = tmp_path / "settings.py"
    settings.write_text(
        "from depthmup_flax.config import default_config\n"
        "def get_config():\n"
        "    config = default_config()\n"
        "    config.model.update(width=8, depth=2)\n"
        f"    config.data.update(name='folder:{images}', placement='stream')\n"
        "    config.train.update(batch_size=8, steps=100000, log_every=10, stall_timeout_s=1.0)\n"
        "    return config\n"
    )
    hangs, words = tmp_path / "hangs", ("train.py", f"--config={settings}", f"--workdir={tmp_path / 'run'}")
    running = processes.Process(
        tmp_path / "log", processes.with_hanging_reads, images, hangs, processes.command, *words
    )
    running.wait_for("step 10/")
    hangs.touch()
    assert running.wait(60) == errors.STOPPED, running.text()
    assert running.text().splitlines()[-1].startswith("error: data set 'folder:")
