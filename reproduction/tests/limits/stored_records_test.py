"""The published records give the published tables, and their figures draw."""

import gzip
import json
import pathlib

import pytest

from reproduction.limits.pipeline import FIGURES, figure_module

REPRODUCTION = pathlib.Path(__file__).parents[2] / "records"


def stored_rows(directory):
    (path,) = directory.glob("records.jsonl*")
    content = path.read_bytes()
    lines = (gzip.decompress(content) if path.suffix == ".gz" else content).decode().splitlines()
    return [{**record["case"], **record["values"]} for record in map(json.loads, lines)]


@pytest.mark.parametrize("name", FIGURES)
def test_stored_records_give_the_published_report_and_a_figure(name):
    directory = REPRODUCTION / f"{name}-cpu"
    title = json.loads((directory / "limits.json").read_text())["config"]["title"]
    figure, rows = figure_module(name), stored_rows(directory)
    assert (directory / "report.txt").read_text() == f"{title}\n\n{figure.table(rows)}\n"
    drawn = [panel for panel in figure.figure(rows).axes if panel.get_visible()]
    assert len(drawn) >= 4
    assert all(panel.has_data() for panel in drawn)
