"""Regrets against numbers computed by hand, and the bias of a minimum over noisy means."""

import math

import numpy as np
import pytest

from reproduction.rules.score import left_out_minimum, mean_over_tasks, score


def test_a_regret_is_the_excess_over_the_best_in_units_of_what_it_learned():
    losses = np.array([[1.0, 1.0, 1.0], [1.5, 1.5, 1.5], [1.75, math.nan, 7.0]])
    found = score(losses, chance=3.0, reference=[0, 1], own=[1, 2], transferred=2)
    assert found.regret == pytest.approx(((1.75 + 3 + 3) / 3 - 1) / (3 - 1))  # diverged, or above chance: as chance
    assert found.limit == pytest.approx((1.5 - 1) / (3 - 1))
    assert found.diverged == 1


def test_each_seed_evaluates_the_candidate_that_the_other_seeds_choose():
    # Means of the other seeds: 5.5 and 3, 5 and 3, 1.5 and 3. The seeds then give 3, 3 and 9.
    assert left_out_minimum(np.array([[1.0, 2.0, 9.0], [3.0, 3.0, 3.0]])) == pytest.approx(5)


def test_many_equal_candidates_do_not_lower_the_best():
    losses = np.random.default_rng(0).normal(1.0, 0.1, (500, 3))
    assert losses.mean(1).min() < 0.85
    assert left_out_minimum(losses) == pytest.approx(1, abs=3 * 0.1 / math.sqrt(3))


def test_the_interval_over_tasks_is_students():
    values = [0.1, 0.4, 0.2, 0.5]  # mean 0.3, standard deviation sqrt(0.1 / 3); t(3, 0.975) = 3.182446
    mean = mean_over_tasks(values)
    assert (mean.value, mean.half) == pytest.approx((0.3, 3.182446 * math.sqrt(0.1 / 3) / 2), rel=1e-6)
    assert mean_over_tasks([0.1]).half is None
