"""Infos in the metadata of a run."""

import json

from depthmup_flax.rule.factor import Factor
from depthmup_flax.rule.info_trees import info_from_json, info_to_json
from depthmup_flax.rule.parametrization import ParamInfo, Role, get_parametrization

INFO = {
    "w": ParamInfo(Role.HIDDEN, (4, 6), 2.0, 2.0, in_branch=True, carried=Factor(depth=4.0, multiplier=1.0)),
    "block": {"qkv": ParamInfo(Role.HIDDEN, (4, 12), 2.0, 2.0, carried=Factor(width=((2.0, 1.0, 1.0),)))},
}


def test_infos_are_the_same_after_json():
    assert info_from_json(json.loads(json.dumps(info_to_json(INFO)))) == INFO


def test_a_carried_number_of_an_earlier_run_is_the_same_under_every_rule():
    written = {
        name: fields | {"carried": 0.25, "power": 0.0, "init_std": None} for name, fields in info_to_json(INFO).items()
    }
    read = info_from_json(json.loads(json.dumps(written)))
    rules = [get_parametrization(name) for name in ("sp", "depth_mup")]
    assert [read["w"].factor(rule) for rule in rules] == [0.25, 0.25]
