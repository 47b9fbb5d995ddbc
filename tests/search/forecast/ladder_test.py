"""Ladders lie below the target, within the budget, and follow the rule; wrong ones are refused in a sentence."""

import pytest

from depthmup_flax.config.fields import config_hash, default_config
from depthmup_flax.rule.batch_and_steps import Hyperparameters, rescaled_hyperparameters
from depthmup_flax.search.forecast.ladder import LadderPlan, ladder_sweep, rung_config
from depthmup_flax.search.forecast.law import Rung
from depthmup_flax.search.sweep.grid import expand
from depthmup_flax.util.errors import InputError

TARGET = Rung(512, 32, 4000)


def parameters(size):
    return size.width**2 * size.depth + 100 * size.width


def share(rungs, target, seeds=3):
    return seeds * sum(rung.cost for rung in rungs) / (parameters(target) * target.steps)


def values(rungs, axis):
    return sorted({getattr(rung, axis) for rung in rungs})


@pytest.mark.parametrize("budget", [0.02, 0.2])
def test_a_planned_ladder_uses_its_budget_and_halves_width_and_depth(budget):
    rungs = LadderPlan(budget=budget).rungs(TARGET, parameters)
    assert budget / 8 < share(rungs, TARGET) <= budget
    assert len(rungs) == 9
    for axis in ("width", "depth"):
        small, middle, large = values(rungs, axis)
        assert 4 * small == 2 * middle == large < getattr(TARGET, axis)
    assert values(rungs, "steps") == [4000]


def test_the_default_budget_of_a_small_target_is_what_the_smallest_ladder_takes():
    target = Rung(128, 16, 1000)
    smallest = LadderPlan().rungs(target, parameters)
    needed = share(smallest, target)
    assert needed > 0.05
    with pytest.raises(InputError, match=r"budget is 0\.05: the smallest ladder needs 0.286"):
        LadderPlan(budget=0.05).rungs(target, parameters)
    assert LadderPlan(budget=needed + 1e-6).rungs(target, parameters) == smallest


def test_a_planned_ladder_varies_the_axes_with_enough_smaller_sizes():
    for depth in (1, 4):
        rungs = LadderPlan(budget=0.5).rungs(Rung(512, depth, 100), parameters)
        assert (values(rungs, "width"), values(rungs, "depth")) == ([16, 32, 64, 128], [depth])
    with pytest.raises(InputError, match=r"^the target has too few sizes of a half"):
        LadderPlan().rungs(Rung(8, 4, 100), parameters)


def test_given_sizes_are_combined_and_others_are_the_targets():
    rungs = LadderPlan(widths=(8, 16, 32), steps=(100, 200, 400)).rungs(TARGET, parameters)
    assert len(rungs) == 9
    assert {rung.depth for rung in rungs} == {32}
    assert all(rung.parameters == parameters(rung) for rung in rungs)


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ({"widths": (16, 32)}, "the ladder has 2 values of width: a law needs 3."),
        ({"widths": (8, 16, 32)}, "the ladder has 3 sizes: a law and its error need 4."),
        ({"widths": (16, 32, 1024)}, "the ladder has width 1024, above the target's 512"),
        ({"steps": (100, 200, 8000)}, "the ladder has steps 8000, above the target's 4000"),
        ({"widths": (64, 128, 256, 512)}, "the target is a rung of the ladder: "),
        ({"budget": 0.0}, "budget is 0.0: "),
        ({"budget": 0.1, "widths": (8, 16, 32)}, "budget plans rungs, "),
        ({"budget": 1e-7}, "budget is 1e-07: the smallest ladder needs 0.0"),
        ({"seeds": 0}, "seeds is 0: "),
    ],
)
def test_a_wrong_ladder_is_refused(plan, sentence):
    with pytest.raises(InputError) as caught:
        LadderPlan(**plan).rungs(TARGET, parameters)
    assert str(caught.value).startswith(sentence)


def test_the_rungs_of_a_network_without_small_sizes_are_those_that_it_has():
    def at_least(depth):
        def network(size):
            if size.depth < depth:
                raise InputError("model.depth is too small.")
            return parameters(size)

        return network

    assert values(LadderPlan().rungs(Rung(512, 24, 100), at_least(3)), "depth") == [3, 6, 12]
    assert values(LadderPlan().rungs(Rung(512, 24, 100), at_least(12)), "depth") == [24]
    with pytest.raises(InputError) as caught:  # the target has no such size
        LadderPlan().rungs(Rung(512, 8, 4000), at_least(12))
    assert str(caught.value) == "model.depth is too small."


def tuned():
    config = default_config("res_mlp")
    config.model.update(width=64, depth=8, base_width=32, base_depth=4)
    config.data.name = "digits"
    config.optimizer.update(learning_rate=0.01, warmup_steps=40, weight_decay=0.1, name="adamw")
    config.train.update(steps=400, epochs=0.0, average_steps=80)
    return config


@pytest.mark.filterwarnings("ignore::UserWarning")  # a kept rate is uncertain
def test_a_rung_with_fewer_steps_has_the_rescaled_hyperparameters_and_one_with_as_many_is_the_tuned_run():
    config = tuned()
    same = rung_config(config, 400, 23, Rung(64, 8, 400), 64)
    assert config_hash(same) == config_hash(config)
    rung = rung_config(config, 400, 23, Rung(16, 2, 100), 64)
    expected = rescaled_hyperparameters(
        Hyperparameters(0.01, 64, 400, warmup_steps=40, weight_decay=0.1), steps=100, optimizer="adamw"
    )
    assert rung.optimizer.learning_rate == pytest.approx(expected.learning_rate, rel=1e-5)
    assert rung.optimizer.weight_decay == pytest.approx(expected.weight_decay, rel=1e-5)
    assert (rung.optimizer.warmup_steps, rung.train.steps, rung.train.average_steps) == (10, 100, 20)
    assert (rung.model.width, rung.model.depth, rung.model.base_width) == (16, 2, 32)


def test_the_sweep_of_a_ladder_trains_each_rung_with_every_seed_and_nothing_else():
    sizes = [Rung(16, 2, 100), Rung(32, 4, 100), Rung(32, 4, 400)]
    config = tuned()
    config.optimizer.weight_decay = 0.0  # with it, rates stay over the number of examples
    configs = {size: rung_config(config, 400, 23, size, 64) for size in sizes}
    runs = expand(ladder_sweep(configs, 2, "train"))
    trained = {
        (run.config.model.width, run.config.model.depth, run.config.train.steps, run.config.seed) for run in runs
    }
    assert trained == {(size.width, size.depth, size.steps, seed) for size in sizes for seed in (0, 1)}
    assert len(runs) == 6
    rates = {run.config.train.steps: run.config.optimizer.learning_rate for run in runs}
    assert rates[400] < rates[100]


def test_rungs_and_targets_keep_the_stages_of_a_resnet_only_at_its_depth():
    config = default_config("resnet")
    config.model.update(width=32, depth=16, stage_sizes=(3, 4, 6, 3), base_width=16, base_depth=8)
    sizes = [Rung(16, 16, 100), Rung(32, 8, 100)]
    runs = expand(ladder_sweep({size: rung_config(config, 100, 23, size, 64) for size in sizes}, 1, "train"))
    assert [run.config.model.stage_sizes for run in runs] == [(3, 4, 6, 3), ()]
