"""reproduction/drift: the small start is the random one with a smaller readout, and the decisions are as registered."""

import dataclasses

import jax
import numpy as np
import pytest
from planted_sweeps import sweep_of

from depthmup_flax.config import default_config
from depthmup_flax.data import LoadOnce
from depthmup_flax.report.transfer import analyze
from depthmup_flax.storage.sweep_records import LEARNING_RATE
from depthmup_flax.trainer.engine.from_config import build
from reproduction.drift.benchmark import AT_ZERO
from reproduction.drift.cells import EIGHTH, small_readout
from reproduction.drift.table import Result, costs_of, drifts_less
from reproduction.rules.version2.tasks import TASKS


def losses_of(optimizer, fields, smaller):
    """The first four losses; ``smaller`` divides the readout at the start."""
    config = default_config("res_mlp")
    config.model.update(width=8, depth=2, base_width=8, base_depth=2)
    config.data.update(name="synthetic", train_examples=64, test_examples=16)
    config.optimizer.update(name=optimizer, learning_rate=2.0**-6)
    config.train.update(steps=4, batch_size=16)
    config.parametrization.update(fields)
    experiment = build(config, load=LoadOnce())
    batch = experiment.prepare(None, experiment.dataset.train.read(np.arange(16)))
    state = experiment.init({})
    readout = state.carry.params["readout"]
    readout["kernel"] = readout["kernel"] / smaller
    step, losses = jax.jit(experiment.step({})), []
    for _ in range(4):
        state, _ = step(state, batch)
        losses.append(float(state.last_loss))
    return losses


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_small_start_trains_as_a_readout_that_is_eight_times_smaller(optimizer):
    small = losses_of(optimizer, small_readout(optimizer), smaller=1)
    assert small == pytest.approx(losses_of(optimizer, {}, smaller=EIGHTH), rel=1e-5)
    assert small != pytest.approx(losses_of(optimizer, {}, smaller=1), rel=1e-3)


def planted(shift, lowest):
    """A cell whose best rate moves by ``shift`` octaves at four times the width; its lowest loss there."""
    of_width = {32: (0, 1.5), 128: (shift, lowest)}

    def loss(point):
        moved, least = of_width[point["model.width"]]
        return least + 0.05 * (np.log2(point[LEARNING_RATE]) + 7 - moved) ** 2 + 0.001 * point["seed"]

    axes = {"model.width": tuple(of_width), LEARNING_RATE: [2.0**k for k in range(-10, -4)], "seed": (0, 1, 2)}
    model = {"width": 32, "depth": 4, "base_width": 32, "base_depth": 4}
    sweep = sweep_of(loss, axes, model=model, x=LEARNING_RATE)
    (variant,) = analyze(dataclasses.replace(sweep.info, chance=2.5), sweep.records).variants
    return Result(variant, excess=0.0)


def test_regret_is_a_share_of_what_the_base_learns():
    result = planted(shift=1, lowest=1.5)
    assert result.regret(result.worst) == pytest.approx(0.05, rel=0.05)  # 0.05 of 2.5 - 1.5


def test_a_start_drifts_less_where_its_worst_regret_is_lower_by_a_hundredth():
    assert drifts_less(planted(shift=1, lowest=1.5), planted(shift=0, lowest=1.5))
    assert not drifts_less(planted(shift=0.3, lowest=1.5), planted(shift=0, lowest=1.5))
    assert not drifts_less(planted(shift=0, lowest=1.5), planted(shift=1, lowest=1.5))


def test_a_start_costs_where_its_lowest_loss_is_higher_by_more_than_a_hundredth():
    ((size, share, half),) = costs_of(planted(shift=0, lowest=1.4), planted(shift=0, lowest=1.43))
    assert (size, share, half) == ((128, 4), pytest.approx(0.03, rel=0.05), pytest.approx(0, abs=1e-6))
    assert costs_of(planted(shift=0, lowest=1.4), planted(shift=0, lowest=1.405)) == []
    assert costs_of(planted(shift=0, lowest=1.43), planted(shift=0, lowest=1.4)) == []


@pytest.mark.parametrize("name", TASKS)
def test_the_benchmarks_tasks_at_zero_differ_by_the_readout_alone(name):
    random, zero = TASKS[name].config(), AT_ZERO[name].config()
    assert not random.model.zero_init_readout
    random.model.zero_init_readout = True
    assert zero.to_dict() == random.to_dict()
