"""The published records give the published tables, and their figures draw."""

import gzip
import json
import pathlib

import pytest

from reproduction.limits.pipeline import FIGURES, figure_module

STORED = sorted(path.parent for path in (pathlib.Path(__file__).parents[2] / "records").glob("*/limits.json"))


def stored_rows(directory):
    (path,) = directory.glob("records.jsonl*")
    content = path.read_bytes()
    lines = (gzip.decompress(content) if path.suffix == ".gz" else content).decode().splitlines()
    return [{**record["case"], **record["values"]} for record in map(json.loads, lines)]


def test_every_figure_has_stored_records():
    assert {directory.name for directory in STORED} >= {f"{name}-cpu" for name in FIGURES}


@pytest.mark.parametrize("directory", STORED, ids=lambda path: path.name)
def test_stored_records_give_the_published_report_and_a_figure(directory):
    config = json.loads((directory / "limits.json").read_text())["config"]
    figure, rows = figure_module(config["figure"]), stored_rows(directory)
    assert (directory / "report.txt").read_text() == f"{config['title']}\n\n{figure.table(rows)}\n"
    drawn = [panel for panel in figure.figure(rows).axes if panel.get_visible()]
    assert len(drawn) >= 4
    assert all(panel.has_data() for panel in drawn)
