"""Work directories in S3, with the emulator of the package moto."""

import logging
import os

import jax
import numpy as np
import pytest
from interruption import interrupted_before
from small_runs import a_sweep, assert_same_run, config, outcomes

from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.workdir import buckets
from depthmup_flax.storage.workdir.directory import RUN, as_path, claimed
from depthmup_flax.storage.workdir.mirror import Mirror
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.runs.trained import load_run
from depthmup_flax.util.errors import Busy, InputError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def s3():
    """An emulator with a bucket named ``bucket``, in the environment of this process."""
    pytest.importorskip("s3fs")
    emulator = pytest.importorskip("moto.server")
    import boto3

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server, before = emulator.ThreadedMotoServer("127.0.0.1", 0, verbose=False), dict(os.environ)
    server.start()
    url = "http://127.0.0.1:{1}".format(*server.get_host_and_port())
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update(AWS_ENDPOINT_URL=url, **keys)
    boto3.client("s3").create_bucket(Bucket="bucket")
    yield
    server.stop()
    os.environ.clear()
    os.environ.update(before)


def test_s3_creates_an_object_once_and_locks_have_one_holder(s3):
    directory = as_path("s3://bucket/locks")
    assert [buckets.put_new(directory / "mark", text) for text in ("a", "b")] == [True, False]
    with claimed(directory, RUN, wait_s=0.0), pytest.raises(Busy), claimed(directory, RUN, wait_s=0.0):
        pass
    with pytest.raises(InputError, match="there is no bucket 'no-bucket'"), claimed("s3://no-bucket/a", RUN):
        pass


def test_a_mirror_starts_with_what_was_uploaded_whole_and_deletes_the_rest(s3):
    directory = as_path("s3://bucket/mirror")
    first = Mirror(directory)
    for step in ("1", "2"):
        (first.local / step / "state").mkdir(parents=True)
        (first.local / step / "state" / "data").write_text(step)
    first.upload()
    (directory / "2" / "uploaded.txt").unlink()  # as if the upload had been cut off
    second = Mirror(directory)
    assert [path.name for path in second.local.iterdir()] == ["1"]
    assert [(path.name, path.read_text()) for path in (second.local / "1").rglob("*") if path.is_file()] == [
        ("data", "1")
    ]
    (second.local / "1").rename(second.local / "1.damaged")
    (second.local / "2").mkdir()
    (second.local / "2" / "new").write_text("2")
    second.upload()
    found = buckets.file_system(directory).find(str(directory))
    assert sorted(name.removeprefix("bucket/mirror/") for name in found) == [
        "1.damaged/state/data",
        "1.damaged/uploaded.txt",
        "2/new",
        "2/uploaded.txt",
    ]


def test_a_run_in_s3_that_is_interrupted_ends_as_an_undisturbed_one(s3, tmp_path):
    run = config(checkpoint_every=20)
    train_and_evaluate(run, tmp_path / "disk")
    with interrupted_before(150):
        train_and_evaluate(run, "s3://bucket/run")
    train_and_evaluate(run, "s3://bucket/run")
    directory = as_path("s3://bucket/run")
    buckets.file_system(directory).get(str(directory), str(tmp_path / "copy"), recursive=True)
    assert_same_run(tmp_path / "copy", tmp_path / "disk")
    read, copy = load_run("s3://bucket/run", which="best"), load_run(tmp_path / "copy", which="best")
    assert read.result == copy.result
    jax.tree.map(np.testing.assert_array_equal, read.params, copy.params)
    with pytest.raises(InputError, match="'s3://bucket/nothing' does not exist"):
        load_run("s3://bucket/nothing")


def test_a_sweep_in_s3_has_the_records_of_one_on_a_disk(s3, tmp_path):
    small = a_sweep(rates=2, depths=(2,))
    sweep(small, tmp_path / "disk", lanes=2)
    sweep(small, "s3://bucket/sweep", lanes=2, keep_every_s=0.0)
    assert outcomes(as_path("s3://bucket/sweep")) == outcomes(tmp_path / "disk")
