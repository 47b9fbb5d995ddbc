"""TensorBoard events on failing storage: they may be lost, but never raise or wait."""

import errno
import threading
import time

import pytest
from small_runs import config
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import RecordWriter

from depthmup_flax.training import event_file
from depthmup_flax.training.event_file import EventFile
from depthmup_flax.training.loop import train_and_evaluate


def events(directory):
    """All events in a directory, in order."""
    found = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        content, start = path.read_bytes(), 0
        while start < len(content):  # length, 8 bytes; checksum, 4; event; checksum, 4
            length = int.from_bytes(content[start : start + 8], "little")
            found.append(Event.FromString(content[start + 12 : start + 12 + length]))
            start += 16 + length
    return found


def scalars(directory):
    return [(e.step, e.summary.value[0].simple_value) for e in events(directory) if e.summary.value]


def test_every_scalar_is_in_the_file_after_close_and_a_resumed_run_says_from_where(tmp_path):
    file = EventFile(tmp_path, purge_step=7)
    for step in range(100):
        file.add_scalar("loss", step / 4, step)
    file.close()
    first, second, *_ = events(tmp_path)
    assert first.file_version == "brain.Event:2"
    assert (second.step, second.session_log.status) == (7, second.session_log.START)
    assert scalars(tmp_path) == [(step, step / 4) for step in range(100)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE], ids=["full", "EIO", "ESTALE"])
def test_storage_that_fails_loses_events_with_one_warning_and_is_tried_again(number, tmp_path, monkeypatch, caplog):
    write, broken = RecordWriter.write, threading.Event()

    def fail(self, data):
        if broken.is_set():
            raise OSError(number, "the storage is broken")
        write(self, data)

    monkeypatch.setattr(RecordWriter, "write", fail)
    monkeypatch.setattr(event_file, "RETRY_S", 0.05)
    broken.set()
    file = EventFile(tmp_path, None)
    for step in range(5 * event_file.WAITING):  # tensorboardX waits for ever at the eleventh
        file.add_scalar("loss", 1.0, step)
    broken.clear()
    time.sleep(0.2)
    file.add_scalar("loss", 2.0, 10**6)
    file.close()
    assert scalars(tmp_path)[-1] == (10**6, 2.0)
    assert caplog.text.count("TensorBoard events cannot be written") == 1
    assert "the storage is broken" in caplog.text or "does not answer" in caplog.text


def test_storage_that_hangs_delays_neither_the_run_nor_its_end(tmp_path, monkeypatch, caplog):
    never = threading.Event()
    monkeypatch.setattr(RecordWriter, "flush", lambda self: never.wait())
    monkeypatch.setattr(event_file, "_FLUSH_S", 0.0)
    monkeypatch.setattr(event_file, "CLOSE_S", 0.1)
    started = time.monotonic()
    file = EventFile(tmp_path, None)
    for step in range(2 * event_file.WAITING):
        file.add_scalar("loss", 1.0, step)
    file.close()
    assert time.monotonic() - started < 1.5
    assert caplog.text.count("(the storage does not answer)") == 1
    never.set()


def test_a_run_whose_events_cannot_be_written_completes_with_all_rows_of_metrics(tmp_path, monkeypatch):
    def fail(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RecordWriter, "write", fail)
    run = config(checkpoint=False)
    run.train.update(steps=40, log_every=1)
    assert train_and_evaluate(run, tmp_path)["status"] == "completed"
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 41
