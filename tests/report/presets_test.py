"""The report of a search has the comparison of presets below it, from its records."""

import dataclasses
import math
import statistics

import pytest
from planted_sweeps import RATES, X, parabola, sweep_of, write

from depthmup_flax.report import make_report
from depthmup_flax.report.presets import COMPARISON, PRESET, comparison_data, comparison_lines, comparison_of
from depthmup_flax.storage.records.table import read_sweep

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
    assert f"{2**-8:.4g}" in report.data["headline"]  # where the parabolas are lowest


def test_the_report_of_a_comparison_has_accuracies(search, undrawn):
    report = make_report([search / COMPARISON], search / COMPARISON / "report")
    assert "test accuracy 92.0 %" in report.data["headline"]
    assert report.data["comparison"]["presets"][1]["measures"]["train_loss_avg"]["mean"] == 1e20


def test_a_comparison_that_is_cut_off_counts_the_runs_that_ended():
    whole = compared()
    cut = dataclasses.replace(whole, records=whole.records[:1])
    text = "\n".join(comparison_lines(comparison_data(cut)))
    assert "1 of 2 runs ended, test accuracy 90.0 %" in text
    assert "0 of 2 runs ended" in text


def test_another_sweep_is_no_comparison(tmp_path):
    sweep = sweep_of(parabola, {X: RATES})
    named = dataclasses.replace(sweep, info=dataclasses.replace(sweep.info, figure=COMPARISON))
    write(tmp_path / COMPARISON, sweep)
    assert comparison_of(named) is None
    assert comparison_of(sweep, [tmp_path]) is None
    assert comparison_of(read_sweep([tmp_path / COMPARISON])) is None
