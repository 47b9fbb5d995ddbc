"""A failed check reads the forward pass for the cause, where it can."""

import jax
import pytest
from chains import RULE, X, causes, check

import depthmup_flax as dm
from depthmup_flax.coord_check import Source


def readable(chain):
    """The chain as the audit takes it: a function of parameters and a batch."""
    return Source((lambda params, x: chain.apply(params, x)[0], jax.eval_shape(chain.init, jax.random.key(0))), X)


def unreadable(chain):
    """A model that cannot be traced."""
    del chain

    def broken(params, x):
        raise RuntimeError("not here")

    return Source((broken, {}), X)


@pytest.mark.parametrize("source", [readable, unreadable])
def test_a_missing_factor_has_its_weights_if_the_code_can_be_read_and_its_name_if_not(source):
    report = check("width", readout_multiplier=False, source=source)
    assert next(iter(causes(report))) == "readout_not_scaled"
    read = "read from the code" in report.causes[0].text
    assert read == (source is readable)
    assert causes(report)["readout_not_scaled"] == (("head/kernel",) if read else ("head",))


def test_what_is_wrong_with_the_optimizer_is_not_hidden_by_a_forward_pass_without_mistakes():
    optimizer = lambda info: dm.adamw(3e-3, info, RULE.replace(gamma=0.0))
    report = check("depth", make_optimizer=optimizer, source=readable)
    assert list(causes(report)) == ["missing_depth_update_factor"]


def test_weights_that_every_block_shares_fail_by_their_number_of_uses():
    """Under alpha = 1/2 activations grow as exp(2 sqrt(L)) times the multiplier, which shallow networks hide."""
    report = check("depth", shared=True, seeds=2)
    assert [q.name for q in report.failures if q.kind == "uses"] == ["blocks/dense/kernel"]
    assert "uses of blocks/dense/kernel in a forward pass" in str(report)
    assert "repeated_weights" in causes(report)


def test_one_standard_deviation_at_every_width_fails_by_the_initial_weights_alone():
    """Activations may hide it at small widths, where the stem decides them; initial weights hide nothing."""
    report = check("width", fixed_std=True, seeds=2)
    (start,) = [q for q in report.failures if q.kind == "start"]
    assert (start.name, start.verdict) == ("blocks/dense/kernel", "grows")
    assert start.fit.slope == pytest.approx(0.0, abs=0.02)
    assert start.expected == -0.5
