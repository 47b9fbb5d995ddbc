"""The report recovers planted optima, slopes and laws, and claims nothing that the records do not show."""

import dataclasses
import math

import numpy as np
import pytest
from planted_sweeps import MULTIPLIER, RATES, X, data_of, parabola, study_of, sweep_of, write

from depthmup_flax.report.curves import profile, roles
from depthmup_flax.report.figures import draw_transfer, loss_limits
from depthmup_flax.report.optimum import EDGE_HIGH, EDGE_LOW, NEXT_TO_DIVERGENCE
from depthmup_flax.report.sweep_report import analysis_of
from depthmup_flax.report.tables import as_data, as_text, warnings
from depthmup_flax.storage.sweep_records import Sweep, read_sweep


def test_a_planted_parabola_is_recovered_within_its_interval():
    sweep = sweep_of(lambda p: parabola(p, best=-7.7, noise=0.05), {X: RATES, "seed": range(4)})
    (row,) = data_of(sweep)["variants"][0]["rows"]
    low, high = row["interval"]
    assert low < 2**-7.7 < high
    assert high / low < 1.3
    assert row["optimum"] == pytest.approx(2**-7.7, rel=0.1)
    assert row["flags"] == []


def test_a_planted_slope_of_minus_a_half_is_recovered_and_transfer_is_not_denied():
    def loss(point):
        moved = {"mup": -0.5 * math.log2(point["model.depth"] / 4), "depth_mup": 0.0}[point["parametrization.preset"]]
        noise = 0.03 * np.random.default_rng((point["model.depth"], point["seed"])).normal()
        return parabola(point, best=-7.3 + moved + noise)

    presets = ("depth_mup", "mup")
    axes = {"parametrization.preset": presets, "model.depth": (4, 8, 16, 32), X: RATES, "seed": range(4)}
    slopes = {variant["name"]: variant["slopes"]["depth"] for variant in data_of(sweep_of(loss, axes))["variants"]}
    low, high = slopes["mup"]["interval"]
    assert low < -0.5 < high < -0.3
    low, high = slopes["depth_mup"]["interval"]
    assert low < 0 < high < 0.2


def test_regret_is_the_planted_closed_form():
    # The base's optimum is 2^-8; a net of depth 16 loses 0.1 * 2^2 there, one of depth 4 nothing.
    sweep = sweep_of(
        lambda p: parabola(p, best=-8.0 - math.log2(p["model.depth"] / 4)),
        {"model.depth": (4, 8, 16), X: RATES, "seed": range(3)},
    )
    rows = data_of(sweep)["variants"][0]["rows"]
    assert [row["regret"] for row in rows] == pytest.approx([0.0, 0.1, 0.4])
    assert [row["shift"] for row in rows[1:]] == pytest.approx([-1.0, -2.0])


def test_regret_is_diverged_where_the_base_optimum_diverges():
    def loss(point):
        limit = -9 if point["model.depth"] == 8 else 0
        return None if math.log2(point[X]) > limit else parabola(point)

    data = data_of(sweep_of(loss, {"model.depth": (4, 8), X: RATES, "seed": range(2)}))
    _, deep = data["variants"][0]["rows"]
    assert deep["regret"] is None
    assert deep["transferred"] == "diverged"


@pytest.mark.parametrize(("best", "flag", "bound"), [(-14.0, EDGE_LOW, "<="), (-3.0, EDGE_HIGH, ">=")])
def test_an_optimum_at_the_edge_is_flagged_and_bounds_the_shift_without_an_interval_or_slope(best, flag, bound):
    def loss(point):
        return parabola(point, best=best if point["model.depth"] == 32 else -8.0, noise=0.05)

    sweep = sweep_of(loss, {"model.depth": (4, 8, 16, 32), X: RATES, "seed": range(3)})
    (variant,) = data_of(sweep)["variants"]
    assert variant["rows"][-1]["flags"] == [flag]
    assert variant["rows"][-1]["interval"] is None
    assert variant["rows"][-1]["shift_bound"] == bound
    assert variant["slopes"]["depth"]["left_out"] == [32]
    assert any("extend the grid" in warning for warning in warnings(sweep, study_of(sweep)))


def test_a_point_where_one_seed_diverged_is_missing_and_in_no_mean():
    def loss(point):
        exponent = round(math.log2(point[X]))
        if exponent == -8 and point["seed"] == 1:
            return None
        return 0.001 if exponent == -8 else parabola(point)  # the survivors would be by far the best

    sweep = sweep_of(loss, {X: RATES, "seed": range(3)})
    analysis = study_of(sweep)
    curve = profile(analysis.surfaces[0])
    at = curve.x.tolist().index(2.0**-8)
    assert math.isnan(curve.losses.mean(0)[at])
    (row,) = data_of(sweep)["variants"][0]["rows"]
    assert row["diverged"] == {"0.003906": "1/3"}
    assert row["best_loss"] == pytest.approx(0.6)
    assert row["flags"] == [NEXT_TO_DIVERGENCE]
    assert row["interval"] is not None  # half a grid step at least
    assert row["interval"][1] / row["interval"][0] >= 2 * 0.999


def test_runs_that_have_not_ended_are_no_divergence():
    sweep = sweep_of(parabola, {X: RATES, "seed": range(3)})
    sweep = Sweep(sweep.info, [r for r in sweep.records if (r.seed, r.point[X]) != (2, 2.0**-9)], [])
    (row,) = data_of(sweep)["variants"][0]["rows"]
    assert row["diverged"] == {}
    assert row["flags"] == ["incomplete"]
    assert row["optimum"] == pytest.approx(2**-8)  # from the parabola through 2^-10, 2^-8, 2^-7
    assert any("some runs have not ended" in warning for warning in warnings(sweep, study_of(sweep)))


def test_one_seed_has_no_interval_and_says_so():
    sweep = sweep_of(lambda p: parabola(p, best=-8.0 - 0.1 * p["model.depth"]), {"model.depth": (4, 8, 16), X: RATES})
    data = data_of(sweep)
    (variant,) = data["variants"]
    assert all(row["interval"] is row["shift_interval"] is row["regret_interval"] is None for row in variant["rows"])
    assert variant["slopes"]["depth"]["value"] is not None
    assert variant["slopes"]["depth"]["interval"] is None
    assert any(note.startswith("one seed: ") for note in data["notes"])


def test_a_base_that_was_not_run_is_replaced_by_the_smallest_and_named():
    model = {"width": 64, "depth": 2, "base_width": 0, "base_depth": 2}
    sweep = sweep_of(parabola, {"model.depth": (8, 16), X: RATES}, model=model)
    assert data_of(sweep)["variants"][0]["base"] == {"width": 64, "depth": 8, "is_smallest": True}
    assert any(
        "not in the sweep: width 64, depth 8 replaces it" in warning for warning in warnings(sweep, study_of(sweep))
    )


def test_grids_of_depths_and_of_widths_that_cross_at_the_base_give_a_slope_each():
    def loss(point):
        return parabola(point, best=-8 - math.log2(point["model.depth"] / 4) + math.log2(point["model.width"] / 64) / 2)

    sweep = sweep_of(loss, {"model.depth": (4, 8, 16), "model.width": (16, 32, 64), X: RATES})
    crossing = [r for r in sweep.records if r.width == 64 or r.depth == 4]
    slopes = data_of(Sweep(sweep.info, crossing, []))["variants"][0]["slopes"]
    assert {name: (slope["value"], slope["fixed"]) for name, slope in slopes.items()} == {
        "depth": (pytest.approx(-1), 64),
        "width": (pytest.approx(0.5), 4),
    }


def test_zero_among_the_values_makes_a_linear_axis():
    axis = "optimizer.kwargs.b1"
    sweep = sweep_of(lambda p: 1 + (p[axis] - 0.55) ** 2, {axis: (0.0, 0.3, 0.6, 0.9), "seed": range(3)}, x=axis)
    (row,) = data_of(sweep)["variants"][0]["rows"]
    assert row["optimum"] == pytest.approx(0.55)


def test_a_second_continuous_axis_is_minimized_over_and_no_variant():
    def loss(point):
        return parabola(point) + (math.log2(point[MULTIPLIER]) - 1) ** 2

    analysis = study_of(sweep_of(loss, {MULTIPLIER: (1.0, 2.0, 4.0), X: RATES}))
    (row,) = analysis.variants[0].rows
    assert set(row.curve.best_y) == {2.0}
    assert row.curve.losses[0] == pytest.approx([parabola({X: x}) for x in RATES])


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        ({"model.norm": ("none", "batch"), "parametrization.alpha": (0.5, 1.0)}, "norm=none, alpha=0.5"),
        ({"parametrization.preset": ("mup", "sp"), "model.use_bias": (True, False)}, "mup, use_bias=True"),
    ],
)
def test_variants_have_short_names(axes, names):
    analysis = study_of(sweep_of(parabola, {**axes, X: RATES}))
    assert analysis.variants[0].name == names
    assert len(analysis.variants) == 4


def test_a_network_that_never_trains_is_flagged_and_left_out_of_slopes_and_limits():
    """An optimum at a huge loss means nothing, and would flatten every other curve."""

    def loss(point):
        dead = point["model.depth"] == 32
        return parabola(point, best=-11 if dead else -8) + (1e15 if dead else 0.0)

    sweep = sweep_of(loss, {X: RATES, "model.depth": (4, 8, 16, 32), "seed": range(3)})
    (variant,) = data_of(sweep)["variants"]
    assert [row["flags"] for row in variant["rows"]] == [[], [], [], ["does not train"]]
    slope = variant["slopes"]["depth"]
    assert (slope["sizes"], slope["left_out"]) == ([4, 8, 16], [32])
    assert slope["value"] == pytest.approx(0, abs=1e-6)
    low, top, _ = loss_limits(study_of(sweep).variants[0].rows)
    assert low < 0.5 < top < 10


def test_an_exploded_neighbor_counts_as_diverged():
    """A finite loss of 1e13 would put the vertex half-way to the other neighbor."""
    losses = {2.0**-9: 2.06, 2.0**-8: 1.87, 2.0**-7: 1.5e13}
    (row,) = data_of(sweep_of(lambda p: losses[p[X]], {X: tuple(losses), "seed": range(3)}))["variants"][0]["rows"]
    assert row["optimum"] == pytest.approx(2.0**-8)
    assert row["flags"] == ["next to divergence"]


def test_an_optimum_beside_pending_values_is_incomplete_and_not_at_the_edge_of_the_grid(tmp_path):
    whole = sweep_of(lambda p: parabola(p, best=-8), {X: RATES, "seed": range(3)})
    begun = Sweep(whole.info, [record for record in whole.records if record.point[X] > 2.0**-7], [])
    stored = read_sweep([write(tmp_path / "begun", begun)])  # sweep.json has the whole grid
    analysis = analysis_of(stored)
    text = as_text(as_data(stored, analysis), analysis)
    assert "some runs have not ended" in text
    assert "extend the grid" not in text
    assert "extend the grid" in as_text(data_of(begun), study_of(begun))  # the same, if that was the whole grid


def test_values_of_another_grid_are_not_pending_once_every_run_has_ended(tmp_path):
    whole = sweep_of(lambda p: parabola(p, best=-8), {X: RATES, "model.depth": (4, 8), "seed": range(2)})
    few = [record for record in whole.records if record.depth == 4 or record.point[X] == RATES[0]]
    texts = []
    for runs in (len(few), len(few) + 1):
        info = dataclasses.replace(whole.info, runs=runs)
        stored = read_sweep([write(tmp_path / str(runs), Sweep(info, few, []))])
        texts.append(as_text(as_data(stored, analysis_of(stored)), analysis_of(stored)))
    assert ["some runs have not ended" in text for text in texts] == [False, True]


def test_shapes_of_one_depth_are_variants_and_stages_that_set_the_depth_are_sizes():
    def loss(point):
        return parabola(point) + (0.1 if point["model.stage_sizes"] == [1, 1, 1, 2] else 0.0)

    same = sweep_of(loss, {X: RATES, "model.stage_sizes": ([1, 1, 1, 2], [2, 1, 1, 1]), "seed": range(3)})
    assert len(data_of(same)["variants"]) == 2
    assert roles(same.info)[2] == ("model.stage_sizes",)
    deeper = sweep_of(parabola, {X: RATES, "model.stage_sizes": ([1, 1, 1, 1], [2, 2, 2, 2]), "seed": range(3)})
    assert roles(deeper.info)[2] == ()


def test_ticks_of_a_hyperparameter_are_not_too_close():
    sweep = sweep_of(parabola, {X: (0.0015, 0.0025, 0.003, 0.006), "model.depth": (4, 8), "seed": range(2)})
    labels = [label.get_text() for label in draw_transfer(study_of(sweep)).axes[0].get_xticklabels()]
    assert labels == ["0.0015", "0.0025", "0.006"]
