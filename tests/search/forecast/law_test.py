"""The forecast of known laws: right without noise, with an interval that covers the truth as often as it says."""

import dataclasses
import math

import numpy as np
import pytest

from depthmup_flax.search.forecast import law
from depthmup_flax.search.forecast.law import Form, Posterior, Rung, forecast_loss
from depthmup_flax.util.errors import InputError


def rung(width, depth, steps=100):
    return Rung(width, depth, steps, parameters=width**2 * depth + 70 * width)


def ladder(levels=3):
    """Powers of two along both axes at once, and one axis at a time."""
    sizes = {(16 * 2**k // a, 4 * 2**k // b) for k in range(levels) for a, b in ((1, 1), (2, 1), (1, 2))}
    return [rung(*size) for size in sizes]


TARGET = rung(512, 128)
LAWS = {
    "sum": lambda r: 1.2 + 0.5 * (r.width / 16) ** -0.7 + 0.2 * (r.depth / 2) ** -0.5,
    "product": lambda r: 0.8 + 0.9 * (r.width / 16) ** -0.5 * (r.depth / 2) ** -0.35,
    "parameters": lambda r: 0.7 + 1.1 * (r.parameters / 600) ** -0.3,
}


def measured(rungs, loss_of, noise=0.0, seed=0):
    random = np.random.default_rng(seed)
    noisy = lambda r: tuple(loss_of(r) * (1 + noise * random.standard_normal(3)))
    return [dataclasses.replace(r, losses=noisy(r)) for r in rungs]


@pytest.mark.parametrize("name", LAWS)
def test_a_law_without_noise_is_forecast_and_its_form_is_recognized(name):
    forecast = forecast_loss(measured(ladder(), LAWS[name]), TARGET)
    truth = LAWS[name](TARGET)
    assert forecast.loss == pytest.approx(truth, rel=0.01)
    assert 0.9 * truth < forecast.interval[0] < forecast.interval[1] < 1.1 * truth
    assert forecast.form == name
    assert forecast.seed_spread == pytest.approx(0, abs=1e-12)


def test_more_noise_widens_the_interval_and_its_size_is_that_of_the_seeds():
    spreads, widths = [], []
    for noise in (0.003, 0.03):
        forecast = forecast_loss(measured(ladder(), LAWS["sum"], noise), TARGET)
        spreads.append(forecast.seed_spread / noise)
        widths.append(forecast.interval[1] - forecast.interval[0])
    assert spreads == pytest.approx([1, 1], rel=0.35)  # 18 degrees of freedom
    assert widths[1] > 2 * widths[0]


def test_a_kink_beyond_the_smaller_rungs_widens_the_interval():
    kinked = lambda r: LAWS["sum"](r) + 0.15 * (r.width * r.depth >= 512)
    smooth, surprised = (forecast_loss(measured(ladder(), f, 0.002), TARGET) for f in (LAWS["sum"], kinked))
    assert surprised.held_out_error > 3 * smooth.held_out_error
    assert surprised.inflation > 2
    assert surprised.interval[1] / surprised.interval[0] > 1.2 * smooth.interval[1] / smooth.interval[0]


def drawn_law(random, combine):
    """A law with random coefficients and exponents, and the noise of its seeds."""
    irreducible, first, second = random.uniform(0.2, 2), *random.uniform(0.1, 1, 2)
    a, b, noise = *random.uniform(0.2, 1.0, 2), 10 ** random.uniform(-2.5, -1.5)
    return lambda r: irreducible + combine((first * (r.width / 8) ** -a, second * (r.depth / 2) ** -b)), noise


@pytest.mark.slow
def test_the_95_percent_interval_covers_about_95_percent_of_losses():
    """Over laws, noises and distances; 60 trials of 0.95 have a standard deviation of 2.8 %."""
    random = np.random.default_rng(0)
    inside = []
    for trial in range(60):
        loss_of, noise = drawn_law(random, (sum, np.prod)[trial % 2])
        target = rung(*random.choice([(128, 64), (256, 32), (512, 128)]))
        low, high = forecast_loss(measured(ladder(), loss_of, noise, trial), target).interval
        inside.append(low <= loss_of(target) * (1 + noise * random.standard_normal()) <= high)
    assert np.mean(inside) >= 0.9


def test_at_given_exponents_evidence_and_forecast_are_those_of_a_normal_distribution(monkeypatch):
    """The evidence of all losses at once, and the mean and variance of one given the others, by their covariance."""
    misfit, noise, seeds, exponent = 0.01, 0.02, 3, 0.5
    monkeypatch.setattr(law, "_EXPONENTS", np.array([exponent]))
    monkeypatch.setattr(law, "_MISFITS", np.array([misfit]))
    rungs = sorted(measured(ladder(), LAWS["sum"], noise), key=lambda r: r.cost)
    posterior = Posterior(Form("sum", (("width",), ("depth",))), rungs, noise)

    first, losses = rungs[0], np.array([np.mean(r.losses) for r in rungs])
    rows = lambda rs: np.array(
        [[1, (r.width / first.width) ** -exponent, (r.depth / first.depth) ** -exponent] for r in rs]
    )
    design = losses[0] * rows(rungs) / losses[:, None]
    covariance = design @ design.T + (misfit**2 + noise**2 / seeds) * np.eye(len(rungs))
    ones = np.ones(len(rungs))
    expected = -(ones @ np.linalg.solve(covariance, ones) + np.linalg.slogdet(covariance)[1]) / 2
    assert posterior.log_evidence == pytest.approx(expected, rel=1e-6)

    at = losses[0] * rows([TARGET])[0]
    cross = np.linalg.solve(covariance, design @ at)
    mean, variance = cross @ ones, at @ at - cross @ (design @ at)
    variance = variance + (mean**2 + variance) * (misfit**2 + noise**2)  # of one run
    drawn = posterior.draw([TARGET], 40_000, 1, np.random.default_rng(0))[:, 0]
    assert drawn.mean() == pytest.approx(mean, abs=4 * np.sqrt(variance / 40_000))
    assert drawn.std() == pytest.approx(np.sqrt(variance), rel=0.02)


def test_a_loss_that_rises_with_training_is_refused():
    rungs = [rung(16, 4, steps) for steps in (50, 100, 200, 400)]
    with pytest.raises(InputError, match="follow no law in which more training lowers"):
        forecast_loss(measured(rungs, lambda r: 1 + 0.1 * math.log(r.steps)), rung(16, 4, 1600))


def test_an_axis_along_which_the_ladder_does_not_vary_has_no_exponent():
    rungs = [rung(width, 4) for width in (8, 16, 32, 64)]
    (form,) = law.forms_of(rungs)
    assert form.axes == ("width",)
    truth = lambda r: 1 + (r.width / 8) ** -0.5
    forecast = forecast_loss(measured(rungs, truth), rung(256, 4))
    assert forecast.loss == pytest.approx(truth(rung(256, 4)), rel=0.02)
