"""A report's files, CSV and JSON, whole and from shards; the comparison of presets; and what it refuses."""

import csv
import dataclasses
import json
import math
import statistics

import pytest
from planted_sweeps import MULTIPLIER, RATES, X, data_of, parabola, sweep_of, write

from depthmup_flax.report import make_report
from depthmup_flax.report.preset_comparison import COMPARISON, PRESET, comparison_data, comparison_lines
from depthmup_flax.report.sweep_report import first_round
from depthmup_flax.storage.sweep_records import Sweep, read_sweep
from depthmup_flax.util.errors import InputError


def test_of_a_search_in_rounds_the_grid_is_shown_and_a_note_counts_the_rest():
    grid = sweep_of(parabola, {X: (1e-3, 2e-3, 4e-3), MULTIPLIER: (1.0,), "seed": (0, 1)})
    extended = sweep_of(parabola, {X: (8e-3,), MULTIPLIER: (1.0,), "seed": (0, 1)}).records
    random = sweep_of(parabola, {X: (1.1e-3,), MULTIPLIER: (0.7,), "seed": (0,)}).records
    confirmed = sweep_of(parabola, {X: (2.1e-3,), MULTIPLIER: (1.0,), "seed": (2, 3)}).records
    records = [*grid.records, *extended, *random, *confirmed]
    sweep = dataclasses.replace(grid, records=records, planned=grid.info.axes)
    assert first_round(sweep) is sweep
    rounds = dataclasses.replace(sweep, info=dataclasses.replace(sweep.info, figure="rounds"))
    shown = first_round(rounds)
    assert shown.records == [*grid.records, *extended]
    assert shown.info.axes == {X: [1e-3, 2e-3, 4e-3, 8e-3], MULTIPLIER: [1.0], "seed": [0, 1]}
    assert shown.notes[0].startswith("3 runs at random points")


def test_shards_give_the_same_files_as_the_whole(tmp_path):
    sweep = sweep_of(lambda p: parabola(p, noise=0.1), {"model.depth": (4, 8), X: RATES[4:6], "seed": range(2)})
    directories = [write(tmp_path / f"{k}", Sweep(sweep.info, sweep.records[k::2], [])) for k in range(2)]
    make_report([write(tmp_path / "whole", sweep)], tmp_path / "out")
    make_report(directories, tmp_path / "merged")
    for name in ("report.json", "report.html", "points.csv", "transfer.png", "transfer.svg"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "merged" / name).read_bytes()


def test_report_json_is_the_data_and_strict_json(full_report):
    def refuse(name):
        raise ValueError(name)

    (text,) = (path.read_text() for path in full_report.paths if path.name == "report.json")
    assert json.loads(text, parse_constant=refuse) == full_report.data


def test_a_report_has_every_figure_in_two_formats_and_leaves_no_other_file(full_report):
    names = {"transfer", "optima"}
    pictures = {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    written = {path.name for path in full_report.paths}
    assert written == pictures | {"report.html", "report.json", "points.csv"}
    assert all(path.stat().st_size for path in full_report.paths)
    assert not list(full_report.paths[0].parent.glob(".tmp-*"))


def lines_of(report, name):
    with next(path for path in report.paths if path.name == name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_points_csv_has_mean_deviation_and_count_of_every_point_of_the_records(full_sweep, full_report):
    losses = {}
    for record in full_sweep.records:
        point = (record.width, record.depth, record.point[X], record.point[MULTIPLIER])
        losses.setdefault(point, []).append(record.train_loss_avg)
    lines = lines_of(full_report, "points.csv")
    assert len(lines) == len(losses)
    for line in lines:
        own = losses[int(line["width"]), int(line["depth"]), float(line[X]), float(line[MULTIPLIER])]
        ended = [loss for loss in own if loss is not None]
        assert int(line["n"]) == len(own) == 2
        assert int(line["diverged"]) == len(own) - len(ended)
        if len(ended) == len(own):
            assert float(line["mean"]) == pytest.approx(statistics.mean(own), rel=1e-12)
            assert float(line["sd"]) == pytest.approx(statistics.stdev(own), rel=1e-9)
        else:
            assert (line["mean"], line["sd"]) == ("", "")


def test_the_tolerance_decides_the_verdict_and_is_in_data_and_text(tmp_path, undrawn):
    """At eight times the depth the optimum has moved by an octave, which costs 0.1 where 1 is learned."""
    loss = lambda point: parabola(point, best=-8.0 + math.log2(point["model.depth"] / 4) / 3, noise=0.01)
    sweep = write(tmp_path / "sweep", sweep_of(loss, {"model.depth": (4, 32), X: RATES, "seed": range(4)}))
    lenient = make_report([sweep], tmp_path / "out", tolerance=0.3)
    assert [one["verdict"] for one in lenient.data["verdicts"]] == ["transfers"]
    assert [one["verdict"] for one in data_of(read_sweep([sweep]))["verdicts"]] == ["does not transfer"]
    assert lenient.data["tolerance"] == 0.3
    assert "below 30 % of what the base learned" in lenient.text
    assert "below 30 % of what the base learned" in lenient.paths[0].read_text()


@pytest.mark.parametrize("tolerance", [0.0, 1.0, -0.1, math.nan])
def test_a_tolerance_that_is_no_share_is_refused(tolerance, tmp_path):
    sweep = write(tmp_path / "sweep", sweep_of(parabola, {"model.depth": (4, 8), X: RATES}))
    with pytest.raises(InputError, match=r"tolerance is .*: it must be above 0 and below 1"):
        make_report([sweep], tmp_path / "out", tolerance=tolerance)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("loss", "given", "where"),
    [("test", "test", "the test set"), ("validation", None, "held-out training examples")],
)
def test_an_evaluated_loss_has_optimum_and_words_of_its_own(tmp_path, undrawn, loss, given, where):
    """Without ``given``, the report compares the loss that the sweep has compared."""
    trained = sweep_of(lambda point: parabola(point, best=-8.0), {"model.depth": (4, 16), X: RATES, "seed": range(3)})
    tested = [dataclasses.replace(r, **{f"{loss}_loss": parabola(r.point, best=-9.0) + 1}) for r in trained.records]
    info = trained.info if given else dataclasses.replace(trained.info, objective=loss)
    directory = write(tmp_path / "sweep", dataclasses.replace(trained, info=info, records=tested))
    report = make_report([directory], tmp_path / "report", loss=given)
    (variant,) = report.data["variants"]
    for row in variant["rows"]:
        assert math.log2(row["optimum"]) == pytest.approx(-9)
        assert row["best_loss"] == pytest.approx(1.5)
    assert report.data["loss"] == loss
    assert f"by {loss} loss" in report.text
    assert "training loss lost" not in report.text
    assert f"best {loss} loss" in report.text
    assert f"\nAll losses are on {where}" in report.text
    names = {path.name for path in report.paths}
    assert "transfer.png" in names


@pytest.mark.parametrize("every", [1, 7])
def test_completed_runs_without_a_test_loss_are_no_divergence(every, tmp_path):
    trained = sweep_of(parabola, {"model.depth": (4, 16), X: RATES, "seed": range(3)})
    records = [
        dataclasses.replace(record, test_loss=record.test_loss if i % every else None)
        for i, record in enumerate(trained.records)
    ]
    directory = write(tmp_path / "sweep", dataclasses.replace(trained, records=records))
    with pytest.raises(InputError, match=r"\d+ completed runs have no test loss: leave out"):
        make_report([directory], tmp_path / "report", loss="test")


SHARES = {("depth_mup", 0): 0.9, ("depth_mup", 1): 0.94, ("sp", 0): 0.1, ("sp", 1): 0.1}


def compared():
    """Two presets at one rate with two seeds."""
    losses = {"depth_mup": 0.25, "sp": 1e20}
    axes = {PRESET: ("depth_mup", "sp"), X: (0.003,), "seed": (0, 1)}
    sweep = sweep_of(lambda point: losses[point[PRESET]], axes, model={"name": "res_mlp", "width": 128, "depth": 64})
    records = [
        dataclasses.replace(one, width=128, depth=64, test_accuracy=SHARES[one.point[PRESET], one.seed])
        for one in sweep.records
    ]
    return dataclasses.replace(sweep, info=dataclasses.replace(sweep.info, figure=COMPARISON), records=records)


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """The directory of a search with a comparison."""
    path = write(tmp_path_factory.mktemp("tune") / "search", sweep_of(parabola, {X: RATES, "seed": range(3)}))
    write(path / COMPARISON, compared())
    return path


def test_the_report_of_a_search_has_its_best_rate_and_the_comparison_in_text_page_and_json(search, undrawn):
    report = make_report([search], search / "report")
    data = report.data["comparison"]
    assert (data["width"], data["depth"], data["learning_rate"], data["seeds"], data["steps"]) == (
        128,
        64,
        0.003,
        2,
        20,
    )
    for one in data["presets"]:
        shares = [share for (preset, _), share in SHARES.items() if preset == one["preset"]]
        accuracy = one["measures"]["test_accuracy"]
        assert math.isclose(accuracy["mean"], statistics.mean(shares), rel_tol=1e-5)
        assert math.isclose(accuracy["sd"], statistics.stdev(shares), rel_tol=1e-4, abs_tol=1e-12)
    page = report.paths[0].read_text()
    for text in (report.text, page, report._repr_html_()):
        assert "test accuracy 92.0 % ± 2.8 %" in text
        assert "width 128, depth 64" in text
        assert "n = 2" in text
    assert f"{2**-8:.3g}" in report.text  # where the parabolas are lowest


def test_a_comparison_that_is_cut_off_counts_the_runs_that_ended():
    whole = compared()
    cut = dataclasses.replace(whole, records=whole.records[:1])
    text = "\n".join(comparison_lines(comparison_data(cut)))
    assert "1 of 2 runs ended, test accuracy 90.0 %" in text
    assert "0 of 2 runs ended" in text
