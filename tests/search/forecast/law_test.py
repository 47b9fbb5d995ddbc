"""The forecast of known laws: right without noise, with an interval that covers the truth."""

import dataclasses
import math

import numpy as np
import pytest

from depthmup_flax.search.forecast.law import (
    LONGER_ERROR,
    PARAMETERS,
    Rung,
    error_beyond,
    fit,
    forecast_loss,
    seed_spread,
)


def rung(width, depth, steps=100):
    return Rung(width, depth, steps, parameters=width**2 * depth + 70 * width)


LADDER = [rung(width, depth) for width in (16, 32, 64) for depth in (2, 4, 8)]
LENGTHS = [rung(width, 4, steps) for width in (16, 32, 64) for steps in (50, 100, 200)]
TARGET = rung(512, 64)
LONG = rung(512, 4, 800)
BY_SIZE = lambda r: 0.7 + 1.1 * (r.parameters / 600) ** -0.35
BY_BOTH = lambda r: BY_SIZE(r) + 0.9 * (r.steps / 50) ** -0.5
BY_SHAPE = lambda r: BY_SIZE(r) + 0.3 * (r.depth / 2) ** -0.8


def measured(rungs, loss_of, noise=0.0, seed=0):
    random = np.random.default_rng(seed)
    noisy = lambda r: tuple(loss_of(r) * (1 + noise * random.standard_normal(3)))
    return [dataclasses.replace(r, losses=noisy(r)) for r in rungs]


@pytest.mark.parametrize(
    ("rungs", "loss_of", "target"), [(LADDER, BY_SHAPE, TARGET), (LENGTHS, BY_BOTH, rung(512, 4, 200))]
)
def test_a_law_without_noise_is_forecast(rungs, loss_of, target):
    forecast = forecast_loss(measured(rungs, loss_of), target)
    assert forecast.loss == pytest.approx(loss_of(target), rel=0.01)
    assert [end / loss_of(target) for end in forecast.interval] == pytest.approx([1, 1], abs=0.01)
    assert forecast.seed_spread == pytest.approx(0, abs=1e-12)
    best, *others = forecast.fits
    assert best.left_out_error < 0.005
    assert all(other.left_out_error > 5 * best.left_out_error for other in others)
    assert len(others) == (2 if rungs is LENGTHS else 1)


def test_rungs_of_the_targets_own_steps_are_used_without_the_others_if_they_are_six():
    own = measured(LADDER[:6], BY_SIZE, 0.01)
    misleading = measured([rung(width, 4, 10) for width in (16, 32, 64)], lambda r: 9 - BY_SIZE(r))
    target = rung(128, 8)
    assert forecast_loss([*own, *misleading], target) == forecast_loss(own, target)
    assert forecast_loss([*own[:5], *misleading], target) != forecast_loss(own[:5], target)


def test_depth_has_a_term_only_where_shapes_differ_and_rungs_are_two_more_than_unknowns():
    has_depth = lambda rungs: "depth" in forecast_loss(measured(rungs, BY_SHAPE), TARGET).fits[0].law
    assert has_depth(LADDER)
    assert not has_depth(LADDER[:6])
    assert not has_depth([rung(8 * depth, depth) for depth in range(2, 12)])


def test_exponents_are_no_smaller_than_a_quarter_so_that_a_law_keeps_its_irreducible_part():
    nearly_a_logarithm = lambda r: 3 - 0.1 * math.log(r.parameters)
    law = forecast_loss(measured([rung(2**k, 4) for k in range(3, 9)], nearly_a_logarithm), TARGET).fits[0].law
    assert float(law.split("^-")[1]) == pytest.approx(0.25)


def test_a_ladder_of_five_lengths_measures_how_well_it_forecasts_longer_targets():
    lengths = [rung(width, 4, steps) for width in (16, 32, 64) for steps in (25, 50, 100, 150, 200)]
    half_width = lambda rungs: math.log(np.divide(*forecast_loss(measured(rungs, BY_BOTH), LONG).interval[::-1])) / 2
    assert half_width(LENGTHS) > 1.9 * LONGER_ERROR
    assert half_width(lengths) < LONGER_ERROR


def test_the_error_beyond_is_that_of_the_costly_half_by_rungs_as_much_cheaper_as_the_target_is_dearer():
    ladder, near, far = [rung(2**k, 4) for k in range(3, 16)], rung(2**16, 4), rung(2**18, 4)
    error = lambda loss_of, target: error_beyond((PARAMETERS,), measured(ladder, loss_of), target)
    bends = lambda r: BY_SIZE(r) * (1.05 if r.width >= 512 else 1)
    assert [error(BY_SIZE, near), error(bends, near)] == pytest.approx([0, math.log(1.05)], abs=0.003)
    outlier = lambda r: BY_SIZE(r) * (1.05 if r.width == 128 else 1)  # nearer to the half than the far target is
    assert error(outlier, near) > 0.01
    assert error(outlier, far) < 0.003


def test_a_ladder_without_a_rung_more_than_a_law_needs_has_no_error_beyond():
    assert error_beyond((PARAMETERS,), measured(LADDER[:4], BY_SIZE, 0.1), TARGET) == 0


def test_more_noise_widens_the_interval_and_its_size_is_that_of_the_seeds():
    few, many = (forecast_loss(measured(LADDER, BY_SIZE, noise), TARGET) for noise in (0.003, 0.03))
    assert [few.seed_spread / 0.003, many.seed_spread / 0.03] == pytest.approx([1, 1], rel=0.35)
    assert many.interval[1] - many.interval[0] > 2 * (few.interval[1] - few.interval[0])


def test_rungs_off_the_law_widen_the_interval_and_so_does_a_target_that_is_longer_than_all():
    kinked = lambda r: BY_SIZE(r) + 0.15 * (r.width >= 64)
    width = lambda forecast: math.log(forecast.interval[1] / forecast.interval[0])
    smooth, surprised = (forecast_loss(measured(LADDER, f, 0.002), TARGET) for f in (BY_SIZE, kinked))
    assert surprised.fits[0].left_out_error > 3 * smooth.fits[0].left_out_error
    assert width(surprised) > 1.5 * width(smooth)
    within, longer = (forecast_loss(measured(LENGTHS, BY_BOTH), rung(512, 4, steps)) for steps in (200, 800))
    assert width(within) < width(longer)
    assert width(longer) > 2 * 1.95 * LONGER_ERROR


def test_one_good_run_in_twenty_is_above_the_limit_and_runs_without_gain_are_as_often_as_said():
    noise, random = 0.01, np.random.default_rng(0)
    forecasts = [forecast_loss(measured(LADDER, BY_SIZE, noise, seed), TARGET) for seed in range(40)]
    good = BY_SIZE(TARGET) * (1 + noise * random.standard_normal((1000, 1)))
    assert np.mean(good > [one.most for one in forecasts]) < 0.05
    idle = BY_SIZE(LADDER[-1]) * (1 + noise * random.standard_normal((1000, 1)))
    found = np.mean(idle > [one.most for one in forecasts])
    assert found == pytest.approx(np.mean([one.power for one in forecasts]), abs=0.1)


def test_what_earlier_targets_gained_narrows_a_forecast_where_rungs_have_more_than_half_of_the_loss_of_chance():
    rungs = measured(LENGTHS, BY_BOTH, 0.01)
    best = min(np.mean(one.losses) for one in rungs)
    alone, too_good, averaged = (forecast_loss(rungs, LONG, chance) for chance in (None, 2.1 * best, 1.9 * best))
    assert alone == too_good
    width = lambda forecast: math.log(forecast.interval[1] / forecast.interval[0])
    assert width(averaged) < width(alone) / 2
    gained = best * (LONG.parameters / LENGTHS[-1].parameters) ** -0.0145 * 4**-0.115
    assert min(alone.loss, gained) < averaged.loss < max(alone.loss, gained)


def test_the_noise_of_a_run_of_the_target_is_that_of_the_costly_half_of_rungs():
    by_cost = sorted(LADDER, key=lambda one: one.cost)
    half = len(by_cost) // 2
    noisy = [dataclasses.replace(one, losses=(2.0, 2.4)) for one in by_cost[:half]]
    quiet = [dataclasses.replace(one, losses=(2.0, 2.02)) for one in by_cost[half:]]
    assert seed_spread([*noisy, *quiet]) == pytest.approx(math.log(1.01) / math.sqrt(2))


POWERS = {
    "parameters": lambda r, a, b, first, second: first * (r.parameters / 3000) ** -a,
    "sum": lambda r, a, b, first, second: first * (r.width / 8) ** -a + second * (r.depth / 2) ** -b,
    "product": lambda r, a, b, first, second: first * (r.width / 8) ** -a * second * (r.depth / 2) ** -b,
}


THREE_BY_THREE = (LADDER, [rung(128, 64), rung(256, 32), rung(512, 128)])
FOUR_CLOSE = ([rung(width, 6) for width in (8, 12, 16, 20)], [rung(64, 6), rung(128, 6)])


@pytest.mark.parametrize(
    ("name", "ladder", "targets"),
    [
        *(pytest.param(name, *THREE_BY_THREE, id=name, marks=pytest.mark.slow) for name in POWERS),
        pytest.param("parameters", *FOUR_CLOSE, id="four close widths"),
    ],
)
def test_the_95_percent_interval_covers_about_95_percent_of_losses(name, ladder, targets):
    """Over laws, noises and distances; 200 trials of 0.95 have a standard deviation of 1.5 %."""
    random, inside = np.random.default_rng(0), []
    for trial in range(200):
        irreducible, exponents, factors = random.uniform(0.2, 2), random.uniform(0.2, 1, 2), random.uniform(0.1, 1, 2)
        loss_of = lambda r, e=irreducible, v=(*exponents, *factors): e + POWERS[name](r, *v)
        target, noise = targets[random.integers(len(targets))], 10 ** random.uniform(-2.5, -1.5)
        low, high = forecast_loss(measured(ladder, loss_of, noise, trial), target).interval
        inside.append(low <= loss_of(target) * (1 + noise * random.standard_normal()) <= high)
    assert np.mean(inside) >= 0.92


def test_a_law_over_width_and_depth_is_fitted_too():
    truth = lambda r: 1 + (r.width / 16) ** -0.5 + 0.3 * (r.depth / 2) ** -1
    fitted = fit(("width", "depth"), measured(LADDER, truth), TARGET, 0.0)
    assert fitted.loss == pytest.approx(truth(TARGET), rel=1e-6)
    assert fitted.law == "1 + 0.5 (width / 64)^-0.5 + 0.075 (depth / 8)^-1"


def test_a_loss_that_rises_with_training_has_a_law_without_steps():
    forecast = forecast_loss(measured(LENGTHS, lambda r: BY_SIZE(r) + 0.1 * math.log(r.steps)), rung(512, 4, 200))
    assert " + 0 (steps / 200)" in forecast.fits[0].law


def test_a_loss_near_zero_is_forecast_as_a_positive_one():
    """Networks that memorize their examples: the irreducible part is nearly nothing."""
    rungs = [Rung(2**k, 4, 100, 4**k, (4.0**-k, 4.1**-k)) for k in range(3, 8)]
    low, high = forecast_loss(rungs, Rung(512, 4, 100, 4**9)).interval
    assert 0 < low < 4.0**-9 < high < 4.0**-6


def test_losses_of_unstable_runs_have_a_wide_interval_of_positive_numbers():
    random = np.random.default_rng(0)
    rungs = [Rung(2**k, 4, 100, 4**k, tuple(1e22 * np.exp(3 * random.standard_normal(3)))) for k in range(3, 8)]
    found = forecast_loss(rungs, Rung(512, 4, 100, 4**9))
    assert 0 < found.interval[0] < found.loss < found.interval[1]
    assert found.interval[1] > 100 * found.interval[0]


def test_an_exponent_at_its_bound_is_said():
    ladder = [rung(2**k, 4) for k in range(3, 9)]
    slow = lambda r: 1.7 + 1.6 * (r.parameters / 600) ** -0.2
    at_bound, inside = (forecast_loss(measured(ladder, loss), TARGET).fits[0] for loss in (slow, BY_SIZE))
    assert at_bound.at_bound
    assert "at its bound" in at_bound.warning
    assert not inside.at_bound
    assert inside.warning == ""
