"""Work directories in buckets, with an emulator of Google Cloud Storage that the tests start, stop and break."""

import os
import signal
import threading
import time
from http import HTTPStatus

import jax
import jax.numpy as jnp
import processes
import pytest

from depthmup_flax.report import make_report
from depthmup_flax.search.forecast.target_loss import read as read_forecast
from depthmup_flax.storage.records.columns import read_records
from depthmup_flax.storage.workdir import bucket_lock, buckets, lock
from depthmup_flax.storage.workdir.directory import RUN, SWEEP, as_path, claimed
from depthmup_flax.storage.workdir.files import create, modified_s
from depthmup_flax.storage.workdir.seal import unsealed
from depthmup_flax.trainer.runs.checkpoint import Checkpointer
from depthmup_flax.trainer.runs.trained import load_run
from depthmup_flax.util.errors import Busy, InputError, RunStopped


@pytest.fixture
def impatient(monkeypatch):
    import gcsfs.retry
    from bucket_emulator import NoSleep

    monkeypatch.setattr(gcsfs.retry, "asyncio", NoSleep)


# Names


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gs://Runs/a", "workdir is 'gs://Runs/a': a bucket's name has"),
        ("gs://", "workdir is 'gs://': a bucket's name has"),
        ("s3://x/a", "workdir is 's3://x/a': a bucket's name has"),
        ("gs://bucket//a", "names in a bucket must not"),
        ("gs://bucket/a/../b", "names in a bucket must not"),
        ("gs://bucket/a*", "names in a bucket must not"),
        ("az://bucket/a", "is not supported"),
    ],
)
def test_a_name_that_no_bucket_has_is_refused(name, says):
    with pytest.raises(InputError, match=says):
        as_path(name)


def test_a_missing_package_is_one_sentence_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(buckets.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'needs gcsfs.*pip install "depthmup-flax\[buckets\]"'):
        as_path("gs://bucket/run")


# Objects


def test_one_of_many_that_create_an_object_at_the_same_time_succeeds(bucket):
    path, won = as_path(bucket.url) / "mark", []

    def create(text):
        if buckets.put_new(path, text):
            won.append(text)

    threads = [threading.Thread(target=create, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_text()] == won


def test_creating_an_object_again_with_its_content_succeeds_as_after_a_lost_answer(bucket):
    path = as_path(bucket.url) / "mark"
    assert [buckets.put_new(path, text) for text in ("a", "a", "b")] == [True, True, False]


def test_two_writers_of_parts_never_write_the_same_object_and_names_sort_by_time(bucket):
    path = as_path(bucket.url) / "records.jsonl"
    first, second = buckets.Parts(path), buckets.Parts(path)
    for number in range(3):
        first.write([{"first": number}])
        second.write([{"second": number}])
    parts = [unsealed(part.read_text()) for part in sorted(path.parent.glob("records*.jsonl"))]
    assert len(parts) == 6
    assert [part["first"] for part in parts if "first" in part] == [0, 1, 2]


def test_scratch_uploads_what_changed_and_nothing_else(bucket):
    directory = as_path(bucket.url)
    buckets.put(directory / "rows", "1\n")
    scratch, written = buckets.Scratch(directory, ["rows", "absent"]), []
    bucket.on_write = written.append
    scratch.upload()
    (scratch.local / "rows").write_text("1\n2\n")
    scratch.upload()
    scratch.close()
    assert written == [f"{bucket.directory}/rows"]
    assert (directory / "rows").read_text() == "1\n2\n"
    assert not scratch.local.exists()


# Locks


def test_a_lock_has_one_holder_and_can_be_taken_again_when_it_is_released(bucket):
    path = as_path(bucket.url) / ".lock"
    for _ in range(2):
        with (
            bucket_lock.held(path, 0.0) as lock,
            pytest.raises(Busy, match=f"is in use by process {os.getpid()}"),
            bucket_lock.held(path, 0.0),
        ):
            pass
        lock.check()
    assert bucket.names(bucket.directory) == [".lock.000002"]


def test_locks_of_two_parts_of_a_sweep_are_two_locks(bucket):
    directory = as_path(bucket.url)
    with bucket_lock.held(directory / ".lock-records", 0.0), bucket_lock.held(directory / ".lock-records.0-of-2", 0.0):
        assert len(bucket.names(bucket.directory)) == 2


def test_of_many_that_want_a_free_lock_one_gets_it(bucket):
    path, holders, refused = as_path(bucket.url) / ".lock", [], []
    together, all_refused = threading.Barrier(6), threading.Event()

    def take():
        together.wait()
        try:
            with bucket_lock.held(path, 0.0):
                holders.append(threading.current_thread())
                all_refused.wait(60.0)
        except Busy:
            refused.append(threading.current_thread())
            if len(refused) == 5:
                all_refused.set()

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(holders), len(refused)) == (1, 5)


@pytest.fixture
def later(monkeypatch):
    """Sets the clock of the storage forward: locks seem so many seconds older."""
    modified = buckets.modified

    def forward(seconds):
        monkeypatch.setattr(buckets, "modified", lambda path: modified(path) + seconds * ("-clock-" in path.name))

    return forward


def test_a_lock_whose_holder_no_longer_writes_is_taken_and_the_holder_notices(bucket, later):
    path = as_path(bucket.url) / ".lock"
    with bucket_lock.held(path, 0.0) as stopped:
        later(bucket_lock.EXPIRY_S - 20.0)
        with pytest.raises(Busy), bucket_lock.held(path, 0.0):
            pass
        later(bucket_lock.EXPIRY_S + 1.0)
        with bucket_lock.held(path, 0.0) as taken:
            with pytest.raises(RunStopped, match="taken over by process"):
                stopped.check(now=True)
            taken.check(now=True)


def test_the_holder_of_a_lock_writes_it_again_and_again(bucket, monkeypatch):
    path = as_path(bucket.url) / ".lock"
    monkeypatch.setattr(lock, "BEAT_S", 0.02)
    with bucket_lock.held(path, 0.0):
        first, until = buckets.modified(path.with_name(".lock.000001")), time.monotonic() + 30.0
        while buckets.modified(path.with_name(".lock.000001")) == first:
            assert time.monotonic() < until


def test_a_lock_that_is_deleted_is_lost(bucket):
    path = as_path(bucket.url) / ".lock"
    with bucket_lock.held(path, 0.0) as lock:
        path.with_name(".lock.000001").unlink()
        with pytest.raises(RunStopped, match="was deleted"):
            lock.check(now=True)


@pytest.mark.slow
def test_the_lock_of_a_killed_process_of_this_machine_is_free_at_once(bucket, tmp_path):
    holder = processes.Process(tmp_path / "log", processes.with_environment, bucket.environment, _hold, bucket.url)
    holder.wait_for("held")
    with pytest.raises(Busy), claimed(bucket.url, RUN, wait_s=0.0):
        pass
    holder.send(signal.SIGKILL)
    holder.wait()
    with claimed(bucket.url, RUN, wait_s=0.0):
        pass


def _hold(url):
    with claimed(url, RUN):
        print("held", flush=True)
        time.sleep(60.0)


# Opening


def test_a_directory_in_a_bucket_belongs_to_one_kind_of_work(bucket):
    with claimed(bucket.url, RUN):
        pass
    with pytest.raises(InputError, match="holds a training run, not a sweep"), claimed(bucket.url, SWEEP):
        pass


def test_a_bucket_that_does_not_exist_is_one_sentence(server):
    with pytest.raises(InputError, match="there is no bucket 'no-such-bucket'"), claimed("gs://no-such-bucket/a", RUN):
        pass


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (HTTPStatus.FORBIDDEN, InputError, "no permission"),
        (HTTPStatus.UNAUTHORIZED, InputError, "no valid credentials"),
        (HTTPStatus.SERVICE_UNAVAILABLE, RunStopped, "cannot be reached"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_an_answer_that_stays_is_one_sentence(bucket, impatient, status, error, says):
    bucket.on_write = lambda name: status
    with pytest.raises(error, match=says), claimed(bucket.url, RUN):
        pass


def test_a_reader_that_cannot_reach_its_bucket_says_so_in_one_sentence(bucket, impatient):
    readers = [
        load_run,
        read_records,
        lambda url: read_forecast(as_path(url)),
        lambda url: make_report([url], f"{url}/report"),
    ]
    with pytest.raises(InputError, match="holds no sweep"):
        readers[-1](bucket.url)
    bucket.stop()
    try:
        for read in readers:
            with pytest.raises(RunStopped, match="cannot be reached"):
                read(bucket.url)
    finally:
        bucket.start()


@pytest.mark.slow
def test_a_lost_connection_is_no_damage_to_a_checkpoint(bucket, monkeypatch):
    checkpointer = Checkpointer(as_path(bucket.url), keep=2)
    state = {"w": jnp.ones(2)}
    for step in (1, 2):
        checkpointer.save(step, state, {})
    checkpointer.wait()

    def lost(*args, **kwargs):
        raise ValueError("UNAVAILABLE: CURL error[7] Could not connect to server")

    with monkeypatch.context() as patched:
        patched.setattr(checkpointer._manager, "restore", lost)
        with pytest.raises(RunStopped, match="cannot be reached any more"):
            checkpointer.restore(state)
    (as_path(bucket.url) / "2" / "state" / "manifest.ocdbt").unlink()
    _, description = checkpointer.restore(jax.eval_shape(lambda: state))
    checkpointer.close()
    steps = {name.split("/")[0] for name in bucket.names(bucket.directory)}
    assert steps == {"1", "2.damaged"}
    assert set(description) == {"digest", "fingerprint"}


def test_an_answer_that_passes_is_not_noticed(bucket, impatient):
    answers = iter([HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS])
    bucket.on_write = lambda name: next(answers, None)
    with claimed(bucket.url, RUN):
        assert bucket.names(bucket.directory) == [".lock.000001", "workdir.json"]


def test_a_lost_connection_is_one_sentence(bucket, impatient):
    bucket.stop()
    try:
        with pytest.raises(RunStopped, match="cannot be reached"), claimed(bucket.url, RUN):
            pass
    finally:
        bucket.start()


def test_the_date_of_a_file_is_known_in_a_bucket(bucket):
    path = as_path(f"{bucket.url}/dated")
    create(path, "x")
    assert abs(modified_s(path) - time.time()) < 60
