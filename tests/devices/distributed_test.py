"""Several processes on this machine: the same training, checkpoints for any number of processes, one end."""

import functools
import json
import os
import signal

import numpy as np
import pytest
from joined import Joined, train_py_at_home

from depthmup_flax import InputError, data
from depthmup_flax.config import default_config
from depthmup_flax.config.files import from_file
from depthmup_flax.devices import distributed, sharding
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.util import errors

STEPS = 12

SETTINGS = f"""
from depthmup_flax.config import default_config

def get_config():
    config = default_config("simple_resnet")
    config.model.update(width=16, depth=3, norm="batch")
    config.data.update(augment="imagenet", placement="stream", train_examples=200)
    config.optimizer.update(name="momentum", learning_rate=0.02)
    config.train.update(batch_size=16, steps={STEPS}, log_every=1, eval_every=6)
    return config
"""
SMALL = (
    "--config.model.width=8",
    "--config.model.depth=2",
    "--config.train.batch_size=16",
    "--config.train.log_every=1",
)


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "settings.py"
    path.write_text(SETTINGS)
    return path


def rows(workdir):
    found = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "images_per_s"} for row in found]


@pytest.mark.slow
def test_a_run_goes_from_two_processes_to_four_to_one_with_the_losses_of_one_that_never_moved(settings, tmp_path):
    """Two processes with two devices each are preempted, then four with one device each, and one with two finishes."""
    train_and_evaluate(from_file(settings), tmp_path / "whole")
    command = [f"--config={settings}", f"--workdir={tmp_path / 'run'}"]
    two = Joined(tmp_path / "two", 2, 2, *command, "--config.mesh.fsdp=2")
    two.wait_for("step 2/")
    two.running[1].send(signal.SIGTERM)  # to any of them
    assert two.wait() == [errors.PREEMPTED] * 2, two.text()
    assert "of 2 processes" in two.running[0].text()
    assert "step" not in two.running[1].text().replace("preemption sync point, step", "")  # only the first logs
    four = Joined(tmp_path / "four", 4, 1, *command, "--config.mesh.data=2", "--config.mesh.fsdp=2")
    four.wait_for("resuming after step")
    four.running[0].send(signal.SIGTERM)
    codes = four.wait()
    assert codes in ([errors.PREEMPTED] * 4, [0] * 4), four.text()  # it may have reached the end before
    last = Joined(tmp_path / "one", 1, 2, *command)
    assert last.wait() == [0], last.text()
    if codes[0]:
        assert "resuming after step" in last.text()
    found, expected = rows(tmp_path / "run"), rows(tmp_path / "whole")
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, rel=2e-4), (row, other)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["steps"] == STEPS


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_other_and_both_resume(tmp_path):
    arguments = (f"--workdir={tmp_path / 'run'}", "--config.train.eval_every=4", *SMALL)
    pair = Joined(tmp_path / "logs", 2, 1, *arguments, "--config.train.steps=100000")
    pair.wait_for("step 9/")
    pair.running[1].send(signal.SIGKILL)
    code, killed = pair.wait(150)  # JAX notices after 100 s, a collective at once
    assert killed == -signal.SIGKILL
    assert code != 0
    again = Joined(tmp_path / "again", 2, 1, *arguments, "--config.train.steps=100000")
    again.wait_for("resuming after step")
    again.running[0].send(signal.SIGTERM)
    assert again.wait() == [errors.PREEMPTED] * 2, again.text()


def damaged(workdir):
    """Where only the first process looks."""
    workdir.mkdir()
    (workdir / "config.json").write_text("{")
    (workdir / "workdir.json").write_text('{"kind": "run"}')


REFUSED = {  # prepares the work directory, further arguments by process, what each process says
    "a process lacks the data": (
        None,
        ("--config.data.name=folder:nowhere", "--config.data.name=synthetic"),
        ("there is no folder 'nowhere'", "another process failed validation. See its log"),
    ),
    "configs differ": (  # else they would train a network of neither, and report that it has completed
        None,
        ("--config.optimizer.learning_rate=0.001", "--config.optimizer.learning_rate=0.03"),
        ("config.optimizer.learning_rate is 0.001 in process 0, 0.03 in process 1",) * 2,
    ),
    "the directory is damaged": (damaged, ("--config.seed=0",) * 2, ("config.json is not",) * 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_of_any_process_is_one_sentence_and_exit_code_two_in_all(case, tmp_path):
    prepare, own, says = REFUSED[case]
    if prepare:
        prepare(tmp_path / "run")
    arguments = (f"--workdir={tmp_path / 'run'}", "--config.train.steps=2", *SMALL)
    pair = Joined(tmp_path / "logs", 2, 1, *arguments, own=lambda index: (own[index],))
    assert pair.wait() == [errors.BAD_INPUT] * 2, pair.text()
    for process, said in zip(pair.running, says, strict=True):
        (sentence,) = [line for line in process.text().splitlines() if line.startswith("error:")]
        assert said in sentence
    assert prepare or not (tmp_path / "run" / "config.json").exists()


@pytest.mark.slow
def test_a_directory_of_the_same_name_on_each_host_is_refused(tmp_path):
    program = functools.partial(train_py_at_home, tmp_path)
    pair = Joined(tmp_path / "logs", 2, 1, "--workdir=~/run", "--config.train.steps=2", *SMALL, program=program)
    assert pair.wait() == [errors.BAD_INPUT] * 2, pair.text()
    assert "error: the work directory" in pair.running[1].text()
    assert not list((tmp_path / "0" / "run").glob(".tmp-*"))


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
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")  # the shell of salloc
    with pytest.raises(InputError, match="srun"):
        distributed.start()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert distributed.start()
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1234")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
    monkeypatch.setenv("JAX_PROCESS_ID", "3")
    assert distributed.start()
    assert called[-1]["coordinator_address"] == "127.0.0.1:1234"
    assert (called[-1]["num_processes"], called[-1]["process_id"]) == (4, 3)
    for wrong in ("three", "4", ""):
        monkeypatch.setenv("JAX_PROCESS_ID", wrong)
        with pytest.raises(InputError, match=f"JAX_NUM_PROCESSES=4 JAX_PROCESS_ID={wrong}: set all three"):
            distributed.start()
    monkeypatch.setenv("JAX_PROCESS_ID", "3")
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS")
    with pytest.raises(InputError, match="JAX_COORDINATOR_ADDRESS= "):
        distributed.start()
