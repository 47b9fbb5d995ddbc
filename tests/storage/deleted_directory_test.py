"""A run or a sweep whose directory goes away ends, and one in training is not deleted by another command."""

import contextlib
import shutil
import threading
import time

import pytest
from small_runs import a_sweep, config

from depthmup_flax.search.sweep import runner
from depthmup_flax.search.sweep.unfinished import Unfinished
from depthmup_flax.storage.workdir import SWEEP, claimed
from depthmup_flax.trainer.loop import _Run, train_and_evaluate
from depthmup_flax.util.errors import InputError, RunStopped

GONE = r"workdir .* was deleted or renamed while it was in use: restore it, then rerun the command"


delete = shutil.rmtree
rename = lambda directory: directory.rename(directory.with_name("renamed"))


replace = lambda directory: (shutil.rmtree(directory), directory.mkdir())


@pytest.mark.parametrize(("removed", "saves"), [(delete, True), pytest.param(replace, False, marks=pytest.mark.slow)])
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
    with claimed(tmp_path, SWEEP, lock=".lock-records.0-of-2"):
        (tmp_path / "sweep.json").write_text("{}")
        with pytest.raises(InputError, match=r"is in use by another process: stop that one first"):
            runner.sweep(a_sweep(rates=1, depths=(2,)), tmp_path, overwrite=True)
        assert (tmp_path / "sweep.json").read_text() == "{}"


@pytest.mark.slow
@pytest.mark.parametrize("removed", [delete, rename])
def test_a_directory_that_goes_away_during_a_save_is_one_sentence(removed, tmp_path):
    """Orbax, which is writing, may create its part of the path again."""
    workdir = tmp_path / "run"

    def remove_during_a_save():
        until = time.monotonic() + 60
        while not list(workdir.glob("checkpoints/*tmp*")) and time.monotonic() < until:
            time.sleep(0.001)
        with contextlib.suppress(OSError):  # rmtree may meet new files
            removed(workdir)

    thread = threading.Thread(target=remove_during_a_save)
    thread.start()
    with pytest.raises(RunStopped, match=r"workdir .* was deleted or renamed"):
        train_and_evaluate(config(checkpoint_every=1), workdir)
    thread.join()


def test_checkpoints_may_be_a_link_to_a_larger_disk_and_overwrite_deletes_the_link_alone(tmp_path):
    disk, workdir = tmp_path / "disk", tmp_path / "run"
    disk.mkdir()
    workdir.mkdir()
    (workdir / "checkpoints").symlink_to(disk)
    run = config()
    run.train.update(steps=4, eval_every=4)
    train_and_evaluate(run, workdir)
    assert [path.name for path in disk.iterdir()] == ["4"]
    run.optimizer.learning_rate *= 2
    train_and_evaluate(run, workdir, overwrite=True)
    assert not (workdir / "checkpoints").is_symlink()
    assert [path.name for path in disk.iterdir()] == ["4"]
