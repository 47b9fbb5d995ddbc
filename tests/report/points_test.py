"""The CSV files of a report, against the records and report.json."""

import csv
import math
import statistics

import pytest
from planted_sweeps import MULTIPLIER, X


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


def test_points_csv_marks_the_diverged_points(full_report):
    diverged = {float(line[X]) for line in lines_of(full_report, "points.csv") if int(line["diverged"])}
    assert diverged
    assert all(math.log2(x) > -5 for x in diverged)


def test_tables_csv_has_the_rows_of_report_json(full_report):
    lines = lines_of(full_report, "tables.csv")
    rows = [(variant["name"], row) for variant in full_report.data["variants"] for row in variant["rows"]]
    assert len(lines) == len(rows)
    for line, (name, row) in zip(lines, rows, strict=True):
        assert line["variant"] == name
        for key in ("width", "depth", "parameters", "seeds", "optimum", "shift", "regret", "best_loss"):
            assert line[key] == ("" if row[key] is None else str(row[key]))
        for key in ("interval", "shift_interval", "regret_interval", "best_loss_interval"):
            ends = (line[f"{key}_low"], line[f"{key}_high"])
            assert ends == (("", "") if row[key] is None else tuple(map(str, row[key])))
        assert line["flags"] == "; ".join(row["flags"])
