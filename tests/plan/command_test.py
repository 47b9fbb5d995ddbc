"""What a user types and sees."""

import json

import pytest
from processes import run_command

SMALL = ("--config.model.depth=2", "--config.model.width=16")


def plan(*arguments):
    return run_command("-m", "depthmup_flax", "plan", *arguments)


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


def test_without_a_mesh_that_runs_the_input_is_bad():
    done = plan("--config=configs/digits.py", "--meshes", "--config.train.batch_size=9999", *SMALL)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "cannot run: train.batch_size is 9999" in done.stdout


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
