"""The papers' claims, judged on sweeps whose truth is planted: verdicts, coverage of intervals, what is no evidence."""

import dataclasses
import math

import numpy as np
import pytest
from planted_sweeps import MULTIPLIER, RATES, X, study_of, sweep_of
from scipy import stats

from depthmup_flax.report.verdict import NO_EVIDENCE, NOT_RESOLVED, OPPOSITE, SHOWN
from reproduction.claims.judged_claims import (
    LEANS_AGAINST,
    UNTRAINED_CONTROL,
    claims_text,
    core_minutes,
    judged,
    judged_claim,
)
from reproduction.claims.measures import AT_LEAST, AT_MOST, BASE, BOTH, MEASURES, Term
from reproduction.claims.statements import (
    CLAIMS,
    Claim,
    Rule,
    costs_more,
    exponent_at_least,
    exponent_at_most,
    falls,
    gains_more,
    lower_loss,
    moves_more,
    rises,
    transfers,
)
from reproduction.pages.claims_table import Row, multiplicity

DEPTHS, BEST, CURVATURE = (4, 16, 64), -8.0, 0.03
OCTAVES = math.log2(DEPTHS[-1] / DEPTHS[0])  # of depth


def planted(truth, noise=0.003, seeds=5, trial=0, change=lambda point, loss: loss):
    """A sweep whose variants have ``truth[preset] = (exponent of the best rate, growth of the loss per octave)``.

    A single variant would have no name; so there is another one.
    """
    truth = truth if len(truth) > 1 else {**truth, "z": (0.0, 0.0)}

    def loss(point):
        preset, depth, u = point["parametrization.preset"], point["model.depth"], math.log2(point[X])
        exponent, growth = truth[preset]
        octaves = math.log2(depth / DEPTHS[0])
        shared = np.random.default_rng((trial, point["seed"])).normal()
        own = np.random.default_rng((trial, point["seed"], int(-u), depth, ord(preset[0]))).normal()
        best = CURVATURE * (u - BEST - exponent * octaves) ** 2
        return change(point, 2 + growth * octaves + best + noise * (3 * shared + own))

    axes = {"parametrization.preset": tuple(truth), "model.depth": DEPTHS, X: RATES, "seed": tuple(range(seeds))}
    return sweep_of(loss, axes)


def of(rule, sweep):
    """A rule judged on a sweep."""
    return judged_claim(Claim("id", "TP6", "a claim", rule), study_of(sweep))


LEFT, RIGHT, STILL, UP, DOWN = (-0.4, 0.0), (0.4, 0.0), (0.0, 0.0), (0.0, 0.02), (0.0, -0.02)
REGRET = CURVATURE * (0.4 * OCTAVES) ** 2
GROWTH = 0.02 * OCTAVES
# A rule, a truth for which it holds, one for which it fails, and the contrast in the first.
CASES = {
    "transfers": (transfers("a"), {"a": STILL}, {"a": LEFT}, 0.0),
    "costs more": (costs_more("b", "a"), {"a": STILL, "b": LEFT}, {"a": RIGHT, "b": STILL}, REGRET),
    "moves more": (moves_more("b", "a"), {"a": (0.1, 0.0), "b": LEFT}, {"a": RIGHT, "b": (-0.1, 0.0)}, 0.3),
    "lower loss": (lower_loss("a", "b"), {"a": DOWN, "b": STILL}, {"a": UP, "b": STILL}, -GROWTH),
    "falls": (falls("a"), {"a": DOWN}, {"a": UP}, -GROWTH),
    "rises": (rises("a"), {"a": UP}, {"a": DOWN}, GROWTH),
    "gains more": (gains_more("a", "b"), {"a": DOWN, "b": UP}, {"a": UP, "b": DOWN}, -2 * GROWTH),
    "at least": (exponent_at_least(0.0, "a"), {"a": RIGHT}, {"a": LEFT}, 0.4),
    "at most": (exponent_at_most(-0.25, "a"), {"a": LEFT}, {"a": STILL}, -0.4),
}


@pytest.mark.parametrize("case", CASES)
def test_a_claim_is_shown_where_it_holds_opposite_where_it_fails_and_open_in_noise(case):
    rule, true, false, contrast = CASES[case]
    holds, fails = of(rule, planted(true)), of(rule, planted(false))
    assert (holds.verdict, fails.verdict) == (SHOWN, OPPOSITE)
    assert holds.estimate.value == pytest.approx(contrast, abs=0.03)
    assert holds.seeds_needed is None
    noisy = of(rule, planted(true, noise=0.05, seeds=3))
    assert noisy.verdict == NOT_RESOLVED
    assert holds.sentence.startswith("Shown: a claim (TP6). ")
    assert f"claimed at {'most' if rule.sense == AT_MOST else 'least'}" in holds.sentence


def test_an_open_claim_names_the_seeds_that_would_do():
    found = of(falls("a"), planted({"a": (0.0, -0.002)}, noise=0.006, seeds=3))
    assert found.verdict == NOT_RESOLVED
    assert found.seeds_needed > 3
    assert found.sentence.endswith(f"; 3 seeds do not decide, {found.seeds_needed} would.")
    single = of(falls("a"), planted({"a": DOWN}, seeds=1))
    assert single.verdict == NOT_RESOLVED
    assert single.sentence.endswith("is -0.08, claimed at most 0; 1 seed does not decide.")


@pytest.mark.parametrize(("rule", "growth"), [(falls("a"), 0.002), (rises("a"), -0.005)])
def test_an_open_claim_whose_estimate_violates_the_bound_leans_against_it(rule, growth):
    found = of(rule, planted({"a": (0.0, growth)}, noise=0.02, seeds=4))
    assert found.verdict == LEANS_AGAINST
    assert found.p > 0.5
    assert found.sentence.startswith("Leans against: a claim (TP6). ")
    assert found.sentence.endswith(f"; 4 seeds do not decide, {found.seeds_needed} would.")


def test_the_p_of_a_claim_is_that_of_students_test():
    sweep = planted({"a": DOWN}, noise=0.02, seeds=6)
    found = of(falls("a"), sweep)
    lowest = {depth: [] for depth in DEPTHS}
    for record in sweep.records:  # at the grid point next to the planted optimum, which all sizes share
        if record.point["parametrization.preset"] == "a" and record.point[X] == 2.0**BEST:
            lowest[record.depth].append((record.seed, record.train_loss_avg))
    first, last = (np.array([loss for _, loss in sorted(lowest[depth])]) for depth in (DEPTHS[0], DEPTHS[-1]))
    assert np.log10(found.p) == pytest.approx(
        np.log10(stats.ttest_1samp(last - first, 0, alternative="less")[1]), abs=1
    )


def test_claims_are_counted_together_by_holm_and_by_benjamini_and_hochberg():
    claims = [of(falls("a"), planted({"a": (0.0, g)}, noise=0.02, seeds=4)) for g in (-0.02, -0.01, -0.008, -0.006, 0)]
    p = sorted(one.p for one in claims)
    holm = next(k for k in range(6) if k == 5 or p[k] * (5 - k) > 0.025)
    fdr = max((k + 1 for k in range(5) if p[k] * 5 / (k + 1) <= 0.025), default=0)
    assert 0 < holm < fdr < 5
    text = multiplicity([Row("", "", 1, 0.0, one) for one in claims])
    assert f"Of these {holm} stay by Holm's method, and {fdr} by Benjamini and Hochberg's, over all 5." in text


def test_a_claim_about_every_size_is_decided_by_the_worst():
    back = lambda point, loss: loss + (0.3 * (math.log2(point[X]) + 9) ** 2 if point["model.depth"] == 16 else 0.0)
    found = of(transfers("a"), planted({"a": STILL}, change=back))
    assert found.verdict == OPPOSITE
    assert found.contrast == "regret of a at depth 16"


def test_the_largest_stable_rate_is_where_the_loss_rises_whatever_the_best_rate_does():
    rule = moves_more("b", "a", measure="absolute exponent of the largest stable rate")

    def rises_at(exponents):
        def change(point, loss):
            octaves = math.log2(point["model.depth"] / DEPTHS[0])
            edge = -5.3 + exponents[point["parametrization.preset"]] * octaves
            loss += 0.5 * 8.0 ** (math.log2(point[X]) - edge)
            return loss if loss < 50 else None

        return of(rule, planted({"a": STILL, "b": STILL}, change=change))

    holds, fails = rises_at({"a": 0.0, "b": -0.4}), rises_at({"a": -0.4, "b": 0.1})
    assert (holds.verdict, fails.verdict) == (SHOWN, OPPOSITE)
    assert holds.estimate.value == pytest.approx(0.4, abs=0.12)  # between grid points an octave apart
    stable = of(rule, planted({"a": STILL, "b": STILL}))
    assert stable.verdict == NOT_RESOLVED
    assert "no learning rate of b at depth 4 is too large" in stable.note


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, SHOWN), (0.4, OPPOSITE)])
def test_width_and_depth_together_are_compared_where_both_are_the_same_multiple_of_the_base(shift, verdict):
    def loss(point):  # the best rate moves with the product of both multiples
        octaves = math.log2(point["model.width"] / 64) * math.log2(point["model.depth"] / 4)
        noise = np.random.default_rng(point["seed"]).normal()
        return 2 + CURVATURE * (math.log2(point[X]) - BEST - shift * octaves) ** 2 + 0.003 * noise

    axes = {"model.width": (64, 256), "model.depth": (4, 16), X: RATES, "seed": tuple(range(5))}
    one = of(transfers(axis=BOTH), sweep_of(loss, axes))
    assert one.contrast == "regret at width 256 and depth 16"
    assert one.verdict == verdict
    assert one.estimate.value == pytest.approx(CURVATURE * (4 * shift) ** 2, abs=0.003)


def test_a_claim_of_transfer_says_how_the_optimum_drifts_and_what_would_pass():
    found = of(transfers("a"), planted({"a": (0.05, 0.0)}, noise=0.001))
    assert found.verdict == SHOWN
    assert "; the optimum drifts by +0.2 octaves (" in found.finding
    assert ", as depth^+0.05 (" in found.finding
    assert f"{found.measured_by.passing:.2g} of the grid's 8 octaves would pass, power 1.00" in found.finding
    flat = lambda point, loss: loss + (0.0003 - CURVATURE) * (math.log2(point[X]) - BEST) ** 2
    assert of(transfers("a"), planted({"a": STILL}, noise=1e-5, change=flat)).verdict == NO_EVIDENCE


def test_a_claim_is_shown_by_both_losses_or_by_one():
    analyze = lambda growth: study_of(planted({"relu": STILL, "abs": (0.0, growth)}))
    falling, rising = analyze(-0.02), dataclasses.replace(analyze(0.02), loss="test")
    (both,), (one,) = (judged("abs", falling, other) for other in (falling, rising))
    assert (both.verdict, both.other_loss, both.shown_by_both) == (SHOWN, SHOWN, True)
    assert (one.verdict, one.other_loss, one.shown_by_both) == (SHOWN, OPPOSITE, False)
    assert one.sentence.startswith("Shown (by test loss: opposite): the absolute value has")


def test_claims_about_a_part_of_training_have_no_test_loss():
    analysis = study_of(planted({"depth_mup": STILL, "mup": LEFT}))
    texts = lambda analysis: {one.claim.text for one in judged("megatron", analysis)}
    assert texts(analysis) - texts(dataclasses.replace(analysis, loss="test")) == {
        "deeper is worse initially",
        "in the middle of training the best rate is invariant, rather than 1/sqrt(L)",
    }


def test_sizes_that_not_every_variant_has_are_not_compared():
    sweep = planted({"a": STILL, "b": LEFT})
    kept = [r for r in sweep.records if (r.point["parametrization.preset"], r.depth) != ("b", 64)]
    found = of(costs_more("b", "a"), dataclasses.replace(sweep, records=kept))
    assert found.contrast == "regret of b minus that of a at depth 16"
    assert found.verdict == SHOWN


def test_variants_with_the_same_runs_at_shifted_rates_are_no_evidence():
    def shifted(point):
        rate = math.log2(point[X]) + (math.log2(point["model.depth"] / 4) / 2) * (
            point["parametrization.preset"] == "b"
        )
        noise = np.random.default_rng((point["seed"], int(-rate), point["model.depth"])).normal()
        return 2 + CURVATURE * (rate - BEST) ** 2 + 0.001 * noise

    axes = {"parametrization.preset": ("a", "b"), "model.depth": DEPTHS, X: RATES, "seed": (0, 1, 2)}
    found = of(moves_more("b", "a"), sweep_of(shifted, axes))
    assert (found.verdict, found.estimate) == (NO_EVIDENCE, None)
    assert "b repeats a's runs at shifted learning rates (45 are equal)" in found.sentence
    different = lambda point: shifted(point) + 1e-3 * (point["parametrization.preset"] == "b")
    assert of(moves_more("b", "a"), sweep_of(different, axes)).verdict == SHOWN


def test_a_network_that_does_not_train_with_any_seed_decides_without_an_interval():
    explode = lambda point, loss: 57.0 if (point["parametrization.preset"], point["model.depth"]) == ("b", 64) else loss
    sweep = planted({"a": STILL, "b": STILL}, change=explode)
    found = of(costs_more("b", "a"), sweep)
    assert found.verdict == UNTRAINED_CONTROL
    assert found.finding == "regret of b minus that of a at depth 64: b does not train at depth 64"
    assert of(rises("b"), sweep).verdict == UNTRAINED_CONTROL
    explode_to_nan = lambda point, loss: None if explode(point, 0) else loss
    assert (
        of(costs_more("b", "a"), planted({"a": STILL, "b": STILL}, change=explode_to_nan)).verdict == UNTRAINED_CONTROL
    )
    diverges = lambda point, loss: loss if point["model.depth"] == 4 or point[X] < 2**-8 else None
    assert (
        of(costs_more("b", "a"), planted({"a": (-0.5, 0.0), "b": STILL}, change=diverges)).verdict != UNTRAINED_CONTROL
    )
    assert of(lower_loss("b", "a"), sweep).verdict == OPPOSITE
    assert of(costs_more("a", "b"), sweep).verdict == OPPOSITE


def test_one_seed_that_trains_forbids_to_say_that_none_does():
    explode = lambda point, loss: 57.0 if point["model.depth"] == 64 and point["seed"] else loss
    found = of(transfers("a"), planted({"a": STILL}, change=explode))
    assert found.verdict == NOT_RESOLVED
    assert "does not train" in found.note


def test_an_optimum_at_an_edge_of_the_grid_bounds_one_side_only():
    shallow, deep = (planted({"a": (exponent, 0.0)}) for exponent in (0.0, 1.5))
    found = of(transfers("a"), deep)  # the regret may be larger than it seems
    assert found.verdict == OPPOSITE
    assert found.note == "the best learning rate of a at depth 64 is the highest of the grid"
    assert of(Rule(((1, Term("regret", "a")),), AT_MOST, bound=10.0), deep).verdict == NOT_RESOLVED
    assert of(Rule(((1, Term("regret", "a")),), AT_MOST, bound=10.0), shallow).verdict == SHOWN
    assert of(falls("a"), deep).verdict == NOT_RESOLVED  # 0.27 above the base's, and the minimum may be lower
    assert of(exponent_at_least(0.0, "a"), deep).verdict == NOT_RESOLVED
    edge = lambda point, loss: loss + 0.1 * math.log2(point[X]) * 10
    base_at_edge = of(transfers("a"), planted({"a": STILL}, change=edge))
    assert (base_at_edge.verdict, base_at_edge.estimate) == (NOT_RESOLVED, None)


def test_what_was_not_run_is_no_evidence():
    sweep = planted({"a": STILL})
    one_size = dataclasses.replace(sweep, records=[r for r in sweep.records if r.depth == 4])
    variant, size = of(costs_more("b", "a"), sweep), of(transfers("a"), one_size)
    assert variant.verdict == size.verdict == NO_EVIDENCE
    assert variant.sentence.endswith("Variant b: not in the sweep.")
    assert size.sentence.endswith("one size.")


def with_slices(sweep, early):
    """The sweep with the mean loss ``early(record)`` in the first half of training."""
    records = [dataclasses.replace(r, train_loss_slices=[early(r), r.train_loss]) for r in sweep.records]
    return dataclasses.replace(sweep, records=records)


def test_the_rate_that_is_best_early_is_judged_by_what_it_costs_at_the_end():
    rule = Rule(((1, Term("regret of the early choice", "a", when=(0.10, 0.15))),), AT_MOST, share=0.01)
    sweep = planted({"a": STILL})
    moved = lambda octaves: lambda r: 3 + CURVATURE * (math.log2(r.point[X]) - BEST - octaves) ** 2
    assert of(rule, with_slices(sweep, moved(0.0))).verdict == SHOWN
    late = of(rule, with_slices(sweep, moved(2.0)))
    assert late.verdict == OPPOSITE
    assert late.estimate.value == pytest.approx(CURVATURE * 2**2, abs=0.01)
    assert late.contrast == "regret of the early choice of a between 10 and 15 % of training at depth 64"


def test_growth_is_measured_in_the_asked_part_of_training():
    sweep = planted({"a": DOWN})
    worse = with_slices(sweep, lambda r: r.train_loss + 0.05 * math.log2(r.depth))
    assert of(rises("a", (0.0, 0.25)), worse).verdict == SHOWN
    assert of(rises("a", (0.75, 1.0)), worse).verdict == OPPOSITE
    assert of(falls("a"), worse).verdict == SHOWN


@pytest.mark.parametrize(("curvature", "verdict"), [(0.004, SHOWN), (CURVATURE, OPPOSITE)])
def test_insensitivity_is_the_cost_of_an_octave(curvature, verdict):
    flat = lambda point, loss: loss + (curvature - CURVATURE) * (math.log2(point[X]) - BEST) ** 2
    rule = Rule(((1, Term("cost of an octave", "a")),), AT_MOST, share=0.01)
    found = of(rule, planted({"a": STILL}, noise=0.0005, change=flat))
    assert found.verdict == verdict
    assert found.estimate.value == pytest.approx(curvature, abs=0.002)


def sizes(loss, depths=(3, 12, 48), seeds=3, trial=0):
    """A sweep of widths and depths at one rate, as B24 Fig. B.1; ``loss(parameters, depth)``."""

    def of_point(point):
        width, depth = point["model.width"], point["model.depth"]
        noise = np.random.default_rng((trial, point["seed"], width, depth)).normal()
        return loss(width * width * depth, depth) * (1 + 0.001 * noise)

    axes = {"model.width": (16, 32, 64, 128), "model.depth": depths, X: (0.1,), "seed": tuple(range(seeds))}
    return sweep_of(of_point, axes, model={"width": 32, "depth": 12, "base_width": 32, "base_depth": 12})


def test_the_trade_off_of_width_and_depth_is_judged_at_equal_numbers_of_parameters():
    middle = lambda parameters, depth: 3 * parameters**-0.05 * (1 + 0.02 * abs(math.log2(depth / 12)))
    power, shallow, deep = judged("trade-off", study_of(sizes(middle)))
    assert (power.verdict, shallow.verdict, deep.verdict) == (SHOWN, SHOWN, SHOWN)
    assert power.estimate.value == pytest.approx(-0.05, abs=0.002)
    shallower = lambda parameters, depth: 3 * parameters**-0.05 * (1 + 0.02 * math.log2(depth / 3))
    assert [one.verdict for one in judged("trade-off", study_of(sizes(shallower)))] == [SHOWN, OPPOSITE, SHOWN]
    worse = lambda parameters, depth: 3 * parameters**0.05
    assert judged("trade-off", study_of(sizes(worse)))[0].verdict == OPPOSITE


@pytest.mark.parametrize(("slopes", "verdict"), [((-2.0, -1.0), SHOWN), ((-1.0, -2.0), OPPOSITE)])
def test_the_slope_of_the_best_region_is_compared_between_the_ends_of_depth(slopes, verdict):
    def loss(point):
        u, v = math.log2(point[X]) + 8, math.log2(point[MULTIPLIER])
        slope = slopes[0] if point["model.depth"] == 4 else slopes[1]
        across = (v - slope * u) / math.hypot(1, slope)
        noise = np.random.default_rng((point["seed"], int(100 + 4 * u), int(100 + 4 * v))).normal()
        return 1 + across**2 + 0.001 * noise

    rates, multipliers = (tuple(2.0 ** (k / 4 + shift) for k in range(-8, 9)) for shift in (-8, 0))
    axes = {"model.depth": (4, 64), MULTIPLIER: multipliers, X: rates, "seed": (0, 1, 2)}
    (found,) = judged("block-depth (heat maps)", study_of(sweep_of(loss, axes)))
    assert found.verdict == verdict
    turned = math.degrees(math.atan(slopes[1]) - math.atan(slopes[0]))
    assert found.estimate.value == pytest.approx(turned, abs=6)


def test_every_rule_names_measures_and_bounds_that_exist():
    rules = [claim.rule for found in CLAIMS.values() for claim in found]
    assert {term.measure for rule in rules for _, term in rule.terms} == set(MEASURES)
    assert {rule.sense for rule in rules} == {AT_MOST, AT_LEAST}
    assert {term.at for rule in rules for _, term in rule.terms} >= {BASE}


def test_claims_are_in_the_text_of_the_papers_figures_alone():
    sweep = planted({"relu": STILL, "abs": DOWN})
    paper = dataclasses.replace(sweep, info=dataclasses.replace(sweep.info, figure="abs"))
    (sentence,) = [one.sentence for one in judged("abs", study_of(paper))]
    assert sentence.startswith("Shown: the absolute value has a lower loss than ReLU in deep networks (TP6 Fig. 3). ")
    assert claims_text(paper, study_of(paper)) == f"\n\nThe paper's claims (4.5 device-minutes)\n{sentence}"
    assert claims_text(sweep, study_of(sweep)) == ""


def test_the_cost_counts_all_devices():
    records = [dataclasses.replace(r, wall_time_s=30.0, device="2 x cpu") for r in planted({"a": STILL}).records[:4]]
    assert core_minutes(records) == 4.0


def shares(measured, trials=100):
    """How often intervals hold the truth, and how often "at most the truth" and "at least the truth" are shown.

    ``measured(trial)`` yields a name, an estimate and its truth.
    """
    found = {}
    for trial in range(trials):
        for name, estimate, true in measured(trial):
            low, high = estimate.interval
            counts = found.setdefault(name, [0, 0, 0])
            for k, hit in enumerate((low <= true <= high, high < true, low > true)):
                counts[k] += hit
    return {name: [count / trials for count in counts] for name, counts in found.items()}


def contrast(rule, analysis):
    """The estimate of a rule's contrast at the largest size."""
    return judged_claim(Claim("id", "TP6", "a claim", dataclasses.replace(rule, every=False)), analysis).estimate


@pytest.mark.slow
def test_intervals_of_contrasts_cover_the_truth_and_false_claims_are_rarely_shown():
    """100 sweeps: at least 88 % hold the truth, which either side excludes in at most 8 %; nominal are 95 and 2.5 %."""
    truth = {"a": (0.1, -0.01), "b": (-0.25, 0.01)}
    regret = {name: CURVATURE * (exponent * OCTAVES) ** 2 for name, (exponent, _) in truth.items()}
    contrasts = {
        "transfers": (transfers("a"), regret["a"]),
        "costs more": (costs_more("b", "a"), regret["b"] - regret["a"]),
        "moves more": (moves_more("b", "a"), 0.15),
        "lower loss": (lower_loss("a", "b"), -0.02 * OCTAVES),
        "falls": (falls("a"), -0.01 * OCTAVES),
        "gains more": (gains_more("a", "b"), -0.02 * OCTAVES),
        "exponent": (exponent_at_least(0.0, "a"), 0.1),
        "octave": (Rule(((1, Term("cost of an octave", "a")),), AT_MOST), CURVATURE),
        "early": (Rule(((1, Term("regret of the early choice", "a", when=(0.10, 0.15))),), AT_MOST), CURVATURE),
    }

    def measured(trial):
        def early(record):
            u, octaves = math.log2(record.point[X]), math.log2(record.depth / DEPTHS[0])
            noise = np.random.default_rng((trial, record.seed, int(-u), record.depth, 1)).normal()
            return 3 + CURVATURE * (u - BEST - 0.1 * octaves - 1) ** 2 + 0.008 * noise

        analysis = study_of(with_slices(planted(truth, noise=0.008, seeds=3, trial=trial), early))
        for name, (rule, true) in contrasts.items():
            yield name, contrast(rule, analysis), true

    found = shares(measured)
    assert {name: share for name, share in found.items() if share[0] < 0.88 or max(share[1:]) > 0.08} == {}


@pytest.mark.slow
def test_intervals_at_equal_numbers_of_parameters_cover_the_truth():
    depths, widths = (3, 12, 48), (16, 128)
    loss = lambda parameters, depth: 3 - 0.1 * math.log(parameters) + 0.02 * abs(math.log2(depth / 12))

    def measured(trial):
        analysis = study_of(sizes(loss, depths, trial=trial))
        for depth, claim in zip(("smallest", "largest"), CLAIMS["trade-off"][1:], strict=True):
            yield depth, contrast(claim.rule, analysis), -0.04

    assert widths[0] ** 2 * depths[-1] < widths[1] ** 2 * depths[0]  # the numbers of parameters overlap
    found = shares(measured)
    assert {name: share for name, share in found.items() if share[0] < 0.88 or max(share[1:]) > 0.08} == {}
