"""Rules are ordered by their difference from the default on the tasks that both cover."""

import pytest

from depthmup_flax.rule.parametrization import Parametrization
from reproduction.rules import table
from reproduction.rules.rule_file import DEFAULT, Rule
from reproduction.rules.score import Score
from reproduction.rules.tasks import TARGETS


def scores(**regrets):
    return {task: {cost: Score(regret, regret / 2, 0) for cost in TARGETS} for task, regret in regrets.items()}


def rows(**of):
    return table.compared([(Rule(name, Parametrization()), one) for name, one in of.items()])


def test_a_rule_that_leaves_out_a_hard_task_is_not_ahead_for_that():
    found = rows(
        **{DEFAULT: scores(easy=0.1, hard=0.7)}, partial=scores(easy=0.2), better=scores(easy=0.05, hard=0.6), none={}
    )
    assert [row["rule"] for row in found] == ["better", DEFAULT, "partial"]
    assert [row["regret"]["value"] for row in found] == pytest.approx([0.325, 0.4, 0.2])
    assert found[2]["minus_default"] == {"value": pytest.approx(0.1), "half": None}
    assert found[0]["limit"] == pytest.approx(0.325 / 2)


@pytest.mark.parametrize(("better", "resolved"), [((0.1, 0.2, 0.3), True), ((0.39, 0.7, 0.1), False)])
def test_the_headline_names_the_first_and_says_whether_its_lead_is_resolved(better, resolved):
    tasks = ("a", "b", "c")
    found = rows(
        **{DEFAULT: scores(**dict(zip(tasks, (0.4, 0.5, 0.61), strict=True)))},
        other=scores(**dict(zip(tasks, better, strict=True))),
    )
    said = table.headline(found)
    assert said.startswith("First of 2 rules: other,")
    assert ("not resolved" in said) != resolved
