"""A report's page: it loads nothing, runs no script but its own, escapes all text, and holds what the files hold."""

import base64
import dataclasses
import hashlib
import html
import json
import pathlib
import re
from html.parser import HTMLParser

import pytest
from planted_sweeps import RATES, X, data_of, parabola, study_of, sweep_of

import depthmup_flax.report
from depthmup_flax.report import inline_svg
from depthmup_flax.report.make_report import write_report
from depthmup_flax.report.page import render

FILES = pathlib.Path(depthmup_flax.report.__file__).parent


class Tags(HTMLParser):
    """Open tags, all tags with their attributes, and the text outside and inside of scripts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.scripts = [], [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        else:
            self.text += data

    def attributes(self, *names):
        return [attrs[name] for _, attrs in self.tags for name in names if name in attrs]


@pytest.fixture(scope="module")
def text(full_report):
    return full_report.paths[0].read_text()


@pytest.fixture(scope="module")
def page(text):
    return Tags(text)


def panels(text):
    """The SVG of each panel."""
    return re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)


def without_figures(axes, loss=parabola):
    """The page of a sweep, which is made fast."""
    sweep = sweep_of(loss, axes)
    return render(data_of(sweep), [], study_of(sweep), {})


def test_the_page_is_one_well_formed_file_that_loads_nothing(page, text):
    assert page.open == []
    addresses = page.attributes("src", "href", "xlink:href")
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "iframe", "object", "embed", "base", "form"})
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    assert "@import" not in text


def test_the_only_script_is_the_packages(page):
    assert page.scripts == [(FILES / "page.js").read_text()]
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]


def test_the_pages_policy_allows_its_script_and_no_network(page):
    (policy,) = [attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": "'unsafe-inline'",
        "script-src": f"'sha256-{digest}'",
    }


def test_the_page_escapes_a_title(full_report, page, text):
    assert full_report.data["title"].startswith("<script>")
    assert full_report.data["title"] in page.text
    assert text.count("<script>") == 1


def test_the_page_begins_with_the_verdict(full_report, text):
    claim, _, reason = full_report.data["headline"].partition(": ")
    first, second = text.partition("<main>\n")[2].splitlines()[:2]
    assert first == f"<h1>{html.escape(claim)}</h1>"
    assert second == f'<p class="lead">{html.escape(reason[0].upper() + reason[1:])}</p>'


def test_the_page_has_a_panel_for_each_of_the_files_panels(full_report, text):
    figures = re.findall(r'<figure id="([^"]*)"', text)
    assert set(figures) == {path.stem for path in full_report.paths if path.suffix == ".png"}
    assert len(panels(text)) == 6 + 3  # the heat map has one per size


def test_downloads_are_the_files_on_the_disk(full_report, page):
    files = {path.name: path.read_bytes() for path in full_report.paths if path.suffix in (".png", ".svg", ".csv")}
    links = {attrs["download"]: attrs["href"] for _, attrs in page.tags if "download" in attrs}
    assert {name: base64.b64decode(address.partition(",")[2]) for name, address in links.items()} == files


def test_ids_are_unique_and_references_reach_them(page, text):
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"url\(#([^)\"]*)\)", text)) | {
        address[1:] for address in page.attributes("href", "xlink:href") if address.startswith("#")
    }
    assert used <= set(ids)


def test_every_panel_has_values_inside_of_it_and_a_description(text):
    for panel in panels(text):
        (_, attrs), *_ = Tags(panel).tags
        _, _, width, height = map(float, attrs["viewbox"].split())
        values = json.loads(attrs["data-values"])
        assert values
        assert all(0 < x < width and 0 < y < height and shown for x, y, shown in values)
        assert len(attrs["aria-label"]) > 20


def test_values_of_the_first_panel_are_the_mean_losses_of_its_points(full_sweep, full_report, text):
    (_, attrs), *_ = Tags(panels(text)[0]).tags
    shown = " ".join(value for _, _, value in json.loads(attrs["data-values"]))
    table = full_report.data["variants"][0]["rows"][0]
    losses = [
        (record.train_loss_avg, record.point)
        for record in full_sweep.records
        if record.depth == table["depth"]
        and record.point[X] == table["grid_optimum"]
        and record.point["parametrization.branch_multiplier"] == table["second_at_grid_optimum"]
    ]
    mean = sum(loss for loss, _ in losses) / len(losses)
    assert f"width 64, depth {table['depth']}" in shown
    assert f"mean loss {mean:.5g}" in shown


def test_colors_of_panels_contrast_with_light_and_dark_pages(text):
    css = (FILES / "page.css").read_text()
    assert f"--page: light-dark({inline_svg.PAGES[0].replace('ffffff', 'fff')}, {inline_svg.PAGES[1]})" in css
    vector = re.sub(r'href="data:[^"]*"', "", " ".join(panels(text)))
    pairs = set(re.findall(r"light-dark\((#\w+), (#\w+)\)", vector))
    assert len(pairs) > 3
    alone = set(re.findall(r"(?<!dark\()(?<!, )(?<!&)#[0-9a-f]{6}\b", vector))
    for colors in [*pairs, *((color, color) for color in alone)]:
        ratios = [inline_svg.contrast(*pair) for pair in zip(colors, inline_svg.PAGES, strict=True)]
        assert min(ratios) >= inline_svg.CONTRAST, colors


def test_the_contrast_of_black_and_white_is_21_and_of_a_color_with_itself_1():
    assert inline_svg.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert inline_svg.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # a textbook value
    assert inline_svg.contrast("#1f77b4", "#1f77b4") == 1


def test_a_page_of_a_running_sweep_reloads_itself_and_has_no_pictures_yet(tmp_path, undrawn):
    sweep = sweep_of(parabola, {X: RATES[3:6]})
    report = write_report(sweep, tmp_path / "running", refresh_s=5.0)
    text = report.paths[0].read_text()
    assert '<meta http-equiv="refresh" content="5">' in text
    assert "The sweep runs; this page reloads every 5 s." in text
    assert {path.name for path in report.paths} == {"report.html", "report.json", "tables.csv", "points.csv"}
    text = write_report(sweep, tmp_path / "ended").paths[0].read_text()
    assert 'http-equiv="refresh"' not in text
    assert "The sweep runs" not in text


def test_columns_that_no_variant_fills_are_left_out():
    losses = (parabola, lambda p: None if p[X] > 2**-5 else parabola(p))
    texts = [without_figures({"model.depth": (4, 8), X: RATES, "seed": range(3)}, loss) for loss in losses]
    columns = [re.findall(r'<th scope="col"[^>]*>(.*?)</th>', text) for text in texts]
    assert "diverged runs" not in columns[0]
    assert "diverged runs" in columns[1]
    assert "regret" in columns[0]


def test_more_than_a_few_verdicts_are_folded():
    def folded(presets):
        text = without_figures({"model.depth": (4, 8), "parametrization.preset": presets, X: RATES})
        return re.findall("<details( open)?>", text)

    assert folded(["depth_mup"]) == []
    assert folded(["depth_mup", "mup"]) == [" open"]
    assert folded(["depth_mup", "mup", "sp", "block_only", "completep", "ode"]) == [""]


def test_the_page_says_nothing_of_commits_that_are_unknown():
    sweep = sweep_of(parabola, {"model.depth": (4, 8), X: RATES})
    page = lambda commit: render(
        data_of(dataclasses.replace(sweep, records=[dataclasses.replace(r, commit=commit) for r in sweep.records])),
        [],
        study_of(sweep),
        {},
    )
    assert "commits" in page("abc123")
    assert "commits" not in page(None)
