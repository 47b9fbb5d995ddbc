"""A table of one's own runs is judged as a sweep with the same losses is."""

import csv
import gzip
import math

import numpy as np
import pytest
from planted_sweeps import RATES, X, parabola, sweep_of, write

from depthmup_flax.report import make_report
from depthmup_flax.report.optimum import filled
from depthmup_flax.util.errors import InputError

HEAD = ["width", "depth", "learning_rate", "seed", "rule", "initial_loss", "loss"]
PRESET = "parametrization.preset"
AXES = {PRESET: ("depth_mup", "sp"), "model.width": (16, 64), "model.depth": (4, 8), X: RATES, "seed": (0, 1, 2)}


def loss(point):
    """The best rate of the control moves, and its highest rates diverge."""
    moved = math.log2(point["model.width"] / 16) if point[PRESET] == "sp" else 0.0
    value = parabola(point, best=-8.0 - moved, noise=0.2)
    return None if point[X] == RATES[-1] and moved else value


def written(path, lines, head=HEAD):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *lines])
    return path


def test_a_table_of_runs_has_the_verdicts_and_optima_of_the_sweep(tmp_path, undrawn):
    sweep = sweep_of(loss, AXES, model={"width": 16, "depth": 4, "base_width": 16, "base_depth": 4})
    lines = [
        [r.width, r.depth, r.point[X], r.seed, r.point[PRESET], r.train_loss_slices[0], loss(r.point) or "nan"]
        for r in sweep.records
    ]
    own = make_report([written(tmp_path / "mine.csv", lines)], tmp_path / "own").data
    expected = make_report([write(tmp_path / "sweep", sweep)], tmp_path / "out").data
    one_loss = lambda data: [{**verdict, "verdict_by_other_loss": ""} for verdict in data["verdicts"]]
    assert one_loss(own) == one_loss(expected)
    assert {verdict["verdict"] for verdict in own["verdicts"]} == {"transfers", "does not transfer"}
    for ours, theirs in zip(own["variants"], expected["variants"], strict=True):
        assert [{**row, "parameters": 0} for row in theirs["rows"]] == ours["rows"]


@pytest.mark.parametrize(
    ("head", "line", "named"),
    [
        ([*HEAD[:-1], "score"], [16, 4, 0.1, 0, "sp", 2.3, 1.0], "'loss'"),
        (HEAD, [16, 4, "fast", 0, "sp", 2.3, 1.0], "learning_rate is 'fast'"),
        (HEAD, [16.5, 4, 0.1, 0, "sp", 2.3, 1.0], "width is 16.5"),
        (HEAD, [16, 4, 0.1], "line 2"),
    ],
)
def test_a_table_that_cannot_be_read_names_the_place(head, line, named, tmp_path):
    with pytest.raises(InputError, match=named):
        make_report([written(tmp_path / "mine.csv", [line], head)], tmp_path / "out")


def test_a_table_of_a_trainers_names_and_columns_has_the_report_of_the_plain_one(tmp_path, undrawn):
    lines = [[16, depth, rate, seed, "sp", 2.3, 1 + (math.log2(rate) + 8) ** 2 / 9 + 0.01 * seed, f"run {depth} {rate}"]
             for depth in (4, 8) for rate in RATES for seed in (0, 1, 2)]  # fmt: skip
    plain = make_report([written(tmp_path / "plain.csv", [line[:-1] for line in lines])], tmp_path / "plain").data
    head = ["n_embd", "n_layer", "lr", "seed", "rule", "initial_loss", "val_loss", "name"]
    other = written(tmp_path / "other.csv", lines, head)
    other.with_suffix(".tsv.gz").write_bytes(gzip.compress(other.read_text().replace(",", "\t").encode("utf-16")))
    other = make_report([other.with_suffix(".tsv.gz")], tmp_path / "other").data
    assert other["variants"] == plain["variants"]
    assert [one["verdict"] for one in other["verdicts"]] == [one["verdict"] for one in plain["verdicts"]]


def test_flags_name_the_columns_of_a_report_and_the_loss_is_that_of_its_column(tmp_path, undrawn):
    lines = [[16, depth, rate, seed, 1 + (math.log2(rate) + 8) ** 2 / 9 + 0.01 * seed]
             for depth in (4, 8) for rate in RATES for seed in (0, 1, 2)]  # fmt: skip
    plain = written(tmp_path / "plain.csv", lines, ["width", "depth", "lr", "seed", "val_loss"])
    other = written(tmp_path / "other.csv", lines, ["a", "b", "c", "d", "test_e"])
    columns = {"width": "a", "depth": "b", "learning_rate": "c", "seed": "d", "loss": "test_e"}
    expected = make_report([plain], tmp_path / "out", initial_loss=2.3).data
    named = make_report([other], tmp_path / "named", columns=columns, initial_loss=2.3).data
    assert named["variants"] == expected["variants"]
    assert (expected["loss"], named["loss"]) == ("validation", "test")
    with pytest.raises(InputError, match="no training loss"):
        make_report([plain], tmp_path / "out", initial_loss=2.3, loss="train")
    with pytest.raises(InputError, match="--initial"):
        make_report([plain], tmp_path / "out")
    with pytest.raises(InputError, match="only a table"):
        make_report([tmp_path], tmp_path / "out", columns=columns)


def test_a_report_of_a_table_says_what_the_table_says_and_draws_all_sizes(tmp_path):
    """Sizes that grow in width and depth at once lie on no axis."""
    sizes = [(16, 4), (32, 8), (64, 16)]
    lines = [[w, d, rate, seed, 1 + (math.log2(rate) + 8) ** 2 / 9 + 0.01 * seed, "finished"]
             for w, d in sizes for rate in RATES for seed in (0, 1, 2)]  # fmt: skip
    lines = [[*line[:-2], 1.0, "crashed"] if line[2:4] == [RATES[4], 1] else line for line in lines]
    path = written(tmp_path / "mine.csv", lines, ["width", "depth", "lr", "seed", "val_loss", "State"])
    report = make_report([path], tmp_path / "out", initial_loss=10.8)
    for untrue in ("held-out", "unknown", "0 s", "exponent of 0", "first steps"):
        assert untrue not in report.text
    assert report.data["runs"] == len(lines) - len(sizes)
    (rows,) = (variant["rows"] for variant in report.data["variants"])
    assert [row["seeds"] for row in rows] == [3, 3, 3]
    assert all(math.log2(row["optimum"]) == pytest.approx(-8, abs=0.05) for row in rows)
    figure = (tmp_path / "out" / "transfer.svg").read_text()
    assert all(f"{w} x {d}" in figure for w, d in sizes)
    assert "a run diverged" not in figure


@pytest.mark.parametrize("lost", ["crashed", "running"])
def test_a_rate_that_no_run_has_ended_is_no_edge_of_a_report(lost, tmp_path, undrawn):
    state = lambda depth, rate: lost if depth == 8 and math.log2(rate) > -8.5 else "finished"
    lines = [[16, depth, rate, seed, 1 + (math.log2(rate) + 8) ** 2 / 9 + 0.01 * seed, state(depth, rate)]
             for depth in (4, 8) for rate in RATES for seed in (0, 1)]  # fmt: skip
    path = written(tmp_path / "mine.csv", lines, ["width", "depth", "lr", "seed", "val_loss", "state"])
    text = make_report([path], tmp_path / "out", initial_loss=10.8).text
    assert "highest of the grid" not in text
    assert "incomplete" in text


def test_a_lost_seed_is_filled_in_from_its_difference_from_others():
    seeds, rates = np.array([0.0, 0.3, -0.1]), np.array([2.0, 1.0, 3.0, 5.0])
    losses = seeds[:, None] + rates
    present = np.ones(losses.shape, bool)
    present[1, 1] = present[0, 2] = False
    given = np.where(present, losses, np.nan)
    assert filled(given, present) == pytest.approx(losses)
    given[2, 1] = np.nan  # a divergence is one for all seeds
    assert np.isnan(filled(given, present)[:, 1]).sum() >= 2
