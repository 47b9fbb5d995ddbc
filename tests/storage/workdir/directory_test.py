"""A directory holds one kind of work, and every command finds out before it works and before it writes."""

import errno
import functools
import itertools
import os
import pathlib
import time

import pytest
from planted_sweeps import X, parabola, sweep_of, write
from small_runs import a_sweep, config

from depthmup_flax.report import make_report
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.workdir import files
from depthmup_flax.storage.workdir.directory import (
    COORD_CHECK,
    MARK,
    REPORT,
    RUN,
    SWEEP,
    TUNE,
    as_path,
    claimed,
    kind_of,
    writing_to,
)
from depthmup_flax.storage.workdir.files import JsonLines, temporary_name, write_atomically
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.util.errors import InputError, RunStopped

KINDS = (RUN, SWEEP, TUNE, COORD_CHECK, REPORT)


@pytest.fixture(autouse=True)
def fast_files(monkeypatch):
    monkeypatch.setattr(files, "VISIBLE_S", 0.1)


def content(directory):
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(("present", "other"), list(itertools.pairwise((*KINDS, RUN))))
def test_a_directory_of_one_kind_of_work_is_reopened_for_it_and_refused_untouched_for_others(present, other, tmp_path):
    for _ in range(2):
        with claimed(tmp_path, present):
            assert kind_of(tmp_path) == present
    before = content(tmp_path)
    with pytest.raises(InputError, match=r"holds a .*, not a .*: choose another directory"), claimed(tmp_path, other):
        pass
    assert content(tmp_path) == before


@pytest.fixture
def sweeps_directory(tmp_path):
    """A copy of the records of a sweep, without a mark."""
    return write(tmp_path / "sweep", sweep_of(parabola, {X: (2.0**-9, 2.0**-8, 2.0**-7)}))


COMMANDS = {
    "train": lambda path: train_and_evaluate(config(), path),
    "train --overwrite": lambda path: train_and_evaluate(config(), path, overwrite=True),
    "tune --overwrite": lambda path: sweep(a_sweep(1, (2,)), path, overwrite=True, kind=TUNE),
    "report": lambda path: make_report([path], path),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_the_directory_of_a_sweep_and_leaves_it_as_it_was(command, sweeps_directory):
    before = content(sweeps_directory)
    with pytest.raises(InputError, match=r"sweep' holds a sweep, not a .*: choose another directory"):
        COMMANDS[command](sweeps_directory)
    assert content(sweeps_directory) == before


def test_a_sweep_refuses_the_directory_of_a_run(tmp_path):
    with claimed(tmp_path, RUN):
        pass
    before = content(tmp_path)
    with pytest.raises(InputError, match="holds a training run, not a sweep"):
        sweep(a_sweep(1, (2,)), tmp_path, overwrite=True)
    assert content(tmp_path) == before


def test_records_of_unknown_work_are_refused_and_kept(tmp_path):
    (tmp_path / "records.jsonl").write_text("hours of work")
    with (
        pytest.raises(InputError, match=r"holds 'records.jsonl', which another program"),
        claimed(tmp_path, COORD_CHECK),
    ):
        pytest.fail("the work began")
    assert content(tmp_path) == {tmp_path / "records.jsonl": b"hours of work"}


@pytest.mark.parametrize(
    ("name", "overwrite"), [("config.json", False), ("checkpoints/model.bin", True), ("result.json", True)]
)
def test_files_of_another_program_are_refused_and_kept(name, overwrite, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"model_type": "bert"}')
    before = content(tmp_path)
    with pytest.raises(
        InputError, match=rf"holds {name.split('/')[0]!r}, which another program may have written: choose"
    ):
        train_and_evaluate(config(), tmp_path, overwrite=overwrite)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "reason"),
    [("file", "it is a file"), ("link", "it is a link to nothing"), ("file/check", "Not a directory")],
)
def test_a_name_that_cannot_be_a_directory_is_refused_with_the_reason(name, reason, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    refusal = rf"--out '.*{name}' cannot be written to \({reason}\): choose another"
    with pytest.raises(InputError, match=refusal), claimed(tmp_path / name, REPORT, flag="--out"):
        pytest.fail("the work began")


def test_what_a_killed_writer_has_left_is_deleted_after_an_hour(tmp_path):
    old, new = (temporary_name(tmp_path / name) for name in ("old", "new"))
    for path in (old, new):
        path.touch()
    os.utime(old, (time.time() - 4000,) * 2)
    with claimed(tmp_path, RUN):
        assert not old.exists()
        assert new.exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"kind": "film"}'])
def test_a_damaged_mark_is_one_sentence(text, tmp_path):
    (tmp_path / MARK).write_text(text)
    with pytest.raises(InputError, match=rf"{MARK} .*choose another directory"), claimed(tmp_path, RUN):
        pass


def test_files_of_the_user_do_not_matter(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with claimed(tmp_path, RUN) as claim:
        assert claim.directory == tmp_path
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_home_directory_is_expanded_in_one_place(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert as_path("~/runs") == tmp_path / "runs"
    with pytest.raises(InputError, match="write the whole path"):
        as_path("~nobody-of-this-name/runs")


def failing(code, *args, **kwargs):
    raise OSError(code, os.strerror(code))


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (errno.EROFS, InputError, "Read-only file system.: choose another"),
        (errno.ENOSPC, RunStopped, "No space left on device.: free space or repair"),
    ],
)
def test_a_directory_that_cannot_be_written_is_found_at_the_claim(code, error, message, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", functools.partial(failing, code))
    with pytest.raises(error, match=message), claimed(tmp_path / "run", RUN):
        pytest.fail("the work began")


def test_a_write_into_a_directory_that_is_gone_stops_the_run(tmp_path):
    gone = tmp_path / "gone"
    with pytest.raises(RunStopped, match="was deleted or renamed while it was in use"), writing_to(gone):
        write_atomically(gone / "result.json", "{}")
    with pytest.raises(FileNotFoundError), writing_to(tmp_path):  # not the directory's fault
        (tmp_path / "data").read_text()


def test_atomic_files_are_on_disk_before_and_after_they_get_their_name(tmp_path, monkeypatch):
    """The order that survives a power cut: content, name, directory."""
    calls = []
    sync, replace = os.fsync, os.replace
    kind = lambda file: "directory" if pathlib.Path(f"/proc/self/fd/{file}").resolve() == tmp_path else "content"
    monkeypatch.setattr(os, "fsync", lambda file: calls.append(kind(file)) or sync(file))
    monkeypatch.setattr(os, "replace", lambda *paths: calls.append("name") or replace(*paths))
    write_atomically(tmp_path / "result.json", "{}")
    assert calls == ["content", "name", "directory"]
    assert content(tmp_path) == {tmp_path / "result.json": b"{}"}


def test_the_whole_work_is_not_deleted_while_a_part_runs(tmp_path):
    with claimed(tmp_path, SWEEP, lock=".lock-records.1-of-2"), claimed(tmp_path, SWEEP, lock=".lock-records") as claim:
        writer = JsonLines(tmp_path / "records.1-of-2.jsonl")
        writer.write([1])
        with pytest.raises(InputError, match=r"is in use by process \d+ on .*: stop it before"), claim.alone():
            pytest.fail("deletes")
        writer.close()
    with claimed(tmp_path, SWEEP, lock=".lock-records") as claim, claim.alone():
        pass


def test_a_part_that_starts_while_the_whole_work_is_deleted_waits(tmp_path, logged):
    from depthmup_flax.util.errors import Busy

    with (
        claimed(tmp_path, SWEEP, lock=".lock-records") as claim,
        claim.alone(),
        pytest.raises(Busy),
        claimed(tmp_path, SWEEP, lock=".lock-records.0-of-2", wait_s=0.3),
    ):
        pytest.fail("starts")
