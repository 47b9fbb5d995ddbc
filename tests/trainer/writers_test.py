"""Metrics beside metrics.jsonl: TensorBoard, wandb and writers of one's own, which may fail but not stop a run."""

import importlib.machinery
import importlib.util
import json
import math
import re
import sys
import time
import types

import pytest
from processes import ROOT
from small_runs import config

from depthmup_flax.config import validate
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.run_log import EventFile
from depthmup_flax.util.errors import InputError


class Rows:
    """A writer of a user's own."""

    def __init__(self):
        self.rows, self.closed = [], False

    def write_scalars(self, step, scalars):
        self.rows.append((step, scalars))

    def close(self):
        self.closed = True


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


def short_run(**train):
    run = config(checkpoint=False)
    run.train.update(steps=4, log_every=2, eval_every=4, **train)
    return run


def rows_of(directory):
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [(row.pop("step"), row) for row in rows]


def test_writers_of_ones_own_get_every_row_and_one_that_fails_is_named_and_left_out(tmp_path, caplog):
    class Failing(Rows):
        def write_scalars(self, step, scalars):
            super().write_scalars(step, scalars)
            raise RuntimeError("no quota")

    own, failing = Rows(), Failing()
    result = train_and_evaluate(short_run(writers=("jsonl",)), tmp_path, writers=[own, failing])
    assert result["status"] == "completed"
    assert own.rows == rows_of(tmp_path)
    assert [step for step, _ in own.rows] == [2, 4, 4]
    assert [step for step, _ in failing.rows] == [2]
    assert own.closed
    assert caplog.text.count("some metrics are lost to Failing 1 (RuntimeError: no quota)") == 1
    assert not list(tmp_path.glob("events*"))


def test_every_finite_scalar_is_in_the_file_after_close_and_a_resumed_run_says_from_where(tmp_path):
    file = EventFile(tmp_path, purge_step=7)
    for step in range(10):
        file.write_scalars(step, {"loss": step / 4, "rate": math.nan})
    file.close()
    first, second, *_ = events(tmp_path)
    assert first.file_version == "brain.Event:2"
    assert (second.step, second.session_log.status) == (7, second.session_log.START)
    assert abs(second.wall_time - time.time()) < 100
    assert scalars(tmp_path) == [(step, step / 4) for step in range(10)]


@pytest.mark.parametrize("names", [("tensorboard",), ("jsonl", "tensorbord")])
def test_names_of_writers_are_checked(names):
    with pytest.raises(InputError, match=rf"train.writers is {re.escape(repr(names))}: use jsonl"):
        validate(short_run(writers=names))


def test_an_absent_library_is_refused_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"\[wandb\]"):
        train_and_evaluate(short_run(writers=("jsonl", "wandb")), tmp_path / "run")


@pytest.mark.slow
def test_the_example_of_the_docs_runs(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "logging.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"<!-- example -->\n```python\n(.*?)```", page, re.DOTALL).group(1), {})
    assert float(capsys.readouterr().out.removeprefix("best test loss ")) < 1.5


def test_wandb_gets_the_config_and_every_row_and_a_resumed_run_continues_its_own(tmp_path, monkeypatch):
    """A module of its name in its place."""
    opened, rows, finished = [], [], []
    run = types.SimpleNamespace(
        url="https://wandb.ai/run",
        dir="",
        log=lambda row, step: rows.append((step, row)),
        finish=lambda: finished.append(1),
    )
    fake = types.ModuleType("wandb")
    fake.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    fake.Settings, fake.setup = dict, lambda settings: None
    fake.init = lambda **fields: opened.append(fields) or run
    monkeypatch.setitem(sys.modules, "wandb", fake)
    config = short_run(writers=("jsonl", "wandb"))
    train_and_evaluate(config, tmp_path)
    assert rows == rows_of(tmp_path)
    assert finished == [1]
    (tmp_path / "result.json").unlink()
    train_and_evaluate(config, tmp_path)
    assert opened[0]["config"]["train"]["steps"] == 4
    assert [fields["id"] for fields in opened] == [json.loads((tmp_path / "wandb.json").read_text())["id"]] * 2
