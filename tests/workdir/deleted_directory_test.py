"""A run or a sweep whose directory goes away ends, and one in training is not deleted by another command."""

import shutil

import pytest
from small_runs import a_sweep, config

from depthmup_flax.sweep import runner
from depthmup_flax.sweep.resume import Unfinished
from depthmup_flax.training.loop import _Run, train_and_evaluate
from depthmup_flax.util.errors import InputError, RunStopped
from depthmup_flax.workdir.directory import SWEEP, claimed

GONE = r"workdir .* was deleted or renamed while it was in use: restore it, then rerun the command"


def delete(directory):
    shutil.rmtree(directory)


def rename(directory):
    directory.rename(directory.with_name("renamed"))


def replace(directory):
    shutil.rmtree(directory)
    directory.mkdir()


@pytest.mark.parametrize(
    ("removed", "saves"),
    [(delete, True), *(pytest.param(removed, False, marks=pytest.mark.slow) for removed in (rename, replace))],
)
def test_a_run_whose_directory_goes_away_ends_and_creates_no_other(removed, saves, tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    monkeypatch.setattr(_Run, "log", lambda *_: removed(workdir) if (workdir / "config.json").exists() else None)
    with pytest.raises(RunStopped, match=GONE):
        train_and_evaluate(config(checkpoint=saves), workdir)
    assert removed is replace or not workdir.exists()
    assert not list(tmp_path.glob("run/*"))


@pytest.mark.slow
def test_a_sweep_whose_directory_goes_away_ends_and_creates_no_other(tmp_path, monkeypatch):
    workdir = tmp_path / "sweep"
    monkeypatch.setattr(Unfinished, "after_call", lambda *_: delete(workdir) if workdir.exists() else None)
    with pytest.raises(RunStopped, match=GONE):
        runner.sweep(a_sweep(rates=1, depths=(2,)), workdir, lanes=0)
    assert not workdir.exists()


def test_a_sweep_is_not_overwritten_while_a_part_of_it_runs(tmp_path):
    records = tmp_path / "records.0-of-2.jsonl"
    with claimed(tmp_path, SWEEP, lock=".lock-records.0-of-2"):
        records.write_text("")
        (tmp_path / "sweep.json").write_text("{}")
        with pytest.raises(InputError, match=r"is in use by process \d+ on .*: stop it before you delete its work"):
            runner.sweep(a_sweep(rates=1, depths=(2,)), tmp_path, overwrite=True)
        assert records.exists()
        assert (tmp_path / "sweep.json").read_text() == "{}"
