"""The config's hash, the name of a run in committed records."""

import pytest

from depthmup_flax.training import config as configs


@pytest.mark.parametrize(
    ("model", "recorded"),
    [
        ("res_mlp", "2820470446aa"),
        ("simple_resnet", "41f900a7f3d4"),
        ("resnet", "9b3fc66e3b29"),
        ("vit", "3503bea38ca6"),
        ("gpt", "63330f1a3a45"),
    ],
)
def test_default_configs_have_the_hashes_that_they_had_when_the_records_were_written(model, recorded):
    assert configs.config_hash(configs.default_config(model)) == recorded


def test_a_newer_field_or_section_changes_the_hash_only_when_it_is_set(monkeypatch):
    config = configs.default_config("gpt")
    before = configs.config_hash(config)
    with config.unlocked():
        config.model.experts = 0
        config.optimizer.muon = {"momentum": 0.95, "nesterov": True}
    added = {"model.experts": 0, "optimizer.muon": {"momentum": 0.95, "nesterov": True}}
    monkeypatch.setattr(configs, "ADDED", {**configs.ADDED, **added})
    assert configs.config_hash(config) == before
    for path, value in {"model.experts": 4, "optimizer.muon.momentum": 0.9}.items():
        changed = config.copy_and_resolve_references()
        configs.set_field(changed, path, value)
        assert configs.config_hash(changed) != before
