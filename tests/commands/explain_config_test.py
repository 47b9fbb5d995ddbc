"""``depthmup config``: lists and explains configs."""

import pytest
from processes import run_lines

from depthmup_flax.commands import config as explain_config
from depthmup_flax.config import default_config
from depthmup_flax.config import files as config_files
from depthmup_flax.config.files import path_of, shipped_names
from depthmup_flax.models import MODELS


def shown(*words):
    (done,) = run_lines([["config", *words]])
    assert (done.code, done.error) == (0, "")
    return done.out


@pytest.mark.parametrize("name", shipped_names())
def test_every_field_of_a_shipped_config_has_an_explanation(name):
    path = path_of(name)
    fields = explain_config.fields(config_files.load(path))
    assert [field.path for field in fields if not field.meaning] == []


@pytest.mark.parametrize("model", MODELS)
def test_every_field_of_a_default_config_has_its_own_explanation(model):
    fields = explain_config.fields(default_config(model))
    explanations = {field.path: field.meaning for field in fields}
    assert all(explanations.values())
    sections = {explanations[path] for path in ("optimizer.kwargs.b1", "train.steps", "mesh.data", "model.width")}
    assert len(sections) == 4
    assert not any(field.changed for field in fields)


def test_the_list_has_every_shipped_config_in_a_line_of_a_terminal():
    lines = shown().splitlines()
    assert sorted(line.split()[0] for line in lines if line.startswith("  ")) == sorted(shipped_names())
    assert all(len(line) <= 80 for line in lines)


def test_a_config_is_explained_with_values_and_defaults_and_without_loading_data():
    text = " ".join(shown("digits").split())
    assert "A residual MLP on scikit-learn's 8x8 digits" in text
    assert "* model.depth=16 (default 8) L, the number of residual blocks" in text
    assert "parametrization.alpha (unset: the preset's 0.5) branches are multiplied by a * r^-alpha" in text
    assert " seed=0 of initial weights" in text  # not marked


def test_flags_and_a_section_change_what_is_shown():
    lines = shown("digits", "model", "--config.model.depth=24").splitlines()
    assert lines[0].startswith("  model.name=res_mlp")
    assert any(line.startswith("* model.depth=24 ") for line in lines)
    assert not any("learning_rate" in line for line in lines)
    assert shown("--config=digits", "model.width").splitlines()[0].split()[0] == "model.width=128"


def test_a_sweep_shows_its_axes_and_what_it_changes_and_all_fields_of_its_runs_if_asked():
    text = shown("sweeps/digits")
    assert "  grids.depths.model.depth=(4, 16, 64)\n" + 38 * " " + "L, the number of residual blocks" in text
    assert "* base.model.base_width=32" in text
    assert "weight_decay" not in text
    assert "weight_decay=0.0" in shown("sweeps/digits", "base")
