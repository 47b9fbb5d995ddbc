"""TensorBoard's files."""

import math
import time

from depthmup_flax.trainer.event_file import EventFile


def events(directory):
    """All events in a directory, in order."""
    from tensorboardX.proto.event_pb2 import Event

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


def test_every_finite_scalar_is_in_the_file_after_close_and_a_resumed_run_says_from_where(tmp_path):
    file = EventFile(tmp_path, purge_step=7)
    for step in range(100):
        file.write_scalars(step, {"loss": step / 4, "rate": math.nan})
    file.close()
    first, second, *_ = events(tmp_path)
    assert first.file_version == "brain.Event:2"
    assert (second.step, second.session_log.status) == (7, second.session_log.START)
    assert abs(second.wall_time - time.time()) < 100
    assert scalars(tmp_path) == [(step, step / 4) for step in range(100)]
