"""A disk that fills up while several processes write a checkpoint ends all of them, soon and with a sentence."""

import errno
import os
import pathlib

import pytest
from joined import Joined, train_py

from depthmup_flax.util import errors

SMALL = ("--config.model.width=8", "--config.model.depth=2", "--config.train.batch_size=16", "--config.train.steps=40")
OFTEN = ("--config.train.log_every=1", "--config.train.eval_every=100", "--config.train.checkpoint_every=4")


def checkpoints(workdir):
    """The steps of the complete checkpoints."""
    return {int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdigit()}


def train_py_on_a_full_disk(arguments, devices):
    """`train_py`; one method of Orbax fails, in one process, when two checkpoints are complete."""
    import jax
    import orbax.checkpoint as ocp

    method, failing, *arguments = arguments
    workdir = pathlib.Path(arguments[0].partition("=")[2])
    write = getattr(ocp.StandardCheckpointHandler, method)

    def failing_write(*args, **kwargs):
        if jax.process_index() == int(failing) and len(checkpoints(workdir)) >= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*args, **kwargs)

    setattr(ocp.StandardCheckpointHandler, method, failing_write)
    return train_py(arguments, devices)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "failing"), [("finalize", 0), ("async_save", 1)], ids=["merging", "starting in the other"]
)
def test_a_disk_that_is_full_during_a_save_ends_both_processes_and_a_rerun_resumes(method, failing, tmp_path):
    arguments = (f"--workdir={tmp_path / 'run'}", *SMALL, *OFTEN)
    words = (method, str(failing), *arguments)
    group = Joined(tmp_path / "logs", 2, 1, *words, program=train_py_on_a_full_disk)
    assert group.wait(60) == [errors.STOPPED] * 2, group.text()
    sentence = "cannot be written any more (No space left on device): make room"
    assert all(sentence in process.text() for process in group.running), group.text()
    saved = checkpoints(tmp_path / "run")
    assert len(saved) == 2, saved
    again = Joined(tmp_path / "again", 2, 1, *arguments)
    assert again.wait(60) == [0] * 2, again.text()
    assert f"resuming after step {max(saved)}" in again.text()
