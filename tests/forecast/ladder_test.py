"""Ladders lie below the target, within the budget, and follow the rule; wrong ones are refused in a sentence."""

import pytest

from depthmup_flax.config.fields import config_hash, default_config
from depthmup_flax.forecast.ladder import LadderPlan, Size, ladder_sweep, rung_config
from depthmup_flax.rule.rescaling import Hyperparameters, rescaled_hyperparameters
from depthmup_flax.sweep.grid import expand
from depthmup_flax.util.errors import InputError

TARGET = Size(512, 32, 4000)


def parameters(size):
    return size.width**2 * size.depth + 100 * size.width


def share(rungs, seeds, target=TARGET):
    cost = lambda size: parameters(size) * size.steps
    return seeds * sum(map(cost, rungs)) / cost(target)


@pytest.mark.parametrize("axes", [("width", "depth"), ("width", "depth", "steps"), ("width",)])
@pytest.mark.parametrize("budget", [0.02, 0.2])
def test_a_planned_ladder_uses_its_budget_and_has_three_values_of_each_axis(axes, budget):
    rungs = LadderPlan(budget, axes).sizes(TARGET, parameters)
    assert budget / 6 < share(rungs, 3) <= budget
    for axis in ("width", "depth", "steps"):
        values = {getattr(rung, axis) for rung in rungs}
        assert (len(values) >= 3 and max(values) < getattr(TARGET, axis)) or values == {getattr(TARGET, axis)}
        assert (len(values) > 1) == (axis in axes)
    assert len(set(rungs)) == len(rungs)


def test_given_sizes_are_combined_and_others_are_the_targets():
    rungs = LadderPlan(widths=(8, 16, 32), steps=(100, 200, 400)).sizes(TARGET, parameters)
    assert len(rungs) == 9
    assert {rung.depth for rung in rungs} == {32}


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ({"widths": (16,)}, "the ladder has one size: "),
        ({"widths": (16, 32)}, "the ladder has width 16 and 32, and the target 512: a law needs 3 values. "),
        ({"widths": (16, 32, 1024)}, "the target's width is 512, and the ladder has width 1024: "),
        ({"widths": (128, 256, 512)}, "the target is a rung of the ladder: "),
        ({"depths": (0, 2, 4)}, "the ladder has depth 0: "),
        ({"axes": ("hight",)}, "--axes has 'hight': "),
        ({"budget": 0.0}, "--budget is 0.0: "),
        ({"budget": "5%"}, "--budget is '5%': "),
        ({"budget": 0.1, "widths": (8, 16, 32)}, "--budget and --axes plan rungs, "),
        ({"axes": ()}, "--axes is '': "),
        ({"axes": ("width", "width")}, "--axes is 'width,width': "),
        (
            {"budget": 1e-7},
            "--budget is 1e-05% of the target's operations: the smallest ladder, with --seeds=3, ",
        ),
        ({"seeds": 0}, "--seeds is 0: "),
    ],
)
def test_a_wrong_ladder_is_refused(plan, sentence):
    with pytest.raises(InputError) as caught:
        LadderPlan(**plan).sizes(TARGET, parameters)
    assert str(caught.value).startswith(sentence)


def test_a_network_that_has_no_small_sizes_asks_for_their_names():
    def deep_only(size):
        if size.depth < 16:
            raise InputError("model.depth is too small.")
        return parameters(size)

    with pytest.raises(InputError, match=r"model.depth is too small\. Name the rungs, such as --widths"):
        LadderPlan(0.2).sizes(TARGET, deep_only)
    with pytest.raises(InputError) as caught:  # naming rungs would not help
        LadderPlan(0.2).sizes(Size(512, 8, 4000), deep_only)
    assert str(caught.value) == "model.depth is too small."


def tuned():
    config = default_config("res_mlp")
    config.model.update(width=64, depth=8, base_width=32, base_depth=4)
    config.data.name = "digits"
    config.optimizer.update(learning_rate=0.01, warmup_steps=40, weight_decay=0.1, name="adamw")
    config.train.update(steps=400, epochs=0.0, average_steps=80)
    return config


def test_a_rung_with_fewer_steps_has_the_rescaled_hyperparameters_and_one_with_as_many_is_the_tuned_run():
    config = tuned()
    same = rung_config(config, 400, 23, Size(64, 8, 400), 64)
    assert config_hash(same) == config_hash(config)
    rung = rung_config(config, 400, 23, Size(16, 2, 100), 64)
    expected = rescaled_hyperparameters(
        Hyperparameters(0.01, 64, 400, warmup_steps=40, weight_decay=0.1), steps=100, optimizer="adamw"
    )
    assert rung.optimizer.learning_rate == pytest.approx(expected.learning_rate, rel=1e-5)
    assert rung.optimizer.weight_decay == pytest.approx(expected.weight_decay, rel=1e-5)
    assert (rung.optimizer.warmup_steps, rung.train.steps, rung.train.average_steps) == (10, 100, 20)
    assert (rung.model.width, rung.model.depth, rung.model.base_width) == (16, 2, 32)


def test_the_sweep_of_a_ladder_trains_each_rung_with_every_seed_and_nothing_else():
    sizes = [Size(16, 2, 100), Size(32, 4, 100), Size(32, 4, 400)]
    configs = {size: rung_config(tuned(), 400, 23, size, 64) for size in sizes}
    runs = expand(ladder_sweep(configs, 2, "train"))
    trained = {
        (run.config.model.width, run.config.model.depth, run.config.train.steps, run.config.seed) for run in runs
    }
    assert trained == {(size.width, size.depth, size.steps, seed) for size in sizes for seed in (0, 1)}
    assert len(runs) == 6
    rates = {run.config.train.steps: run.config.optimizer.learning_rate for run in runs}
    assert rates[400] < rates[100]
