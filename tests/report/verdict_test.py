"""Verdicts of sweeps whose truth is planted: words, coverage of intervals, error rates, the seeds that would do."""

import dataclasses
import math

import numpy as np
import pytest
from planted_sweeps import RATES, X, data_of, study_of, sweep_of

from depthmup_flax.report import optimum as opt
from depthmup_flax.report.contrasts import SAME, contrasts, headline, main_verdict, rule_of
from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.verdict import (
    DOES_NOT_TRANSFER,
    NOT_RESOLVED,
    OPPOSITE,
    SHOWN,
    TOLERANCE,
    TRANSFERS,
    judge,
    seeds_needed,
    verdicts,
)

U = np.log2(RATES)
DEPTHS = (4, 16, 64)


def planted(drift, noise=0.003, seeds=5, curvature=0.03, presets=("depth_mup",), loss=None):
    """A sweep whose optimum moves by ``drift[preset]`` octaves per factor of four in depth."""

    def value(point):
        preset, depth = point["parametrization.preset"], point["model.depth"]
        rng = np.random.default_rng((point["seed"], int(-math.log2(point[X])), depth, len(preset)))
        steps = math.log2(depth / 4) / 2
        found = 2 + curvature * (math.log2(point[X]) + 8 - steps * drift[preset]) ** 2 + noise * rng.normal()
        return found if loss is None else loss(point, found)

    axes = {"parametrization.preset": presets, "model.depth": DEPTHS, X: RATES, "seed": tuple(range(seeds))}
    return sweep_of(value, axes)


def headline_of(analysis, tolerance=TOLERANCE, other=None):
    """As in a report."""
    main = main_verdict(analysis, verdicts(analysis, tolerance, other))
    return headline(analysis, main, contrasts(analysis, main.axis, other) if main else [])


def test_a_rate_that_moves_little_transfers_and_one_that_moves_far_does_not():
    drift = {"depth_mup": 0.2, "mup": -1.0}
    analysis = study_of(planted(drift, presets=("depth_mup", "mup")))
    ours, theirs = verdicts(analysis)
    assert (ours.verdict, ours.row.curve.depth, ours.axis) == (TRANSFERS, 64, "depth")
    assert (theirs.verdict, theirs.row.curve.depth) == (DOES_NOT_TRANSFER, 64)
    assert ours.row.regret.value == pytest.approx(0.03 * 0.4**2, abs=0.004)
    assert theirs.row.regret.value == pytest.approx(0.03 * 2.0**2, abs=0.01)
    assert ours.measured_by.tolerance == pytest.approx(0.02, rel=0.01)


def test_networks_that_are_wider_and_deeper_than_the_base_say_nothing_about_width_alone():
    whole = planted({"depth_mup": 0.0})
    sizes = {"model.width": (64, 128), **whole.info.axes}
    sweep = sweep_of(lambda point: 2 + 0.03 * (math.log2(point[X]) + 8) ** 2, {k: tuple(v) for k, v in sizes.items()})
    is_run = lambda record: record.width == 64 or record.depth == 16
    sweep = dataclasses.replace(sweep, records=[record for record in sweep.records if is_run(record)])
    judged = {one.axis: one.row.size for one in verdicts(study_of(sweep))}
    assert judged == {"depth": (64, 64), "width and depth": (128, 16)}


def test_the_headline_judges_the_rule_against_its_control():
    analysis = study_of(planted({"mup": -1.0, "depth_mup": 0.0}, presets=("mup", "depth_mup")))
    (contrast,) = contrasts(analysis, "depth")
    low, high = contrast.estimate.interval
    assert low < 0.03 * 2.0**2 < high
    text = headline_of(analysis)
    assert text == "depth_mup transfers over depth, better than mup."
    data = data_of(planted({"depth_mup": 0.0}))
    assert data["headline"] == "The learning rate transfers over depth."
    assert data["verdicts"][0]["verdict"] == TRANSFERS


@pytest.mark.parametrize(
    ("drift", "curvature", "noise", "is_said"),
    [(-0.4, 0.02, 1e-4, True), (-0.2, 0.02, 1e-4, False), (-0.4, 0.005, 0.006, False)],
    ids=["moves", "moves by less than half an octave", "not resolved"],
)
def test_a_best_rate_that_moves_is_not_said_to_transfer_without_how_far(drift, curvature, noise, is_said):
    text = data_of(planted({"depth_mup": drift}, noise=noise, curvature=curvature))["headline"]
    start = "The learning rate transfers over depth"
    if not is_said:
        assert text == f"{start}."
        return
    head, moves, cost = text.split(", ")
    assert (head, moves.partition(" ±")[0]) == (start, "but at 64 x 64 the best learning rate moves by -0.8")
    added = 0.02 * 0.8**2
    assert cost == (
        f"and keeping the base's adds {added:.2g} to the training loss (tolerance 0.02: --tolerance=0.01 is stricter)."
    )


def test_the_headline_names_the_size_that_decides_where_it_is_not_the_largest():
    best = {4: -8.0, 16: -5.5, 64: -8.0}
    loss = lambda point, _: 2 + 0.03 * (math.log2(point[X]) - best[point["model.depth"]]) ** 2
    assert headline_of(study_of(planted({"depth_mup": 0.0}, loss=loss))) == (
        "The learning rate does not transfer over depth (at 64 x 16)."
    )
    best[64] = -5.0
    assert headline_of(study_of(planted({"depth_mup": 0.0}, loss=loss))) == (
        "The learning rate does not transfer over depth."
    )


def test_the_headline_says_what_is_better_and_worse_where_the_cost_itself_is_not_resolved():
    drift = {"depth_mup": 0.4, "sp": -1.2, "ode": 0.0}
    analysis = study_of(planted(drift, noise=0.004, seeds=3, presets=tuple(drift)))
    cost = verdicts(analysis)[0].row.regret.value
    text = headline_of(analysis, cost)  # the base learned 1
    assert text == "Not resolved whether depth_mup transfers over depth, better than sp, worse than ode."
    text = headline_of(analysis, 0.001)
    assert text == "depth_mup does not transfer over depth, better than sp, worse than ode."
    assert [one.verdict for one in contrasts(analysis, "depth")] == [SHOWN, OPPOSITE]
    data = data_of(planted(drift, noise=0.001, seeds=3, presets=tuple(drift)))
    assert [(one["control"], one["verdict"]) for one in data["contrasts"]] == [("sp", SHOWN), ("ode", OPPOSITE)]


def test_a_control_whose_runs_are_the_rules_at_rates_that_shift_with_depth_is_neither_better_nor_worse():
    def loss(point):
        octaves = math.log2(point["model.depth"] / 4) / 2 * (point["parametrization.preset"] == "block_only")
        rate = math.log2(point[X]) + octaves
        noise = np.random.default_rng((point["seed"], int(-rate), point["model.depth"])).normal()
        return 2 + 0.03 * (rate + 8) ** 2 + 0.001 * noise

    axes = {"parametrization.preset": ("depth_mup", "block_only"), "model.depth": DEPTHS, X: RATES, "seed": (0, 1, 2)}
    analysis = study_of(sweep_of(loss, axes))
    (contrast,) = contrasts(analysis, "depth")
    assert (contrast.verdict, contrast.remark.partition(" (")[0]) == (
        SAME,
        "block_only repeats depth_mup's runs at shifted learning rates",
    )
    assert headline_of(analysis) == "depth_mup transfers over depth."
    other = lambda point: loss(point) + 1e-4 * (point["parametrization.preset"] == "block_only")
    assert [one.verdict for one in contrasts(study_of(sweep_of(other, axes)), "depth")] == [SHOWN]


def test_controls_differ_in_the_preset_and_in_numbers_that_go_with_it():
    def variant(name):
        return type("Named", (), {"name": name})()

    names = ("none, cosine, depth_mup", "none, depth_mup, a=1.06", "none, mup, a=1", "layer, mup, a=1", "none, sp")
    analysis = type("Named", (), {"variants": [variant(name) for name in names]})()
    rule, controls = rule_of(analysis)
    assert rule.name == "none, depth_mup, a=1.06"
    assert [control.name for control in controls] == ["none, mup, a=1", "none, sp"]


def test_too_few_seeds_are_named_with_the_number_that_would_do():
    (found,) = verdicts(study_of(planted({"depth_mup": 0.25}, noise=0.02, seeds=3)))
    assert found.verdict == NOT_RESOLVED
    assert found.seeds_needed > 3
    (found,) = verdicts(study_of(planted({"depth_mup": 0.0}, seeds=1)))
    assert found.verdict == NOT_RESOLVED


def test_a_network_that_does_not_train_is_called_that_and_has_no_numbers():
    explode = lambda point, loss: 1e15 if point["model.depth"] == 64 else loss
    sweep = planted({"depth_mup": 0.0}, loss=explode)
    data = data_of(sweep)
    row = data["variants"][0]["rows"][-1]
    assert row["transferred"] == "does not train"
    assert [row[name] for name in ("optimum", "interval", "shift", "regret", "regret_interval")] == [None] * 5
    assert data["headline"] == "The learning rate does not train."
    assert data["verdicts"][0]["remark"].endswith("below twice 3, that of the base's first steps")
    assert not any("next to divergence" in note for note in data["notes"])


def test_a_rate_that_diverges_does_not_transfer():
    fails = lambda point, loss: None if point["model.depth"] == 64 and point[X] > 2.0**-9.5 else loss
    (found,) = verdicts(study_of(planted({"depth_mup": -0.9}, loss=fails)))
    assert found.verdict == DOES_NOT_TRANSFER
    assert (found.row.curve.depth, found.remark) == (64, "diverges at the base's best learning rate")


def test_an_optimum_at_the_edge_of_the_grid_gives_no_verdict_of_transfer():
    beyond = lambda point, _: (
        2 + 0.003 * (math.log2(point[X]) + 6 - 0.6 * math.log2(point["model.depth"] / 4)) ** 2 + 1e-4 * point["seed"]
    )
    (found,) = verdicts(study_of(planted({"depth_mup": 0.0}, loss=beyond)))
    assert found.verdict == NOT_RESOLVED
    assert "edge of the grid at depth 64" in found.remark


def test_a_control_whose_regret_the_grid_does_not_bound_is_not_compared():
    drift = {"depth_mup": 0.0, "mup": -1.0}
    tilt = lambda point, loss: loss - 0.4 * math.log2(point[X]) * (point["parametrization.preset"] == "mup")
    (contrast,) = contrasts(study_of(planted(drift, presets=tuple(drift), loss=tilt)), "depth")
    assert contrast.verdict == NOT_RESOLVED
    assert contrast.remark == "its best learning rate at the base is the highest of the grid"
    drift = {"depth_mup": 2.5, "mup": 4.0}  # both regrets may be larger than they seem
    (contrast,) = contrasts(study_of(planted(drift, presets=tuple(drift))), "depth")
    assert contrast.verdict == NOT_RESOLVED
    assert contrast.remark == "an optimum is at the edge of the grid"


def test_one_size_or_one_rate_has_no_verdict():
    analysis = study_of(sweep_of(lambda point: 1.0, {"model.depth": (4, 8), X: (0.1,), "seed": (0, 1)}))
    assert verdicts(analysis) == []
    assert headline_of(analysis).startswith("No verdict")


def test_judgments_follow_from_the_interval():
    draws = np.random.default_rng(0).normal(size=1000) * 0.01
    of = lambda value: Estimate(value, value + draws, 4)
    assert judge(of(0.0), 0.1).verdict == SHOWN
    assert judge(of(0.2), 0.1).verdict == OPPOSITE
    assert judge(of(0.09), 0.1).verdict == NOT_RESOLVED
    assert judge(Estimate(0.0, None, 1), 0.1).verdict == NOT_RESOLVED


@pytest.mark.parametrize("margin", [0.7, 1.5])
def test_the_seeds_that_would_do_resolve_four_times_in_five(margin):
    """A mean of n normal numbers, ``margin`` standard deviations from the bound."""
    known = Estimate(-margin, np.random.default_rng(0).normal(size=20_000) / math.sqrt(8), 8)
    scale = math.sqrt(8 / 7)  # draws are taken for resampled means
    known = Estimate(-margin, known.draws / scale, 8)
    n = seeds_needed(known, 0.0)
    rng = np.random.default_rng(1)
    samples = rng.normal(-margin, 1.0, size=(4000, n))
    upper = samples.mean(1) + opt.scipy.special.stdtrit(n - 1, 0.975) * samples.std(1, ddof=1) / math.sqrt(n)
    assert 0.75 < (upper <= 0).mean() < 0.95


def test_the_excess_is_that_of_the_parabola_near_the_minimum_and_never_negative_beyond():
    means = np.array([2.0, 1.0, 0.5, 0.6, 50.0, 1e6])
    u = np.arange(6.0)
    # Through (1, 1), (2, 0.5), (3, 0.6): 0.3 (u - 7/3)^2 + c.
    assert opt.excess(u, means, np.array(2.8)) == pytest.approx(0.3 * (2.8 - 7 / 3) ** 2)
    everywhere = opt.excess(u, np.tile(means, (501, 1)), np.linspace(0, 5, 501))
    assert (everywhere >= 0).all()
    assert opt.excess(u, means, np.array(4.0)) == pytest.approx(50 - (0.6 - 0.3 * (3 - 7 / 3) ** 2))


def test_the_headline_has_all_axes_and_what_a_rate_without_evidence_costs():
    def loss(point, curvature=0.03):
        moved = -1.5 * math.log2(point["model.width"] / 64) / 2
        return 2 + curvature * (math.log2(point[X]) + 8 - moved) ** 2 + 1e-4 * math.sin(9 * point["seed"] + moved)

    axes = {"model.width": (64, 256), "model.depth": (4, 16), X: RATES, "seed": (0, 1, 2)}
    text = data_of(sweep_of(loss, axes))["headline"]
    assert text.startswith("The learning rate transfers over depth; does not transfer over width")
    flat = lambda point: loss(point, 0.0005)
    text = data_of(sweep_of(flat, axes))["headline"]
    assert text.startswith("No evidence whether the learning rate transfers over depth; no evidence over width")
    assert "moved by -1.5" in text
    assert "--tolerance=0.01" in text
