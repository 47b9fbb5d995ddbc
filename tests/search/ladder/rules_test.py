"""Of two rules the one whose best rate moves less is told, and not told where seeds do not resolve it."""

import pytest
from planted_sweeps import RATES, X, parabola, study_of, sweep_of

from depthmup_flax.search.ladder.rules import comparison

PRESET = "parametrization.preset"


def compared(drifts, noise=0.0, losses=RATES):
    """Presets whose best rates move by so many octaves from width 16 to 64; noise of each seed's best rate."""

    def loss(point):
        moved = drifts[point[PRESET]] if point["model.width"] == 64 else 0.0
        return parabola(point, best=-8.0 + moved, noise=noise, seed=int(100 + 10 * moved))

    axes = {PRESET: tuple(drifts), "model.width": (16, 64), X: losses, "seed": (0, 1, 2)}
    model = {"width": 16, "depth": 4, "base_width": 16, "base_depth": 4}
    return comparison(study_of(sweep_of(loss, axes, model=model))).splitlines()


@pytest.mark.parametrize("sign", [1, -1])
def test_the_rule_that_moves_less_is_told_with_the_drift_and_regret_of_each(sign):
    lines = compared({"depth_mup": 0.3 * sign, "completep": -1.2 * sign}, noise=0.02)
    rows = {line.split()[0]: line.split() for line in lines[1:-1]}
    assert float(rows["depth_mup"][1]) == pytest.approx(0.3 * sign, abs=0.1)
    assert float(rows["completep"][1]) == pytest.approx(-1.2 * sign, abs=0.1)
    assert float(rows["depth_mup"][-3]) < float(rows["completep"][-3])
    assert lines[-1].startswith("depth_mup moves less than completep (-0.")
    assert compared({"depth_mup": 1.2, "sp": 0.3}, noise=0.02)[-1].startswith("sp moves less than depth_mup")


def test_a_difference_within_its_interval_is_not_resolved():
    assert (
        "not resolved whether depth_mup or completep" in compared({"depth_mup": 0.3, "completep": -0.5}, noise=0.6)[-1]
    )


def test_a_best_rate_at_the_edge_says_nothing():
    lines = compared({"depth_mup": 0.3, "sp": -6.0}, noise=0.02)
    assert lines[-1].startswith("not resolved: sp has no best rate")
    assert "unknown" in lines[-2]
