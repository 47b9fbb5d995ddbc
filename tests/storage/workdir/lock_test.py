"""The lock: one holder among processes and machines, freed by the kernel or by a heartbeat that ends."""

import multiprocessing
import os
import random
import signal
import time

import file_server
import pytest

from depthmup_flax.storage.workdir import lock as locks
from depthmup_flax.storage.workdir.lock import held
from depthmup_flax.util.errors import Busy, RunStopped

_CONTEXT = multiprocessing.get_context("forkserver")


def _hold(path, boot, ready, times):
    """Holds the lock as a process of the machine ``boot``, until it is killed or loses it."""
    use(times, boot)
    with held(path, wait_s=0.0) as lock:
        ready.set()
        while True:
            time.sleep(0.01)
            lock.check()


def use(times, boot):
    locks.BEAT_S, locks.EXPIRY_S, locks._POLL_S, locks.BOOT = *times, 0.02, boot


TIMES = (0.05, 0.4)  # seconds between beats, and until a lock expires


@pytest.fixture
def times(monkeypatch):
    for name, value in zip(("BEAT_S", "EXPIRY_S", "_POLL_S"), (*TIMES, 0.02), strict=True):
        monkeypatch.setattr(locks, name, value)


@pytest.fixture
def holder(tmp_path):
    """Starts a process that holds the lock of ``tmp_path``, as one of another machine if ``boot`` is its name."""
    started = []

    def start(boot=locks.BOOT):
        ready = _CONTEXT.Event()
        process = _CONTEXT.Process(target=_hold, args=(tmp_path / ".lock", boot, ready, TIMES))
        process.start()
        started.append(process)
        assert ready.wait(30)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


def seconds_until_held(path, wait_s=20.0):
    started = time.monotonic()
    with held(path, wait_s):
        return time.monotonic() - started


def test_a_released_lock_is_free_at_once_any_number_of_times(tmp_path, times):
    assert max(seconds_until_held(tmp_path / ".lock", 0.0) for _ in range(5)) < 0.5
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_lock_is_free_at_once_when_its_holder_on_this_machine_is_killed(holder, tmp_path, times, monkeypatch):
    monkeypatch.setattr(locks, "EXPIRY_S", 1000.0)
    holder().kill()
    assert seconds_until_held(tmp_path / ".lock") < 2


def test_a_busy_lock_names_its_holder_once_while_it_waits_and_when_it_gives_up(holder, tmp_path, times, logged):
    process = holder()
    with (
        pytest.raises(Busy, match=rf"in use by process {process.pid} on .*, still after 0.3 s: rerun"),
        held(tmp_path / ".lock", 0.3),
    ):
        pass
    assert logged.text.count(f"in use by process {process.pid} on ") == 1


def test_a_stopped_process_of_this_machine_keeps_its_lock(holder, tmp_path, times):
    process = holder()
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(Busy), held(tmp_path / ".lock", 1.5 * TIMES[1]):
        pass
    os.kill(process.pid, signal.SIGCONT)
    time.sleep(TIMES[1])
    assert process.is_alive()


@pytest.mark.slow
def test_the_lock_of_another_machine_is_kept_while_its_heart_beats(holder, tmp_path, times):
    holder("elsewhere")
    with pytest.raises(Busy), held(tmp_path / ".lock", 4 * TIMES[1]):
        pass


def test_the_lock_of_a_lost_machine_expires(holder, tmp_path, times):
    holder("elsewhere").kill()
    assert TIMES[1] < seconds_until_held(tmp_path / ".lock") < 10


@pytest.mark.slow
def test_a_holder_that_was_stopped_for_long_on_another_machine_ends_as_soon_as_it_continues(holder, tmp_path, times):
    process = holder("elsewhere")
    os.kill(process.pid, signal.SIGSTOP)
    with held(tmp_path / ".lock", 20.0) as lock:
        os.kill(process.pid, signal.SIGCONT)
        process.join(30)
        assert process.exitcode == 1
        lock.check()


@pytest.mark.parametrize("change", ["delete", "rename", "replace"])
def test_a_holder_notices_that_its_directory_is_gone(change, tmp_path, times):
    directory = tmp_path / "run"
    directory.mkdir()
    with held(directory / ".lock") as lock:
        lock.check()
        directory.rename(tmp_path / "elsewhere")
        if change == "replace":
            directory.mkdir()
        elif change == "delete":
            (tmp_path / "elsewhere" / ".lock").unlink()
        time.sleep(0.3)
        with pytest.raises(RunStopped, match="was deleted or renamed while it was in use"):
            lock.check()


def test_a_lock_file_that_lost_its_content_in_a_power_cut_expires(tmp_path, times):
    (tmp_path / ".lock").touch()
    with pytest.raises(Busy, match="another process"), held(tmp_path / ".lock", 0.0):
        pass
    assert TIMES[1] < seconds_until_held(tmp_path / ".lock") < 10


def _compete(path, boot, seed, rounds, delays):
    """Holds the lock ``rounds`` times, and each time finds nobody else inside; then dies inside, if ``seed`` is odd."""
    use((0.05, 1.0), boot)
    if delays:
        file_server.FileServer(*delays, random.Random(seed)).mount()
    for _ in range(rounds):
        with held(path, wait_s=60.0) as lock:
            inside = path.with_name("inside")
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
            time.sleep(0.001)
            inside.unlink()
            lock.check()
    if seed % 2:
        with held(path, wait_s=60.0):
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "delays"),
    [
        pytest.param(40, None, id="local disk"),
        pytest.param(12, (0.002, 0.1), id="file server"),
    ],
)
def test_processes_of_several_machines_that_compete_and_die_are_never_inside_together(rounds, delays, tmp_path):
    """Without the guard of `locks._take`, or without its second look at the holder, this fails."""
    processes = [
        _CONTEXT.Process(target=_compete, args=(tmp_path / ".lock", f"machine {i % 3}", i, rounds, delays))
        for i in range(6)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, -signal.SIGKILL] * 3
