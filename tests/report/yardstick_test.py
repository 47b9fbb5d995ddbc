"""Tolerances, and octaves that would pass."""

import dataclasses
import math

import numpy as np
import pytest
from planted_sweeps import RATES, X, data_of, study_of, sweep_of

from depthmup_flax.report.verdict import DOES_NOT_TRANSFER, NO_EVIDENCE, NOT_RESOLVED, TRANSFERS, verdicts


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


@pytest.mark.parametrize("lowest", [-12, -14, -20])
def test_useless_rates_do_not_make_evidence(lowest):
    """4.6 octaves pass of a grid that ends at 2^-4, however far it goes down."""
    axes = {"model.depth": (4, 64), X: [2.0**k for k in range(lowest, -3)], "seed": (0, 1, 2)}
    loss = lambda point: 2 + 0.004 * (math.log2(point[X]) + 8) ** 2 + 1e-5 * math.sin(point["seed"] + point[X])
    (found,) = verdicts(study_of(sweep_of(loss, axes)))
    assert found.measured_by.passing == pytest.approx(2 * math.sqrt(0.02 / 0.004), abs=0.1)
    assert found.verdict == NO_EVIDENCE


def _raised(record):
    """At depth 64 the loss is higher from the base's best rate on, in less than half of the grid."""
    raised = 0.1 * (record.depth == 64 and -8.5 < math.log2(record.point[X]) < -7.5)
    return dataclasses.replace(record, train_loss_avg=record.train_loss_avg + raised)


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
