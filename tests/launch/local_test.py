"""launch/: all scripts, and local.sh, mostly with a stand-in for train.py that follows a plan."""

from __future__ import annotations

import json
import os
import pathlib
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time

import pytest
from cloud import AWKWARD

from depthmup_flax.trainer.loop import train_and_evaluate

ROOT = pathlib.Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
SCRIPTS = sorted(path for path in LAUNCH.rglob("*") if path.suffix in (".sh", ".sbatch"))
FOR_PEOPLE = ("local.sh", "slurm.sbatch", "slurm_array.sbatch", "tpu_pod.sh", "gke/run.sh")

# The plan says what a process does at its first, second, ... start: exit with a code; "wait" for SIGTERM and exit
# with 75; "deaf": ignore SIGTERM.
STAND_IN = """
import json, os, pathlib, signal, sys, time
flags = dict(argument.lstrip("-").split("=", 1) for argument in sys.argv[1:])
me = flags.get("process_id") or flags.get("shard", "0/1").split("/")[0]
starts = pathlib.Path(flags["workdir"]) / f"process-{me}"
start = 1 + (len(starts.read_text().splitlines()) if starts.exists() else 0)
plan = json.loads(os.environ["PLAN"]).get(me, [])
todo = plan[start - 1] if start <= len(plan) else 0
signal.signal(signal.SIGTERM, signal.SIG_IGN if todo == "deaf" else lambda *_: sys.exit(75))
with starts.open("a") as file:
    names = ("XLA_FLAGS", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS")
    print(json.dumps({"pid": os.getpid(), "flags": flags, **{name: os.environ.get(name) for name in names}}), file=file)
print(f"this is {me}, start {start}", flush=True)
time.sleep(60 if todo in ("wait", "deaf") else 0.1)
sys.exit(todo)
"""


class Local:
    """launch/local.sh with the stand-in."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.workdir = directory / "run"
        self.workdir.mkdir()
        self.program = directory / "stand_in.py"
        self.program.write_text(STAND_IN)
        self.directory = directory

    def start(self, plan, *options, **environment):
        options = (f"--program={self.program}", f"--python={sys.executable}", *options)
        return subprocess.Popen(
            [LAUNCH / "local.sh", *options, "--", f"--workdir={self.workdir}"],
            env=os.environ | {"PLAN": json.dumps(plan), "TMPDIR": str(self.directory)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, plan, *options, **environment):
        process = self.start(plan, *options, **environment)
        out, error = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, error)

    def starts(self, process: int) -> list[dict]:
        path = self.workdir / f"process-{process}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until_started(self, processes: int) -> list[int]:
        """Waits until all have started and handle signals; returns their process ids."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if all(self.starts(i) for i in range(processes)):
                return [self.starts(i)[-1]["pid"] for i in range(processes)]
            time.sleep(0.02)
        raise AssertionError("not started")


@pytest.fixture
def local(tmp_path):
    return Local(tmp_path)


def lives(pid: int) -> bool:
    try:
        return "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("options", [(), ("--sweep",)], ids=["run", "sweep"])
def test_flags_reach_every_process_unchanged_and_nothing_in_them_is_executed(tmp_path, options):
    program, out = tmp_path / "a $(touch hit).py", tmp_path / "out"
    program.write_text(f"import json, sys\nopen({str(out)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n")
    command = [LAUNCH / "local.sh", "--processes=2", f"--program={program}", f"--python={sys.executable}", *options]
    subprocess.run([*command, "--", *AWKWARD], cwd=tmp_path, capture_output=True, check=True)
    started = [json.loads(line) for line in out.read_text().splitlines()]
    assert [arguments[: len(AWKWARD)] for arguments in started] == [list(AWKWARD)] * 2
    assert not list(tmp_path.rglob("hit"))


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck: apt-get install shellcheck")
def test_shellcheck_finds_nothing():
    scripts = [*SCRIPTS, *(ROOT / "benchmarks").glob("*.sh")]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_stop_at_errors_and_hold_no_hyperparameters(path):
    lines = path.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    code = [line for line in lines if line and not line.startswith("#")]
    assert code[0] == "set -euo pipefail"
    # Hyperparameters would be --config.section.field; configs/ in an example or an error sentence is a file.
    assert "--config." not in "\n".join(code)


@pytest.mark.parametrize("name", FOR_PEOPLE)
def test_help_prints_the_usage_with_an_example(name):
    done = subprocess.run(["bash", LAUNCH / name, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert f"launch/{name}" in done.stdout
    assert "set -euo" not in done.stdout
    assert "#SBATCH" not in done.stdout
    # Every option that the script takes is explained.
    for option in re.findall(r"^    (--\w+)=?\*?\)", (LAUNCH / name).read_text(), re.MULTILINE):
        assert option in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes=2"], "nothing to run: add -- and the program's flags"),
        (["--processes=two", "--", "x"], "--processes=two: must be a whole number of at least 1"),
        (["--processes=0", "--", "x"], "--processes=0: must be a whole number of at least 1"),
        (["--", "x"], "--processes is not set"),
        (["--processes=2", "--devices=1", "--gpus=1", "--", "x"], "--devices and --gpus are both set: use one"),
        (["--process=2", "--", "x"], "unknown option '--process=2'"),
        (["--processes=1", "--program=none.py", "--", "x"], "--program=none.py is not a file"),
        (["--processes=1", "--logs=/dev/null/x", "--", "x"], "--logs=/dev/null/x cannot be created"),
        (["--processes=1", "--python=none", "--", "x"], "--python=none is not a program"),
        (["--processes=3", "--gpus=2", "--", "x"], "CUDA_VISIBLE_DEVICES has 5"),
    ],
)
def test_bad_use_of_local_is_one_sentence_and_code_2(arguments, message):
    done = subprocess.run(
        [LAUNCH / "local.sh", f"--python={sys.executable}", *arguments],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"error: .*\.\n", done.stderr), done.stderr
    assert message in done.stderr


@pytest.mark.parametrize("name", ["slurm.sbatch", "slurm_array.sbatch"])
def test_a_job_script_run_outside_slurm_explains_how_to_submit_it(name):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    done = subprocess.run(
        ["bash", LAUNCH / name, "--workdir=x"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert re.fullmatch(r"error: .*submit with sbatch .*\.\n", done.stderr)


def test_the_scale_page_uses_existing_options():
    page = (ROOT / "docs" / "running_at_scale.md").read_text().replace("\\\n", " ")
    commands = re.findall(r"(launch/\S+\.sh) (.*?) -- ", page)
    assert {name for name, _ in commands} == {"launch/local.sh", "launch/tpu_pod.sh", "launch/gke/run.sh"}
    for name, arguments in commands:
        for option in re.findall(r"(?<=--)\w+", arguments):
            assert f"    --{option}" in (ROOT / name).read_text(), f"{name} --{option}"
    for path in set(re.findall(r"(?:launch|configs)/[\w/]+\.\w+", page)):
        assert (ROOT / path).exists(), path


def test_processes_find_each_other_and_only_the_first_is_shown(local):
    done = local.run({}, "--processes=3", "--devices=2", XLA_FLAGS="--of_mine")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "this is 0, start 1\n"
    flags = [local.starts(i)[0]["flags"] for i in range(3)]
    assert [(f["num_processes"], f["process_id"]) for f in flags] == [("3", "0"), ("3", "1"), ("3", "2")]
    (address,) = {f["coordinator"] for f in flags}
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
    start = local.starts(2)[0]
    assert start["XLA_FLAGS"] == "--of_mine --xla_force_host_platform_device_count=2"
    assert start["JAX_PLATFORMS"] == "cpu"
    assert not list(local.directory.glob("depthmup-launch*"))  # logs of a success


def test_one_process_needs_no_address_and_restarts(local):
    done = local.run({"0": [1, 75, 0]}, "--processes=1", "--max_restarts=1")
    assert done.returncode == 0, done.stderr
    assert [start["flags"] for start in local.starts(0)] == [{"workdir": str(local.workdir)}] * 3


def test_after_a_crash_all_processes_restart_together(local):
    done = local.run({"0": ["wait"], "1": [3], "2": ["deaf"]}, "--processes=3", "--max_restarts=1", "--grace=1")
    assert done.returncode == 0, done.stderr
    assert "the run crashed: restart 1 of 1" in done.stderr
    assert [len(local.starts(i)) for i in range(3)] == [2, 2, 2]
    assert not lives(local.starts(2)[0]["pid"])
    assert local.starts(0)[0]["flags"]["coordinator"] != local.starts(0)[1]["flags"]["coordinator"]


def test_a_run_that_crashes_too_often_exits_with_the_last_code_and_shows_the_output(local):
    done = local.run({"0": [0, 0], "1": [7, 8]}, "--processes=2", "--max_restarts=1", "--grace=1")
    assert done.returncode == 8
    assert "[process 1] this is 1, start 2" in done.stderr
    assert "the run crashed: giving up after 1 restarts (--max_restarts)" in done.stderr
    assert len(local.starts(1)) == 2
    (logs,) = re.findall(r"output of the other processes: (\S+)/process-\*\.log", done.stderr)
    assert "this is 1, start 1" in (pathlib.Path(logs) / "process-1.log").read_text()


def test_a_process_that_is_killed_is_a_crash(local):
    process = local.start({"0": ["wait"], "1": ["wait"]}, "--processes=2", "--max_restarts=0", "--grace=1")
    os.kill(local.until_started(2)[1], signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGKILL


def test_bad_input_is_never_retried(local):
    done = local.run({"0": [1], "1": [2]}, "--processes=2", "--max_restarts=5", "--grace=1")
    assert done.returncode == 2
    assert [len(local.starts(i)) for i in range(2)] == [1, 1]


def test_a_preempted_run_restarts_without_being_counted(local):
    done = local.run({"0": [75, 75], "1": [75, 75]}, "--processes=2", "--max_restarts=0")
    assert done.returncode == 0, done.stderr
    assert len(local.starts(0)) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_forwarded_and_the_exit_code_is_75(local, number):
    process = local.start({"0": ["wait"], "1": ["wait"]}, "--processes=2")
    pids = local.until_started(2)
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 75, error
    assert [len(local.starts(i)) for i in range(2)] == [1, 1]
    assert not any(lives(pid) for pid in pids)


def test_a_second_signal_kills_processes_that_ignore_the_first(local):
    process = local.start({"0": ["deaf"], "1": ["deaf"]}, "--processes=2", "--grace=100")
    pids = local.until_started(2)
    process.send_signal(signal.SIGINT)
    time.sleep(0.6)
    assert process.poll() is None  # it waits for checkpoints
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 75
    assert not any(lives(pid) for pid in pids)


def test_parts_of_a_sweep_restart_alone_and_the_most_severe_code_is_the_scripts(local):
    plan = {"0": [5, 75, 0], "1": [4, 4], "2": [0], "3": [2]}
    done = local.run(plan, "--sweep", "--processes=4", "--max_restarts=1", "--gpus=2", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2, done.stderr
    assert [len(local.starts(i)) for i in range(4)] == [3, 2, 1, 1]
    assert [local.starts(i)[0]["flags"]["shard"] for i in range(4)] == ["0/4", "1/4", "2/4", "3/4"]
    assert "coordinator" not in local.starts(0)[0]["flags"]
    assert [local.starts(i)[0]["CUDA_VISIBLE_DEVICES"] for i in range(4)] == ["0,1", "2,3", "4,5", "6,7"]


def test_gpus_are_those_that_are_visible(local):
    done = local.run({"1": [6]}, "--sweep", "--processes=2", "--max_restarts=0", "--gpus=1", CUDA_VISIBLE_DEVICES="5,3")
    assert done.returncode == 6
    assert [local.starts(i)[0]["CUDA_VISIBLE_DEVICES"] for i in range(2)] == ["5", "3"]


@pytest.mark.slow
def test_two_processes_train_as_one_does(tmp_path):
    config = runpy.run_path(str(ROOT / "configs" / "digits.py"))["get_config"]()
    config.model.update(width=32, depth=4)
    config.train.update(epochs=0.0, steps=20, log_every=10)
    expected = train_and_evaluate(config, tmp_path / "one")
    flags = ["--config.model.width=32", "--config.model.depth=4"]
    flags += ["--config.train.epochs=0.0", "--config.train.steps=20", "--config.train.log_every=10"]
    options = ["--processes=2", "--devices=2", f"--python={sys.executable}", "--max_restarts=0"]
    done = subprocess.run(
        [LAUNCH / "local.sh", *options, "--", *flags, f"--workdir={tmp_path / 'two'}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "on 4 cpu device(s) of 2 processes" in done.stdout
    result = json.loads((tmp_path / "two" / "result.json").read_text())
    assert result["status"] == "completed"
    assert result["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-5)
