"""A run does not need its terminal: when nobody reads its output any more, it trains to its end."""

import json
import os
import signal
import subprocess
import sys

import processes
import pytest

SMALL = ("--config.model.width=8", "--config.model.depth=2", "--config.train.batch_size=16", "--config.train.steps=60")
OFTEN = ("--config.train.log_every=1", "--config.train.eval_every=100")


def train_into_a_pipe(workdir, both):
    """``train.py 2>log | head -n 3``, or with ``both`` ``train.py 2>&1 | head -n 3``."""
    reader, writer = os.pipe()
    for stream in (1, 2)[: 1 + both]:
        os.dup2(writer, stream)
    os.close(writer)
    if os.fork() == 0:  # the reader
        os.close(1), os.close(2)
        text = b""
        while text.count(b"\n") < 3:
            text += os.read(reader, 100)
        os._exit(0)
    os.close(reader)
    return processes.command("train.py", f"--workdir={workdir}", *SMALL, *OFTEN)


@pytest.mark.slow
@pytest.mark.parametrize("both", [False, True], ids=["stdout", "stdout and stderr"])
def test_a_run_whose_output_is_closed_completes_and_says_so_once(both, tmp_path):
    process = processes.Process(tmp_path / "log", train_into_a_pipe, tmp_path / "run", both)
    assert process.wait() == 0, process.text()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "completed"
    assert process.text().count("the output is closed (Broken pipe): the work continues") == (not both)
    assert "Traceback" not in process.text()


@pytest.mark.parametrize("words", [("config", "digits"), ("train", "--help")])
def test_a_command_that_prints_ends_with_its_reader_and_says_nothing(words):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "depthmup_flax", *words]
    done = subprocess.run(command, cwd=processes.ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


@pytest.mark.slow
def test_a_run_without_output_trains(tmp_path):
    """``>&- 2>&-``: the file descriptors are closed from the start."""
    closed = lambda: (os.close(1), os.close(2))
    command = [sys.executable, "-m", "depthmup_flax", "train", f"--workdir={tmp_path / 'run'}", *SMALL]
    assert subprocess.run(command, cwd=processes.ROOT, preexec_fn=closed, check=False).returncode == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "completed"
