"""A report's page, JSON and command line."""

import json
import math
from html.parser import HTMLParser

import pytest
from planted_sweeps import MULTIPLIER, RATES, X, parabola, sweep_of, write
from processes import run_command

from depthmup_flax.errors import InputError
from depthmup_flax.records import Sweep, read_sweep
from depthmup_flax.report import make_report
from depthmup_flax.report.make_report import studies
from depthmup_flax.report.tables import as_data, as_text


def test_shards_give_the_same_report_as_the_whole(tmp_path):
    sweep = sweep_of(lambda p: parabola(p, noise=0.1), {"model.depth": (4, 8), X: RATES, "seed": range(2)})
    whole, count = write(tmp_path / "whole", sweep), len(sweep.records) // 2
    halves = (sweep.records[count:], sweep.records[:count])
    shards = [write(tmp_path / f"{k}", Sweep(sweep.info, half, [])) for k, half in enumerate(halves)]
    first, second = read_sweep([whole]), read_sweep(shards)
    study, of_shards = studies(first)[0], studies(second)[0]
    assert as_data(first, study) == as_data(second, of_shards)
    assert as_text(as_data(first, study), study) == as_text(as_data(second, of_shards), of_shards)


def test_shards_give_the_same_files_as_the_whole(tmp_path):
    sweep = sweep_of(lambda p: parabola(p, noise=0.1), {"model.depth": (4, 8), X: RATES[4:5], "seed": range(2)})
    directories = [write(tmp_path / f"{k}", Sweep(sweep.info, sweep.records[k::2], [])) for k in range(2)]
    make_report([write(tmp_path / "whole", sweep)], tmp_path / "out")
    make_report(directories, tmp_path / "merged")
    for name in ("report.json", "report.html", "curves.png", "curves.svg"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "merged" / name).read_bytes()


class Tags(HTMLParser):
    """Collects open tags, the addresses they refer to, and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.references, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def full_report(tmp_path_factory):
    """The report of a sweep that has every figure, with a title that has to be escaped."""

    def loss(point):
        rate, multiplier = math.log2(point[X]), math.log2(point[MULTIPLIER])
        return None if rate > -5 else parabola(point, noise=0.1) + 0.05 * (multiplier + rate + 8) ** 2

    path = tmp_path_factory.mktemp("full")
    axes = {"model.depth": (4, 8, 16), MULTIPLIER: (0.5, 1.0, 2.0), X: RATES[2::2], "seed": range(2)}
    sweep = write(path / "sweep", sweep_of(loss, axes, title="<script>alert('&')</script>"))
    return make_report([sweep], path / "out")


def test_the_page_is_one_file_that_loads_nothing_and_holds_every_figure(full_report):
    text = full_report.paths[0].read_text()
    page = Tags(text)
    assert page.open == []
    assert "http://" not in text
    assert "https://" not in text
    pictures = [path for path in full_report.paths if path.suffix == ".png"]
    names = {path.stem for path in pictures}
    expected = {"transfer", "transfer_branch_multiplier", "optima", "curves", "over_time", "heatmap", "parameters"}
    assert names == expected
    assert len(page.references) == len(expected)
    assert all(reference.startswith("data:image/png;base64,") for reference in page.references)
    assert all(path.exists() and path.stat().st_size for path in full_report.paths)
    assert not list(full_report.paths[0].parent.glob(".tmp-*"))


def test_the_page_escapes_a_title(full_report):
    page = Tags(full_report.paths[0].read_text())
    assert "script" not in page.tags
    assert "<script>alert('&')</script>" in page.text


def test_report_json_is_the_data_and_strict_json(full_report):
    def refuse(name):
        raise ValueError(name)

    text = full_report.paths[1].read_text()
    assert json.loads(text, parse_constant=refuse) == full_report.data


def test_the_command_prints_tables_and_paths_and_refuses_a_directory_without_a_sweep(tmp_path):
    sweep = write(tmp_path / "sweep", sweep_of(parabola, {"model.depth": (4, 8), X: RATES[4:5]}))
    done = run_command("-m", "depthmup_flax.report", sweep, f"--out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert "best learning rate" in done.stdout
    assert str(tmp_path / "out" / "report.html") in done.stdout
    done = run_command("-m", "depthmup_flax.report", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_all_diverged_is_one_sentence_with_a_remedy(tmp_path):
    sweep = write(tmp_path / "sweep", sweep_of(lambda p: None, {X: RATES}))
    with pytest.raises(InputError, match=r"all 9 runs diverged .* sweep lower values of optimizer.learning_rate"):
        make_report([sweep], tmp_path / "out")
