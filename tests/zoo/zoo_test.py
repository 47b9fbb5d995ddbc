"""The audit and the check tell right models from wrong ones, in the styles of public code."""

import dataclasses

import pytest
from recorded_checks import recorded
from zoo.cases import CASES
from zoo.edits import BASE_DEPTH, BASE_WIDTH
from zoo.outcomes import RIGHT, Outcome, confusion, names_of, outcome
from zoo.styles import STYLES

from depthmup_flax.rule.info_trees import flatten_info

# A mistake that only the check sees. `python -m tests.zoo check` runs all cases, for an hour.
RECORDED = "plain_mlp-slow_hidden"
LONGER = (RECORDED, "plain_mlp", "plain_mlp-fixed_std", "mlp", "mlp-slow_down", "mlp_post_norm-before_norm")


def test_the_zoo_has_at_least_sixty_cases_and_three_mistakes_of_every_model():
    assert len(CASES) >= 60
    for style in STYLES:
        assert sum(name.startswith(f"{style}-") for name in CASES) >= 3


FAST = ("mlp", "mlp_projection", "lora", "qk_norm", "looped", "gpt_rotary")
EACH = [style if style in FAST else pytest.param(style, marks=pytest.mark.slow) for style in STYLES]


@pytest.mark.parametrize("style", EACH)
def test_the_audit_reads_the_roles_of_each_right_model_and_finds_nothing_missing(style):
    case = CASES[style]
    audit = case.audit()
    assert audit.ok, str(audit)
    read, right = (flatten_info(info) for info in (audit.info, case.info(4 * BASE_WIDTH, 2 * BASE_DEPTH)))
    facts = lambda leaf: (leaf.role, leaf.width_in, leaf.width_out, leaf.in_branch, leaf.depth_ratio)
    assert {path: facts(leaf) for path, leaf in read.items()} == {path: facts(leaf) for path, leaf in right.items()}


@pytest.mark.parametrize("style", EACH)
def test_the_audit_names_the_mistakes_of_each_model(style):
    names = [name for name in names_of("audit") if name.startswith(f"{style}-")]
    wrong = [str(o) for o in (outcome("audit", name) for name in names) if o.kind != RIGHT]
    assert not wrong, "\n".join(wrong)


def test_the_check_names_a_mistake_from_recorded_sizes():
    with recorded("zoo_slow_hidden"):
        result = outcome("check", RECORDED)
    assert result.kind == RIGHT, str(result)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONGER)
def test_the_check_passes_right_models_and_names_mistakes(name):
    result = outcome("check", name)
    assert result.kind == RIGHT, str(result)


def test_the_table_counts_what_a_tool_got_wrong():
    wrong = Outcome("check", "mlp", "FAIL", ("unknown",), None, 2.0)
    missed = dataclasses.replace(wrong, verdict="PASS", names=(), wanted="readout_not_scaled")
    unnamed = dataclasses.replace(wrong, wanted="readout_not_scaled")
    lines = confusion([wrong, missed, unnamed]).splitlines()
    assert " ".join(lines[1].split()) == "check 3 1 of 2 1 of 1 1 of 2 0 of 3 6 s"
