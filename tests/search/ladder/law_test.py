"""The law of the distance against Gaussian algebra, a chain rule and draws; the regret against quadrature."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from depthmup_flax.rule.batch_and_steps import Hyperparameters, rescaled_hyperparameters
from depthmup_flax.search.ladder.law import AXES, FILE, Law, Prediction, Search, Size, known_laws
from depthmup_flax.search.ladder.regret import Curve, expected_regret

LAW = Law(
    slopes=dict(zip(AXES, (-0.1, 0.2, -0.25, 0.5), strict=True)),
    spreads=dict(zip(AXES, (0.2, 0.3, 0.05, 0.1), strict=True)),
    noise=0.1,
    freedom=4.0,
)
SEARCHES = [
    Search(Size(32, 4, 100, 16), -7.0, 0.1),
    Search(Size(64, 4, 100, 16), -7.3, 0.2),
    Search(Size(64, 16, 400, 32), -6.4, 0.05),
]
TARGET = Size(256, 64, 400, 32)


def posterior(law, searches, target):
    """Mean and deviation at the target of a normal law by its unknowns, level and slopes, with a wide prior."""
    places = np.array([search.size.place for search in searches])
    rows = np.column_stack([np.ones(len(searches)), places - places[0]])
    prior = np.diag([1e-12, *(1 / np.square([law.spreads[axis] for axis in AXES]))])
    start = np.array([0.0, *(law.slopes[axis] for axis in AXES)])
    weights = np.diag([1 / (law.noise**2 + search.error**2) for search in searches])
    covariance = np.linalg.inv(prior + rows.T @ weights @ rows)
    found = covariance @ (prior @ start + rows.T @ weights @ np.array([search.rate for search in searches]))
    to = np.array([1, *(target.place - places[0])])
    return to @ found, math.sqrt(to @ covariance @ to + law.noise**2)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_prediction_is_the_posterior_of_level_and_slopes(count):
    normal = dataclasses.replace(LAW, freedom=1e7)
    mean, deviation = posterior(normal, SEARCHES[:count], TARGET)
    found = normal.predict(SEARCHES[:count], TARGET)
    assert found.mean == pytest.approx(mean, abs=1e-4)
    assert found.deviation == pytest.approx(deviation, rel=1e-4)
    assert found.interval == pytest.approx((mean - 1.96 * deviation, mean + 1.96 * deviation), rel=1e-3)


def test_the_density_of_all_searches_is_that_of_the_first_ones_times_the_predicted_one():
    last = SEARCHES[-1]
    found = LAW.predict(SEARCHES[:-1], last.size, last.error)
    own = stats.t.logpdf(last.rate, found.freedom, found.mean, found.scale)
    assert LAW.likelihood(SEARCHES) == pytest.approx(LAW.likelihood(SEARCHES[:-1]) + own)


def test_intervals_hold_draws_of_the_law():
    draw, inside = np.random.default_rng(0), 0
    for _ in range(2000):
        scale = math.sqrt(LAW.freedom / draw.chisquare(LAW.freedom))  # of one network
        slopes = [draw.normal(LAW.slopes[axis], scale * LAW.spreads[axis]) for axis in AXES]
        rate = lambda size, error: slopes @ size.place + scale * draw.normal(0, math.hypot(LAW.noise, error))  # noqa: B023
        searches = [dataclasses.replace(one, rate=rate(one.size, one.error)) for one in SEARCHES]
        low, high = LAW.predict(searches, TARGET).interval
        inside += low <= rate(TARGET, 0.0) <= high
    assert inside / 2000 == pytest.approx(0.95, abs=0.015)


def test_the_error_grows_with_the_distance_and_shrinks_with_a_nearer_search():
    near, far = (LAW.predict(SEARCHES[:1], Size(32, depth, 100, 16)).deviation for depth in (8, 64))
    assert near < far
    assert LAW.predict(SEARCHES, TARGET).deviation < LAW.predict(SEARCHES[:2], TARGET).deviation


@pytest.mark.parametrize(("steps", "batch_size"), [(2400, 16), (600, 64), (300, 32)])
def test_the_mean_over_steps_and_batch_size_is_the_rescaled_rate(steps, batch_size):
    tuned = Hyperparameters(learning_rate=2.0**-7, batch_size=16, steps=600)
    rescaled = rescaled_hyperparameters(tuned, batch_size=batch_size, steps=steps)
    found = known_laws()["depth_mup"].predict([Search(Size(32, 4, 600, 16), -7.0, 0.1)], Size(32, 4, steps, batch_size))
    assert 2**found.mean == pytest.approx(rescaled.learning_rate)


def test_the_committed_laws_are_wider_for_rules_that_do_not_transfer():
    one = [Search(Size(64, 4), -7.0, 0.1)]
    far = {rule: law.predict(one, Size(64, 64)).deviation for rule, law in known_laws().items()}
    assert far.keys() == {"depth_mup", "completep", "mup", "sp"}
    assert max(far["depth_mup"], far["completep"]) < min(far["mup"], far["sp"])
    assert FILE.exists()


RATES = np.arange(-12.0, -2.0)


def test_the_expected_regret_of_a_parabola_is_its_curvature_times_the_variance():
    curve = Curve(RATES, 1 + 0.05 * (RATES[None] + 7.3) ** 2)
    near = Prediction(-6.0, 0.3, 1e7)
    found = expected_regret(curve, near, unit=2.0)
    assert found.mean == pytest.approx(0.05 * 0.3**2 / 2, rel=0.02)
    assert found.high == pytest.approx(0.05 * (0.3 * 1.645) ** 2 / 2, rel=0.02)
    kept = expected_regret(curve, near, unit=2.0, kept=-5.8)
    assert kept.mean == pytest.approx(0.05 * (0.3**2 + 0.2**2) / 2, rel=0.02)


def test_a_rate_at_which_runs_diverge_costs_all_that_is_learned():
    losses = 1 + 0.05 * (RATES[None] + 7) ** 2
    losses[:, RATES > -6] = np.nan
    curve = Curve(RATES, losses)
    assert np.isinf(curve.regret(np.array([1.5]))).all()
    assert curve.regret(np.array([-8.0]))[0] > curve.regret(np.array([-5.0]))[0]  # below the lowest rate it rises on
    found = expected_regret(curve, Prediction(-7.0, 3.0, 4.0), unit=1.0)
    assert 0.3 < found.mean < 1
    assert found.high == 1


def test_a_curve_with_its_lowest_loss_at_an_end_has_no_best_rate():
    losses = np.tile(RATES, (2, 1))
    assert Curve(RATES, losses).search(Size(8, 8), 0.2) == "lowest of the grid"
    assert Curve(RATES, losses * np.nan).search(Size(8, 8), 0.2) == "all diverged"
    inside = Curve(RATES, (RATES[None] + 7.3) ** 2).search(Size(8, 8), 0.2)
    assert (inside.rate, inside.error) == (pytest.approx(-7.3), 0.2)
