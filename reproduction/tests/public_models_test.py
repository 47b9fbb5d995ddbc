"""Measures of the table of public models, by hand on curves that are known."""

import json

import numpy as np
import pytest

from reproduction.pages import public_models_table as table

SEEDS = np.array([0.0, 0.1, -0.1])[:, None]  # added to all runs alike
X = np.arange(-7.0, -2.0)


def curve(best, lowest):
    """Parabolas over the rate's logarithm, of three seeds."""
    return X, lowest + 0.1 * (X - best) ** 2 + SEEDS


def test_measures_are_those_of_the_parabolas():
    runs = {"base": curve(-5.0, 2.0), "rule": curve(-4.7, 1.5), "plain": curve(-6.0, 1.6)}
    assert table.shift(runs) == pytest.approx(0.3)
    assert table.at_base_rate(runs, "rule") == pytest.approx(1.5 + 0.1 * 0.3**2)
    assert table.regret(runs) == pytest.approx(0)  # the base's rate is the best of the grid
    assert table.untuned_minus_tuned(runs) == pytest.approx(0.009 - 0.1)
    assert table.both_untuned(runs) == pytest.approx(0.009 - 0.2)
    assert table.both_tuned(runs) == pytest.approx(-0.1)


def test_what_all_runs_of_a_seed_share_does_not_widen_an_interval_of_differences():
    runs = {"base": curve(-5.0, 2.0), "rule": curve(-4.7, 1.5), "plain": curve(-6.0, 1.6)}
    value, low, high = table.interval(table.both_tuned, runs)
    assert (low, high) == pytest.approx((value, value))


def test_an_optimum_at_the_edge_of_its_grid_is_said():
    assert "edge" in table._best({"rule": curve(-3.0, 1.5)}, "rule")
    assert "edge" not in table._best({"rule": curve(-4.0, 1.5)}, "rule")


@pytest.mark.parametrize("model", table.TITLES)
def test_each_seed_of_the_table_has_all_its_runs(model):
    rows = [json.loads(line) for line in (table.RECORDS / f"{model}.jsonl").read_text().splitlines()]
    assert len({(name, seed, rate) for name, seed, rate, *_ in rows}) == len(rows)
    runs, seconds = table.read(model)
    assert seconds > 0
    for name, (x, losses) in runs.items():
        means = [np.mean([row[3] for row in rows if row[0] == name and row[2] == 2.0**at]) for at in x]
        if len(losses) == len({row[1] for row in rows}):
            np.testing.assert_allclose(losses.mean(0), means)


@pytest.mark.parametrize("model", table.TITLES)
def test_a_program_imports_its_model_and_defines_no_module(model):
    program = (table.RECORDS.parent / f"{model}.py").read_text()
    assert "class " not in program
