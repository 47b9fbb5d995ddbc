"""launch/gke/run.sh, against a fake kubectl that records its arguments and fails as told; manifests, against APIs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import pytest
from cloud import AWKWARD, Cloud

# Answers to `get ... jsonpath=...conditions` and `logs` come from lists; the last one is repeated.
KUBECTL = r"""
import json, os, pathlib, sys, time
here = pathlib.Path(os.environ["FAKE"])
arguments = sys.argv[1:]
with (here / "calls").open("a") as file:
    print(json.dumps(arguments), file=file)
answers = json.loads((here / "answers").read_text())

def answer(name, default=""):
    found = answers.get(name, [default])
    if len(found) > 1:
        answers[name] = found[1:]
        (here / "answers").write_text(json.dumps(answers))
    return found[0]

verb = next(a for a in arguments if not a.startswith("--"))
output = next((a.partition("=")[2] for a in arguments if a.startswith("--output=")), "")
if verb == "create":
    (here / "manifest").write_text(sys.stdin.read())
    if text := answer("create"):
        sys.exit(f"Error from server ({text}): error when creating STDIN")
elif verb == "get" and "conditions" in output:
    text = answer("conditions")
    if text == "unreachable":
        sys.exit("The connection to the server was refused")
    print(text)
elif verb == "get" and "exitCode" in output:
    print(answer("codes"))
elif verb == "get":
    print(answer("pods"))
elif verb == "logs":
    print(answer("logs"), flush=True)
    time.sleep(float(answer("logs last", "0")))
elif verb == "delete":
    if text := answer("delete"):
        sys.exit(text)
else:
    sys.exit(f"unknown command {arguments}")
"""


@pytest.fixture
def gke(tmp_path):
    cloud = Cloud(tmp_path, kubectl=KUBECTL)
    cloud.tell(answers={})
    return cloud


def gke_options(*more, topology="4x4", flags=("--config=a.py", "--workdir=/runs/a")):
    options = ("--name=vit", "--image=registry/depthmup:1", "--accelerator=tpu-v5-lite-podslice", "--claim=runs")
    return ("gke/run.sh", *options, f"--topology={topology}", "--poll=0", *more, "--", *flags)


def test_a_jobset_is_created_shown_and_deleted(gke):
    gke.tell(
        answers={
            "conditions": ["", "", "Completed=AllJobsCompleted "],
            "pods": ["pod/vit-workers-0-0-abcde"],
            "logs": ["step 10/20", "step 20/20"],
        }
    )
    done = gke.run(*gke_options("--namespace=ml"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "step 10/20\nstep 20/20\n"
    first, second = gke.calls("logs")
    assert "--tail=20" not in first
    assert "--tail=20" in second  # the connection broke; the pod is the same
    (delete,) = gke.calls("delete")
    assert delete[:3] == ["--namespace=ml", "delete", "jobset"]
    assert (gke.directory / "manifest").read_text() == gke.run(*gke_options("--dry_run")).stdout


def test_an_unreachable_cluster_is_queried_again(gke):
    gke.tell(answers={"conditions": ["unreachable", "unreachable", "Completed=AllJobsCompleted "]})
    done = gke.run(*gke_options())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("sweep", "conditions", "codes", "expected"),
    [
        (False, "Failed=FailJobSetFailurePolicyAction ", "75 2 ", 2),
        (False, "Failed=ReachedMaxRestarts ", "75 137 ", 137),
        (False, "Failed=ReachedMaxRestarts ", "", 1),
        (True, "FailureTarget=PodFailurePolicy Failed=PodFailurePolicy ", "2 ", 2),
        (True, "FailureTarget=FailedIndexes Failed=FailedIndexes ", "0 1 ", 1),
        (True, "SuccessCriteriaMet=CompletionsReached Complete=CompletionsReached ", "0 0 ", 0),
    ],
)
def test_the_end_of_a_run_is_the_scripts_code_and_everything_is_deleted(gke, sweep, conditions, codes, expected):
    gke.tell(answers={"conditions": ["", conditions], "codes": [codes]})
    options = gke_options("--sweep=8", topology="2x2") if sweep else gke_options()
    done = gke.run(*options)
    assert done.returncode == expected, done.stderr
    (delete,) = gke.calls("delete")
    assert delete[1] == ("job" if sweep else "jobset")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("AlreadyExists", "a jobset vit already exists: delete it, attach to it with --follow"),
        ('no matches for kind "JobSet"', "JobSet is not installed in the cluster"),
        ("Forbidden", "kubectl could not create jobset vit"),
    ],
)
def test_a_rejected_manifest_ends_the_script_and_deletes_nothing(gke, answer, message):
    gke.tell(answers={"create": [answer]})
    done = gke.run(*gke_options())
    assert done.returncode == 2
    assert f"error: {message}" in done.stderr
    assert not gke.calls("delete")


def test_a_failed_deletion_is_reported(gke):
    gke.tell(answers={"conditions": ["Completed=AllJobsCompleted "], "delete": ["timed out"]})
    done = gke.run(*gke_options())
    assert done.returncode == 1
    assert "jobset vit could not be deleted: it may still be billed" in done.stderr


@pytest.mark.parametrize("delete", ["ended", "always"])
def test_interrupted_it_names_what_still_exists_or_deletes_it(gke, delete):
    gke.tell(answers={"pods": ["pod/vit-workers-0-0-abcde"], "logs last": ["30"]})
    process = gke.start(*gke_options(f"--delete={delete}"))
    gke.until(lambda: gke.calls("logs"))
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 75
    assert len(gke.calls("delete")) == (delete == "always")
    if delete == "ended":
        assert "jobset vit still runs and is billed" in error
        assert "kubectl delete jobset vit" in error


def test_an_existing_run_is_followed_without_being_created(gke):
    gke.tell(answers={"conditions": ["Completed=AllJobsCompleted "]})
    done = gke.run(*gke_options("--follow"))
    assert done.returncode == 0, done.stderr
    assert not gke.calls("create")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--name=Vit"], "--name=Vit: must be at most 40 lower-case letters"),
        (["--topology=4-4"], "--topology=4-4: must be the chips along each side"),
        (["--chips=3"], "--chips=3: must divide the 16 chips of --topology=4x4"),
        (["--sweep=4"], "--topology=4x4 is 4 hosts of 4 chips: a part of a sweep uses one host"),
        (["--claim="], "--claim is not set"),
        (["--grace=long"], "--grace=long: must be a whole number"),
    ],
)
def test_bad_use_of_gke_is_one_sentence_and_asks_nothing_of_kubectl(gke, more, message):
    done = gke.run(*gke_options(*more))
    assert done.returncode == 2
    assert re.fullmatch(r"error: .*\.\n", done.stderr), done.stderr
    assert message in done.stderr
    assert not (gke.directory / "calls").exists()


def manifest(gke, *more, topology="16x16", **flags):
    yaml = pytest.importorskip("yaml", reason="no PyYAML: pip install pyyaml")
    done = gke.run(*gke_options("--dry_run", *more, topology=topology, **flags))
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


def container(template):
    (only,) = template["spec"]["template"]["spec"]["containers"]
    return only


def test_the_jobset_is_valid_in_its_api(gke):
    # kubeflow-trainer-api has models of JobSet v1alpha2 and of the Kubernetes API. They drop unknown fields, so a round
    # trip changes a manifest that has one.
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install kubeflow-trainer-api")
    for jobset in (manifest(gke), manifest(gke, "--spot", topology="4x4")):
        assert models.JobsetV1alpha2JobSet.from_dict(jobset).to_dict() == jobset
        jobset["spec"]["failurePolicy"]["maxRestart"] = 3
        assert models.JobsetV1alpha2JobSet.from_dict(jobset).to_dict() != jobset


def test_the_sweeps_job_is_valid_in_its_api(gke):
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install kubeflow-trainer-api")
    job = manifest(gke, "--sweep=64", topology="2x2")
    assert models.IoK8sApiBatchV1Job.from_dict(job).to_dict() == job


def test_the_jobset_has_a_pod_on_every_host_and_knows_the_exit_codes(gke):
    jobset = manifest(gke, "--spot", "--max_restarts=7", "--grace=300")
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 7
    (rule,) = jobset["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])  # JobSet's webhook
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (job["completions"], job["parallelism"], job["completionMode"]) == (64, 64, "Indexed")
    assert job["backoffLimit"] == 0
    policy = {
        code: rule["action"]
        for rule in job["podFailurePolicy"]["rules"]
        for code in rule.get("onExitCodes", {}).get("values", ["disruption"])
    }
    assert policy == {2: "FailJob", 75: "Ignore", 143: "Ignore", "disruption": "Ignore"}
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # required by podFailurePolicy
    assert pod["terminationGracePeriodSeconds"] == 300
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "16x16"
    assert container(replicated["template"])["resources"]["limits"] == {"google.com/tpu": 4}


def as_kubernetes_expands(text):
    """What a container gets: ``$$`` becomes ``$``, and ``$(NAME)`` is replaced."""
    return re.sub(r"\$(\$|\(([^)]*)\))", lambda found: "$" if found[1] == "$" else f"value of {found[2]}", text)


def test_flags_reach_the_program_unchanged(gke):
    (replicated,) = manifest(gke, flags=AWKWARD)["spec"]["replicatedJobs"]
    command = [as_kubernetes_expands(text) for text in container(replicated["template"])["command"]]
    assert command == ["python", "train.py", *AWKWARD]


def test_flags_reach_the_parts_of_a_sweep_unchanged(gke):
    command = container(manifest(gke, "--sweep=64", topology="2x2", flags=AWKWARD))["command"]
    command = [as_kubernetes_expands(text) for text in command]
    command[2] = command[2].replace("exec python -m", "exec printf '%s\\0' -m")
    done = subprocess.run(command, env=os.environ | {"JOB_COMPLETION_INDEX": "5"}, capture_output=True, check=True)
    expected = ["-m", "depthmup_flax", "sweep", "--shard=5/64", *AWKWARD]
    assert done.stdout.decode().split("\0")[:-1] == expected


@pytest.mark.parametrize("option", ["--image", "--accelerator", "--claim"])
def test_an_option_is_one_value_of_the_manifest(gke, option):
    value = 'a"b: {c} # d\nhostNetwork: true'
    text = json.dumps(manifest(gke, f"{option}={value}"))
    assert json.dumps(value) in text
    assert "hostNetwork" not in re.sub(re.escape(json.dumps(value)), "", text)
