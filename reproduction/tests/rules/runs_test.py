"""A rule known to fail gets a larger regret, on planted losses and on reproduction/rules/records."""

import dataclasses

import numpy as np
import pytest

from reproduction.rules.rule_file import read_rule
from reproduction.rules.runs import Losses, all_scores, benchmark, scores, tuned, values_at
from reproduction.rules.tasks import AROUND, FACTORS, PROXY, TARGET_SEEDS, TARGETS, TASKS, TUNING_SEEDS

NAME, CHANCE = "digits_mlp_adam", 21.0
BEST = 2.0**-7  # the planted optimum of the rate of hidden weights, times the width under SP


def planted():
    """Losses ``1 + log2(rate / best)^2`` of muP and SP, where SP's best rate falls with the width."""
    task, of = TASKS[NAME], {}

    def add(values, rate, seeds, best):
        of[(*values, rate)] = dict.fromkeys(seeds, 1 + np.log2(rate / best) ** 2)

    for factor in FACTORS:
        for rate in task.rates:
            add(values_at(read_rule("sp_tuned_embedding"), task, PROXY, factor), rate, TUNING_SEEDS, BEST * factor)
    # SP's proxies are equally good at four factors: the first one, 1/4, is taken.
    for name, factor, tuned_rate, power in (("mup", 1.0, BEST, 0), ("sp_tuned_embedding", FACTORS[0], BEST / 4, -1)):
        for m, r in TARGETS.values():
            values = values_at(read_rule(name), task, (m, r), factor)
            for times in AROUND:
                add(values, tuned_rate * times, TARGET_SEEDS, tuned_rate * m**power)
    return Losses(of, CHANCE, frozenset(of), 0.0)


def test_standard_parametrization_regrets_a_larger_width_and_mup_does_not():
    losses = planted()
    mup, sp = (scores(read_rule(name), NAME, losses) for name in ("mup", "sp_tuned_embedding"))
    assert [mup[cost].regret for cost in TARGETS] == [0, 0, 0]
    assert [sp[cost].regret for cost in TARGETS] == pytest.approx([0, 2**2 / (CHANCE - 1), 2**2 / (CHANCE - 1)])
    assert [sp[cost].limit for cost in TARGETS] == [0, 0, 0]  # a quarter of the rate mends it


def test_the_tuned_values_are_the_proxys_best():
    assert tuned(read_rule("mup"), TASKS[NAME], planted()) == (BEST, 1.0)


def test_records_without_a_rules_runs_give_it_no_score():
    losses = planted()
    assert all_scores(read_rule("mup"), {NAME: losses}).keys() == {NAME}
    lacking = {one: of for one, of in losses.of.items() if one[0] != 4 * TASKS[NAME].width}
    assert not all_scores(read_rule("mup"), {NAME: dataclasses.replace(losses, of=lacking)})


def test_a_rule_with_the_numbers_of_a_shipped_one_trains_nothing(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import depthmup_flax as dm\nRULE = dm.Parametrization(alpha=1.0, gamma=0.0)\n")
    ((_, ours), (_, theirs)) = benchmark(read_rule(str(path)), [read_rule("completep")], [NAME], tmp_path / "work")
    assert ours == theirs
    assert not list((tmp_path / "work").glob("*/records.jsonl"))
