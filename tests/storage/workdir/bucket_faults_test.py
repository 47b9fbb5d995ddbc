"""Runs and sweeps in a bucket that are killed between uploads, or lose the connection, end as undisturbed ones."""

import functools
import random
import re
import signal
import time

import joined
import processes
import pytest
from small_runs import a_sweep, assert_same_run, config, outcomes

from depthmup_flax.report import make_report
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.records.table import read_sweep
from depthmup_flax.storage.workdir.directory import as_path
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.runs.trained import load_run
from depthmup_flax.util import errors

KILLS = 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The directory of `run` on a disk."""
    directory = tmp_path_factory.mktemp("undisturbed")
    train_and_evaluate(run(), directory)
    return directory


def run():
    return config(checkpoint_every=20)


def start(bucket, log, function, *args, **kwargs):
    """``function(*args)`` in a process that can reach the bucket."""
    return processes.Process(log, processes.with_environment, bucket.environment, function, *args, **kwargs)


def kill_at(bucket, write, process):
    """Kills the process at its ``write``-th request that writes or deletes; half of these requests fail."""
    count = 0

    def on_write(name):
        nonlocal count
        count += 1
        if count == write:
            process.send(signal.SIGKILL)
            return 503 if write % 2 else None
        return None

    bucket.on_write = on_write


@pytest.mark.slow
def test_a_run_in_a_bucket_ends_as_one_on_a_disk(bucket, undisturbed, tmp_path):
    result = train_and_evaluate(run(), bucket.url)
    assert result["status"] == "completed"
    assert_same_run(bucket.copy(bucket.directory, tmp_path / "copy"), undisturbed)
    assert train_and_evaluate(run(), bucket.url) == result  # it is there already
    assert any(name.startswith("events.out.tfevents") for name in bucket.names(bucket.directory))
    read = load_run(bucket.url, which="best")
    assert (read.result, read.step) == (result, load_run(undisturbed, which="best").step)
    assert read.metrics["test_accuracy"][-1] == result["test_accuracy"]
    assert train_and_evaluate(run(), bucket.url, overwrite=True)["train_loss"] == result["train_loss"]


@pytest.mark.slow
def test_a_run_killed_between_uploads_ends_as_an_undisturbed_one(bucket, undisturbed, tmp_path, record_property):
    rng, kills, ends, incomplete = random.Random(0), 0, 0, 0
    while True:
        directory = f"{bucket.directory}/{ends}"
        process = start(bucket, tmp_path / f"{ends}-{kills}.log", processes.train, run(), f"gs://bucket/{directory}")
        kill_at(bucket, rng.randrange(1, 120) if kills < KILLS else 0, process)
        if process.wait() == 0:
            assert_same_run(bucket.copy(directory, tmp_path / f"{ends}"), undisturbed)
            ends += 1
            if kills >= KILLS:
                break
        else:
            assert process.wait() == -signal.SIGKILL, process.text()
            kills += 1
            names = [name for name in bucket.names(directory) if name.startswith("checkpoints/")]
            steps = {name.split("/")[1] for name in names}
            incomplete += any(f"checkpoints/{step}/commit_success.txt" not in names for step in steps)
    record_property("kills during a save", incomplete)
    assert incomplete


@pytest.mark.slow
def test_a_run_outlives_a_short_loss_of_the_connection_and_resumes_after_a_preemption(bucket, undisturbed, tmp_path):
    process = start(bucket, tmp_path / "first.log", processes.train, run(), bucket.url)
    process.wait_for("step 40/240")
    bucket.stop()
    time.sleep(8.0)
    bucket.start()
    process.wait_for("step 80/240")
    process.send(signal.SIGTERM)
    assert process.wait() == errors.PREEMPTED, process.text()
    last = start(bucket, tmp_path / "last.log", processes.train, run(), bucket.url)
    assert last.wait() == 0, last.text()
    assert_same_run(bucket.copy(bucket.directory, tmp_path / "copy"), undisturbed)


def train_impatiently(config, workdir):
    import gcsfs.retry
    from bucket_emulator import NoSleep

    gcsfs.retry.asyncio = NoSleep
    return processes.train(config, workdir)


@pytest.mark.slow
def test_a_run_that_loses_the_connection_for_good_stops_with_74_and_resumes(bucket, undisturbed, tmp_path):
    process = start(bucket, tmp_path / "log", train_impatiently, run(), bucket.url)
    until = time.monotonic() + 120
    complete = re.compile(r"checkpoints/\d+/commit_success\.txt")  # parts have such files of their own
    while not any(map(complete.fullmatch, bucket.names(bucket.directory))):
        assert time.monotonic() < until, process.text()
        time.sleep(0.05)
    bucket.stop()
    try:
        assert process.wait(300.0) == errors.STOPPED
        assert f"error: workdir '{bucket.url}' cannot be reached any more" in process.text()
    finally:
        bucket.start()
    last = start(bucket, tmp_path / "last.log", processes.train, run(), bucket.url)
    assert last.wait() == 0, last.text()
    assert "resuming after step" in last.text()
    assert_same_run(bucket.copy(bucket.directory, tmp_path / "copy"), undisturbed)


@pytest.mark.slow
def test_two_processes_share_a_run_in_a_bucket(bucket, tmp_path):
    """They are preempted, and one process with as many devices ends the run."""
    command = [f"--workdir={bucket.url}", "--config.model.width=8", "--config.model.depth=2"]
    command += ["--config.train.steps=600", "--config.train.eval_every=100"]
    program = functools.partial(processes.with_environment, bucket.environment, joined.train_py)
    pair = joined.Joined(tmp_path / "two", 2, 1, *command, program=program)
    until = time.monotonic() + 120
    while not any("commit_success" in name for name in bucket.names(bucket.directory)):
        assert time.monotonic() < until, pair.text()
        time.sleep(0.05)
    pair.running[1].send(signal.SIGTERM)
    assert pair.wait() == [errors.PREEMPTED] * 2, pair.text()
    last = joined.Joined(tmp_path / "one", 1, 2, *command, program=program)
    assert last.wait() == [0], last.text()
    assert "resuming after step" in last.text()
    assert "result.json" in bucket.names(bucket.directory)


@pytest.mark.slow
def test_two_shards_of_a_sweep_fill_one_directory_and_the_report_merges_them(bucket, tmp_path):
    small = a_sweep(rates=3)
    sweep(small, tmp_path / "disk", lanes=2)
    for index in range(2):
        sweep(small, bucket.url, lanes=2, shard=(index, 2))
    assert outcomes(as_path(bucket.url)) == outcomes(tmp_path / "disk")
    pytest.importorskip("matplotlib")
    there, here = make_report([bucket.url], f"{bucket.url}/report"), make_report([tmp_path / "disk"], tmp_path / "out")
    assert {name.removeprefix("report/") for name in bucket.names(bucket.directory) if "report/" in name} >= {
        path.name for path in here.paths
    }
    times = ("hours", "core_minutes")
    assert {**there.data, **dict.fromkeys(times)} == {**here.data, **dict.fromkeys(times)}


@pytest.mark.slow
def test_shards_killed_between_uploads_have_the_records_of_an_undisturbed_sweep(bucket, tmp_path):
    small, rng, kills, ends = a_sweep(rates=3), random.Random(1), 0, 0
    sweep(small, tmp_path / "whole", lanes=2)
    while True:
        url, codes = f"{bucket.url}/{ends}", []
        for index in range(2):
            log, options = tmp_path / f"{ends}-{kills}.log", {"lanes": 2, "shard": (index, 2), "keep_every_s": 0.0}
            process = start(bucket, log, processes.sweep, small, url, **options)
            kill_at(bucket, rng.randrange(1, 300) if kills < KILLS else 0, process)
            codes.append(process.wait())
            assert codes[-1] in (0, -signal.SIGKILL), process.text()
            kills += codes[-1] != 0
        if codes == [0, 0]:
            bucket.on_write = lambda name: None
            assert outcomes(as_path(url)) == outcomes(tmp_path / "whole")
            assert len(read_sweep([as_path(url)]).records) == 12
            ends += 1
            if kills >= KILLS:
                break
