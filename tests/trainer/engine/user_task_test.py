"""A training step of the user's own: trained as they would, in lanes as alone, resumed; and what they may do wrong."""

import itertools

import jax
import numpy as np
import pytest
import users_code
from small_runs import assert_same_run

from depthmup_flax.config import default_config
from depthmup_flax.data import batch_indices
from depthmup_flax.devices.preemption import Preemption
from depthmup_flax.networks.user_code import UserCodeError
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.sweep_records import read_sweep
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.trainer.loop import train_and_evaluate
from depthmup_flax.util.errors import InputError

STEPS, BATCH = 10, 16


def config(model="users_code:momentum_step", **hyper):
    run = default_config(model)
    run.data.name = "python:users_code:load"
    run.hyper.update(hyper)
    run.model.update(width=8, depth=2)
    run.optimizer.learning_rate = 0.1
    run.train.update(steps=STEPS, batch_size=BATCH, eval_batch_size=10, log_every=4, eval_every=5, average_steps=3)
    return run


def by_hand(seed=0, rate=0.1, friction=0.5):
    """Losses of every step, and the metrics of the test split, by a plain loop over the user's functions."""
    task = users_code.momentum_step(8, 2)
    hyper = {"learning_rate": rate, "friction": friction}
    (x, y), (test_x, test_y) = users_code.load()
    state, losses = task.init(jax.random.key(seed), hyper), []
    for step in range(STEPS):
        rows = batch_indices(seed, step, len(x), BATCH)
        state, metrics = task.step(state, (x[rows], y[rows]), hyper)
        losses.append(float(metrics["loss"]))
    return losses, {k: float(v) for k, v in task.evaluate(state, (test_x, test_y), hyper).items()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("own_step")
    return directory, train_and_evaluate(config(friction=0.5), directory)


def test_a_run_is_the_users_own_loop(finished):
    losses, test = by_hand()
    _, result = finished
    assert result["status"] == "completed"
    assert result["train_loss"] == pytest.approx(losses[-1], rel=1e-4)
    assert result["train_loss_avg"] == pytest.approx(np.mean(losses[-3:]), rel=1e-4)
    # 23 examples in batches of 10: the mean over examples, not over batches.
    assert result["test_loss"] == pytest.approx(test["loss"], rel=1e-4)
    assert result["test_metrics"]["test_largest"] == pytest.approx(test["largest"], rel=1e-5)


def test_runs_in_lanes_are_the_users_own_loops(tmp_path):
    grid = {"optimizer.learning_rate": (0.05, 0.1), "hyper.friction": (0.2, 0.5), "seed": (0,)}
    swept = sweep_config(config(friction=0.5), {"all": grid}, figure="own", title="Own.", scale="smoke")
    records = sweep(swept, tmp_path, lanes=0)
    assert {record.lanes for record in records} != {1}
    assert len(records) == 4
    for record in records:
        point = record.point
        losses, test = by_hand(point["seed"], point["optimizer.learning_rate"], point["hyper.friction"])
        assert record.train_loss == pytest.approx(losses[-1], rel=1e-4)
        assert record.test_loss == pytest.approx(test["loss"], rel=1e-4)
    assert "users_code" in read_sweep([tmp_path]).info.base["source"]


def test_an_interrupted_run_continues_bit_for_bit_with_the_key_in_its_state(finished, tmp_path, monkeypatch):
    steps = itertools.count(1)
    with monkeypatch.context() as patch:
        patch.setattr(Preemption, "reached", lambda self: next(steps) >= 5)
        assert train_and_evaluate(config(friction=0.5), tmp_path)["status"] == "preempted"
    train_and_evaluate(config(friction=0.5), tmp_path)
    assert_same_run(tmp_path, finished[0])


def test_a_step_may_build_its_optimizer_from_a_hyperparameter_that_is_0_or_not(tmp_path):
    results = [train_and_evaluate(config("users_code:decayed_step", decay=x), tmp_path / str(x)) for x in (0.0, 0.1)]
    assert [(result["status"], result["test_loss"]) for result in results] == [("completed", None)] * 2  # no evaluate
    assert results[0]["train_loss"] != results[1]["train_loss"]


MISTAKES = """
    only_a_state no_loss other_shape other_type other_structure counts_outside random_by_numpy
    counts_in_python reads_unset bad_evaluate
"""


@pytest.mark.parametrize("mistake", MISTAKES.split())
def test_a_mistake_in_a_step_is_an_error_before_anything_trains(mistake):
    with pytest.raises(InputError, match=mistake):
        build(config(f"users_code:{mistake}"))


def test_an_error_in_a_step_keeps_its_traceback_below_what_was_called():
    with pytest.raises(UserCodeError, match=r"users_code:raises: step\(float32\[3\], .*shapes do not fit") as raised:
        build(config("users_code:raises"))
    assert raised.value.__cause__.__traceback__.tb_next is not None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hyper.unread": 1.0}, "hyper.unread"),
        ({"optimizer.weight_decay": 0.1}, "optimizer.weight_decay"),
        ({"optimizer.name": "sgd"}, "optimizer.name"),
        ({"loss": "squared_error"}, "loss"),
        ({"train.accumulate": 2}, "train.accumulate"),
        ({"mesh.fsdp": 2}, "mesh.fsdp"),
    ],
)
def test_what_an_own_step_does_not_read_is_refused(changes, field):
    run = config("users_code:sgd")
    for path, value in changes.items():
        section, _, name = path.rpartition(".")
        (run[section] if section else run)[name] = value
    with pytest.raises(InputError) as raised:
        build(run)
    assert str(raised.value).startswith(field)


def test_a_sweep_over_what_an_own_step_does_not_read_is_refused(tmp_path):
    grid = {"optimizer.learning_rate": (0.1, 0.2), "optimizer.weight_decay": (0.0, 0.1)}
    swept = sweep_config(config("users_code:sgd"), {"all": grid}, figure="own", title="Own.", scale="smoke")
    with pytest.raises(InputError, match=r"weight_decay"):
        sweep(swept, tmp_path)
