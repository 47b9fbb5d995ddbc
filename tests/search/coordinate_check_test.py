"""The coordinate check of a user's network: a right one passes, one without its multipliers fails."""

import equinox as eqx
import haiku as hk
import jax
import numpy as np
import pytest
from flax import nnx

from depthmup_flax.config import default_config
from depthmup_flax.networks.import_paths import register
from depthmup_flax.search.coordinate_check import check_config
from depthmup_flax.trainer.engine.task import Task
from depthmup_flax.util.errors import InputError

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(32, 6)).astype(np.float32)


def factor(rule, depth, lacks):
    return 1.0 if lacks else rule.residual_multiplier(depth / 2)


class Equinox(eqx.Module):
    stem: eqx.nn.Linear
    block: list
    head: eqx.nn.Linear
    factors: tuple

    def __init__(self, width, depth, lacks=False, *, rule, key):
        keys = jax.random.split(key, depth + 2)
        self.stem, self.head = eqx.nn.Linear(6, width, key=keys[0]), eqx.nn.Linear(width, 3, key=keys[1])
        self.block = [eqx.nn.Linear(width, width, key=key) for key in keys[2:]]
        self.factors = factor(rule, depth, lacks), rule.readout_multiplier(width / 16)

    def __call__(self, x):
        h = self.stem(x)
        for block in self.block:
            h = h + self.factors[0] * block(jax.nn.relu(h))
        return self.head(h * self.factors[1])


class Nnx(nnx.Module):
    def __init__(self, width, depth, *, rule, rngs):
        self.stem, self.head = nnx.Linear(6, width, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)
        self.block = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.factors = factor(rule, depth, False), rule.readout_multiplier(width / 16)

    def __call__(self, x):
        h = self.stem(x)
        for block in self.block:
            h = h + self.factors[0] * self.drop(block(jax.nn.relu(h)))
        return self.head(h * self.factors[1])


def haiku(width, depth, rule):
    def forward(x):
        h = hk.Linear(width, name="stem")(x)
        for i in range(depth):
            h = h + factor(rule, depth, False) * hk.Linear(width, name=f"block_{i}")(jax.nn.relu(h))
        return hk.Linear(2, name="head")(h * rule.readout_multiplier(width / 16))

    return hk.transform(forward)


def absolute_errors(outputs, targets):
    return abs(outputs - targets).mean()


def classes():
    return (INPUTS, np.arange(32) % 3), (INPUTS[:8], np.arange(8) % 3)


def targets():
    return (INPUTS, INPUTS[:, :2]), (INPUTS[:8], INPUTS[:8, :2])


def config(model, data=classes, **fields):
    run = default_config(register(model, "model"))
    run.model.update(width=32, depth=2, base_width=16, base_depth=2, **fields)
    run.data.name = f"python:{register(data, 'data')}"
    run.train.batch_size = 8
    return run


def report(run, **sizes):
    return check_config(run, **{"widths": [], "depths": [], **sizes}, steps=1, seeds=8, batch_size=4)


@pytest.mark.slow
@pytest.mark.parametrize("lacks", [False, True])
def test_a_network_passes_over_depth_whether_its_code_has_the_multiplier_or_parameters_carry_it(lacks):
    found = report(config(Equinox, lacks=lacks), depths=[2, 4, 8], width=64)
    assert found.ok, str(found)


@pytest.mark.slow
def test_readouts_that_are_stored_transposed_start_at_the_rules_scale():
    right = report(config(Equinox), widths=[64, 128, 256])
    assert right.ok, str(right)


@pytest.mark.slow
def test_the_parameters_of_nnx_are_recorded():
    found = report(config(Nnx), widths=[16, 64])
    assert "stem/kernel" in {record.name for record in found.records if record.quantity == "gradient"}


@pytest.mark.slow
def test_a_loss_of_their_own_is_that_of_the_check():
    run = config(haiku, targets)
    run.loss = register(absolute_errors, "loss")
    found = report(run, widths=[64, 128, 256])
    assert found.ok, str(found)


def test_a_training_step_has_no_network_to_check():
    def task(width, depth):
        step = lambda state, batch, hyper: (state, {"loss": state.sum() * hyper["learning_rate"]})
        return Task(lambda key, hyper: jax.random.normal(key, (width,)), step)

    with pytest.raises(InputError, match="training step"):
        check_config(config(task))
