"""What ``depthmup plan --json`` prints."""

import json

from processes import run_lines


def test_json_is_the_only_thing_on_stdout():
    small = ["--config=digits", "--config.model.depth=2", "--config.model.width=16"]
    answer, text = run_lines([["plan", *small, "--json"], ["plan", *small]])
    assert answer.code == 0, answer.error
    found = json.loads(answer.out)
    assert found["memory"]["total"] > 4 * found["parameters"]
    assert found["device_kind"] == "cpu"
    assert found["by_compiler"]["flops"] > 0
    assert found["remedies"] == []
    assert text.out.startswith("compiling for 1 x cpu")  # before what may take minutes
