"""A run does not need its terminal: when nobody reads its output any more, it trains to its end."""

import json
import os
import signal
import subprocess
import sys

import processes
import pytest

FIELDS = ("model.width=8", "model.depth=2", "train.batch_size=16", "train.steps=60", "train.log_every=1")
SMALL = [f"--config.{field}" for field in FIELDS]


def train_into_a_pipe(workdir):
    """``train.py 2>log | head -n 3``."""
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(writer)
    if os.fork() == 0:  # the reader
        os.close(1), os.close(2)
        text = b""
        while text.count(b"\n") < 3:
            text += os.read(reader, 100)
        os._exit(0)
    os.close(reader)
    return processes.command("train.py", f"--workdir={workdir}", *SMALL)


@pytest.mark.slow
def test_a_run_whose_output_is_closed_completes_and_says_so_once(tmp_path):
    process = processes.Process(tmp_path / "log", train_into_a_pipe, tmp_path / "run")
    assert process.wait() == 0, process.text()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "completed"
    assert process.text().count("the output is closed (Broken pipe): the work continues") == 1
    assert "Traceback" not in process.text()


@pytest.mark.parametrize("words", [("config", "digits"), ("train", "--help")])
def test_a_command_that_prints_ends_with_its_reader_and_says_nothing(words):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "depthmup_flax", *words]
    done = subprocess.run(command, cwd=processes.ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")
