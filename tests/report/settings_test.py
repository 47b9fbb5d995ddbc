"""What a report says that its runs trained: all that the config sets, of every curve, and nothing that it lacks."""

import dataclasses

import pytest
from planted_sweeps import MULTIPLIER, RATES, X, data_of, parabola, study_of, sweep_of
from processes import ROOT

from depthmup_flax.report.make_report import analyses
from depthmup_flax.report.page import render
from depthmup_flax.report.settings import sentence, settings
from depthmup_flax.report.tables import as_text
from depthmup_flax.storage.records.table import read_info, read_sweep

BASE = {
    "model": {"name": "my_net:Net", "width": 64, "depth": 4, "base_width": 64, "base_depth": 4, "heads": 2, "norm": ""},
    "optimizer": {"name": "adam", "learning_rate": 1e-3, "weight_decay": 0.0, "kwargs": {"b2": 0.99}, "frozen": []},
    "parametrization": {"preset": "depth_mup", "alpha": 0.0, "gamma": None},
    "train": {"batch_size": 32, "steps": 100, "epochs": 20.0},
    "data": {"name": "python:my_net:load", "data_dir": "/home/me", "context": 64, "train_examples": 500},
}


def rows_of(axes, **sections):
    """The settings of a planted sweep, with some sections changed."""
    sweep = sweep_of(parabola, axes, model={**BASE["model"], **sections.pop("model", {})})
    base = {name: {**section, **sections.get(name, {})} for name, section in BASE.items()}
    return settings(dataclasses.replace(sweep.info, base=base | {"model": sweep.info.base["model"]}), study_of(sweep))


def test_every_part_of_the_training_of_ones_own_network_is_listed():
    assert rows_of({"model.depth": (4, 8), X: RATES}) == {
        "model": "my_net:Net",
        "fields of the model": "base_width=64, base_depth=4, heads=2",
        "rule": "depth_mup, alpha=0",
        "optimizer": "adam, b2=0.99",
        "frozen layers": "none, every layer is trained",
        "training": "100 steps of 32 examples",
        "data": "python:my_net:load, train_examples=500",
        "loss": "cross_entropy",
    }


@pytest.mark.parametrize(
    ("changed", "name", "text"),
    [
        ({"optimizer": {"frozen": ["stem", "readout"]}}, "frozen layers", "stem, readout"),
        ({"optimizer": {"weight_decay": 0.1}}, "optimizer", "adam, weight_decay=0.1, b2=0.99"),
        ({"train": {"steps": 0}}, "training", "20 epochs in steps of 32 examples"),
        ({"data": {"name": "text:book.txt"}}, "data", "text:book.txt, context=64, train_examples=500"),
    ],
)
def test_a_changed_setting_is_shown(changed, name, text):
    assert rows_of({X: RATES}, **changed)[name] == text


def test_the_many_values_of_a_random_search_are_a_range():
    axes = {"optimizer.warmup": tuple(range(1, 12)), MULTIPLIER: (0.5, 1, 2), X: RATES}
    assert rows_of(axes)["optimizer"] == "adam, b2=0.99, warmup=1 to 11 (11 values)"


def test_where_curves_differ_all_values_are_listed_and_along_a_curve_none():
    axes = {"optimizer.name": ("adam", "muon"), "optimizer.weight_decay": (0.0, 0.1), MULTIPLIER: (0.5, 1, 2), X: RATES}
    rows = rows_of(axes)
    assert rows["optimizer"] == "adam or muon, weight_decay=0 or 0.1, b2=0.99"
    assert rows["rule"] == "depth_mup, alpha=0"


def test_the_page_lists_them_under_how_it_was_measured():
    sweep = sweep_of(parabola, {"model.depth": (4, 8), X: RATES})
    data = data_of(sweep) | {"settings": {"frozen layers": "stem, <readout>"}}
    facts = render(data, [], study_of(sweep), {}).partition("How it was measured")[2]
    assert "frozen layers</th><td>stem, &lt;readout&gt;</td>" in facts


def test_text_and_data_have_the_settings_of_a_sweep_that_lacks_most():
    sweep = sweep_of(parabola, {"model.depth": (4, 8), X: RATES})
    data = data_of(sweep)
    assert data["settings"] == {"fields of the model": "base_width=64, base_depth=4", "loss": "cross_entropy"}
    assert sentence(data["settings"]) in as_text(data, study_of(sweep)).splitlines()


@pytest.mark.parametrize("name", ["abs-cpu", "layernorm-long", "how_long-cpu"])
def test_committed_sweeps_say_what_is_frozen(name):
    directory = ROOT / "reproduction" / "records" / name
    frozen = read_info(directory).base["optimizer"]["frozen"]
    sweep = read_sweep([directory])
    text = sentence(settings(sweep.info, analyses(sweep)[0]))
    assert f"frozen layers: {', '.join(frozen) or 'none'}" in text
