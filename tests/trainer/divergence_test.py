"""Runs that diverge: no checkpoint that is not finite replaces a finite one, and the last finite state can be read."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import optax
import pytest
from small_runs import config

from depthmup_flax.trainer import loop
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.engine.outcome import diverged_in, outcome, read
from depthmup_flax.trainer.engine.task import is_finite
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.runs.checkpoint import read_checkpoint


def diverging():
    """A run with checkpoints at every step and no other event before step 60; its rate jumps at step 8."""
    run = config(checkpoint_every=1)
    run.train.update(steps=60, eval_every=60, log_every=60)
    return run


@pytest.fixture
def rate_jumps(monkeypatch):
    """The updates of step 9 are times 1e36."""
    factor = optax.scale_by_schedule(lambda count: jnp.where(count == 8, 1e36, 1.0))
    original = loop.build

    def jumping(run):
        experiment = original(run)
        network = experiment.network
        jumps = dataclasses.replace(network, optimizer=optax.chain(network.optimizer, factor))
        return dataclasses.replace(experiment, work=jumps)

    monkeypatch.setattr(loop, "build", jumping)


def saved(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())


def finite(workdir, number):
    state, _ = read_checkpoint(workdir / "checkpoints" / str(number))
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(state))


def test_the_last_finite_checkpoints_stay_and_the_run_ends_at_the_first_checkpoint_after(rate_jumps, tmp_path, logged):
    result = train_and_evaluate(diverging(), tmp_path)
    assert result["status"] == "diverged"
    assert result["diverged_at_step"] in (9, 10)
    assert result["steps"] in (9, 10)  # not 60, the next log
    assert result["test_loss"] is None
    assert result["diverged_in"] == "the training loss" or "kernel" in result["diverged_in"]
    json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail)  # no NaN in the file
    assert saved(tmp_path)[-1] in (8, 9)
    assert all(finite(tmp_path, number) for number in saved(tmp_path))
    out = logged.text
    assert f"The last finite state is in {tmp_path / 'checkpoints' / str(saved(tmp_path)[-1])}." in out
    assert train_and_evaluate(diverging(), tmp_path) == result


def test_what_was_not_finite_first_is_named():
    state = build(config()).init({})
    assert diverged_in(state.replace(nonfinite_step=jnp.array(3)), {}) == "the training loss"
    assert diverged_in(state, {"test_loss": math.nan}) == "the test loss"
    params = dict(state.carry.params)
    params["readout"] = jax.tree.map(lambda x: x * jnp.nan, params["readout"])
    assert "readout" in diverged_in(state.replace(carry=state.carry.replace(params=params)), {"test_loss": 1.0})


def test_a_run_of_several_in_one_program_names_it_without_its_parameters():
    state = build(config()).init({})
    assert outcome(read(state), {"test_loss": math.nan})["diverged_in"] == "the test loss"
    assert outcome(read(state), {"test_loss": 1.0})["diverged_in"] is None


def test_a_state_is_finite_if_no_parameter_is_nan_or_infinite_and_no_moment_is_nan():
    experiment = build(config())
    state = experiment.init({})

    def with_first(tree, value):
        leaves, structure = jax.tree.flatten(tree)
        place = next(i for i, leaf in enumerate(leaves) if leaf.dtype == jnp.float32)
        leaves[place] = leaves[place].at[(0,) * leaves[place].ndim].set(value)
        return jax.tree.unflatten(structure, leaves)

    def finite_with(**carry):
        return is_finite(experiment.task, state.replace(carry=state.carry.replace(**carry)))

    assert finite_with()
    for value in (jnp.nan, jnp.inf, -jnp.inf):
        assert not finite_with(params=with_first(state.carry.params, value))
    assert not finite_with(opt_state=with_first(state.carry.opt_state, jnp.nan))
    assert finite_with(opt_state=with_first(state.carry.opt_state, jnp.inf))  # none yet
    assert is_finite(experiment.task, state.replace(last_loss=jnp.float32(jnp.nan)))
