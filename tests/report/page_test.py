"""A report's page: it loads nothing, runs no script, escapes all text, and holds what the files hold."""

import base64
import dataclasses
from html.parser import HTMLParser

from planted_sweeps import RATES, X, parabola, sweep_of

from depthmup_flax.report.tables import settings


class Tags(HTMLParser):
    """Open tags, all tags with their attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_one_well_formed_file_that_loads_nothing_and_runs_no_script(full_report):
    text = full_report.paths[0].read_text()
    page = Tags(text)
    assert page.open == []
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "form"})
    addresses = [attrs[name] for _, attrs in page.tags for name in ("src", "href") if name in attrs]
    assert all(address.startswith("data:") for address in addresses)
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    (policy,) = [attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_the_page_has_the_verdict_the_table_and_every_figure_and_escapes_the_title(full_report):
    page = Tags(full_report.paths[0].read_text())
    assert full_report.data["headline"] in page.text
    assert full_report.data["title"].startswith("<script>")
    assert full_report.data["title"] in page.text
    shown = {attrs["src"].partition(",")[2] for tag, attrs in page.tags if tag == "img"}
    files = [path.read_bytes() for path in full_report.paths if path.suffix == ".svg"]
    assert shown == {base64.b64encode(content).decode() for content in files}
    for row in full_report.data["variants"][0]["rows"]:
        assert f"{row['best_loss']:.4f}" in page.text
        assert f"{row['best_loss']:.4f}" in full_report._repr_html_()


BASE = {
    "model": {"name": "my_net:Net", "width": 64, "depth": 4, "base_width": 64, "base_depth": 4, "heads": 2, "norm": ""},
    "optimizer": {"name": "adam", "learning_rate": 1e-3, "weight_decay": 0.0, "kwargs": {"b2": 0.99}, "frozen": []},
    "parametrization": {"preset": "depth_mup", "alpha": 0.0, "gamma": None},
    "train": {"batch_size": 32, "steps": 100, "epochs": 20.0},
    "data": {"name": "python:my_net:load", "data_dir": "/home/me", "context": 64, "train_examples": 500},
}


def rows_of(axes, **sections):
    """The settings of a planted sweep, with some sections changed."""
    info = sweep_of(parabola, axes, model=BASE["model"]).info
    base = {name: {**section, **sections.get(name, {})} for name, section in BASE.items()}
    return settings(dataclasses.replace(info, base=base | {"model": info.base["model"]}))


def test_every_field_of_the_training_that_is_set_is_listed():
    assert rows_of({"model.depth": (4, 8), X: RATES}) == {
        "model": "name=my_net:Net, base_width=64, base_depth=4, heads=2",
        "optimizer": "name=adam, kwargs.b2=0.99",
        "parametrization": "preset=depth_mup, alpha=0",
        "train": "batch_size=32, steps=100, epochs=20",
        "data": "name=python:my_net:load, context=64, train_examples=500",
    }


def test_a_setting_that_is_changed_is_listed_and_one_that_differs_between_curves_is_among_the_axes():
    changed = {"frozen": ["stem", "readout"], "weight_decay": 0.1}
    shown = rows_of({"optimizer.name": ("adam", "muon"), X: RATES}, optimizer=changed)["optimizer"]
    assert shown == "weight_decay=0.1, kwargs.b2=0.99, frozen=stem and readout"
