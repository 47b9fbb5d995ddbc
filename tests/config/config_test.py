"""Values on a command line: ``None``, several names, and types that are refused."""

import pytest

from depthmup_flax import InputError
from depthmup_flax.config.fields import default_config, set_field, validate
from depthmup_flax.config.flags import split
from depthmup_flax.trainer.engine.from_config import build


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


@pytest.mark.parametrize("field", ["model.width", "model.depth", "model.base_width", "train.batch_size", "train.steps"])
def test_a_number_that_no_array_has_is_refused(field):
    run = default_config()
    set_field(run, field, 10**20)
    with pytest.raises(InputError, match=field):
        validate(run)
