"""A report's files, whole and from shards; and what it refuses."""

import dataclasses
import json
import math

import matplotlib
import pytest
from planted_sweeps import MULTIPLIER, RATES, X, data_of, parabola, sweep_of, write

from depthmup_flax.report import make_report
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
    for name in ("report.json", "report.html", "transfer.png", "transfer.svg"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "merged" / name).read_bytes()


@pytest.mark.parametrize("shards", [1, 2])
def test_a_report_says_how_many_runs_a_sweep_lacks(tmp_path, shards, undrawn):
    sweep = sweep_of(lambda p: parabola(p, noise=0.1), {"model.depth": (4, 8), X: RATES[4:8], "seed": range(3)})
    info = dataclasses.replace(sweep.info, runs=len(sweep.records))
    directories = [write(tmp_path / f"{k}", Sweep(info, sweep.records[k::3], [])) for k in range(3)]
    assert f"{8 * shards} of 24 runs" in make_report(directories[:shards], tmp_path / "part").text
    assert "of 24 runs" not in make_report(directories, tmp_path / "whole").text


def test_report_json_is_the_data_and_strict_json(full_report):
    def refuse(name):
        raise ValueError(name)

    (text,) = (path.read_text() for path in full_report.paths if path.name == "report.json")
    assert json.loads(text, parse_constant=refuse) == full_report.data


def test_a_report_has_its_figure_in_two_formats_and_leaves_no_other_file(full_report):
    pictures = {f"transfer.{kind}" for kind in ("png", "svg")}
    written = {path.name for path in full_report.paths}
    assert written == pictures | {"report.html", "report.json"}
    assert all(path.stat().st_size for path in full_report.paths)
    assert not list(full_report.paths[0].parent.glob(".tmp-*"))


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
    ("loss", "given", "where"), [("test", "test", "the test set"), ("validation", None, "held-out training examples")]
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


def test_a_report_is_drawn_whatever_the_settings_of_matplotlib(tmp_path):
    directory = write(tmp_path / "sweep", sweep_of(parabola, {"model.depth": (4, 8), X: RATES, "seed": range(2)}))
    with matplotlib.rc_context({"text.usetex": True}):
        report = make_report([directory], tmp_path / "out")
    assert any(path.suffix == ".png" for path in report.paths)
