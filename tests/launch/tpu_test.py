"""launch/tpu_pod.sh, against a fake gcloud that records its arguments and fails as told.

Commands for the workers run on this machine, in a home directory per worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time

import pytest
from cloud import AWKWARD, Cloud

# Files beside its state are its instructions. create: errors of successive requests, "" for success. states: successive
# states of an existing pod, ACTIVE after the last.
GCLOUD = r"""
import json, os, pathlib, shutil, subprocess, sys, time
here = pathlib.Path(os.environ["FAKE"])
arguments = sys.argv[1:]
with (here / "calls").open("a") as file:
    print(json.dumps(arguments), file=file)
flags = dict(a.lstrip("-").split("=", 1) for a in arguments if a.startswith("--") and "=" in a)
pod = here / "pod"

def next_of(name):
    path = here / name
    lines = path.read_text().split("\n") if path.exists() else []
    if lines:
        path.write_text("\n".join(lines[1:])) if lines[1:] else path.unlink()
    return lines[0] if lines else ""

def workers():
    which = flags["worker"]
    return [pod / f"worker{i}" for i in (range(2) if which == "all" else [int(which)])]

group, verb = arguments[2], arguments[3]
if (group, verb) == ("queued-resources", "create"):
    if text := next_of("create"):
        sys.exit(f"ERROR: (gcloud.compute.tpus.queued-resources.create) {text}")
    for i in range(2):
        (pod / f"worker{i}").mkdir(parents=True)
elif not pod.exists():
    sys.exit("ERROR: NOT_FOUND: Resource was not found")
elif (group, verb) == ("queued-resources", "describe"):
    print(next_of("states") or "ACTIVE")
elif (group, verb) == ("tpu-vm", "describe"):
    print("READY")
elif (group, verb) == ("queued-resources", "delete"):
    pod.rename(here / f"deleted{time.time_ns()}")
elif (group, verb) == ("tpu-vm", "scp"):
    name = arguments[5].partition(":")[2]
    for worker in workers():
        shutil.copy(arguments[4], worker / name)
elif (group, verb) == ("tpu-vm", "ssh"):
    running = []
    for i, worker in enumerate(workers()):
        environment = os.environ | {"HOME": str(worker), "WORKER": worker.name[-1], "TPU_STOP_SECONDS": "10"}
        running.append(subprocess.Popen(["bash", "-c", flags["command"]], cwd=worker, env=environment))
    codes = [process.wait() for process in running]
    if not pod.exists():  # preempted meanwhile
        sys.exit(255)
    sys.exit(next((code for code in codes if code), 0))
else:
    sys.exit(f"ERROR: unknown command {arguments}")
"""

# The metadata server of a worker.
CURL = r"""
import os, sys
says = {"agent-worker-number": os.environ["WORKER"], "worker-network-endpoints": "h0,h1"}
print(says[sys.argv[-1].rpartition("/")[2]])
"""

# The plan says what a worker does at its first, second, ... start, over all pods: exit with a code; "wait" for SIGTERM;
# "preempt": its pod vanishes.
PROGRAM = r"""
import json, os, pathlib, signal, sys, time
here, me = pathlib.Path(os.environ["FAKE"]), os.environ["WORKER"]
with (here / f"starts{me}").open("a") as file:
    print(json.dumps({"pid": os.getpid(), "arguments": sys.argv[1:], "where": os.getcwd(),
                      "bounds": os.environ.get("TPU_PROCESS_BOUNDS")}), file=file)
start = len((here / f"starts{me}").read_text().splitlines())
plan = json.loads((here / "plan").read_text()).get(me, [])
todo = plan[start - 1] if start <= len(plan) else 0
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print(f"worker {me}, start {start}", flush=True)
if todo == "preempt":
    if me == "0":
        time.sleep(0.5)
        (here / "pod").rename(here / "preempted")
    sys.exit(1)
time.sleep(30 if todo == "wait" else 0.2)
sys.exit(todo)
"""


class Tpu(Cloud):
    """Two workers, and a program for them."""

    def __init__(self, directory) -> None:
        super().__init__(directory, gcloud=GCLOUD, curl=CURL)
        self.program = directory / "program.py"
        self.program.write_text(PROGRAM)
        self.tell(plan={})

    def starts(self, worker: int) -> list[dict]:
        path = self.directory / f"starts{worker}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def tpu(tmp_path):
    return Tpu(tmp_path)


def tpu_options(tpu, *more, flags=("--config=a.py", "--workdir=/mnt/it is here")):
    options = ("--name=vit", "--zone=us-west4-a", "--accelerator=v5litepod-8", "--poll=0", "--setup=touch set_up")
    programs = (f"--python={sys.executable}", f"--program={tpu.program}")
    return ("tpu_pod.sh", *options, *programs, *more, "--", *flags)


def test_a_pod_is_requested_set_up_used_and_deleted(tpu):
    done = tpu.run(*tpu_options(tpu, "--spot", "--project=mine"))
    assert done.returncode == 0, done.stderr
    (create,) = tpu.calls("create")
    # Flags of gcloud compute tpus queued-resources create, Google Cloud SDK 528.
    assert create == [
        *("compute", "tpus", "queued-resources", "create", "vit", "--zone=us-west4-a", "--quiet", "--project=mine"),
        *("--node-id=vit", "--accelerator-type=v5litepod-8", "--runtime-version=v2-alpha-tpuv5-lite", "--spot"),
    ]
    for worker in range(2):
        (start,) = tpu.starts(worker)
        assert start["arguments"] == ["--config=a.py", "--workdir=/mnt/it is here"]
        assert start["where"].endswith(f"pod/worker{worker}/depthmup")  # a copy of this code
        assert start["bounds"] is None
    assert "worker 0, start 1" in done.stdout
    assert "worker 1" not in done.stdout
    (delete,) = tpu.calls("delete")
    assert "--force" in delete
    assert not (tpu.directory / "pod").exists()


def test_a_request_without_capacity_is_retried(tpu):
    tpu.tell(create=["RESOURCE_EXHAUSTED: There is no more capacity in the zone", "UNAVAILABLE: try later", ""])
    done = tpu.run(*tpu_options(tpu))
    assert done.returncode == 0, done.stderr
    assert len(tpu.calls("create")) == 3
    assert "no pod: ERROR: (gcloud.compute.tpus.queued-resources.create) RESOURCE_EXHAUSTED" in done.stderr


def test_requests_that_always_fail_end_the_script(tpu):
    tpu.tell(create=["UNAVAILABLE: try later"] * 9)
    done = tpu.run(*tpu_options(tpu, "--requests=3"))
    assert done.returncode == 1
    assert len(tpu.calls("create")) == 3
    assert "no pod after 3 failed requests (--requests)" in done.stderr


def test_an_invalid_request_is_not_retried(tpu):
    tpu.tell(create=["INVALID_ARGUMENT: accelerator type v5litepod-9 not found"])
    done = tpu.run(*tpu_options(tpu))
    assert done.returncode == 2
    assert len(tpu.calls("create")) == 1
    assert "v5litepod-9 not found" in done.stderr
    assert "error: gcloud rejected the request for v5litepod-8 in us-west4-a: see above." in done.stderr


@pytest.mark.slow
def test_a_pod_that_fails_in_the_queue_is_requested_again(tpu):
    tpu.tell(states=["WAITING_FOR_RESOURCES", "PROVISIONING", "FAILED"])
    done = tpu.run(*tpu_options(tpu))
    assert done.returncode == 0, done.stderr
    assert len(tpu.calls("create")) == 2
    assert len(tpu.calls("delete")) == 2
    assert "vit: WAITING_FOR_RESOURCES" in done.stderr


@pytest.mark.slow
def test_a_preempted_pod_is_recreated_and_the_run_resumes(tpu):
    tpu.tell(plan={"0": ["preempt"], "1": ["wait"]})
    done = tpu.run(*tpu_options(tpu, "--max_restarts=0"))
    assert done.returncode == 0, done.stderr
    assert len(tpu.calls("create")) == 2
    assert len(tpu.starts(0)) == 2
    assert "worker 0, start 2" in done.stdout
    with contextlib.suppress(ProcessLookupError):
        os.kill(tpu.starts(1)[0]["pid"], signal.SIGTERM)  # its machine still exists


@pytest.mark.slow
def test_a_suspended_pod_is_deleted_and_requested_again(tpu):
    tpu.tell(plan={"0": [75], "1": [75]}, states=["ACTIVE", "SUSPENDING", "SUSPENDED"])
    done = tpu.run(*tpu_options(tpu, "--max_restarts=0"))
    assert done.returncode == 0, done.stderr
    assert len(tpu.calls("create")) == 2
    assert "preempted (exit code 75): restarting" in done.stderr


@pytest.mark.slow
def test_bad_input_is_not_retried_and_the_pod_is_deleted(tpu):
    tpu.tell(plan={"0": [1], "1": [2]})
    done = tpu.run(*tpu_options(tpu))
    assert done.returncode == 2, done.stderr
    assert [len(tpu.starts(i)) for i in range(2)] == [1, 1]
    assert not (tpu.directory / "pod").exists()


@pytest.mark.slow
def test_a_crash_is_retried_on_the_same_pod(tpu):
    tpu.tell(plan={"1": [5, 6, 7]})
    done = tpu.run(*tpu_options(tpu, "--max_restarts=1"))
    assert done.returncode == 6, done.stderr
    assert len(tpu.calls("create")) == 1
    assert len(tpu.starts(1)) == 2
    assert not (tpu.directory / "pod").exists()


def test_workers_that_cannot_be_set_up_end_the_script_and_the_pod(tpu):
    done = tpu.run(*tpu_options(tpu, "--setup=echo no such mount >&2; false", "--max_restarts=1"))
    assert done.returncode == 1
    assert done.stderr.count("no such mount") == 4  # two workers, twice
    assert "cannot be reached or set up" in done.stderr
    assert not (tpu.directory / "pod").exists()


@pytest.mark.slow
def test_interrupted_it_names_what_still_exists_and_can_attach_later(tpu):
    tpu.tell(plan={"0": ["wait"], "1": ["wait"]})
    process = tpu.start(*tpu_options(tpu))
    tpu.until(lambda: tpu.starts(0) and tpu.starts(1))
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, error = process.communicate(timeout=30)
    assert process.returncode == 75
    assert "vit in us-west4-a still runs and is billed" in error
    command = "gcloud compute tpus queued-resources delete vit --zone=us-west4-a --quiet --force"
    assert command in error
    assert (tpu.directory / "pod").exists()
    os.kill(tpu.starts(0)[0]["pid"], 0)  # the program still runs
    following = tpu.start(*tpu_options(tpu, "--follow"))
    time.sleep(1)
    for i in range(2):
        os.kill(tpu.starts(i)[0]["pid"], signal.SIGTERM)  # 75: runs again, and ends
    out, error = following.communicate(timeout=30)
    assert following.returncode == 0, error
    assert "worker 0, start 1" in out
    assert [len(tpu.starts(i)) for i in range(2)] == [2, 2]
    assert len(tpu.calls("create")) == 1


@pytest.mark.slow
def test_interrupted_with_delete_it_waits_for_the_checkpoint_and_deletes(tpu):
    tpu.tell(plan={"0": ["wait"], "1": ["wait"]})
    process = tpu.start(*tpu_options(tpu, "--delete=always"))
    tpu.until(lambda: tpu.starts(0) and tpu.starts(1))
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 75, error
    with pytest.raises(ProcessLookupError):
        os.kill(tpu.starts(0)[0]["pid"], 0)
    assert not (tpu.directory / "pod").exists()


@pytest.mark.slow
def test_every_worker_trains_its_part_of_a_sweep(tpu):
    tpu.tell(plan={"1": [1]})
    done = tpu.run(*tpu_options(tpu, "--sweep", "--delete=never"))
    assert done.returncode == 0, done.stderr
    for worker in range(2):
        start = tpu.starts(worker)[-1]
        assert start["arguments"][-1] == f"--shard={worker}/2"
        assert start["bounds"] == "1,1,1"
    assert len(tpu.starts(1)) == 2
    assert (tpu.directory / "pod").exists()
    assert "still exists and is billed (--delete=never)" in done.stderr


@pytest.mark.parametrize(
    "options", [pytest.param((), id="run"), pytest.param(("--sweep",), id="sweep", marks=pytest.mark.slow)]
)
def test_flags_reach_every_worker_unchanged_and_nothing_in_them_is_executed(tpu, options):
    done = tpu.run(*tpu_options(tpu, *options, flags=AWKWARD))
    assert done.returncode == 0, done.stderr
    for worker in range(2):
        (start,) = tpu.starts(worker)
        assert start["arguments"] == [*AWKWARD, *([f"--shard={worker}/2"] if options else [])]
    assert not list(tpu.directory.rglob("hit"))


@pytest.mark.slow
def test_an_interpreter_and_a_program_are_one_word_each_and_in_the_home_of_the_worker(tpu):
    directory = tpu.directory / "a $(touch hit); b"
    directory.mkdir()
    program, python = directory / "program.py", directory / "python"
    program.write_text(PROGRAM)
    python.symlink_to(sys.executable)
    done = tpu.run(*tpu_options(tpu, f"--python={python}", f"--program={program}"))
    assert done.returncode == 0, done.stderr
    setup = f"ln -s {sys.executable} ~/'my python'"
    for home in ("~", "$HOME"):
        done = tpu.run(*tpu_options(tpu, f"--python={home}/my python", f"--setup={setup}"))
        assert done.returncode == 0, done.stderr
    assert len(tpu.starts(0)) == 3
    assert not list(tpu.directory.rglob("hit"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--zone=z", "--accelerator=v5litepod-8", "--", "x"], "--name is not set"),
        (
            ["--name=a", "--zone=z", "--accelerator=v", "--delete=maybe", "--", "x"],
            "--delete=maybe: must be one of: ended always never.",
        ),
        (["--name=a", "--zone=z", "--accelerator=v", "--poll=-1", "--", "x"], "--poll=-1: must be a whole number"),
        (["--name=a", "--zone=z", "--accelerator=v"], "nothing to run"),
        (["--spto"], "unknown option '--spto'"),
    ],
)
def test_bad_use_of_tpu_pod_is_one_sentence_and_asks_nothing_of_gcloud(tpu, arguments, message):
    done = tpu.run("tpu_pod.sh", *arguments)
    assert done.returncode == 2
    assert re.fullmatch(r"error: .*\.\n", done.stderr), done.stderr
    assert message in done.stderr
    assert not tpu.calls("tpus")
