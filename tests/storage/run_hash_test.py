"""The hash that names a run: of a config, and of a record's point."""

import json

import pytest

from depthmup_flax.config import fields as configs
from depthmup_flax.storage.run_hash import EXECUTION, RunNames

BASE = json.loads(configs.to_json(configs.default_config("gpt")))
POINTS = [
    {},
    {"seed": 3, "optimizer.learning_rate": 1e-5, "model.depth": 8},
    {"parametrization.preset": "mup", "parametrization.alpha": 0.5, "optimizer.frozen": ["stem", "readout"]},
    {"model.mlp": "gelu", "seed": 1},
    {"model.mlp": "swiglu", "seed": 1},
    {"data.name": 'text:a"b\\c\u00e9.txt', "model.qk_norm": True},
]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(point) or "base")
def test_a_point_has_the_hash_of_its_config(point):
    config = configs.default_config("gpt")
    for path, value in point.items():
        configs.set_field(config, path, tuple(value) if isinstance(value, list) else value)
    assert RunNames(BASE).hash(json.loads(json.dumps(point))) == configs.config_hash(config)


def test_a_hash_is_that_of_its_point_and_of_what_is_trained():
    names = RunNames(BASE)
    assert names.hash({"seed": 3}) != names.hash({"seed": 4})
    assert names.hash({"seed.deeper": 1}) is None
    execution = {path: "other" for path in EXECUTION if path in ("mesh", "train.log_every", "data.data_dir")}
    assert names.hash({"seed": 3, **execution}) == names.hash({"seed": 3})
