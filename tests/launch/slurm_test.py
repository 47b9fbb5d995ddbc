"""launch/*.sbatch on a real Slurm, which the tests start on this machine.

Requires Debian's slurmctld, slurmd, slurm-client and munge, and root, because slurmd starts jobs; otherwise the tests
are skipped. All jobs are submitted at the beginning and run concurrently.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import NoReturn

import pytest
from cloud import AWKWARD

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")

# A requeued job waits until its credential expires, at least 5 s. A job whose start the daemon does not confirm in
# MessageTimeout, by default 10 s, is requeued, and so counts a restart: a busy machine may take longer.
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller_port}
SlurmdPort={daemon_port}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=5
FirstJobId={first_job}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MessageTimeout=60
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs=16 Gres=gpu:8 State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""

# Behaves like train.py and the sweep without training: exits with 75 on SIGTERM. The environment says what it does.
STAND_IN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
task, again = os.environ["SLURM_PROCID"], os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
print("run", "again" if again else "first", "task", task, " ".join(sys.argv[1:]), flush=True)
print("GPUs", os.environ.get("JAX_LOCAL_DEVICE_IDS"), flush=True)
waits = os.environ["WAITS"] == "yes" and not again
if task == os.environ.get("FAILING_TASK"):
    code = int(os.environ["CODE"])
    if code > 128:
        os.kill(os.getpid(), code - 128)
    sys.exit(code)
time.sleep(600 if waits or "FAILING_TASK" in os.environ else 0)
"""


class Slurm:
    """One controller and one node, with their files in ``directory``."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        self.environment = inherited | {"SLURM_CONF": str(directory / "slurm.conf"), "LAUNCH_PYTHON": sys.executable}
        self._first_job, self._reservation = reserve_job_numbers()
        self._daemons: list[subprocess.Popen] = []
        self._idle: set[int] = set()

    def start(self) -> None:
        """Starts the daemons and waits for the node; skips the test if it stays down."""
        text = CONFIG.format(
            host=socket.gethostname().split(".")[0],
            directory=self.directory,
            controller_port=free_port(),
            daemon_port=free_port(),
            first_job=self._first_job,
        )
        (self.directory / "slurm.conf").write_text(text)
        for i in range(8):  # files that stand for the devices
            (self.directory / f"gpu{i}").touch()
        (self.directory / "gres.conf").write_text(f"Name=gpu File={self.directory}/gpu[0-7]\n")
        for name in ("state", "spool"):
            (self.directory / name).mkdir()
        key = self.directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.directory}/munge.{suffix}" for option, suffix in files.items()]
        self._daemon("munged", "--foreground", "--force", *options)
        self._wait(lambda: (self.directory / "munge.socket").exists())
        self._daemon("slurmctld", "-D")
        self._daemon("slurmd", "-D")
        self._wait(lambda: self.run("sinfo", "--noheader", "--format=%T", check=False).strip() == "idle")
        self._idle = self._processes()

    def stop(self) -> None:
        """Ends jobs, daemons and their children."""
        self.run("scancel", "--user=root", check=False)
        with contextlib.suppress(AssertionError):  # a step's last process may wait long
            self.until(lambda: not self._processes() - self._idle, 2)
        for pid in self._processes():  # their state is deleted, so they need no orderly shutdown
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for daemon in self._daemons:
            daemon.wait()
        self._reservation.close()

    def _processes(self) -> set[int]:
        """Ids of daemons, steps and tasks, whose environment names this configuration."""
        mark = f"SLURM_CONF={self.directory}/slurm.conf\0".encode()
        pids = set()
        for entry in pathlib.Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in entry.read_bytes():
                    pids.add(int(entry.parent.name))
        return pids

    def run(self, *command: str, check: bool = True, **environment: str) -> str:
        """The output of a Slurm command."""
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment | environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, *arguments: str, **environment: str) -> str:
        """Submits a job; returns its number. Its output goes to NUMBER.log (a task of an array: NUMBER_TASK.log)."""
        name = "%A_%a.log" if any(argument.startswith("--array") for argument in arguments) else "%j.log"
        return self.run("sbatch", "--parsable", f"--output={self.directory / name}", *arguments, **environment).strip()

    def output(self, job: str) -> str:
        path = self.directory / f"{job}.log"
        return path.read_text() if path.exists() else ""

    def fields(self, job: str) -> dict[str, str]:
        """Slurm's description of a job, or of a task of an array, ``NUMBER_TASK``."""
        line = self.run("scontrol", "--oneliner", "show", "job", job)
        return dict(pair.split("=", 1) for pair in line.split() if "=" in pair)

    def until(self, condition, seconds: float = 120):
        """Waits until ``condition`` is true and returns its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := condition():
                return value
            time.sleep(0.2)
        raise AssertionError(f"nothing after {seconds} s:\n{self.logs()}")

    def ended(self, job: str) -> dict[str, str]:
        """Waits until a job has ended; returns its description."""

        def look():
            fields = self.fields(job)
            return fields if fields["JobState"] in ENDED else None

        return self.until(look)

    def wait_for(self, job: str, text: str) -> None:
        """Waits for ``text`` in a job's output."""
        self.until(lambda: text in self.output(job))

    def logs(self) -> str:
        texts = [f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(self.directory.glob("*.log"))]
        return "\n".join(texts)

    def _daemon(self, *command: str) -> None:
        with (self.directory / "daemons.log").open("a") as log:
            self._daemons.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))

    def _wait(self, condition) -> None:
        try:
            self.until(condition, 60)
        except AssertionError as error:
            cannot(f"Slurm does not start here: {error}")


def cannot(reason: str) -> NoReturn:
    """Skips, and says why."""
    pytest.skip(reason)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def reserve_job_numbers() -> tuple[int, socket.socket]:
    """The first of 31 job numbers that no other Slurm on this machine has, until the socket is closed.

    A job's processes meet at port 61440 + number % 4096 (JAX's choice): of two jobs with the same number, each would
    find the other's processes.
    """
    for number in range(0, 4096, 32):
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", 61440 + number))
        except OSError:
            held.close()
            continue
        return number + 1, held
    cannot("all ports of JAX's coordinators are in use")


@pytest.fixture(scope="module")
def slurm():
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        cannot(f"no {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge")
    if os.geteuid() != 0:
        cannot("slurmd starts jobs as root only")
    # Not a test's directory: socket paths are limited in length, and munge requires access by all users.
    directory = pathlib.Path(tempfile.mkdtemp(prefix="slurm-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"]))
    directory.chmod(0o755)
    found = Slurm(directory)
    try:
        found.start()
        yield found
    finally:
        found.stop()
        shutil.rmtree(directory, ignore_errors=True)


TRAINING = (
    "--config=configs/digits.py",
    "--config.model.width=32",
    "--config.model.depth=4",
    "--config.train.epochs=0.0",
    "--config.train.steps=400",
    "--config.train.log_every=20",
    "--config.train.eval_every=200",
)


@pytest.fixture(scope="module")
def jobs(slurm, tmp_path_factory):
    """Submits the jobs of all tests and signals some; their numbers by name."""
    stand_in = slurm.directory / "stand_in.py"
    stand_in.write_text(STAND_IN)

    def submit(script, *options, arguments=("--workdir=x",), waits="no", **environment):
        environment |= {"LAUNCH_PROGRAM": str(stand_in), "WAITS": waits}
        return slurm.submit(*options, f"launch/{script}", *arguments, **environment)

    two = ("--ntasks=2", "--ntasks-per-node=2")
    crashing = {"FAILING_TASK": "1", "CODE": "7", "MAX_RESTARTS": "1"}
    workdir = tmp_path_factory.mktemp("run")
    shows = slurm.directory / "shows $(touch hit).py"
    shows.write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    found = {
        "workdir": workdir,
        "flags": slurm.submit("launch/slurm.sbatch", *AWKWARD, LAUNCH_PROGRAM=str(shows)),
        "flags of a sweep": slurm.submit(
            "--array=0-1", "launch/slurm_array.sbatch", *AWKWARD, LAUNCH_PROGRAM=str(shows)
        ),
        "training": slurm.submit(*two, "launch/slurm.sbatch", *TRAINING, f"--workdir={workdir}", JAX_PLATFORMS="cpu"),
        "crash": submit("slurm.sbatch", *two, **crashing),
        "killed": submit("slurm.sbatch", *two, FAILING_TASK="1", CODE="137", MAX_RESTARTS="0"),
        "bad input": submit("slurm.sbatch", *two, FAILING_TASK="0", CODE="2"),
        "cancelled": submit("slurm.sbatch", *two, waits="yes"),
        "taken by Slurm": submit("slurm.sbatch", *two, waits="yes"),
        "array": submit("slurm_array.sbatch", "--array=0-2", waits="yes"),
        "a task with 4 GPUs": submit("slurm.sbatch", "--nodes=1", "--gpus-per-node=4"),
        "4 tasks with a GPU": submit("slurm.sbatch", "--nodes=1", "--ntasks-per-node=4", "--gpus-per-node=4"),
    }
    slurm.wait_for(found["cancelled"], "task 1")
    slurm.run("scancel", found["cancelled"])
    slurm.wait_for(found["taken by Slurm"], "task 1")
    slurm.run("scontrol", "requeue", found["taken by Slurm"])
    for i in range(3):
        slurm.wait_for(f"{found['array']}_{i}", f"run first task 0 --workdir=x --shard={i}/3")
    slurm.run("scancel", "--signal=TERM", f"{found['array']}_2")
    slurm.wait_for(found["training"], "step 20/400")
    slurm.run("scancel", "--signal=TERM", found["training"])
    return found


def test_a_preempted_run_of_two_tasks_is_requeued_and_ends_as_an_undisturbed_one(slurm, jobs, tmp_path):
    job = jobs["training"]
    whole = subprocess.run(
        [sys.executable, "train.py", *TRAINING, f"--workdir={tmp_path / 'whole'}"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert whole.returncode == 0, whole.stderr
    fields = slurm.ended(job)
    output = slurm.output(job)
    if log := os.environ.get("SLURM_TEST_LOG"):  # a copy for inspection
        pathlib.Path(log).write_text(output)
    assert fields["JobState"] == "COMPLETED", output
    assert fields["Restarts"] == "1", slurm.logs()
    assert "2 processes" in output
    assert re.findall("launch: job [0-9]+: (.*)", output) == ["preempted (exit code 75): requeued"], output
    # The resumed run starts at the checkpoint: no step is printed twice.
    steps = [int(step) for step in re.findall(r"^step (\d+)/400", output, re.MULTILINE)]
    assert steps == sorted(set(steps)), output
    result = json.loads((jobs["workdir"] / "result.json").read_text())
    expected = json.loads((tmp_path / "whole" / "result.json").read_text())
    for name in ("status", "steps", "config_hash"):
        assert result[name] == expected[name]
    for name in ("train_loss", "train_loss_avg", "test_loss"):  # the order of sums depends on the number of devices
        assert result[name] == pytest.approx(expected[name], rel=1e-3)
    assert result["test_accuracy"] == pytest.approx(expected["test_accuracy"], abs=1.5 / 297)  # one image


def test_flags_reach_every_task_unchanged_and_nothing_in_them_is_executed(slurm, jobs):
    for name, task, shard in (("flags", "", []), ("flags of a sweep", "_1", ["--shard=1/2"])):
        job = jobs[name] + task
        assert slurm.ended(job)["JobState"] == "COMPLETED", slurm.output(job)
        assert json.loads(slurm.output(job)) == [*AWKWARD, *shard]
    assert not (ROOT / "hit").exists()


def test_a_crash_is_retried_and_its_code_is_the_jobs_even_if_other_tasks_are_preempted(slurm, jobs):
    fields = slurm.ended(jobs["crash"])
    output = slurm.output(jobs["crash"])
    assert (fields["JobState"], fields["ExitCode"], fields["Restarts"]) == ("FAILED", "7:0", "1"), output
    assert "crashed with exit code 7: requeued, restart 1 of 1" in output
    assert output.count("task 1 --workdir=x") == 2


def test_a_task_that_a_signal_ends_is_reported_with_the_signals_code(slurm, jobs):
    assert slurm.ended(jobs["killed"])["ExitCode"] == "137:0"
    assert "crashed with exit code 137: giving up" in slurm.output(jobs["killed"])


def test_a_task_alone_on_its_node_uses_all_gpus(slurm, jobs):
    # Without JAX_LOCAL_DEVICE_IDS, JAX uses one GPU per Slurm task, that of the task's number on the node.
    for name, expected in (("a task with 4 GPUs", ["GPUs 0,1,2,3"]), ("4 tasks with a GPU", ["GPUs None"] * 4)):
        assert slurm.ended(jobs[name])["JobState"] == "COMPLETED"
        assert re.findall("GPUs .*", slurm.output(jobs[name])) == expected


def test_bad_input_is_not_retried(slurm, jobs):
    fields = slurm.ended(jobs["bad input"])
    assert (fields["JobState"], fields["ExitCode"], fields["Restarts"]) == ("FAILED", "2:0", "0")


def test_a_cancelled_job_stays_cancelled(slurm, jobs):
    fields = slurm.ended(jobs["cancelled"])
    assert (fields["JobState"], fields["Restarts"]) == ("CANCELLED", "0")
    assert "requeued" not in slurm.output(jobs["cancelled"])


def test_a_job_that_slurm_requeues_itself_is_requeued_once_and_resumes(slurm, jobs):
    # As when a partition preempts without a GraceTime: the job's shell gets SIGTERM, too.
    fields = slurm.ended(jobs["taken by Slurm"])
    output = slurm.output(jobs["taken by Slurm"])
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), output
    assert "run again task 1" in output
    assert "launch: " not in output


def test_a_preempted_part_of_a_sweep_is_requeued_alone(slurm, jobs):
    parts = [f"{jobs['array']}_{i}" for i in range(3)]
    # The last part's job has the array's own number.
    assert slurm.fields(parts[2])["JobId"] == jobs["array"]
    assert slurm.ended(parts[2])["Restarts"] == "1"
    assert "run again task 0 --workdir=x --shard=2/3" in slurm.output(parts[2])
    for part in parts[:2]:
        fields = slurm.fields(part)
        assert (fields["JobState"], fields["Restarts"]) == ("RUNNING", "0")
