"""What a user types and sees."""

import json

import pytest
from processes import run_lines

PLAN = ["--config=digits", "--config.model.depth=2", "--config.model.width=16", "--json"]
WRONG = {
    "--topology is 'v7:2x2'": ["--config=digits", "--topology=v7:2x2"],
    "whose product is the number of devices, 1": ["--config=digits", "--config.mesh.data=3"],
    "--lanes": ["--config=sweeps/digits:smoke", "--lanes=few"],
    "--config is not set": [],
}


@pytest.fixture(scope="module")
def answers():
    """Those to a plan in JSON, and to `WRONG`."""
    return run_lines([["plan", *line] for line in (PLAN, *WRONG.values())])


def test_json_is_the_only_thing_on_stdout(answers):
    assert answers[0].code == 0, answers[0].error
    found = json.loads(answers[0].out)
    assert found["memory"]["total"] > 4 * found["parameters"]
    assert found["device_kind"] == "cpu"
    assert found["by_compiler"]["flops"] > 0
    assert found["remedies"] == []


def test_bad_input_is_one_sentence_and_exit_code_2(answers):
    for says, answer in zip(WRONG, answers[1:], strict=True):
        assert answer.refuses, answer
        assert says in answer.error
