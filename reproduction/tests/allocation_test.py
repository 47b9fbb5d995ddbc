"""A recipe spends the compute, and keeps the tuned run at compute 1."""

import functools
import math

import pytest

from depthmup_flax.config.fields import config_hash, default_config
from depthmup_flax.data import LoadOnce
from depthmup_flax.rule.batch_and_steps import Hyperparameters, rescaled_hyperparameters
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.util.errors import InputError
from reproduction.recipe import allocation
from reproduction.recipe.allocation import recipe

LOAD = LoadOnce()
STEPS, BATCH = 400, 32


@pytest.fixture(autouse=True)
def many_examples(monkeypatch):
    """Digits are few."""
    monkeypatch.setattr(allocation, "_PASSES", math.inf)


def tuned(model="res_mlp", **fields):
    config = default_config(model)
    config.model.update(width=32, depth=4, base_width=32, base_depth=4)
    config.data.name = "digits"
    config.optimizer.update(name="adamw", learning_rate=0.01, warmup_steps=40, weight_decay=0.1)
    config.train.update(steps=STEPS, batch_size=BATCH, average_steps=80)
    config.update_from_flattened_dict(fields)
    return config


def cost(config):
    return build(config, load=LOAD).cost


@functools.cache
def parameters(width, depth):
    return build(tuned(**{"model.width": width, "model.depth": depth}), load=LOAD).parameters


@pytest.mark.parametrize("compute", [2.5, 64])
def test_a_recipe_uses_the_compute_up_to_half_a_step_and_a_grain_of_the_width(compute):
    config = tuned()
    run = recipe(config, compute, load=LOAD)
    ratio = cost(run.config) / cost(config)
    assert run.compute == pytest.approx(ratio)
    assert ratio == pytest.approx(compute, rel=0.5 / run.config.train.steps)
    model = run.config.model
    grown = parameters(model.width, model.depth) / parameters(32, 4)
    assert math.log(grown) == pytest.approx(0.33 * math.log(compute), abs=0.4)


def test_at_compute_1_it_is_the_tuned_run():
    config = tuned()
    assert config_hash(recipe(config, 1, load=LOAD).config) == config_hash(config)


def test_hyperparameters_are_the_rescaled_ones_of_its_batch_size_and_steps():
    run = recipe(tuned(), 8, load=LOAD, batch_size=2 * BATCH).config
    before = Hyperparameters(0.01, BATCH, STEPS, warmup_steps=40, weight_decay=0.1)
    expected = rescaled_hyperparameters(before, batch_size=2 * BATCH, steps=run.train.steps, optimizer="adamw")
    for name in ("learning_rate", "weight_decay", "warmup_steps"):
        assert run.optimizer[name] == pytest.approx(getattr(expected, name), rel=1e-5)
    assert (run.optimizer.kwargs.b1, run.optimizer.kwargs.b2) == pytest.approx((expected.b1, expected.b2))


def test_a_given_size_stays():
    run = lambda **given: recipe(tuned(), 64, load=LOAD, **given).config
    deep, wide, both = run(depth=12), run(width=64), run(width=64, depth=12)
    assert (deep.model.depth, wide.model.width) == (12, 64)
    assert deep.model.width > 32
    assert wide.model.depth == 4
    assert (both.model.width, both.model.depth) == (64, 12)
    assert cost(both) == pytest.approx(64 * cost(tuned()), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        tuned("simple_resnet", **{"model.width": 32, "model.depth": 6, "model.base_depth": 6}),
        tuned("resnet", **{"model.width": 8, "model.base_width": 8, "model.stage_sizes": (1, 1, 1, 1)}),
        tuned("vit", **{"model.width": 48, "model.num_heads": 12, "model.patch_size": 4, "model.base_width": 48}),
    ],
    ids=lambda config: config.model.name,
)
def test_sizes_are_those_that_the_network_takes(config):
    run = recipe(config, 16, load=LOAD)
    assert run.compute == pytest.approx(16, rel=0.02)
    assert run.config.model.width > config.model.width


@pytest.mark.parametrize(
    ("compute", "given", "sentence"),
    [
        (0.5, {}, "compute is 0.5: use a number of at least 1"),
        (math.inf, {}, "compute is inf"),
        (2, {"width": 1024, "depth": 64}, "compute is 2, less than one step"),
    ],
)
def test_a_compute_or_size_that_cannot_be_is_one_sentence(compute, given, sentence):
    with pytest.raises(InputError) as caught:
        recipe(tuned(), compute, load=LOAD, **given)
    assert str(caught.value).startswith(sentence)


def test_a_rule_that_does_not_transfer_and_a_config_without_a_base_are_refused():
    for field, value, sentence in (
        ("parametrization.preset", "sp", "does not transfer"),
        ("model.base_width", 0, "is 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            recipe(tuned(**{field: value}), 16, load=LOAD)


def test_examples_are_passed_over_four_times_or_as_often_as_in_the_tuned_run(monkeypatch):
    monkeypatch.setattr(allocation, "_PASSES", 4)
    passes = lambda config: config.train.steps * BATCH / 1500  # training examples of digits
    short, long = tuned(**{"train.steps": 50, "optimizer.warmup_steps": 5}), tuned()
    for config, most in ((short, 4), (long, passes(long))):
        assert 0.7 * most < passes(recipe(config, 16, load=LOAD).config) < 1.3 * most
