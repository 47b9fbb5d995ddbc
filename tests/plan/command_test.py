"""What a user types and sees."""

import json

import pytest
from processes import run_lines

SMALL = ["--config=digits", "--config.model.depth=2", "--config.model.width=16"]
WRONG = {
    "--topology is 'v7:2x2'": ["--config=digits", "--topology=v7:2x2"],
    "the product must be the number of devices, 1": ["--config=digits", "--config.mesh.data=3"],
    "--meshes is for a run": ["--config=sweeps/digits:smoke", "--meshes"],
    "--lanes is few": ["--config=sweeps/digits:smoke", "--lanes=few"],
    "--config is not set": [],
}


@pytest.fixture(scope="module")
def answers():
    """Those to a plan in JSON, to a search over meshes, to one without a mesh that runs, and to `WRONG`."""
    meshes = [*SMALL, "--meshes"]
    lines = [[*SMALL, "--json"], meshes, [*meshes, "--config.train.batch_size=9999"], *WRONG.values()]
    return run_lines([["plan", *line] for line in lines])


def test_json_is_the_only_thing_on_stdout(answers):
    assert answers[0].code == 0, answers[0].error
    found = json.loads(answers[0].out)
    assert found["memory"]["total"] > 4 * found["parameters"]
    assert found["device_kind"] == "cpu"
    assert found["seconds"] is None
    assert found["remedies"] == []


def test_meshes_are_ranked_and_what_to_type_is_printed(answers):
    assert answers[1].code == 0, answers[1].error
    assert "compiling 3 programs" in answers[1].error
    assert answers[1].out.count("data x fsdp x tensor") == 3
    assert "best: --config.mesh.data=1" in answers[1].out


def test_without_a_mesh_that_runs_the_input_is_bad(answers):
    assert answers[2].code == 2
    assert "cannot run: train.batch_size is 9999" in answers[2].out


def test_bad_input_is_one_sentence_and_exit_code_2(answers):
    for says, answer in zip(WRONG, answers[3:], strict=True):
        assert answer.refuses, answer
        assert says in answer.error
