"""A ladder trains what it can pay, ends when it knows enough, and takes the trend along."""

import dataclasses
import math

import pytest
from planted_sweeps import RATES, X, record, sweep_of

from depthmup_flax.config.fields import default_config
from depthmup_flax.search.ladder import climb as climbing
from depthmup_flax.search.ladder.of_search import runs_of_search

TREND = -0.3  # octaves of the best rate for each octave of width
STEPS = 100


def loss_of(width, rate, seed=0):
    off = math.log2(rate) + 7.3 - TREND * math.log2(width / 16)
    return 1 + 0.05 * off**2 + 0.001 * math.sin(9 * seed + off)


@pytest.fixture
def sizes_trained(monkeypatch):
    """Sweeps have planted losses; the sizes that were asked for, with their rates."""
    trained = []

    def planted(config, directory, **options):
        width, depth, rates = (
            config.base.model.width,
            config.base.model.depth,
            config.grids.rung.optimizer.learning_rate,
        )
        trained.append((width, depth, rates))
        return [record("run", {X: rate}, loss_of(width, rate), width=width, depth=depth) for rate in rates]

    monkeypatch.setattr(climbing, "sweep", planted)
    return trained


def climbed(tmp_path, budget, tolerance=1e-6):
    proxy, target = default_config(), default_config()
    for config, width in ((proxy, 16), (target, 256)):
        config.model.update(width=width, depth=4, base_width=16, base_depth=4)
    planted = lambda point: loss_of(16, point[X], point["seed"])
    searched = sweep_of(planted, {X: RATES, "seed": (0, 1, 2)}, model={"width": 16, "depth": 4})
    records = [dataclasses.replace(one, width=16, depth=4) for one in searched.records]
    searched = dataclasses.replace(searched, records=records)
    proxy.optimizer.learning_rate = target.optimizer.learning_rate = 2.0**-7.3
    runs = runs_of_search(searched, proxy, STEPS)
    options = {"budget": budget, "objective": "train", "tolerance": tolerance}
    return climbing.climb(runs, proxy, target, (STEPS, STEPS), tmp_path, **options)


def test_it_takes_the_trend_along_and_stays_in_its_budget(tmp_path, sizes_trained):
    truth = 2.0 ** (-7.3 + TREND * 4)
    before, after = climbed(tmp_path, 1e-9), climbed(tmp_path, 1.0)
    assert sizes_trained
    assert all(16 < width < 256 and depth == 4 for width, depth, _ in sizes_trained)
    assert sum(len(rates) * (width / 256) ** 2 for width, _, rates in sizes_trained) <= 1
    assert abs(math.log2(after.rate / truth)) < abs(math.log2(before.rate / truth))
    assert after.regret.mean < before.regret.mean
    assert after.interval[0] < truth < after.interval[1]


def test_it_trains_nothing_where_the_regret_is_small_enough(tmp_path, sizes_trained):
    climbed(tmp_path, 1.0, tolerance=1.0)
    assert not sizes_trained


def test_other_tuned_values_move_the_rates_of_the_grid():
    proxy = default_config()
    proxy.optimizer.learning_rate = 2.0**-6.3
    grid = [record("run", {X: rate, "gamma": 1.0}, loss_of(16, rate)) for rate in RATES]
    point = record("run", {X: 2.0**-6.3, "gamma": 2.0}, 0.5)
    empty = sweep_of(lambda point: 1.0, {X: RATES[:1]})
    runs = runs_of_search(dataclasses.replace(empty, records=[*grid, point]), proxy, STEPS)
    assert len(runs) == len(grid)
    best = min(runs, key=lambda run: run.loss)
    assert best.rate == pytest.approx(2.0**-6.3, rel=0.3)
    without = dataclasses.replace(empty, records=[record("run", {"gamma": 1.0}, 1.0)])
    assert runs_of_search(without, proxy, STEPS) == []
