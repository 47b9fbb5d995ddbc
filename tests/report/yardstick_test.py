"""Tolerances, octaves that would pass, and simulated sweeps: coverage of intervals, power, seeds needed."""

import dataclasses
import math

import numpy as np
import pytest
from planted_sweeps import RATES, X, data_of, study_of, sweep_of

from depthmup_flax.report import optimum as opt
from depthmup_flax.report.verdict import (
    DOES_NOT_TRANSFER,
    NO_EVIDENCE,
    NOT_RESOLVED,
    TRANSFERS,
    judge,
    simulate,
    verdicts,
)

U = np.log2(RATES)


def curve(seeds, noise, curvature=0.03, lowest=2.0, seed=0):
    """(S, X): a parabola around 2^-8.2 and independent noise."""
    return lowest + curvature * (U + 8.2) ** 2 + noise * np.random.default_rng(seed).normal(size=(seeds, len(U)))


def swept(best, lowest=lambda depth: 2.0, chance=None, noise=0.003, curvature=0.03, seeds=5, presets=("depth_mup",)):
    """Depths 4 and 64 with the best rate ``2^best(preset, depth)``."""

    def loss(point):
        preset, depth, u = point["parametrization.preset"], point["model.depth"], math.log2(point[X])
        own = np.random.default_rng((point["seed"], int(-u), depth, len(preset))).normal()
        return lowest(depth) + curvature * (u - best(preset, depth)) ** 2 + noise * own

    axes = {"parametrization.preset": presets, "model.depth": (4, 64), X: RATES, "seed": tuple(range(seeds))}
    sweep = sweep_of(loss, axes)
    return dataclasses.replace(sweep, info=dataclasses.replace(sweep.info, chance=chance))


def still(preset, depth):
    """The same best rate everywhere."""
    return -8.0


def test_the_tolerance_is_a_share_of_chance_minus_the_lowest_loss():
    (known,) = verdicts(study_of(swept(still, chance=2.5)))
    assert known.measured_by.tolerance == pytest.approx(0.02 * 0.5, rel=0.02)
    (first,) = verdicts(study_of(swept(still)))  # the first time slice is 1 above the loss at the end
    assert first.measured_by.tolerance == pytest.approx(0.02 * 1.0, rel=0.02)


def test_a_base_that_learned_nothing_is_no_evidence():
    (found,) = verdicts(study_of(swept(still, chance=1.9)))
    assert (found.verdict, found.measured_by) == (NO_EVIDENCE, None)
    assert "not below" in found.remark


def test_where_most_of_the_grid_would_pass_only_failing_is_evidence():
    flat, steep = (study_of(swept(still, chance=2.5, noise=1e-5, curvature=c)) for c in (0.0003, 0.03))
    (of_flat,), (of_steep,) = verdicts(flat), verdicts(steep)
    assert (of_flat.verdict, of_steep.verdict) == (NO_EVIDENCE, TRANSFERS)
    assert of_flat.measured_by.grid == of_steep.measured_by.grid == 8
    # A parabola passes within sqrt(tolerance / curvature) of its minimum.
    width = lambda one, curvature: 2 * math.sqrt(one.measured_by.tolerance / curvature)
    assert of_steep.measured_by.passing == pytest.approx(width(of_steep, 0.03), abs=0.05)
    assert of_flat.measured_by.passing == 8
    cliff = lambda preset, depth: -8.0 if depth == 4 else -11.0
    steeper = swept(cliff, chance=2.5, noise=1e-5, curvature=0.0003)
    far = dataclasses.replace(steeper, records=[_raised(r) for r in steeper.records])
    (failing,) = verdicts(study_of(far))
    assert failing.measured_by.is_empty
    assert failing.verdict == DOES_NOT_TRANSFER


def _raised(record):
    """At depth 64 the loss is higher from the base's best rate on, in less than half of the grid."""
    raised = 0.1 * (record.depth == 64 and -8.5 < math.log2(record.point[X]) < -7.5)
    return dataclasses.replace(record, train_loss_avg=record.train_loss_avg + raised)


def test_a_network_that_memorizes_can_show_transfer():
    """Measured at scale ``long``: loss .35 against 2.30, noise .033 in the mean of eight seeds."""
    proxy, losses = (curve(200, 0.033 * math.sqrt(8), curvature=0.24, lowest=0.35, seed=k) for k in range(2))
    simulated = simulate(U, proxy, U, losses, seeds=8)
    shown = lambda tolerance: (simulated.regrets + simulated.half_widths <= tolerance).mean()
    assert shown(0.01 * 0.35) < 0.15
    assert shown(0.02 * (2.30 - 0.35)) > 0.8


def test_a_headline_takes_both_losses():
    moves = {"depth_mup": 0.0, "mup": -1.5}
    best = lambda preset, depth: -8.0 + (depth == 64) * moves[preset]
    sweep = swept(best, chance=3.0, presets=("depth_mup", "mup"), seeds=3)
    assert data_of(sweep)["headline"].startswith("depth_mup transfers over depth, better than mup.")
    train, test = study_of(sweep), dataclasses.replace(study_of(swept(still, chance=3.0, seeds=3)), loss="test")
    (both,) = (one for one in verdicts(train, 0.02, test) if one.variant == "depth_mup")
    assert both.verdict == TRANSFERS
    unsure = dataclasses.replace(test, variants=study_of(swept(still, chance=3.0, noise=0.3, seeds=3)).variants)
    named = [dataclasses.replace(v, name="depth_mup") for v in unsure.variants]
    (one,) = (one for one in verdicts(train, 0.02, dataclasses.replace(unsure, variants=named)) if one.variant != "mup")
    assert (one.verdict, one.other_loss) == (TRANSFERS, NOT_RESOLVED)


def test_a_simulated_regret_is_that_of_a_sweep():
    """One simulated sweep without noise beyond the measured curves, against `opt.regret`."""
    proxy, losses = curve(4, 0.0), curve(4, 0.0, curvature=0.05)
    simulated = simulate(U, proxy, U, losses, drift=1.3, trials=1)
    moved = U + 1.3  # both optima are at -8.2
    expected = opt.regret(U, losses, opt.find_optimum(moved, proxy))
    assert simulated.regrets == pytest.approx(expected.value)
    assert simulated.truth == pytest.approx(0.05 * 1.3**2, rel=0.02)
    assert expected.value == pytest.approx(simulated.truth)
    assert simulated.half_widths == pytest.approx(0.0, abs=1e-12)


CASES = [(3, 0.5, 0.015), (3, 2.0, 0.004), (5, 0.5, 0.004), (5, 1.0, 0.015), (8, 1.0, 0.004), (8, 2.0, 0.015)]


@pytest.mark.parametrize(("seeds", "drift", "noise"), CASES)
def test_intervals_cover_the_planted_regret_and_a_large_one_is_rarely_called_small(seeds, drift, noise):
    """300 simulated sweeps: 90 % or more cover (measured: 95 to 98), less than 8 % pass a bound below the regret."""
    # The noise of many seeds, so that the simulated one is the planted one.
    found = simulate(U, curve(200, noise), U, curve(200, noise, seed=1), drift=drift, seeds=seeds, trials=300)
    covered = abs(found.regrets - found.truth) <= found.half_widths
    assert found.truth == pytest.approx(0.03 * drift**2, rel=0.1)
    assert covered.mean() > 0.9
    assert (found.regrets + found.half_widths <= 0.9 * found.truth).mean() < 0.08


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "noise", "tolerance"), [(3, 0.02, 0.01), (8, 0.03, 0.01), (5, 0.03, 0.03)])
def test_the_printed_power_is_the_share_of_sweeps_without_regret_that_are_shown(seeds, noise, tolerance):
    """Against sweeps drawn one by one with `find_optimum`, `regret` and `judge`."""
    rng, shown = np.random.default_rng(3), 0
    draw = lambda: 2 + 0.03 * (U + 8.2) ** 2 + noise * rng.normal(size=(seeds, len(U)))
    for _ in range(250):
        shown += judge(opt.regret(U, draw(), opt.find_optimum(U, draw(), 200), 200), tolerance).verdict == "shown"
    proxy, losses = curve(2000, noise), curve(2001, noise, seed=1)  # unequal numbers: not paired
    found = simulate(U, proxy, U, losses, seeds=seeds, trials=400)
    assert (found.regrets + found.half_widths <= tolerance).mean() == pytest.approx(shown / 250, abs=0.12)
