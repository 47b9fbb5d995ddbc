"""A directory holds one kind of work, and every command finds out before it works and before it writes."""

import concurrent.futures
import errno
import functools
import itertools
import os
import shutil

import pytest
from planted_sweeps import X, parabola, sweep_of, write
from small_runs import a_sweep, config

import depthmup_flax as dm
from depthmup_flax.report import make_report
from depthmup_flax.search.forecast import forecasting
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.files import as_path, delete_tree, write_atomically, writing_to
from depthmup_flax.storage.workdir import COORD_CHECK, MARK, REPORT, RUN, SWEEP, TUNE, claimed, in_use, kind_of
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.util.errors import Busy, InputError, RunStopped

KINDS = (RUN, SWEEP, TUNE, COORD_CHECK, REPORT)


def content(directory):
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(("present", "other"), list(itertools.pairwise((*KINDS, RUN))))
def test_a_directory_of_one_kind_of_work_is_reopened_for_it_and_refused_untouched_for_others(present, other, tmp_path):
    for _ in range(2):
        with claimed(tmp_path, present):
            assert kind_of(tmp_path) == present
    before = content(tmp_path)
    with pytest.raises(InputError, match=r"holds a .*, not a .*: choose another"), claimed(tmp_path, other):
        pass
    assert content(tmp_path) == before


def test_a_directory_that_is_created_with_its_parent_is_told(tmp_path, caplog):
    caplog.set_level("INFO")
    for _ in range(2):
        with claimed(tmp_path / "absent" / "run", RUN), claimed(tmp_path / "run", RUN):
            pass
    assert caplog.messages == [f"creating {tmp_path}/absent/run: there was no {tmp_path}/absent"]


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
    with pytest.raises(InputError, match=r"sweep' holds a sweep, not a .*: choose another"):
        COMMANDS[command](sweeps_directory)
    assert content(sweeps_directory) == before


@pytest.mark.parametrize(
    ("name", "overwrite"), [("config.json", False), ("checkpoints/model.bin", True), ("records.jsonl", True)]
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
    [("file", "File exists"), ("link", "File exists"), ("file/check", "Not a directory")],
)
def test_a_name_that_cannot_be_a_directory_is_refused_with_the_reason(name, reason, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    refusal = rf"--out '.*{name}' cannot be written to \({reason}\): choose another"
    with pytest.raises(InputError, match=refusal), claimed(tmp_path / name, REPORT, flag="--out"):
        pytest.fail("the work began")


@pytest.mark.parametrize("text", ["{", "[]", '{"kind": "film"}', '{"kind": []}'])
def test_a_damaged_mark_is_one_sentence(text, tmp_path):
    (tmp_path / MARK).write_text(text)
    with pytest.raises(InputError, match=rf"{MARK} .*choose another directory"), claimed(tmp_path, RUN):
        pass


def test_the_home_directory_is_expanded_in_one_place(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert as_path("~/runs") == tmp_path / "runs"
    with pytest.raises(InputError, match="another path"):
        as_path("~nobody-of-this-name/runs")


def failing(code, *args):
    raise OSError(code, os.strerror(code))


@pytest.mark.parametrize("name", ["n" * 256, "x/" * 3000, "a\0b"])
def test_a_name_that_no_disk_can_have_is_one_sentence(name, tmp_path):
    for use in (dm.load_run, dm.read_records, forecasting.read, lambda path: train_and_evaluate(config(), path)):
        with pytest.raises(InputError, match="another path"):
            use(f"{tmp_path}/{name}")


def test_a_directory_that_may_not_be_entered_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("depthmup_flax.storage.files.os.stat", functools.partial(failing, errno.EACCES))
    with pytest.raises(InputError, match="Permission denied"):
        as_path(tmp_path)


@pytest.mark.parametrize("error", [errno.EFBIG, errno.ENOSPC, errno.EACCES])
def test_a_disk_that_takes_no_more_stops_the_run(error, tmp_path):
    with pytest.raises(RunStopped, match=os.strerror(error)), writing_to(tmp_path):
        failing(error)


def test_a_write_into_a_directory_that_is_gone_stops_the_run(tmp_path):
    gone = tmp_path / "gone"
    with pytest.raises(RunStopped, match="was deleted or renamed while it was in use"), claimed(gone, RUN):
        write_atomically((shutil.rmtree(gone), gone / "result.json")[1], "{}")
    with pytest.raises(FileNotFoundError), claimed(tmp_path, RUN):  # not the directory's fault
        (tmp_path / "data").read_text()


def test_a_second_process_is_refused_and_another_part_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr("depthmup_flax.storage.workdir.WAIT_S", 0.1)
    with claimed(tmp_path, SWEEP, lock=".lock-a") as claim:
        assert in_use(claim.file)
        with pytest.raises(Busy), claimed(tmp_path, SWEEP, lock=".lock-a"):
            pass
        with claimed(tmp_path, SWEEP, lock=".lock-b") as other, pytest.raises(InputError, match="in use"):
            other.require_alone()
        claim.require_alone()
    assert not in_use(claim.file)


def test_a_full_disk_at_the_claim_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("depthmup_flax.storage.files.os.replace", functools.partial(failing, errno.ENOSPC))
    with pytest.raises(RunStopped, match="No space left"), claimed(tmp_path / "run", RUN):
        pass


def test_a_directory_of_which_another_thread_deletes_parts_meanwhile_is_deleted(tmp_path):
    tree = tmp_path / "tree"
    for number in range(300):
        (tree / str(number)).mkdir(parents=True)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(delete_tree, tree) for _ in range(4)]:
            done.result()
    assert not tree.exists()


def test_half_written_files_of_a_killed_process_are_removed_when_no_other_runs(tmp_path):
    left = tmp_path / ".tmp-0123456789abcdef-result.json"
    with claimed(tmp_path, SWEEP, lock=".lock-0"):
        left.write_text("{")
        with claimed(tmp_path, SWEEP, lock=".lock-1"):
            assert left.exists()  # may be the first one's
    with claimed(tmp_path, SWEEP, lock=".lock-1"):
        assert not left.exists()
