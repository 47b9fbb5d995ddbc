"""Several processes on this machine, joined by gloo: the same training, checkpoints that fit any number, no hangs."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from depthmup_flax import InputError, data, errors
from depthmup_flax.parallel import distributed, sharding
from depthmup_flax.training.config import default_config

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 12

SETTINGS = f"""
from depthmup_flax.training.config import default_config

def get_config():
    config = default_config("simple_resnet")
    config.model.update(width=16, depth=3, norm="batch")
    config.data.update(augment="imagenet", placement="stream", train_examples=200)
    config.optimizer.update(name="momentum", learning_rate=0.02)
    config.train.update(batch_size=16, steps={STEPS}, log_every=1, eval_every=6)
    return config
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Processes:
    """``train.py`` as several processes; ``outputs`` are their logs."""

    def __init__(self, directory, count, devices, *arguments, own=lambda index: ()):
        directory.mkdir(parents=True, exist_ok=True)
        self.outputs = [directory / f"{index}.log" for index in range(count)]
        address, self.running = f"127.0.0.1:{free_port()}", []
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        joined = [f"--coordinator={address}", f"--num_processes={count}"] if count > 1 else []
        for index, output in enumerate(self.outputs):
            mine = [*joined, f"--process_id={index}"] if count > 1 else []
            command = [sys.executable, "train.py", *arguments, *mine, *own(index)]
            with output.open("w") as log:
                self.running.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))

    def wait_for(self, text, timeout_s=180):
        until = time.monotonic() + timeout_s
        while text not in self.outputs[0].read_text():
            assert time.monotonic() < until, self.said()
            assert all(process.poll() is None for process in self.running), self.said()
            time.sleep(0.02)

    def wait(self, timeout_s=180):
        """Exit codes of all, within a bounded time."""
        until = time.monotonic() + timeout_s
        try:
            return [process.wait(max(0.1, until - time.monotonic())) for process in self.running]
        except subprocess.TimeoutExpired:
            pytest.fail(f"not all ended within {timeout_s} s: {self.said()}")
        finally:
            for process in self.running:
                process.kill()

    def said(self):
        return "\n\n".join(output.read_text() for output in self.outputs)


def rows(workdir):
    found = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "images_per_s"} for row in found]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    path = tmp_path_factory.mktemp("settings") / "settings.py"
    path.write_text(SETTINGS)
    return f"--config={path}"


def test_a_run_goes_from_two_processes_to_four_to_one_with_the_losses_of_one_that_never_moved(settings, tmp_path):
    """Two processes with two devices each are told to leave, four with one each, too, and one with two finishes."""
    whole = Processes(tmp_path / "whole-logs", 1, 1, settings, f"--workdir={tmp_path / 'whole'}")
    assert whole.wait() == [0], whole.said()
    command = [settings, f"--workdir={tmp_path / 'run'}"]
    moved = Processes(tmp_path / "two", 2, 2, *command, "--config.mesh.fsdp=2")
    moved.wait_for("step 2/")
    moved.running[1].send_signal(signal.SIGTERM)  # to any of them
    assert moved.wait() == [errors.PREEMPTED] * 2, moved.said()
    assert "of 2 processes" in moved.outputs[0].read_text()
    assert "step" not in moved.outputs[1].read_text().replace("preemption sync point, step", "")  # only the first talks
    moved = Processes(tmp_path / "four", 4, 1, *command, "--config.mesh.data=2", "--config.mesh.tensor=2")
    moved.wait_for("resuming after step")
    moved.running[0].send_signal(signal.SIGTERM)
    codes = moved.wait()
    assert codes in ([errors.PREEMPTED] * 4, [0] * 4), moved.said()  # it may have reached the end before
    last = Processes(tmp_path / "one", 1, 2, *command)
    assert last.wait() == [0], last.said()
    found, expected = rows(tmp_path / "run"), rows(tmp_path / "whole")
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, rel=2e-4), (row, other)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["steps"] == STEPS


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_ends_the_other_with_a_message_in_bounded_time(victim, settings, tmp_path):
    command = [settings, f"--workdir={tmp_path / 'run'}", "--config.train.steps=100000"]
    pair = Processes(tmp_path / "logs", 2, 1, *command)
    pair.wait_for("step 2/")
    pair.running[victim].kill()
    started = time.monotonic()
    codes = pair.wait(distributed.HEARTBEAT_TIMEOUT_S + 30)
    assert time.monotonic() - started < distributed.HEARTBEAT_TIMEOUT_S + 30
    assert codes[victim] == -signal.SIGKILL
    assert codes[1 - victim] not in (0, errors.BAD_INPUT, errors.PREEMPTED)  # to be started again
    said = pair.outputs[1 - victim].read_text()
    assert f"process {1 - victim} cannot go on, and the others end with it" in said or "distributed service" in said


def test_a_checkpoint_that_one_process_cannot_read_is_set_aside_by_the_next_attempt(tmp_path):
    sizes = ["--config.train.steps=40", "--config.train.eval_every=20", "--config.mesh.fsdp=2"]
    command = [f"--workdir={tmp_path / 'run'}", *sizes]
    pair = Processes(tmp_path / "first", 2, 1, *command)
    assert pair.wait() == [0, 0], pair.said()
    latest = tmp_path / "run" / "checkpoints" / "40"
    parts = list((latest / "state" / "ocdbt.process_1" / "d").iterdir())
    for part in parts:
        part.write_bytes(part.read_bytes()[:100])
    (tmp_path / "run" / "result.json").unlink()
    assert parts
    stopped = Processes(tmp_path / "stopped", 2, 1, *command)
    assert errors.STOPPED in stopped.wait(), stopped.said()
    assert "run the same command again, which sets it aside" in stopped.said()
    again = Processes(tmp_path / "second", 2, 1, *command)
    assert again.wait() == [0, 0], again.said()
    assert "resuming after step 20" in again.outputs[0].read_text()
    assert (latest.parent / "40.damaged").exists()


def test_a_process_that_lacks_the_data_makes_all_refuse(tmp_path):
    def own(index):
        return (f"--config.data.name={'synthetic' if index else 'folder:nowhere'}",)

    pair = Processes(tmp_path / "logs", 2, 1, f"--workdir={tmp_path / 'run'}", "--config.train.steps=2", own=own)
    assert pair.wait() == [errors.BAD_INPUT] * 2, pair.said()
    assert "there is no folder 'nowhere'" in pair.outputs[0].read_text()
    assert "another process failed validation: see its log" in pair.outputs[1].read_text()


def test_bad_input_is_one_sentence_and_exit_code_two_in_every_process(settings, tmp_path):
    """Also where only the first looks: at the work directory."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{")
    pair = Processes(tmp_path / "logs", 2, 1, settings, f"--workdir={tmp_path / 'run'}")
    assert pair.wait() == [errors.BAD_INPUT] * 2, pair.said()
    for output in pair.outputs:
        (said,) = [line for line in output.read_text().splitlines() if line.startswith("error:")]
        assert "config.json is not JSON" in said


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_the_rows_of_all_hosts_are_disjoint_and_complete(hosts):
    """A mesh of eight devices, of which each host has its share; the batch is the same for any number of hosts."""
    config = default_config().data
    config.update(name="synthetic", placement="stream")
    dataset = data.load(config)
    shares = np.arange(16).reshape(hosts, -1)
    streams = [data.train_stream(dataset.train, 3, 16, start_step=5, rows=rows) for rows in shares]
    batch = [next(stream)["image"] for stream in streams]
    whole = next(data.train_stream(dataset.train, 3, 16, start_step=5))["image"]
    np.testing.assert_array_equal(np.concatenate(batch), whole)
    assert sharding.local_rows(sharding.make_mesh(), 16).tolist() == list(range(16))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("host:1", 2, None), "process_id not set: set all of --coordinator=HOST:PORT"),
        (("host", 2, 0), "coordinator is 'host': use HOST:PORT"),
        (("host:1", 0, 0), "num_processes is 0: use a whole number of at least 1"),
        (("host:1", 2, 2), "process_id is 2: use a whole number from 0 to 1"),
        (("no-such-host.invalid:1", 2, 1), "coordinator is 'no-such-host.invalid:1', which cannot be used"),
    ],
)
def test_an_address_that_is_not_complete_is_refused(given, sentence):
    with pytest.raises(InputError, match=sentence):
        distributed.start(*given)


def test_the_environment_says_which_process_this_is(monkeypatch):
    """Explicit variables, or a Slurm step with several tasks; nothing else makes a process wait for others."""
    called = []
    monkeypatch.setattr("jax.distributed.initialize", lambda **arguments: called.append(arguments))
    for name in list(os.environ):
        if name.startswith(("SLURM_", "JAX_COORDINATOR", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")):
            monkeypatch.delenv(name)
    assert not distributed.start()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    assert not distributed.start()  # a batch script, not a step
    for name, value in (("STEP_NODELIST", "node[1-2]"), ("PROCID", "1"), ("LOCALID", "0")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert distributed.start()
    assert "coordinator_address" not in called[-1]  # JAX knows Slurm
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1234")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
    monkeypatch.setenv("JAX_PROCESS_ID", "3")
    assert distributed.start()
    assert called[-1]["coordinator_address"] == "127.0.0.1:1234"
    assert (called[-1]["num_processes"], called[-1]["process_id"]) == (4, 3)
    monkeypatch.setenv("JAX_PROCESS_ID", "three")
    with pytest.raises(InputError, match="the environment variable JAX_PROCESS_ID is 'three': use a whole number"):
        distributed.start()
