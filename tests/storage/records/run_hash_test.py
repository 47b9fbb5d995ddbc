"""The hash that names a run: of a config, of a record's point, and over versions of the package."""

import hashlib
import json

import pytest

from depthmup_flax.config import fields as configs
from depthmup_flax.storage.records import run_hash
from depthmup_flax.storage.records.run_hash import ADDED, EXECUTION, RunNames

BASE = json.loads(configs.to_json(configs.default_config("gpt")))
POINTS = [
    {},
    {"seed": 3, "optimizer.learning_rate": 1e-5, "model.depth": 8},
    {"parametrization.preset": "mup", "parametrization.alpha": 0.5, "optimizer.frozen": ["stem", "readout"]},
    {"model.mlp": "gelu", "seed": 1},  # a newer field at its old value, and at another
    {"model.mlp": "swiglu", "seed": 1},
    {"data.name": 'text:a"b\\c\u00e9.txt', "model.qk_norm": True},
]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(point) or "base")
def test_a_point_has_the_hash_of_its_config(point):
    config = configs.default_config("gpt")
    for path, value in point.items():
        configs.set_field(config, path, tuple(value) if isinstance(value, list) else value)
    assert RunNames(BASE).hash(json.loads(json.dumps(point))) == configs.config_hash(config)


def test_a_point_is_recognized_by_the_first_rule_and_not_by_the_hash_of_another_point():
    point, other = {"seed": 3, "model.depth": 8}, {"seed": 4, "model.depth": 8}
    whole = json.loads(json.dumps(BASE))
    whole["seed"], whole["model"]["depth"] = 3, 8
    first = hashlib.sha256((json.dumps(whole, indent=2, sort_keys=True) + "\n").encode()).hexdigest()[:12]
    names = RunNames(BASE)
    assert names.name(first, point) == names.name(names.hash(point), point) == names.hash(point)
    assert names.name(first, other) is names.name(names.hash(point), other) is None
    assert names.hash({"seed.deeper": 1}) is None


def test_fields_that_a_base_of_an_earlier_version_lacks_have_their_old_values():
    earlier = json.loads(json.dumps(BASE))
    for path in [*ADDED, *EXECUTION, "train.accumulate"]:
        *sections, name = path.split(".")
        del (earlier[sections[0]] if sections else earlier)[name]
    assert RunNames(earlier).hash({"seed": 2}) == RunNames(BASE).hash({"seed": 2})
    assert RunNames(earlier).hash({"train.accumulate": 2}) == RunNames(BASE).hash({"train.accumulate": 2})


def test_a_newer_section_is_left_out_while_its_fields_have_their_old_values(monkeypatch):
    before = RunNames(BASE).hash({"seed": 2})
    section = {"ema": {"decay": 0.0, "every": 1}}
    monkeypatch.setattr(run_hash, "ADDED", {**ADDED, **section})
    names = RunNames({**BASE, **section})
    assert names.hash({"seed": 2}) == names.hash({"seed": 2, "ema.decay": 0.0}) == before
    assert names.hash({"seed": 2, "ema.decay": 0.9}) != before
