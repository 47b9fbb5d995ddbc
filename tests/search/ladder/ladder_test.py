"""What a ladder says: the rate of a planted trend, the next size, the forecast, the statement of a tuned proxy."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from planted_sweeps import RATES, X, sweep_of
from processes import run_lines

from depthmup_flax.config.fields import default_config
from depthmup_flax.search.forecast.law import Rung, forecast_loss
from depthmup_flax.search.ladder.figure import draw
from depthmup_flax.search.ladder.ladder import ladder
from depthmup_flax.search.ladder.law import Size
from depthmup_flax.search.ladder.of_search import ladder_of_search
from depthmup_flax.search.ladder.regret import Regret
from depthmup_flax.util.errors import InputError

SIZES = ((64, 4), (64, 8), (128, 8), (128, 16))


def loss_of(width, depth, rate, best=-7.3, trend=-0.1):
    """Lowest at 2^best for the smallest size, and ``trend`` octaves beside it for each octave of width times depth."""
    far = math.log2(width * depth / 256)
    return 2 + 1.5 * 2.0 ** (-0.4 * far) + 0.08 * (math.log2(rate) - best - trend * far) ** 2


def rows_of(sizes=SIZES, **planted):
    return [
        {"n_embd": w, "n_layer": d, "lr": rate, "val_loss": loss_of(w, d, rate, **planted), "iter": 1000}
        for w, d in sizes
        for rate in RATES
    ]


def test_the_interval_holds_the_rate_of_a_planted_trend_and_is_narrower_from_more_sizes():
    truth = 2.0 ** (-7.3 - 0.1 * 4)
    few, more = (ladder(rows_of(SIZES[:count]), (256, 16), rule="mup") for count in (1, 4))
    for found in (few, more):
        assert found.interval[0] < truth < found.interval[1]
    assert more.prediction.deviation < few.prediction.deviation
    assert more.regret.mean < few.regret.mean
    assert abs(math.log2(more.rate / truth)) < abs(math.log2(few.rate / truth))


@pytest.mark.parametrize("target", [512, (512,), (512, 24, 3), "512", None])
def test_a_target_that_is_no_width_and_depth_is_refused(target):
    with pytest.raises(InputError, match="width and a depth"):
        ladder(rows_of(SIZES), target)


def test_a_run_of_the_proposed_size_lowers_the_regret_as_was_said():
    before = ladder(rows_of(SIZES[:2]), (256, 32), rule="mup")
    best = before.next
    assert best.regret.mean < before.regret.mean
    assert best.cost <= before.budget
    assert [one.cost for one in before.steps] == sorted(one.cost for one in before.steps)
    after = ladder(rows_of([*SIZES[:2], (best.size.width, best.size.depth)]), (256, 32), rule="mup")
    assert after.regret.mean == pytest.approx(best.regret.mean, rel=0.5)


def test_a_size_beyond_the_budget_is_proposed_only_where_none_is_within():
    tiny = ladder(rows_of(SIZES[:2]), (256, 32), rule="mup", budget=1e-9)
    assert tiny.next is min(tiny.steps, key=lambda one: one.cost)


def test_the_rule_is_the_tables_then_the_callers_then_the_widest():
    named = [{**row, "rule": rule} for rule in ("completep", "sp") for row in rows_of(trend=-0.4 * (rule == "sp"))]
    assert ladder(named, (256, 16), rule="sp").rule == "sp"
    assert ladder(named, (256, 16), rule="completep").rate > ladder(named, (256, 16), rule="sp").rate
    both = ladder(named, (256, 16))
    (other,) = {"completep", "sp"} - {both.rule}
    assert any(f"Under {other}, {ladder(named, (256, 16), rule=other).statement[0]}" in note for note in both.notes)
    unnamed = ladder(rows_of(), (256, 16))
    assert unnamed.rule == "sp"
    assert any("No known rule" in note for note in unnamed.notes)
    with pytest.raises(InputError, match="rule is 'nup'"):
        ladder(rows_of(), (256, 16), rule="nup")


def test_of_several_settings_the_best_at_the_largest_size_is_taken():
    better = [{**row, "decay": 0.1, "val_loss": row["val_loss"] - 0.1} for row in rows_of(best=-6.0)]
    found = ladder([*({**row, "decay": 0.0} for row in rows_of()), *better], (256, 16), rule="mup")
    assert found.rate == pytest.approx(ladder(better, (256, 16), rule="mup").rate)
    assert any("decay 0.1" in note for note in found.notes)


def test_regret_is_a_share_of_what_is_learned_where_the_initial_loss_is_known():
    of_loss, of_learned = (ladder(rows_of(), (256, 16), rule="mup", initial_loss=loss) for loss in (None, 11.0))
    lowest = min(one.lowest for one in of_loss.searched)
    assert of_learned.regret.mean == pytest.approx(of_loss.regret.mean * lowest / (11 - lowest), rel=0.01)
    assert "of the loss" in of_loss.statement[0]
    assert "of what is learned" in of_learned.statement[0]


def test_more_steps_move_the_rate_as_the_rule_says_and_are_refused_without_a_column_of_steps():
    once, four_times = (ladder(rows_of(), (256, 16), rule="mup", steps=steps) for steps in (1000, 4000))
    assert math.log2(four_times.rate / once.rate) == pytest.approx(-0.5)
    decayed = ladder(rows_of(), (256, 16), rule="mup", steps=4000, weight_decay=0.1)
    assert decayed.rate == pytest.approx(once.rate)
    without = [{name: value for name, value in row.items() if name != "iter"} for row in rows_of()]
    assert any("has no steps" in note for note in ladder(without, (256, 16), steps=4000).notes)


def test_a_target_farther_than_what_was_measured_is_said():
    near, far = (ladder(rows_of(), (width, 16), rule="mup") for width in (1024, 2048))
    assert not any("smallest width" in line for line in near.statement)
    assert "32 times the smallest width" in far.statement[-1]


def test_the_forecast_is_that_of_the_law_of_the_loss():
    found = ladder(rows_of(), (256, 16), rule="mup")
    grid = np.log2(RATES)
    rungs = [Rung(w, d, 1000, w * w * d, (min(loss_of(w, d, 2.0**rate) for rate in grid),)) for w, d in SIZES]
    expected = forecast_loss(rungs, Rung(256, 16, 1000, 256 * 256 * 16))
    assert found.forecast == expected
    assert ladder(rows_of(SIZES[:3]), (256, 16)).forecast is None


def test_a_tuned_proxy_says_what_its_rate_costs_at_the_target():
    proxy, target = default_config(), default_config()
    proxy.optimizer.learning_rate, target.optimizer.learning_rate = 2.0**-7.3, 2.0**-5
    target.model.update(width=256, depth=16)
    loss = lambda point: loss_of(64, 4, point[X]) + 0.001 * math.sin(9 * point["seed"] + math.log2(point[X]))
    searched = sweep_of(loss, {X: RATES, "seed": (0, 1, 2)})
    far = ladder_of_search(searched, proxy, target, (20, 20))
    assert far.target == Size(256, 16, 20, target.train.batch_size)
    assert f"of the tuned {2.0**-5:.2g}" in far.statement[0]
    target.optimizer.learning_rate = far.rate
    assert ladder_of_search(searched, proxy, target, (20, 20)).regret.mean < far.regret.mean
    at_edge = [dataclasses.replace(record, train_loss_avg=record.point[X]) for record in searched.records]
    edge = dataclasses.replace(searched, records=at_edge)
    assert ladder_of_search(edge, proxy, target, (20, 20)) is None


def test_a_ladder_says_what_the_smallest_sizes_rate_costs_at_the_target():
    found = ladder(rows_of(trend=-0.4), (256, 16), rule="sp")
    kept, predicted = found.searched[0].search.rate, found.prediction
    cost = 0.08 * ((kept - predicted.mean) ** 2 + predicted.deviation**2) / found.searched[-1].lowest
    assert found.of_smallest.mean == pytest.approx(cost, rel=0.02)
    assert kept - predicted.mean == pytest.approx(0.4 * math.log2(16), abs=0.2)  # the planted trend
    assert found.statement[2].startswith(f"{2**kept:.2g}, the best rate of 64 x 4, would cost {100 * cost:.1f} %")
    same = ladder(rows_of(trend=-0.4), (256, 16), rule="sp", kept=2.0**kept)
    assert same.regret == found.of_smallest
    assert len(same.statement) == 2


def test_a_mean_regret_above_its_bound_is_explained():
    usual = ladder(rows_of(), (256, 16), rule="mup")
    rare = dataclasses.replace(usual, regret=Regret(0.049, 0.032))
    assert rare.statement[0].endswith(
        "expected regret 4.9 % of the loss (90 %: below 3.2 %; few costly cases make the mean)"
    )
    assert usual.statement[0].endswith("%)")
    assert "costly" not in usual.statement[0]


@pytest.mark.parametrize("sizes", [[(128, 4), (128, 8), (128, 16), (256, 4), (256, 8), (512, 4)], [(128, 4)], SIZES])
def test_names_in_the_figure_do_not_overlap(sizes):
    """All are turned by 45 degrees: two overlap if they do both along their lines and across them."""
    figure = draw(ladder(rows_of(sizes), (2048, 32), rule="sp"))
    figure.canvas.draw()
    for axes in figure.axes:
        texts = [text for text in (*axes.texts, *axes.get_xticklabels()) if text.get_rotation() == 45]
        boxes = [_turned_box(text) for text in texts]
        for (left, right, low, high), other in itertools.combinations(boxes, 2):
            apart = left >= other[1] or right <= other[0] or low >= other[3] or high <= other[2]
            assert apart, [text.get_text() for text in texts]
    assert all(text.xy[1] >= 0 and text.xyann[1] > 0 for text in figure.axes[1].texts)  # above the labels of the axis


def _turned_box(text):
    """Ends along the line of a text at 45 degrees, and across it, in pixels."""
    middle = text.get_window_extent()
    x, y = (middle.x0 + middle.x1) / 2, (middle.y0 + middle.y1) / 2
    text.set_rotation(0)
    length, height = text.get_window_extent().width, 0.8 * text.get_window_extent().height  # without room between lines
    text.set_rotation(45)
    along, across = (x + y) / math.sqrt(2), (y - x) / math.sqrt(2)
    return along - length / 2, along + length / 2, across - height / 2, across + height / 2


def test_the_commands_print_the_statement_and_write_the_figure(tmp_path):
    rows = rows_of()
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (tmp_path / "runs.csv").write_text("\n".join(lines))
    target = ["--target.width=256", "--target.depth=16"]
    roles = {"width": "n_embd", "depth": "n_layer", "loss": "val_loss", "learning_rate": "lr", "steps": "iter"}
    named = [f"--column.{role}={name}" for role, name in roles.items()]
    shown, as_json, wrong, forecast, absent = run_lines(
        [
            ["ladder", "runs.csv", *target, *named],
            ["ladder", "runs.csv", *target, "--json", "--out=out"],
            ["ladder", "runs.csv", *target, "--column.width=size"],
            ["forecast", "runs.csv", *target, *named],
            ["report", "nowhere.csv"],
        ],
        cwd=tmp_path,
    )
    assert shown.code == 0, shown.error
    expected = ladder(rows, (256, 16))
    assert shown.out.splitlines()[:3] == expected.statement
    assert (tmp_path / "runs_ladder" / "ladder.png").stat().st_size > 10_000
    assert json.loads(as_json.out)["rate"] == pytest.approx(expected.rate)
    assert json.loads((tmp_path / "out" / "ladder.json").read_text()) == json.loads(as_json.out)
    assert wrong.refuses
    assert "no column 'size'" in wrong.error
    assert forecast.out.splitlines()[0] == expected.forecast_line
    assert absent.refuses
    assert "cannot be read" in absent.error


@pytest.mark.parametrize("steps", [None, 1000])
@pytest.mark.parametrize("exponent", [0.2, 0.4])
def test_a_far_target_is_warned_of_beside_the_forecast_and_has_none_from_an_exponent_at_its_bound(steps, exponent):
    sizes = [(64, 4), (64, 8), (128, 8), (128, 16), (256, 16)]
    flat = lambda w, d: 1 + 1.5 * (w * w * d / 2**14) ** -exponent
    rows = [
        {
            "width": w,
            "depth": d,
            "lr": rate,
            "loss": flat(w, d) + 0.08 * (math.log2(rate) + 7.3) ** 2,
            "steps": steps or "",
        }
        for w, d in sizes
        for rate in RATES
    ]
    near, far = (ladder(rows, target, rule="mup") for target in ((512, 16), (2048, 128)))  # 4 and 512 times the cost
    assert not any("forecasts were checked" in line for line in near.forecast_lines)
    assert len(near.forecast_lines) == (3 if exponent == 0.2 else 2)
    if exponent == 0.2:
        assert far.forecast is None
        assert "at its bound" in far.forecast_line
    else:
        assert any("512 times" in line for line in far.forecast_lines)
    warned = ["at its bound, 0.25: if the loss falls more slowly" in line for line in near.forecast_lines]
    assert warned == [True, False, False] if exponent == 0.2 else not any(warned)
    if exponent == 0.2:  # what the warning says
        assert flat(1024, 64) < ladder(rows, (1024, 64), rule="mup").forecast.interval[0]


def test_flags_of_tables_are_those_of_all_commands_and_two_tables_are_refused(tmp_path):
    rows = [{**row, "rule": rule} for rule in ("mup", "sp") for row in rows_of()]
    for name in ("runs.csv", "more.csv"):
        (tmp_path / name).write_text("\n".join([",".join(rows[0]), *(",".join(map(str, r.values())) for r in rows)]))
    target = ["--target.width=256", "--target.depth=16"]
    commands = {"ladder": target, "forecast": target, "report": ["--initial=9"]}
    flags = ["--rule=mup", "--column.width=n_embd", "--ignore=iter"]
    accepted = run_lines([[name, "runs.csv", *own, *flags] for name, own in commands.items()], cwd=tmp_path)
    assert [one.code for one in accepted] == [0, 0, 0], [one.error for one in accepted]
    assert all("sp" not in one.out.split() for one in accepted)
    several = run_lines([[name, "runs.csv", "more.csv", *own] for name, own in commands.items()], cwd=tmp_path)
    assert all(one.refuses and "one table" in one.error for one in several)
