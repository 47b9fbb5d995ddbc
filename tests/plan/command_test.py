"""What a user types and sees."""

import json

import pytest
from processes import run_command

from depthmup_flax.plan.__main__ import prepare_environment

SMALL = ("--config.model.depth=2", "--config.model.width=16")


def plan(*arguments):
    return run_command("-m", "depthmup_flax.plan", *arguments)


def test_json_is_the_only_thing_on_stdout():
    done = plan("--config=configs/digits.py", "--json", *SMALL)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["memory"]["total"] > 4 * found["parameters"]
    assert found["device_kind"] == "cpu"
    assert found["seconds"] is None
    assert found["remedies"] == []


def test_meshes_are_ranked_and_what_to_type_is_printed():
    done = plan("--config=configs/digits.py", "--meshes", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "compiling 3 programs" in done.stderr
    assert done.stdout.count("data x fsdp x tensor") == 3
    assert "best: --config.mesh.data=1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--config=configs/digits.py", "--topology=v7:2x2"), "--topology is 'v7:2x2'"),
        (("--config=configs/digits.py", "--config.mesh.data=3"), "the product must be the number of devices, 1"),
        (("--config=configs/sweeps/digits.py:smoke", "--meshes"), "--meshes is for a run"),
        (("--config=configs/sweeps/digits.py:smoke", "--lanes=few"), "--lanes is few"),
        ((), "--config is not set"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, says):
    done = plan(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr
    assert done.stderr.startswith("error: ")


def test_the_environment_is_set_by_the_command_and_keeps_what_a_user_has_set(monkeypatch):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "mine")
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "WARNING: could not determine TPU accelerator type")
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    monkeypatch.delenv("ALLOW_MULTIPLE_LIBTPU_LOAD", raising=False)
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "0")
    environment = {}
    monkeypatch.setattr("depthmup_flax.plan.__main__.os.environ", environment)
    monkeypatch.setattr("depthmup_flax.plan.__main__.jax.config.jax_platforms", "cpu", raising=False)
    environment.update(TPU_WORKER_HOSTNAMES="mine", TPU_ACCELERATOR_TYPE="WARNING: none", XLA_FLAGS="--xla_dump_to=x")
    prepare_environment("here")
    assert "ALLOW_MULTIPLE_LIBTPU_LOAD" not in environment
    prepare_environment("v5e:2x2")
    assert environment["TPU_WORKER_HOSTNAMES"] == "mine"
    assert environment["TPU_ACCELERATOR_TYPE"] == "v5litepod-4"
    assert environment["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"
    assert environment["XLA_FLAGS"] == "--xla_dump_to=x"
    prepare_environment("h100:8")
    assert environment["XLA_FLAGS"] == "--xla_gpu_enable_triton_gemm=false --xla_dump_to=x"
