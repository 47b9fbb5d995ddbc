"""Ladders lie below the target, within the budget, and follow the rule; wrong ones are refused in a sentence."""

import pytest

from depthmup_flax.config.fields import config_hash, default_config
from depthmup_flax.rule.batch_and_steps import Hyperparameters, rescaled_hyperparameters
from depthmup_flax.search.forecast.ladder import LadderPlan, Size, ladder_sweep, rung_config
from depthmup_flax.search.sweep.grid import expand
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


def test_the_default_budget_of_a_small_target_is_what_the_smallest_ladder_takes():
    target = Size(128, 16, 1000)
    smallest = LadderPlan().sizes(target, parameters)
    needed = share(smallest, 3, target)
    assert needed > 0.05
    with pytest.raises(InputError, match="budget is 5%: the smallest ladder"):
        LadderPlan("5%").sizes(target, parameters)
    assert LadderPlan(f"{100 * needed + 1e-6}%").sizes(target, parameters) == smallest


def test_a_planned_ladder_varies_the_axes_with_three_smaller_sizes_and_refuses_others_if_asked():
    values = lambda rungs, axis: {getattr(rung, axis) for rung in rungs}
    for target in (Size(512, 1, 100), Size(512, 4, 100)):
        rungs = LadderPlan(0.5).sizes(target, parameters)
        assert len(values(rungs, "width")) >= 3
        assert values(rungs, "depth") == {target.depth}
        with pytest.raises(InputError, match=f"^the target's depth is {target.depth}: .* leave depth out of axes"):
            LadderPlan(0.5, ("width", "depth")).sizes(target, parameters)
    for steps in (1, 12, 32):
        with pytest.raises(InputError, match=f"^the target's steps is {steps}: .* leave steps out of axes"):
            LadderPlan(0.5, ("width", "depth", "steps")).sizes(Size(512, 32, steps), parameters)
    with pytest.raises(InputError, match=r"^the target's width is 8: "):
        LadderPlan().sizes(Size(8, 4, 100), parameters)


def test_given_sizes_are_combined_and_others_are_the_targets():
    rungs = LadderPlan(widths=(8, 16, 32), steps=(100, 200, 400)).sizes(TARGET, parameters)
    assert len(rungs) == 9
    assert {rung.depth for rung in rungs} == {32}


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ({"widths": (16,)}, "the ladder has one size: "),
        ({"depths": (2, 2, 2)}, "the ladder has one size: "),
        ({"widths": (16,), "depths": (4,), "steps": (100,)}, "the ladder has one size: "),
        ({"widths": (16, 32)}, "the ladder has width 16 and 32, and the target 512: a law needs 3 values."),
        ({"widths": (16, 32, 1024)}, "the ladder has width 1024, above the target's 512"),
        ({"depths": (4, 8, 64)}, "the ladder has depth 64, above the target's 32"),
        ({"steps": (100, 200, 8000)}, "the ladder has steps 8000, above the target's 4000"),
        ({"widths": (128, 256, 512)}, "the target is a rung of the ladder: "),
        ({"depths": (8, 16, 32), "steps": (1000, 2000, 4000)}, "the target is a rung of the ladder: "),
        ({"depths": (0, 2, 4)}, "the ladder has depth 0: "),
        ({"axes": ("hight",)}, "axes has 'hight': "),
        ({"budget": 0.0}, "budget is 0.0: "),
        ({"budget": "5 days"}, "budget is '5 days': "),
        ({"budget": "nan%"}, "budget is 'nan%': "),
        ({"budget": "5"}, "budget is '5': "),
        ({"budget": 5}, "budget is 5: "),
        ({"budget": 0.1, "widths": (8, 16, 32)}, "budget and axes plan rungs, "),
        ({"axes": ()}, "axes is '': "),
        ({"axes": ("width", "width")}, "axes is 'width,width': "),
        (
            {"budget": 1e-7},
            "budget is 1e-07: the smallest ladder, with seeds=3, needs 0.74",
        ),
        ({"seeds": 0}, "seeds is 0: "),
    ],
)
def test_a_wrong_ladder_is_refused(plan, sentence):
    with pytest.raises(InputError) as caught:
        LadderPlan(**plan).sizes(TARGET, parameters)
    assert str(caught.value).startswith(sentence)


def test_the_rungs_of_a_network_without_small_sizes_are_those_that_it_has():
    def at_least(depth):
        def network(size):
            if size.depth < depth:
                raise InputError("model.depth is too small.")
            return parameters(size)

        return network

    assert {rung.depth for rung in LadderPlan().sizes(Size(512, 24, 100), at_least(3))} == {3, 6, 12}
    assert {rung.depth for rung in LadderPlan().sizes(Size(512, 24, 100), at_least(12))} == {24}
    with pytest.raises(InputError) as caught:  # the target has no such size
        LadderPlan().sizes(Size(512, 8, 4000), at_least(12))
    assert str(caught.value) == "model.depth is too small."

    def wide_or_deep(size):
        return at_least(99 if size.width < 512 else 3)(size) if size.depth < 32 else parameters(size)

    with pytest.raises(InputError, match=r"model.depth is too small\. Name the rungs, such as widths"):
        LadderPlan().sizes(Size(512, 32, 100), wide_or_deep)


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
