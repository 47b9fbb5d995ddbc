"""The config's hash, the name of a run in committed records."""

import pytest
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from depthmup_flax import InputError
from depthmup_flax.config import fields as configs
from depthmup_flax.config.flags import split
from depthmup_flax.models import MODELS
from depthmup_flax.storage.records import run_hash
from depthmup_flax.trainer.engine.from_config import build

# Fields that every hash is of. The list is complete: a new field never joins it.
HASHED = {
    "data": "augment context image_size name test_examples tokenizer train_examples",
    "model": "base_depth base_width block_depth depth dropout dtype head_dim mean_subtraction mlp_ratio name "
    "nonlinearity norm num_heads patch_size pool positions pre_nonlin sigma stage_sizes stem tied use_bias width "
    "zero_init_branch zero_init_readout",
    "optimizer": "clip_rms frozen learning_rate name schedule warmup_steps weight_decay",
    "optimizer.kwargs": "b1 b2 eps momentum nesterov",
    "parametrization": "alpha branch_multiplier fixed_lr_factor gamma gamma0 hidden_lr_factor input_lr_factor "
    "output_lr_factor preset vector_lr_factor width",
    "train": "accumulate average_steps batch_size epochs steps",
}


def test_a_new_field_of_the_config_is_listed_so_that_records_keep_their_names():
    hashed = {"seed"} | {f"{section}.{name}" for section, names in HASHED.items() for name in names.split()}
    defaults = [run_hash.trained(configs.default_config(model).to_dict()) for model in MODELS]
    fields = {path for tree in defaults for path in flatten_dict(tree, sep=".")}
    assert sorted(fields - hashed) == [], (
        "New fields would give every run another hash, so that no record of an earlier version is recognized. List "
        "them in records/run_hash.py: in EXECUTION if they do not change what is trained; else in ADDED, with "
        "the value that means what was before, and make that value their default."
    )
    assert sorted(hashed - fields) == [], (
        "These fields are in the hashes of all records: keep their names and places, and do not list them in "
        "EXECUTION or ADDED."
    )


def test_newer_fields_have_the_old_value_as_their_default():
    for model in MODELS:
        config = configs.default_config(model)
        for path, value in run_hash.ADDED.items():
            if path.partition(".")[0] != "model" or path.partition(".")[2] in config.model:
                field = configs.get_field(config, path)
                assert (field.to_dict() if isinstance(field, ConfigDict) else field) == value


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
    monkeypatch.setattr(run_hash, "ADDED", {**run_hash.ADDED, **added})
    assert configs.config_hash(config) == before
    for path, value in {"model.experts": 4, "optimizer.muon.momentum": 0.9}.items():
        changed = config.copy_and_resolve_references()
        configs.set_field(changed, path, value)
        assert configs.config_hash(changed) != before


def from_flags(*words):
    given, others = split(["--config=digits", *words], None)
    assert not others
    return given.resolved()


def test_none_unsets_a_field_of_the_preset_and_no_other():
    assert from_flags("--config.parametrization.alpha=None").parametrization.alpha is None
    with pytest.raises(InputError, match="learning_rate is 'None'"):
        from_flags("--config.optimizer.learning_rate=None")


@pytest.mark.parametrize("text", ["stem,readout", "stem, readout", "('stem', 'readout')", "['stem', 'readout']"])
def test_several_names_may_be_separated_by_commas(text):
    assert tuple(from_flags(f"--config.optimizer.frozen={text}").optimizer.frozen) == ("stem", "readout")


@pytest.mark.parametrize("dtype", ["float64", "float8_e4m3fn", "float8_e5m2"])
def test_a_dtype_in_which_nothing_would_be_computed_is_refused(dtype):
    config = from_flags(f"--config.model.dtype={dtype}")
    with pytest.raises(InputError, match=f"model.dtype is '{dtype}'"):
        build(config)
