"""Rows of metrics have the learning rate, and with train.log_norms the norms of the step that is logged."""

import json
import math
import re

import jax
import numpy as np
import optax
import pytest
from interruption import interrupted_before
from small_runs import a_sweep, assert_same_run, config

from depthmup_flax.config.fields import config_hash
from depthmup_flax.data import LoadOnce, batch_indices
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.search.sweep.grid import expand
from depthmup_flax.search.sweep.groups import plan
from depthmup_flax.trainer.engine.device_batches import CallLength
from depthmup_flax.trainer.engine.from_config import abstract_batch, build
from depthmup_flax.trainer.engine.workload import Periods
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.trainer.runs.checkpoint import read_checkpoint

WARMUP, STEPS = 2, 5


def short_run(log_norms):
    run = config(log_norms=log_norms)
    run.model.use_bias = True
    run.optimizer.update(schedule="cosine", warmup_steps=WARMUP, weight_decay=0.1)
    run.train.update(steps=STEPS, log_every=2, eval_every=STEPS, checkpoint_every=1, keep_checkpoints=STEPS)
    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Work directories of a run without and with norms."""
    directory = tmp_path_factory.mktemp("norms")
    for log_norms in (False, True):
        train_and_evaluate(short_run(log_norms), directory / str(log_norms))
    return {log_norms: directory / str(log_norms) for log_norms in (False, True)}


def rows(directory):
    """Step -> row of training metrics."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row for row in lines if "train_loss" in row}


def rate(step, peak):
    """Of the update that ends ``step``."""
    taken = step - 1
    if taken < WARMUP:
        return peak * taken / WARMUP
    return peak * 0.5 * (1 + math.cos(math.pi * (taken - WARMUP) / (STEPS - WARMUP)))


@pytest.mark.parametrize("log_norms", [False, True])
def test_every_row_has_the_learning_rate_of_its_step_and_only_the_switch_adds_norms(finished, log_norms):
    run, found = short_run(log_norms), rows(finished[log_norms])
    assert list(found) == [2, 4, 5]
    for step, row in found.items():
        assert row["learning_rate"] == pytest.approx(rate(step, run.optimizer.learning_rate), rel=1e-6)
        assert any("norm" in name for name in row) == log_norms


def test_norms_change_neither_the_losses_nor_the_hash(finished):
    assert config_hash(short_run(True)) == config_hash(short_run(False))
    losses = [[row["train_loss"] for row in rows(finished[log_norms]).values()] for log_norms in (False, True)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("step", [2, 5])
def test_norms_are_those_of_a_step_by_hand(finished, step):
    experiment = build(short_run(True))
    data, info = experiment.dataset, experiment.info
    before, after = (
        read_checkpoint(finished[True] / "checkpoints" / str(number), ["carry/params"])[0]["carry"]["params"]
        for number in (step - 1, step)
    )
    images, labels = data.prepare("none", None, data.train.read(batch_indices(0, step - 1, len(data.train), 16)))

    def loss(params):
        logits = experiment.model.apply({"params": params}, images, train=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    trees = {
        "grad": jax.jit(jax.grad(loss))(before),
        "param": before,
        "update": jax.tree.map(lambda old, new: np.asarray(new) - np.asarray(old), before, after),
    }
    roles = {"input", "hidden+branch", "output", "vector", "vector+branch", "fixed"}
    found = {name: value for name, value in rows(finished[True])[step].items() if "norm" in name}
    assert found.keys() == {f"{kind}_norm/{role}" for kind in trees for role in {"all", *roles}}
    of_role = {path: leaf.role + ("+branch" if leaf.in_branch else "") for path, leaf in flatten_info(info).items()}
    for kind, tree in trees.items():
        leaves = (np.asarray(x, np.float64) for x in jax.tree.leaves(tree))
        flat = dict(zip(flatten_info(info), leaves, strict=True))
        for role in {"all", *roles}:
            squares = [np.sum(x**2) for path, x in flat.items() if role in ("all", of_role[path])]
            assert found[f"{kind}_norm/{role}"] == pytest.approx(math.sqrt(sum(squares)), rel=1e-3), (kind, role)


def test_a_step_that_is_measured_is_a_call_of_its_own():
    length, counts = CallLength(16, Periods(11, 4), measures=True), []
    length.steps = 16
    while sum(counts) < 11:
        counts.append(length.at(sum(counts)))
    assert counts == [3, 1, 3, 1, 2, 1]


@pytest.mark.slow
def test_a_run_with_norms_that_is_resumed_is_the_same_run(finished, tmp_path):
    with interrupted_before(3):
        train_and_evaluate(short_run(True), tmp_path)
    train_and_evaluate(short_run(True), tmp_path)
    assert_same_run(tmp_path, finished[True])


def test_a_sweep_measures_nothing():
    sweep = a_sweep(rates=1, depths=(2,))
    sweep.base.train.log_norms = True
    (group,) = plan(sweep, expand(sweep), LoadOnce())
    assert not group.experiment.workload.measures


@pytest.mark.parametrize(("field", "written"), [("", "HIGHEST"), ("tensorfloat32", "HIGH"), ("bfloat16", "DEFAULT")])
def test_products_of_our_networks_are_exact_unless_a_precision_is_asked_for(field, written):
    run = config(matmul_precision=field)
    experiment = build(run)
    arguments = experiment.state_shapes(), abstract_batch(run, experiment.dataset)
    jaxpr = str(jax.make_jaxpr(experiment.workload.step({}))(*arguments))
    assert set(re.findall(r"precision=(.*)", jaxpr)) == {f"(Precision.{written}, Precision.{written})"}
