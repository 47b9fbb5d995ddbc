"""Metrics beside metrics.jsonl: writers may fail or hang, and rows may be lost, but no call raises or waits."""

import errno
import importlib.util
import inspect
import json
import pathlib
import re
import struct
import threading
import time

import pytest
from processes import ROOT
from small_runs import config

from depthmup_flax.config.fields import config_hash
from depthmup_flax.trainer import writers
from depthmup_flax.trainer.event_file import EventFile
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.writers import BackgroundWriter
from depthmup_flax.util.errors import InputError


class Rows:
    """A writer of a user's own."""

    def __init__(self):
        self.rows, self.closed = [], False

    def write_scalars(self, step, scalars):
        self.rows.append((step, scalars))

    def close(self):
        self.closed = True


def short_run(**train):
    run = config(checkpoint=False)
    run.train.update(steps=4, log_every=2, eval_every=4, **train)
    return run


def rows_of(directory):
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [(row.pop("step"), row) for row in rows]


def background_events(directory):
    return BackgroundWriter("events", lambda attempt: EventFile(directory, None, attempt))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE], ids=["full", "EIO", "ESTALE"])
def test_storage_that_fails_loses_events_with_one_warning_and_is_tried_again(number, tmp_path, monkeypatch, caplog):
    from tensorboardX.record_writer import RecordWriter

    write, broken = RecordWriter.write, threading.Event()

    def fail(self, data):
        if broken.is_set():
            raise OSError(number, "the storage is broken")
        write(self, data)

    monkeypatch.setattr(RecordWriter, "write", fail)
    monkeypatch.setattr(writers, "RETRY_S", 0.05)
    broken.set()
    writer = background_events(tmp_path)
    for step in range(5 * writers.WAITING):  # tensorboardX waits for ever at the eleventh
        writer.write(step, {"loss": 1.0})
    broken.clear()
    time.sleep(0.2)
    writer.write(10**6, {"loss": 2.0})
    writer.close()
    files = b"".join(path.read_bytes() for path in tmp_path.glob("events*"))
    assert b"loss" in files
    assert caplog.text.count("some metrics are lost to events") == 1
    assert "the storage is broken" in caplog.text or "does not answer" in caplog.text


def test_storage_that_hangs_delays_neither_the_run_nor_its_end(tmp_path, monkeypatch, caplog):
    never = threading.Event()
    monkeypatch.setattr("tensorboardX.record_writer.RecordWriter.flush", lambda self: never.wait())
    monkeypatch.setattr(writers, "_FLUSH_S", 0.0)
    monkeypatch.setattr(writers, "CLOSE_S", 0.1)
    started = time.monotonic()
    writer = background_events(tmp_path)
    for step in range(2 * writers.WAITING):
        writer.write(step, {"loss": 1.0})
    writer.close()
    assert time.monotonic() - started < 1.5
    assert caplog.text.count("(it does not answer)") == 1
    never.set()


def test_writers_of_ones_own_get_every_row_and_one_that_always_fails_is_named_once(tmp_path, caplog):
    class Failing(Rows):
        def write_scalars(self, step, scalars):
            super().write_scalars(step, scalars)
            raise RuntimeError("no quota")

        close = write_scalars  # fails, too

    own, failing = Rows(), Failing()
    result = train_and_evaluate(short_run(writers=("jsonl",)), tmp_path, writers=[own, failing])
    assert result["status"] == "completed"
    assert own.rows == failing.rows == rows_of(tmp_path)
    assert [step for step, _ in own.rows] == [2, 4, 4]
    assert own.closed
    assert caplog.text.count("some metrics are lost to Failing (RuntimeError: no quota)") == 1
    assert not list(tmp_path.glob("events*"))


def test_the_interface_is_that_of_clus_writers():
    """Read from its file, as importing clu.metric_writers imports TensorFlow."""
    path = pathlib.Path(importlib.util.find_spec("clu").origin).parent / "metric_writers" / "interface.py"
    spec = importlib.util.spec_from_file_location("interface", path)
    interface = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(interface)
    theirs = interface.MetricWriter
    assert list(inspect.signature(theirs.write_scalars).parameters) == ["self", "step", "scalars"]
    assert list(inspect.signature(theirs.flush).parameters) == ["self"]
    assert list(inspect.signature(theirs.close).parameters) == ["self"]


def test_a_writer_with_flush_is_flushed_while_nothing_comes(monkeypatch):
    flushed = threading.Event()

    class Buffered(Rows):
        def flush(self):
            if self.rows:
                flushed.set()

    monkeypatch.setattr(writers, "_FLUSH_S", 0.01)
    own = Buffered()
    writer = BackgroundWriter("buffered", lambda attempt: own)
    writer.write(1, {"loss": 1.0})
    assert flushed.wait(10)
    writer.close()
    assert own.closed


def test_a_run_whose_events_cannot_be_written_completes_with_all_rows_of_metrics(tmp_path, monkeypatch):
    def fail(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tensorboardX.record_writer.RecordWriter.write", fail)
    run = config(checkpoint=False)
    run.train.update(steps=40, log_every=1)
    assert train_and_evaluate(run, tmp_path)["status"] == "completed"
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 41


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("tensorboard",), "train.writers is tensorboard: add jsonl"),
        (("jsonl", "tensorbord"), "train.writers has 'tensorbord': did you mean 'tensorboard'?"),
        (("jsonl,wand",), "train.writers has 'wand': did you mean 'wandb'?"),
        ((1,), r"train.writers is \(1,\)"),
    ],
)
def test_names_of_writers_are_checked_before_anything_is_written(names, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        train_and_evaluate(short_run(writers=names), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_absent_library_is_one_sentence_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'not installed: run pip install "depthmup-flax\[wandb\]", or leave it out'):
        train_and_evaluate(short_run(writers=("jsonl", "wandb")), tmp_path / "run")


def test_an_object_that_is_no_writer_is_refused_with_the_method_that_it_lacks(tmp_path):
    with pytest.raises(InputError, match="writers has a set, which has no method write_scalars"):
        train_and_evaluate(short_run(), tmp_path / "run", writers=[set()])


@pytest.mark.slow
def test_the_example_of_the_docs_runs(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "logging.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"<!-- example -->\n```python\n(.*?)```", page, re.DOTALL).group(1), {})
    assert float(capsys.readouterr().out.removeprefix("best test loss ")) < 1.5


def test_writers_do_not_change_the_hash_of_a_run():
    assert len({config_hash(short_run(writers=names)) for names in (("jsonl",), ("jsonl", "wandb"))}) == 1


def logged_messages(path):
    """Messages in a file of wandb: 7 bytes, then LevelDB's log format, in blocks of 32 KiB."""
    content, start, message = path.read_bytes(), 7, b""
    while start < len(content):
        if start // 2**15 < (start + 7) // 2**15 and (start + 7) % 2**15:  # what is left of a block has no header
            start = (start // 2**15 + 1) * 2**15
        length, kind = struct.unpack_from("<HB", content, start + 4)
        message += content[start + 7 : start + 7 + length]
        start += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield message
            message = b""


def offline_rows(directory):
    """Step and values of every row in wandb's file of an offline run."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    (path,) = directory.glob("wandb/offline-run-*/*.wandb")
    for record in map(wandb_internal_pb2.Record.FromString, logged_messages(path)):
        if record.WhichOneof("record_type") == "history":
            items = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            rows.append((record.history.step.num, {k: v for k, v in items.items() if not k.startswith("_")}))
    return rows


@pytest.mark.slow
def test_wandb_offline_has_every_row_below_the_work_directory(tmp_path, monkeypatch, logged):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    train_and_evaluate(short_run(writers=("jsonl", "wandb")), tmp_path)
    (_, first), (_, last), (_, test) = rows_of(tmp_path)
    assert offline_rows(tmp_path) == [(2, first), (4, {**last, **test})]
    assert f"wandb sync {next(pathlib.Path(tmp_path).glob('wandb/offline-run-*'))}" in logged.text
